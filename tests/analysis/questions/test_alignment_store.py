from dataclasses import replace

import pytest
import torch

from analysis.questions.alignment_store import AlignmentStore, StoreDescription, write_alignments
from tests.runs import write_store

DESCRIPTION = StoreDescription("t5_seal", "generative", "almanac", made_from="these weights")


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
    manifest.write_text(text.replace('"format": 5', '"format": 3'))
    with pytest.raises(ValueError, match=r"manifest\.json: format 3, this version reads 5"):
        AlignmentStore(directory)
    manifest.write_text(text[: len(text) // 2])
    with pytest.raises(ValueError, match=r"manifest\.json:\d+: not valid JSON"):
        AlignmentStore(directory)


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
