import json
from dataclasses import replace

import pytest
import torch

from analysis import alignment_store
from analysis.alignment_store import AlignmentStore, StoreDescription, write_alignments
from analysis.run import extract_run
from tests.analysis.viewer.tiny import make_multi_vector
from tests.runs import write_store

DESCRIPTION = StoreDescription("t5_seal", "generative", "almanac", made_from="these weights")
MATRICES = ("similarity", "alignment")


def write(directory, batches, description=DESCRIPTION, **named):
    return write_store(directory, description, *batches, **named)


@pytest.fixture
def batches(make_explanation):
    return [make_explanation(n, seed=n) for n in (5, 1, 4)]


def parts_of(explanation):
    """Every tensor of an explanation by its name."""
    found = {f"{n}/{k}": v for n, p in enumerate(explanation.layers) for k, v in vars(p).items()}
    if explanation.decoder is not None:
        found |= {k: v for k, v in vars(explanation.decoder).items() if k != "names"}
    return found | ({} if explanation.pairwise is None else {"pairwise": explanation.pairwise})


@pytest.mark.parametrize("shard_values", [1, 400, 2**23])
def test_every_pair_comes_back_without_padding(tmp_path, batches, monkeypatch, shard_values):
    monkeypatch.setattr(alignment_store, "SHARD_VALUES", shard_values)
    store = write(tmp_path / "alignments", batches)
    shards = len(list((tmp_path / "alignments").glob("*.safetensors.zst")))
    assert shards == {1: 3, 400: 2, 2**23: 1}[shard_values]
    assert (len(store), store.layers, store.heads) == (10, 2, 3)
    assert store.description == DESCRIPTION and store.pairs[6] == ("q6", "d6")
    assert store.path_names == batches[0].decoder.names
    originals = [(batch, row) for batch in batches for row in range(len(batch))]
    for number in (9, *range(10)):  # jumping back to an earlier shard too
        batch, row = originals[number]
        original, pair = batch.layers[-1], store[number]
        rows, columns = original.document_mask[row], original.query_mask[row]
        assert pair.document_mask.all() and pair.query_mask.all()
        assert pair.document_ids[0].tolist() == original.document_ids[row, rows].tolist()
        for name in MATRICES:
            expected = getattr(original, name)[row][:, rows][:, :, columns]
            assert torch.equal(getattr(pair, name)[0], expected)
        paths = store.explain(number).decoder.contributions[0]
        assert torch.equal(paths, batch.decoder.contributions[row][:, rows])


@pytest.mark.parametrize("salience", [False, True])
@pytest.mark.parametrize("paradigm", ["generative", "multi_vector", "lexical"])
def test_padded_batches_hold_the_same_pairs(tmp_path, make_explanation, paradigm, salience):
    original = make_explanation(7, paradigm=paradigm, salience=salience)
    description = StoreDescription("s", paradigm, "almanac")
    store = write(tmp_path / "alignments", [original], description)
    read, expected = parts_of(next(store.explanations(7))), parts_of(original)
    assert read.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(read[name], value, rtol=1e-6, atol=0, msg=name)
    assert [len(batch) for batch in store.explanations(3)] == [3, 3, 1]
    for layer in range(store.layers):
        found = next(store.explanations(7)).layers[layer]
        assert torch.equal(found.similarity, original.layers[layer].similarity)


def test_padding_that_is_not_on_the_right_is_cut_too(tmp_path, make_explanation):
    original, flipped = (make_explanation(1, layers=1) for _ in range(2))
    pairs, decoder = flipped.layers[0], flipped.decoder
    for name in ("document_ids", "document_mask"):
        setattr(pairs, name, getattr(pairs, name).flip(1))
    for name in MATRICES:
        setattr(pairs, name, getattr(pairs, name).flip(2))
    decoder.contributions = decoder.contributions.flip(2)
    pairs.document_mask[0, 0] = original.layers[0].document_mask[0, -1] = False
    one = write(tmp_path / "one", [original]).explain(0)
    other = write(tmp_path / "other", [flipped]).explain(0)
    assert torch.equal(one.layers[0].similarity, other.layers[0].similarity.flip(2))
    assert torch.equal(one.decoder.contributions, other.decoder.contributions.flip(2))


def test_half_precision_keeps_three_digits_at_half_the_size(tmp_path, batches):
    half = StoreDescription("s", "generative", "almanac", "float16")
    stores = write(tmp_path / "full", batches), write(tmp_path / "half", batches, half)
    a, b = (next(store.explanations(10)).layers[-1] for store in stores)
    assert b.similarity.dtype == torch.float32
    assert torch.equal(a.score, b.score)
    torch.testing.assert_close(a.similarity, b.similarity, rtol=1e-3, atol=1e-3)
    assert not torch.equal(a.similarity, b.similarity)
    batches[0].layers[0].similarity[0, 0, 0, 0] = 1e6
    with pytest.raises(ValueError, match=r"precision=float16: similarity of a pair is not finite"):
        write(tmp_path / "large", batches, half)
    assert not list(tmp_path.glob("large*"))


def test_damage_is_named(tmp_path, batches):
    directory = tmp_path / "alignments"
    with pytest.raises(FileNotFoundError, match=r"manifest\.json is missing"):
        AlignmentStore(directory)
    write(directory, batches)
    shard, manifest = directory / "shard-00000.safetensors.zst", directory / "manifest.json"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-100])
    with pytest.raises(ValueError, match=rf"truncated: {len(whole) - 100} bytes, .* {len(whole)}"):
        AlignmentStore(directory)
    shard.unlink()
    with pytest.raises(FileNotFoundError, match=r"shard-00000\.safetensors\.zst: no such file"):
        AlignmentStore(directory)
    for place in (20, len(whole) // 2, len(whole) - 3):
        shard.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"shard-00000\.safetensors\.zst: is damaged"):
            AlignmentStore(directory).explain(0)
    shard.write_bytes(whole)
    text = manifest.read_text()
    manifest.write_text(text[: len(text) // 2])
    with pytest.raises(ValueError, match=r"manifest\.json:\d+: not valid JSON"):
        AlignmentStore(directory)


def test_a_store_of_an_older_version_names_it(tmp_path, batches):
    manifest = write(tmp_path / "alignments", batches).directory / "manifest.json"
    content = json.loads(manifest.read_text()) | {"format": 1, "version": "0.1.0"}
    manifest.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"format 1, written by gr-mvdr 0\.1\.0; .* reads 3"):
        AlignmentStore(tmp_path / "alignments")


def test_wrong_use_is_named(tmp_path, batches):
    with pytest.raises(ValueError, match="paradigm='dense': must be one of multi_vector"):
        StoreDescription("s", "dense", "almanac")
    store = write(tmp_path / "alignments", batches)
    with pytest.raises(IndexError, match="pair 10: the store holds 10"):
        store[10]


def test_batches_keep_to_a_budget(tmp_path, batches):
    store = write(tmp_path / "alignments", batches)
    largest = max(store.layers * store[n].similarity.numel() for n in range(10))
    assert store.batch_size(3 * largest + 1, 64) == 3
    assert store.batch_size(1000 * largest, 64) == 64
    assert store.batch_size(1, 64) == 1


def test_the_store_names_its_tokens(tmp_path, make_explanation):
    explanation = make_explanation(2, layers=1)
    pairs = explanation.layers[0]
    ids = {*pairs.document_ids[pairs.document_mask].tolist()}
    ids |= {*pairs.query_ids[pairs.query_mask].tolist()}
    store = write(tmp_path / "alignments", [explanation], token="t{}", special=[min(ids), 999])
    assert store.strings == {n: f"t{n}" for n in ids} and store.special == {min(ids)}


PAIRS = [(f"q{n}", f"d{n}") for n in range(9)]


@pytest.mark.parametrize("change", ["nothing", "pairs", "batches", "weights"])
def test_an_interrupted_call_continues_unless_something_changed(
    tmp_path, make_explanation, monkeypatch, change
):
    """The older store stays until the new one is whole; a finished one is kept."""
    monkeypatch.setattr(alignment_store, "SHARD_VALUES", 1)
    batches = [make_explanation(n, seed=n) for n in (3, 2, 4)]
    explained = []

    def extract(description=DESCRIPTION, pairs=PAIRS, batches=batches, broken_at=None):
        def explain(batch):
            if len(explained) == broken_at:
                raise KeyboardInterrupt
            explained.append(batch)
            return batch

        explained.clear()
        names = lambda tokens: map(str, tokens)  # noqa: E731
        return write_alignments(
            tmp_path / "alignments", description, pairs, batches, explain, names
        )

    older = extract(replace(DESCRIPTION, made_from="older weights")).description
    with pytest.raises(KeyboardInterrupt):
        extract(broken_at=2)
    assert AlignmentStore(tmp_path / "alignments").description == older
    pairs = [("other", "d"), *PAIRS[1:]] if change == "pairs" else PAIRS
    order = batches[::-1] if change == "batches" else batches
    made = replace(DESCRIPTION, made_from="other") if change == "weights" else DESCRIPTION
    store = extract(made, pairs, order)
    assert len(explained) == (1 if change == "nothing" else 3)
    assert store.pairs == pairs and store.description == made
    assert not list(tmp_path.glob("*.partial"))
    rows = ((batch.layers[-1], row) for batch in order for row in range(len(batch)))
    for number, (layer, row) in enumerate(rows):
        assert torch.equal(store[number].relevance[0], layer.relevance[row])
        assert {*store[number].document_ids[0].tolist()} <= store.strings.keys()
    extract(made, pairs, order)
    assert explained == []


def test_a_run_is_aligned_in_evaluation_mode_and_again_if_its_weights_change(tmp_path, tiny_data):
    system, modes = make_multi_vector().train(), []
    explain = system.explain

    def watched(batch):
        modes.append((system.training, torch.is_inference_mode_enabled()))
        return explain(batch)

    system.explain = watched
    store = extract_run(system, tiny_data, tmp_path, "T5-ColBERT", 7)
    assert len(store) == 7 and modes == [(False, True)] and system.training
    extract_run(system, tiny_data, tmp_path, "T5-ColBERT", 7)
    assert len(modes) == 1
    torch.nn.init.ones_(next(system.parameters()))
    extract_run(system, tiny_data, tmp_path, "T5-ColBERT", 7)
    assert len(modes) == 2
