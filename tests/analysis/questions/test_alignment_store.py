from dataclasses import replace

import pytest
import torch

from analysis.questions.alignment_store import AlignmentStore, StoreDescription, write_alignments
from analysis.run import extract_run
from tests.models.conftest import make_multi_vector
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


def test_every_pair_comes_back_without_padding(tmp_path, batches):
    store = write(tmp_path / "alignments", batches)
    assert (len(store), store.layers, store.heads) == (10, 2, 3)
    assert store.description == DESCRIPTION and store.pairs[6] == ("q6", "d6")
    assert store.path_names == batches[0].decoder.names
    originals = [(batch, row) for batch in batches for row in range(len(batch))]
    for number in (9, *range(10)):  # jumping back to an earlier batch too
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
    table, manifest = directory / "pairs.parquet", directory / "manifest.json"
    whole = table.read_bytes()
    for spoiled in (whole[:-100], whole[:900] + bytes([whole[900] ^ 1]) + whole[901:]):
        table.write_bytes(spoiled)
        with pytest.raises(ValueError, match=r"pairs\.parquet: is damaged"):
            AlignmentStore(directory).explain(0)
    table.unlink()
    with pytest.raises(FileNotFoundError, match=r"pairs\.parquet: no such file"):
        AlignmentStore(directory)
    text = manifest.read_text()
    manifest.write_text(text.replace('"format": 4', '"format": 3'))
    with pytest.raises(ValueError, match=r"manifest\.json: format 3, this version reads 4"):
        AlignmentStore(directory)
    manifest.write_text(text[: len(text) // 2])
    with pytest.raises(ValueError, match=r"manifest\.json:\d+: not valid JSON"):
        AlignmentStore(directory)


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


PAIRS = [(f"q{n}", f"d{n}") for n in range(10)]


def test_an_interrupted_call_keeps_the_older_store_and_a_finished_one_is_kept(tmp_path, batches):
    explained = []

    def extract(made_from, broken_at=None):
        def explain(batch):
            if len(explained) == broken_at:
                raise KeyboardInterrupt
            explained.append(batch)
            return batch

        explained.clear()
        description = replace(DESCRIPTION, made_from=made_from)
        given = tmp_path / "alignments", description, PAIRS, batches, explain
        return write_alignments(*given, lambda tokens: tokens)

    extract("older weights")
    with pytest.raises(KeyboardInterrupt):
        extract("weights", broken_at=2)
    assert [path.name for path in tmp_path.iterdir()] == ["alignments"]
    assert AlignmentStore(tmp_path / "alignments").description.made_from == "older weights"
    assert extract("weights").description.made_from == "weights" and len(explained) == 3
    assert extract("weights").pairs == PAIRS and explained == []


def test_a_run_is_aligned_in_inference_mode_and_again_if_its_weights_change(tmp_path, tiny_data):
    system, modes = make_multi_vector().eval(), []
    explain = system.explain

    def watched(batch):
        modes.append(torch.is_inference_mode_enabled())
        return explain(batch)

    system.explain = watched
    store = extract_run(system, tiny_data, tmp_path, "T5-ColBERT", 7)
    assert len(store) == 7 and modes == [True]
    extract_run(system, tiny_data, tmp_path, "T5-ColBERT", 7)
    assert len(modes) == 1
    torch.nn.init.ones_(next(system.parameters()))
    extract_run(system, tiny_data, tmp_path, "T5-ColBERT", 7)
    assert len(modes) == 2
