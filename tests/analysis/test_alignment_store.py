import json

import pytest
import torch

from analysis import alignment_writer
from analysis.alignment_store import AlignmentStore, StoreDescription
from analysis.alignment_writer import AlignmentWriter

DESCRIPTION = StoreDescription("t5_seal", "generative", "almanac")


def write(directory, batches, description=DESCRIPTION, **options):
    count = 0
    with AlignmentWriter(directory, description, **options) as writer:
        for batch in batches:
            names = [str(n) for n in range(count, count + len(batch.score))]
            writer.add(batch, [f"q{n}" for n in names], [f"d{n}" for n in names])
            count += len(names)
    return AlignmentStore(directory)


@pytest.fixture
def batches(make_pairs):
    return [make_pairs(n, heads=3, seed=n, paradigm="generative") for n in (5, 1, 4)]


@pytest.mark.parametrize("shard_values", [1, 200, 2**23])
def test_every_pair_comes_back_without_padding(tmp_path, batches, monkeypatch, shard_values):
    monkeypatch.setattr(alignment_writer, "SHARD_VALUES", shard_values)
    store = write(tmp_path / "alignments", batches)
    number_of_shards = len(list((tmp_path / "alignments").glob("*.safetensors")))
    assert number_of_shards == 10 if shard_values == 1 else 1 <= number_of_shards < 10
    assert len(store) == 10 and store.heads == 3 and store.description == DESCRIPTION
    assert store.pairs[6] == ("q6", "d6")
    originals = [(batch, row) for batch in batches for row in range(len(batch.score))]
    for number in (9, *range(10)):  # jumping back to an earlier shard too
        batch, row = originals[number]
        document_mask, query_mask = batch.document_mask[row], batch.query_mask[row]
        pair = store[number]
        assert pair.document_mask.all() and pair.query_mask.all()
        assert pair.document_ids[0].tolist() == batch.document_ids[row, document_mask].tolist()
        assert pair.query_ids[0].tolist() == batch.query_ids[row, query_mask].tolist()
        for name in ("similarity", "alignment"):
            original = getattr(batch, name)[row][:, document_mask][:, :, query_mask]
            assert torch.equal(getattr(pair, name)[0], original)
        assert torch.equal(pair.score, batch.score[row : row + 1])


def test_padded_batches_hold_the_same_pairs(tmp_path, make_pairs):
    original = make_pairs(7, heads=2)
    store = write(tmp_path / "alignments", [original])
    read = next(store.batches(7))
    for name in vars(original):
        assert torch.equal(getattr(read, name), getattr(original, name)), name
    assert [len(batch.score) for batch in store.batches(3)] == [3, 3, 1]


def test_padding_that_is_not_on_the_right_is_cut_too(tmp_path, make_pairs):
    original = make_pairs(1)
    flipped = make_pairs(1)
    for name in ("document_ids", "document_mask"):
        setattr(flipped, name, getattr(original, name).flip(1))
    for name in ("similarity", "alignment"):
        setattr(flipped, name, getattr(original, name).flip(2))
    flipped.document_mask[0, 0] = original.document_mask[0, -1] = False
    one = write(tmp_path / "one", [original])[0]
    other = write(tmp_path / "other", [flipped])[0]
    assert torch.equal(one.similarity, other.similarity.flip(2))


def test_half_precision_keeps_three_digits_at_half_the_size(tmp_path, batches):
    full = write(tmp_path / "full", batches)
    half = write(
        tmp_path / "half", batches, StoreDescription("s", "generative", "almanac", "float16")
    )
    a, b = next(full.batches(10)), next(half.batches(10))
    assert b.similarity.dtype == torch.float32
    assert torch.equal(a.score, b.score)
    torch.testing.assert_close(a.similarity, b.similarity, rtol=1e-3, atol=1e-3)
    assert not torch.equal(a.similarity, b.similarity)
    batches[0].similarity[0, 0, 0, 0] = 1e6
    with pytest.raises(ValueError, match=r"pair 0: .* not finite as float16"):
        write(tmp_path / "large", batches, half.description)
    assert not list(tmp_path.glob("large*"))


def test_nothing_remains_of_an_interrupted_writer(tmp_path, batches):
    def interrupted():
        yield batches[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "alignments", interrupted())
    assert not list(tmp_path.iterdir())


def test_an_existing_store_is_kept_unless_asked(tmp_path, batches):
    write(tmp_path / "alignments", batches[:1])
    with pytest.raises(FileExistsError, match="exists: alignments"):
        write(tmp_path / "alignments", batches)
    assert len(write(tmp_path / "alignments", batches, overwrite=True)) == 10


def test_damage_is_named(tmp_path, batches):
    directory = tmp_path / "alignments"
    with pytest.raises(FileNotFoundError, match=r"manifest\.json is missing"):
        AlignmentStore(directory)
    write(directory, batches)
    shard, manifest = directory / "shard-00000.safetensors", directory / "manifest.json"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-100])
    with pytest.raises(ValueError, match=rf"truncated: {len(whole) - 100} bytes, .* {len(whole)}"):
        AlignmentStore(directory)
    shard.unlink()
    with pytest.raises(FileNotFoundError, match=r"shard-00000\.safetensors is missing"):
        AlignmentStore(directory)
    shard.write_bytes(whole)
    text = manifest.read_text()
    manifest.write_text(text[: len(text) // 2])
    with pytest.raises(ValueError, match=r"manifest\.json:1: not valid JSON"):
        AlignmentStore(directory)
    manifest.write_text(json.dumps(json.loads(text) | {"format": 0}))
    with pytest.raises(ValueError, match="format 0, this version reads 1"):
        AlignmentStore(directory)


def test_wrong_descriptions_and_counts_are_named(tmp_path, make_pairs):
    with pytest.raises(ValueError, match="paradigm='dense': must be one of multi_vector"):
        StoreDescription("s", "dense", "almanac")
    with pytest.raises(ValueError, match="precision=int8: must be one of float32, float16"):
        StoreDescription("s", "lexical", "almanac", "int8")
    with (
        pytest.raises(ValueError, match="2 alignments for 1 query and 1 document ids"),
        AlignmentWriter(tmp_path / "alignments", DESCRIPTION) as writer,
    ):
        writer.add(make_pairs(2), ["q"], ["d"])
    with pytest.raises(ValueError, match="1 heads in a store of 2"):
        write(tmp_path / "alignments", [make_pairs(1, heads=2), make_pairs(1, heads=1)])


def test_a_pair_number_outside_the_store_is_an_index_error(tmp_path, batches):
    store = write(tmp_path / "alignments", batches)
    with pytest.raises(IndexError, match="pair 10: the store holds 10"):
        store[10]
