import json
from dataclasses import replace

import pytest
import pytorch_lightning as pl
import torch

from analysis import alignment_store
from analysis.alignment_store import (
    AlignmentStore,
    AlignmentWriter,
    StoreDescription,
    extract_alignments,
)
from gr_mvdr.batch import PairBatch
from gr_mvdr.relevance import Explanation

DESCRIPTION = StoreDescription("t5_seal", "generative", "almanac", made_from="these weights")
MATRICES = ("similarity", "alignment")


def write(directory, batches, description=DESCRIPTION):
    with AlignmentWriter(directory, description) as writer:
        add(writer, batches)
    return AlignmentStore(directory)


def add(writer, batches):
    for batch in batches:
        numbers = range(len(writer.pairs), len(writer.pairs) + len(batch))
        writer.add(batch, [f"q{n}" for n in numbers], [f"d{n}" for n in numbers])


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
    with pytest.raises(ValueError, match=r"pair 0: similarity is not finite as float16"):
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
    with pytest.raises(ValueError, match=r"format 1, written by gr-mvdr 0\.1\.0; .* reads 2"):
        AlignmentStore(tmp_path / "alignments")


def test_wrong_use_is_named(tmp_path, batches):
    with pytest.raises(ValueError, match="paradigm='dense': must be one of multi_vector"):
        StoreDescription("s", "dense", "almanac")
    with (
        pytest.raises(ValueError, match="shorter"),
        AlignmentWriter(tmp_path / "alignments", DESCRIPTION) as writer,
    ):
        writer.add(batches[0], ["q"], ["d"])
    assert not list(tmp_path.iterdir())  # no shard was finished
    store = write(tmp_path / "alignments", batches)
    with pytest.raises(IndexError, match="pair 10: the store holds 10"):
        store[10]


def test_batches_keep_to_a_budget(tmp_path, batches):
    store = write(tmp_path / "alignments", batches)
    largest = max(store.layers * store[n].similarity.numel() for n in range(10))
    assert store.batch_size(3 * largest + 1, 64) == 3
    assert store.batch_size(1000 * largest, 64) == 64
    assert store.batch_size(1, 64) == 1


EXTRACTED = StoreDescription("t5_colbert", "multi_vector", "almanac", made_from="w")
PAIRS = [(f"q{n}", f"d{n}") for n in range(9)]


class Recorded(pl.LightningModule):
    """A model whose alignments are known beforehand."""

    def __init__(self, answers, broken_at=None):
        super().__init__()
        self.answers, self.broken_at, self.modes = answers, broken_at, []

    def explain(self, batch):
        if len(self.modes) == self.broken_at:
            raise KeyboardInterrupt
        self.modes.append((self.training, torch.is_inference_mode_enabled()))
        (answer,) = (a for a in self.answers if len(a.score) == len(batch))
        return Explanation([answer])


@pytest.fixture
def answers(make_pairs):
    return [make_pairs(n, seed=n) for n in (3, 2, 4)]


@pytest.fixture
def pair_batches(answers):
    return [
        PairBatch(a.query_ids, a.query_mask, a.document_ids, a.document_mask, torch.arange(n))
        for a, n in zip(answers, (3, 2, 4), strict=True)
    ]


def extract(model, pair_batches, folder, pairs=PAIRS, description=EXTRACTED):
    return extract_alignments(model, pair_batches, folder / "alignments", pairs, description)


@pytest.mark.parametrize("change", ["nothing", "pairs", "batches", "weights"])
def test_an_interrupted_extraction_continues_unless_something_changed(
    tmp_path, answers, pair_batches, monkeypatch, change
):
    """The older store stays until the new one is whole."""
    monkeypatch.setattr(alignment_store, "SHARD_VALUES", 1)
    older = replace(EXTRACTED, made_from="older weights")
    extract(Recorded(answers), pair_batches, tmp_path, description=older)
    with pytest.raises(KeyboardInterrupt):
        extract(Recorded(answers, broken_at=2), pair_batches, tmp_path)
    assert AlignmentStore(tmp_path / "alignments").description == older
    pairs = [("other", "d"), *PAIRS[1:]] if change == "pairs" else PAIRS
    order = pair_batches[::-1] if change == "batches" else pair_batches
    made = replace(EXTRACTED, made_from="other") if change == "weights" else EXTRACTED
    model = Recorded(answers)
    store = extract(model, order, tmp_path, pairs, made)
    assert model.modes == [(False, True)] * (1 if change == "nothing" else 3) and model.training
    assert store.pairs == pairs and store.description == made
    assert not list(tmp_path.glob("*.partial"))
    rows = (
        (b, r) for b in answers[:: -1 if change == "batches" else 1] for r in range(len(b.score))
    )
    for number, (batch, row) in enumerate(rows):
        assert torch.equal(store[number].relevance[0], batch.relevance[row])


def test_a_finished_store_of_the_same_is_kept_another_is_replaced(tmp_path, answers, pair_batches):
    extract(Recorded(answers), pair_batches, tmp_path)
    again, other = Recorded(answers), Recorded(answers)
    extract(again, pair_batches, tmp_path)
    assert again.modes == []
    changed = StoreDescription("t5_colbert", "multi_vector", "almanac", made_from="v")
    extract(other, pair_batches, tmp_path, description=changed)
    assert len(other.modes) == 3
    assert AlignmentStore(tmp_path / "alignments").description == changed
