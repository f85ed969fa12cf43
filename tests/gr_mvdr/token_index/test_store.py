"""A store of packed tokens against the tokens themselves: streamed, changed, damaged, disk full."""

import errno
import weakref

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from gr_mvdr.token_index import quantiser as token_quantiser
from gr_mvdr.token_index import writer as token_writer
from gr_mvdr.token_index.store import TokenStore
from gr_mvdr.token_vectors import PackedTokens, TokenVectors

LENGTHS = [4, 1, 6, 6, 2, 5, 1, 3]  # out of order, neighbours equal


def random_tokens(lengths=LENGTHS, size=8, seed=0, salience=False, keys=0, vocabulary=9):
    """Documents of vectors of about unit length, and whatever else is asked for.

    Vectors and keys are multiples of 2⁻⁹ and 2⁻⁸: sums of their products are exact in fp32, in
    whatever order a CPU takes them.
    """
    generator = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    vectors = torch.randn(total, size, generator=generator)
    return PackedTokens(
        vectors=multiples(torch.nn.functional.normalize(vectors, dim=-1), 2**9),
        counts=torch.tensor(lengths),
        ids=torch.randint(1, vocabulary, (total,), generator=generator),
        salience=torch.rand(total, generator=generator) if salience else None,
        keys=multiples(torch.randn(total, keys, generator=generator), 2**8) if keys else None,
    )


def multiples(values, parts):
    """Values rounded to multiples of 1/parts."""
    return (values * parts).round() / parts


def part_of(tokens, documents):
    """Some documents (a list of numbers) of packed ones."""
    lengths = tokens.counts.tolist()

    def chosen(part):
        return None if part is None else torch.cat([part.split(lengths)[n] for n in documents])

    vectors, counts, ids, salience, keys = tokens
    numbers = torch.tensor(list(documents))
    return PackedTokens(chosen(vectors), counts[numbers], *map(chosen, (ids, salience, keys)))


def batches(tokens, size):
    numbers = range(len(tokens.counts))
    for start in range(0, len(numbers), size):
        yield part_of(tokens, numbers[start : start + size])


def names(tokens, prefix="d"):
    return [f"{prefix}{number}" for number in range(len(tokens.counts))]


def create(directory, tokens, dtype="float32", batch=3, **options):
    settings = {"pq_bytes": 4, "fingerprint": {}, "seed": 0, **options}
    token_writer.create(directory, names(tokens), batches(tokens, batch), dtype, **settings)
    return TokenStore(directory)


def equal(found, expected):
    return all(
        a is b if a is None or b is None else torch.equal(a, b)
        for a, b in zip(found, expected, strict=True)
    )


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


# Reading --------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("parts", [{}, {"salience": True}, {"keys": 5}, {"salience": 1, "keys": 3}])
def test_a_store_holds_what_was_streamed_into_it(tmp_path, batch, parts):
    tokens = random_tokens(**parts)
    store = create(tmp_path / "index", tokens, batch=batch)
    assert equal(store.read(slice(0, 8)), tokens)
    assert equal(store.read(slice(2, 5)), part_of(tokens, [2, 3, 4]))
    assert equal(store.read(torch.tensor([6, 0, 3])), part_of(tokens, [6, 0, 3]))
    assert (len(store), store.n_tokens, store.live.all()) == (8, 28, True)
    assert store.searched == ("keys" if "keys" in parts else "vectors")
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_columns_take_the_bytes_that_they_should(tmp_path):
    tokens = random_tokens(salience=True, keys=4)
    per_token = {"float32": 4 * 12, "float16": 2 * 12, "pq": 2 + 2, "residual": 2 + 2 + 2 + 2}
    for dtype, expected in per_token.items():
        for vocabulary, id_bytes in ((65_536, 2), (65_537, 4), (None, 4)):
            folder = tmp_path / f"{dtype}-{vocabulary}"
            store = create(folder, tokens, dtype, pq_bytes=2, vocabulary=vocabulary)
            files = sum(path.stat().st_size for path in folder.glob("*.bin"))
            assert files == 28 * (expected + id_bytes + 4) + 8 * 8
            assert torch.equal(store.ids(torch.arange(27, -1, -1)), tokens.ids.flip(0))
            tables = sum(path.stat().st_size for path in folder.glob("*.npy"))
            assert store.size_in_bytes == files + tables and bool(tables) == (expected < 12)


def test_half_precision_is_close_and_read_as_floats(tmp_path):
    tokens = random_tokens(keys=4)
    store = create(tmp_path / "index", tokens, "float16")
    found = store.read(slice(0, 8))
    assert found.vectors.dtype == found.keys.dtype == torch.float32
    assert torch.allclose(found.vectors, tokens.vectors, atol=1e-3)
    assert torch.equal(found.vectors, tokens.vectors.half().float())


def test_only_one_batch_is_held_at_a_time(tmp_path):
    tokens, last = random_tokens(), []

    def stream():
        for batch in batches(tokens, 2):
            assert all(reference() is None for reference in last[:-1])
            last.append(weakref.ref(batch.vectors))
            yield batch

    token_writer.create(tmp_path / "index", names(tokens), stream(), "float32", 4, {}, 0)
    assert len(last) == 4


def test_owners_of_tokens(tmp_path):
    store = create(tmp_path / "index", random_tokens())
    found = store.owners(torch.tensor([[0, 3, 4], [5, -1, 27]]))
    assert found.tolist() == [[0, 0, 1], [2, -1, 7]] and found.dtype == torch.int64


def test_blocks_are_whole_documents_and_no_larger_than_asked(tmp_path):
    store = create(tmp_path / "index", random_tokens())
    # Lengths 4 1 | 6 | 6 | 2 5 | 1 3, each block as full as 7 tokens allow.
    found = [(block.start, block.stop) for block in store.blocks(7)]
    assert found == [(0, 2), (2, 3), (3, 4), (4, 6), (6, 8)]
    assert [block.stop - block.start for block in store.blocks(0)] == [1] * 8
    assert [(block.start, block.stop) for block in store.blocks(1000)] == [(0, 8)]


# Product quantisation -------------------------------------------------------------------------


def clustered(lengths, seed=0):
    """Tokens around 20 centres, which codes of 4 bytes can tell apart."""
    tokens = random_tokens(lengths, seed=seed)
    centres = random_tokens([20], seed=99).vectors
    chosen = torch.randint(20, (len(tokens.vectors),), generator=torch.Generator().manual_seed(1))
    return tokens._replace(vectors=centres[chosen] + 0.01 * tokens.vectors)


def test_codes_are_close_and_are_learned_from_all_of_the_stream(tmp_path):
    tokens = clustered([10] * 60)
    # The first batch is nothing like the rest: codes learned from it alone would be useless.
    tokens = tokens._replace(vectors=torch.cat([tokens.vectors[:300] * 0, tokens.vectors[300:]]))
    store = create(tmp_path / "index", tokens, "pq", batch=30)
    error = (store.vectors("vectors", slice(300, 600)) - tokens.vectors[300:]).norm(dim=1)
    assert error.max() < 0.05
    assert (tmp_path / "index" / "vectors.bin").stat().st_size == 600 * 4


def test_fewer_tokens_than_codes_are_kept_as_they_are(tmp_path):
    tokens = random_tokens([3, 1, 2])
    store = create(tmp_path / "index", tokens, "pq")
    assert torch.allclose(store.vectors("vectors", slice(0, 6)), tokens.vectors, atol=1e-3)


def test_codes_are_the_same_for_the_same_seed(tmp_path):
    tokens = random_tokens([20] * 20)
    for name, seed in (("one", 3), ("two", 3), ("other", 4)):
        create(tmp_path / name, tokens, "pq", seed=seed)
    one, two, other = (contents(tmp_path / name) for name in ("one", "two", "other"))
    assert one == two
    assert one["vectors.codebook.npy"] != other["vectors.codebook.npy"]


def test_documents_added_to_codes_use_their_codebook(tmp_path):
    store = create(tmp_path / "index", clustered([10] * 60), "pq")
    more = clustered([5, 4], seed=7)
    token_writer.append(store, ["x", "y"], batches(more, 1))
    found = TokenStore(tmp_path / "index").vectors("vectors", slice(600, 609))
    assert (found - more.vectors).norm(dim=1).max() < 0.05


@pytest.mark.parametrize("n_bytes", [0, 3, 16])
def test_bytes_must_divide_the_vectors(tmp_path, n_bytes):
    with pytest.raises(ValueError, match=rf"pq_bytes={n_bytes}: must divide the 8 dimensions"):
        create(tmp_path / "index", random_tokens(), "pq", pq_bytes=n_bytes)
    assert not list(tmp_path.iterdir())


# Residual codes -------------------------------------------------------------------------------


def test_residual_codes_hold_what_is_a_centroid_and_find_what_is_near(tmp_path):
    tokens = random_tokens([20] * 60, size=16)
    tokens = tokens._replace(vectors=normalize(tokens.vectors))
    store = create(tmp_path / "index", tokens, "residual", pq_bytes=8)
    quantiser = store.quantisers["vectors"]
    assert store.header["unit"] == ["vectors"]
    centroids = quantiser.centroids @ quantiser.basis.T
    found = quantiser.decode(*_numbers(quantiser.encode(centroids)))
    assert torch.allclose(found, normalize(quantiser.centroids), atol=1e-6)
    stored = store.vectors("vectors", slice(0, 1200))
    assert (stored - tokens.vectors).norm(dim=1).mean() < 0.15
    queries = TokenVectors(tokens.vectors[:5], torch.ones(5, dtype=torch.bool), tokens.ids[:5])
    turned = store.vectors("vectors", slice(0, 1200), turned=True) @ store.turn(queries).vectors.T
    assert torch.allclose(turned, stored @ queries.vectors.T, atol=1e-5)


def _numbers(codes):
    return codes[0], codes[1].long()


@pytest.mark.parametrize("size", [7, 16])
def test_residual_codes_of_any_length_are_added_to(tmp_path, size):
    tokens = random_tokens([20] * 60, size=size, keys=3)
    tokens = tokens._replace(vectors=3 * tokens.vectors)  # not of length 1
    create(tmp_path / "index", tokens, "residual", pq_bytes=1)
    more = part_of(tokens, [7, 9])
    token_writer.append(TokenStore(tmp_path / "index"), ["x", "y"], batches(more, 1))
    store = TokenStore(tmp_path / "index")
    assert store.header["unit"] == []
    assert equal(store.read(slice(60, 62)), store.read(torch.tensor([7, 9])))


# Documents come and go ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_added_documents_stand_behind_the_others(tmp_path, dtype):
    tokens, more = random_tokens(salience=True), random_tokens([2, 7], seed=5, salience=True)
    store = create(tmp_path / "index", tokens, dtype)
    token_writer.append(store, ["x", "y"], batches(more, 1))
    store = TokenStore(tmp_path / "index")
    assert store.document_ids == [*names(tokens), "x", "y"]
    assert equal(store.read(slice(8, 10))[1:4], more[1:4])
    assert torch.allclose(store.vectors("vectors", slice(28, 37)), more.vectors, atol=1e-3)
    assert equal(store.read(slice(0, 8))[1:4], tokens[1:4])


def test_deleted_documents_keep_their_number_and_may_come_back(tmp_path):
    tokens = random_tokens()
    store = create(tmp_path / "index", tokens)
    token_writer.delete(store, ["d2", "d5"])
    store = TokenStore(tmp_path / "index")
    assert store.live.tolist() == [n not in (2, 5) for n in range(8)]
    assert store.document_ids == names(tokens)
    assert store.numbers(["d6", "d0"]).tolist() == [6, 0]
    with pytest.raises(ValueError, match="document 'd2' is not in it"):
        store.numbers(["d0", "d2"])
    with pytest.raises(ValueError, match="document 'd2' is not in it"):
        token_writer.delete(store, ["d2"])
    token_writer.append(store, ["d2"], [part_of(tokens, [4])])
    store = TokenStore(tmp_path / "index")
    assert store.numbers(["d2"]).tolist() == [8] and store.live[2].logical_not()


def test_every_change_makes_a_new_revision(tmp_path):
    store = create(tmp_path / "index", random_tokens())
    revisions = [store.header["revision"]]
    token_writer.delete(store, ["d1"])
    revisions.append(TokenStore(tmp_path / "index").header["revision"])
    token_writer.append(TokenStore(tmp_path / "index"), ["x"], [random_tokens([2])])
    revisions.append(TokenStore(tmp_path / "index").header["revision"])
    assert len(set(revisions)) == 3


# Bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "change", "message"),
    [
        (["a"], {}, "1 ids but 2 documents"),
        (["a", "b", "c"], {}, "3 ids but 2 documents"),
        (["a", "a"], {}, "2 ids, 1 of them different"),
        ([], {}, "0 ids"),
        (["a", "b"], {"counts": torch.tensor([5, 0])}, "document 'b' has no token vector"),
    ],
)
def test_documents_that_do_not_fit_their_ids_are_refused(tmp_path, ids, change, message):
    tokens = random_tokens([2, 3])._replace(**change)
    with pytest.raises(ValueError, match=message):
        token_writer.create(tmp_path / "index", ids, [tokens], "float32", 4, {}, 0)
    assert not list(tmp_path.iterdir())


def test_an_unknown_type_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match="search.dtype=int8: must be one of float32, float16, pq, residual"
    ):
        create(tmp_path / "index", random_tokens(), "int8")


@pytest.mark.parametrize(
    ("ids", "options", "message"),
    [
        (["d3"], {}, "document 'd3' is in it already"),
        (["x"], {"size": 6}, r"vectors of \{'vectors': 6\}"),
        (["x"], {"salience": True}, "salience True; those in the index are of .* salience False"),
        (["x"], {"keys": 2}, "'keys': 2"),
    ],
)
def test_what_does_not_fit_a_store_is_not_added(tmp_path, ids, options, message):
    store = create(tmp_path / "index", random_tokens())
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=message):
        token_writer.append(store, ids, [random_tokens([2], **options)])
    assert contents(tmp_path) == before


def test_a_folder_without_an_index_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no token index there"):
        TokenStore(tmp_path)


def test_an_index_of_something_else_is_refused(tmp_path):
    made_by = {"model": "abc", "collection": "123"}
    create(tmp_path / "index", random_tokens(), fingerprint=made_by)
    TokenStore(tmp_path / "index", made_by)
    TokenStore(tmp_path / "index", {"model": "abc"})
    for key, expected in (("model", "xyz"), ("collection", "9"), ("dimension", "64")):
        message = f"made with {key} {made_by.get(key)}, expected {expected}"
        with pytest.raises(ValueError, match=message):
            TokenStore(tmp_path / "index", {**made_by, key: expected})


COLUMNS = ["vectors", "keys", "ids", "salience", "counts"]


@pytest.mark.parametrize("column", COLUMNS)
def test_a_file_that_is_cut_short_is_refused(tmp_path, column):
    create(tmp_path / "index", random_tokens(salience=True, keys=2))
    path = tmp_path / "index" / f"{column}.bin"
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    message = rf"{column}.bin: {len(data) - 1} bytes, expected {len(data)}: it was cut short"
    with pytest.raises(ValueError, match=message):
        TokenStore(tmp_path / "index")
    path.unlink()
    with pytest.raises(ValueError, match="0 bytes, expected"):
        TokenStore(tmp_path / "index")


# Resumed --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "residual"])
@pytest.mark.parametrize("killed", [1, 3, 5, 9])
def test_a_killed_build_goes_on_where_it_stopped(tmp_path, monkeypatch, dtype, killed):
    monkeypatch.setattr(token_writer, "_SECONDS", 0.0)
    monkeypatch.setattr(token_quantiser, "_PER_ROW", 1)  # learned from the first 256 vectors
    tokens, asked = random_tokens([30] * 20, salience=True), []

    def stream(first, last=None):
        asked.append(first)
        for number, batch in enumerate(batches(part_of(tokens, range(first, 20)), 2)):
            if number == last:
                raise KeyboardInterrupt
            yield batch

    def build(name, encoded, **options):
        settings = {"pq_bytes": 4, "fingerprint": {"model": "a"}, **options}
        token_writer.create(tmp_path / name, names(tokens), encoded, dtype, **settings)
        return contents(tmp_path / name)

    whole = build("whole", stream)
    with pytest.raises(KeyboardInterrupt):
        build("part", lambda first: stream(first, killed))
    assert build("part", stream) == whole and asked[-1] == 2 * killed
    # Not that of another model, or with other settings.
    for options in ({"fingerprint": {"model": "b"}}, {"seed": 1}):
        with pytest.raises(KeyboardInterrupt):
            build("other", lambda first: stream(first, killed))
        build("other", stream, **options)
        assert asked[-1] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "part", "whole"]


# Interrupted, or the disk full ------------------------------------------------------------------


def interrupted(tokens):
    yield part_of(tokens, [0])
    raise KeyboardInterrupt


def test_a_half_written_index_never_replaces_a_good_one(tmp_path):
    tokens = random_tokens()
    create(tmp_path / "index", tokens)
    before = contents(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        token_writer.create(
            tmp_path / "index", ["a", "b"], interrupted(tokens), "float32", 4, {}, 0
        )
    assert contents(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["index"], "nothing half-written remains"


def test_an_interrupted_addition_leaves_the_store_as_it_was(tmp_path):
    store = create(tmp_path / "index", random_tokens())
    before = contents(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        token_writer.append(store, ["x", "y"], interrupted(random_tokens(seed=3)))
    assert contents(tmp_path) == before


@pytest.mark.parametrize("left_behind", [1, 100])
def test_what_a_killed_addition_left_behind_does_not_count(tmp_path, left_behind):
    tokens, more = random_tokens(salience=True), random_tokens([2, 3], seed=3, salience=True)
    create(tmp_path / "index", tokens)
    for path in (tmp_path / "index").glob("*.bin"):
        path.write_bytes(path.read_bytes() + b"\7" * left_behind)
    store = TokenStore(tmp_path / "index")
    assert equal(store.read(slice(0, 8)), tokens)
    token_writer.append(store, ["x", "y"], [more])
    store = TokenStore(tmp_path / "index")
    assert equal(store.read(slice(0, 8)), tokens) and equal(store.read(slice(8, 10)), more)


def disk_of(monkeypatch, size):
    """Lets only so many bytes be written."""
    write, left = token_writer._write, [size]

    def limited(file, array):
        if array.nbytes > left[0]:
            write(file, array.reshape(-1)[: left[0] // array.itemsize])
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] -= array.nbytes
        write(file, array)

    monkeypatch.setattr(token_writer, "_write", limited)


# 8 dimensions and an id: 36 bytes a token, and 8 a document. `written`: documents up to and with
# the batch that failed.
@pytest.mark.parametrize(("size", "batch", "written"), [(0, 8, 8), (200, 2, 4), (450, 1, 4)])
def test_a_full_disk_is_told_apart_and_leaves_nothing(tmp_path, monkeypatch, size, batch, written):
    disk_of(monkeypatch, size)
    tokens = random_tokens()
    with pytest.raises(OSError, match="the disk is full: 8 documents need about") as caught:
        create(tmp_path / "index", tokens, batch=batch)
    assert caught.value.errno == errno.ENOSPC and f"index={tmp_path / 'index'}" in str(caught.value)
    found = int(str(caught.value).split("about ")[1].split(" bytes")[0].replace(",", ""))
    assert found == (36 * sum(LENGTHS[:written]) + 8 * written) * 8 // written
    assert "are free" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fills_while_quantising_leaves_nothing(tmp_path, monkeypatch):
    disk_of(monkeypatch, 28 * (16 + 4) + 8 * 8 + 10)  # half precision fits, the codes do not
    with pytest.raises(OSError, match="the disk is full"):
        create(tmp_path / "index", random_tokens(), "pq", batch=8)
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fills_while_adding_leaves_the_old_store(tmp_path, monkeypatch):
    tokens = random_tokens()
    store = create(tmp_path / "index", tokens)
    before = contents(tmp_path)
    disk_of(monkeypatch, 150)
    with pytest.raises(OSError, match="the disk is full: 3 documents need about"):
        token_writer.append(store, ["x", "y", "z"], batches(random_tokens([2, 3, 4]), 1))
    assert contents(tmp_path) == before


def test_other_errors_of_the_disk_are_not_disguised(tmp_path, monkeypatch):
    def broken(file, array):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(token_writer, "_write", broken)
    with pytest.raises(OSError, match="Input/output error"):
        create(tmp_path / "index", random_tokens())
    assert not list(tmp_path.iterdir())


def test_files_that_take_less_than_all_are_written_whole(tmp_path):
    class Slow:
        data = b""

        def write(self, view):
            self.data += bytes(view[:3])
            return min(3, len(view))

    file = Slow()
    array = np.arange(7, dtype=np.float16).reshape(7, 1)
    token_writer._write(file, array)
    assert file.data == array.tobytes()
