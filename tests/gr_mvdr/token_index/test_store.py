"""A store of packed tokens against the tokens themselves: in shards, coded, resumed, revised."""

import errno
import json

import pytest
import torch
from torch.nn.functional import normalize

from gr_mvdr.token_index import codec as token_codec
from gr_mvdr.token_index import store as token_store
from gr_mvdr.token_index.codec import Storage
from gr_mvdr.token_index.store import TokenStore
from gr_mvdr.token_vectors import PackedTokens, TokenVectors, stack

LENGTHS = [4, 1, 6, 6, 2, 5, 1, 3]  # out of order, neighbours equal


def random_tokens(lengths=LENGTHS, size=8, seed=0, salience=False, keys=0, vocabulary=9):
    """Documents of vectors of about unit length, with saliences and keys on request.

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


def as_text(tokens, number):
    """One packed document as token vectors (M, …) without padding."""
    return tokens.pad().unpad(number)


def part_of(tokens, documents):
    """Some documents (a list of numbers) of packed ones."""
    return stack([as_text(tokens, number) for number in documents]).pack()


def names(tokens, prefix="d"):
    return [f"{prefix}{number}" for number in range(len(tokens.counts))]


def encoder(tokens, ids=None, batch=3):
    """What encodes documents by their ids: gives these tokens, in batches of documents."""
    places = {name: number for number, name in enumerate(ids or names(tokens))}

    def encode(asked):
        for start in range(0, len(asked), batch):
            yield part_of(tokens, [places[name] for name in asked[start : start + batch]])

    return encode


def create(directory, tokens, dtype="float32", **options):
    settings = {"code_bytes": 4 if dtype == "codes" else None, **options}
    storage = Storage(dtype, **settings)
    token_store.create(directory, names(tokens), encoder(tokens), storage)
    return TokenStore(directory)


def revise(store, ids, tokens=None, new=()):
    """A store of these documents beside another one, which lacks the `new` ones."""
    directory = store.directory.with_name("revised")
    directory.mkdir()
    token_store.revise(store, directory, ids, encoder(tokens, new))
    return TokenStore(directory)


def equal(result, expected):
    return all(
        a is b if a is None or b is None else torch.equal(a, b)
        for a, b in zip(result, expected, strict=True)
    )


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture(params=[2048, 3], ids=["one shard", "three shards"])
def shards(request, monkeypatch):
    monkeypatch.setattr(token_store, "_SHARD", request.param)


# Reading --------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [{}, {"salience": True}, {"keys": 5}, {"salience": 1, "keys": 3}])
def test_a_store_holds_what_was_encoded(tmp_path, shards, parts):
    tokens = random_tokens(**parts, vocabulary=40_000)
    store = create(tmp_path / "index", tokens)
    assert equal(store.read(slice(0, 8)), tokens)
    for start, stop in ((2, 5), (3, 6), (7, 8)):
        assert equal(store.read(slice(start, stop)), part_of(tokens, range(start, stop)))
    for numbers in ([6, 0, 3], [7], [2, 2, 1]):
        assert equal(store.read(torch.tensor(numbers)), part_of(tokens, numbers))
    for nothing in (slice(4, 4), torch.tensor([], dtype=torch.int64)):
        assert store.read(nothing).vectors.shape == (0, 8)
    assert (len(store), store.n_tokens) == (8, 28)
    assert store.searched == ("keys" if "keys" in parts else "vectors")
    assert store.has_salience == ("salience" in parts)


# Codes ----------------------------------------------------------------------------------------


def clustered(lengths, seed=0):
    """Tokens around 20 centres, each of which a code of 4 bytes can represent."""
    tokens = random_tokens(lengths, seed=seed)
    centres = random_tokens([20], seed=99).vectors
    chosen = torch.randint(20, (len(tokens.vectors),), generator=torch.Generator().manual_seed(1))
    return tokens._replace(vectors=centres[chosen] + 0.01 * tokens.vectors)


def test_codes_are_close_and_added_documents_use_the_same_codec(tmp_path, monkeypatch):
    monkeypatch.setattr(token_store, "_SHARD", 30)
    tokens, more = clustered([10] * 60), clustered([5, 4], seed=7)
    store = create(tmp_path / "index", tokens, "codes")
    store = revise(store, [*names(tokens), "x", "y"], more, ["x", "y"])
    vectors = torch.cat([tokens.vectors, more.vectors])
    error = (store.vectors("vectors", slice(0, 609)) - vectors).norm(dim=1)
    assert error.max() < 0.05
    assert len(list((tmp_path / "revised").glob("*codec*"))) == 1


def test_unit_vectors_stay_unit_vectors_and_a_turned_search_is_the_same(tmp_path):
    tokens = random_tokens([20] * 60, size=16)
    tokens = tokens._replace(vectors=normalize(tokens.vectors))
    store = create(tmp_path / "index", tokens, "codes", code_bytes=8)
    stored = store.vectors("vectors", slice(0, 1200))
    assert torch.allclose(stored.norm(dim=1), torch.ones(1200), atol=1e-6)
    assert (stored - tokens.vectors).norm(dim=1).mean() < 0.15
    queries = TokenVectors(tokens.vectors[:5], torch.ones(5, dtype=torch.bool), tokens.ids[:5])
    turned = store.vectors("vectors", slice(0, 1200), turned=True) @ store.turn(queries).vectors.T
    assert torch.allclose(turned, stored @ queries.vectors.T, atol=1e-5)


# Bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"counts": torch.tensor([5, 0])}, "document 'b' has no token vector"),
        ({"vectors": torch.full((5, 8), torch.nan)}, "'a' has a vector that is not"),
    ],
)
def test_documents_without_finite_vectors_are_refused(tmp_path, change, message):
    tokens = random_tokens([2, 3])._replace(**change)
    with pytest.raises(ValueError, match=message):
        token_store.create(tmp_path / "index", ["a", "b"], lambda names: [tokens])
    with pytest.raises(FileNotFoundError, match="index.json: no such file"):
        TokenStore(tmp_path / "index")


# Interrupted ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "codes"])
@pytest.mark.parametrize("killed", [3, 9])
def test_an_interrupted_build_goes_on_with_the_missing_shards(tmp_path, monkeypatch, dtype, killed):
    monkeypatch.setattr(token_store, "_SHARD", 2)
    monkeypatch.setattr(token_codec, "_SAMPLE", 256)  # learned from the first 256 vectors
    tokens, asked = random_tokens([30] * 20, salience=True), []

    def build(name, most=99, **options):
        calls = []

        def encode(ids):
            asked.append(ids)
            calls.append(ids)
            if len(calls) > most:
                raise KeyboardInterrupt
            return encoder(tokens)(ids)

        made_from = options.pop("fingerprint", {"model": "a"})
        storage = Storage(**{"dtype": dtype, "code_bytes": 4, **options})
        token_store.create(tmp_path / name, names(tokens), encode, storage, made_from)
        return contents(tmp_path / name)

    whole = build("whole")
    with pytest.raises(KeyboardInterrupt):
        build("part", killed)
    with pytest.raises(FileNotFoundError, match="index.json: no such file"):
        TokenStore(tmp_path / "part")
    asked.clear()
    learned = dtype == "float32" or killed >= 5  # five shards of 60 vectors
    assert build("part") == whole and len(asked) == (10 - killed if learned else 10)
    assert build("part") == whole and len(asked) == (10 - killed if learned else 10), "complete"
    for options in ({"fingerprint": {"model": "b"}}, {"dtype": "codes", "code_bytes": 2}):
        with pytest.raises(KeyboardInterrupt):
            build("other", killed)
        asked.clear()
        build("other", **options)
        assert len(asked) == 10, "shards of another model or with other settings are not taken over"


def test_a_half_written_index_never_replaces_a_good_one(tmp_path, monkeypatch):
    monkeypatch.setattr(token_store, "_SHARD", 3)
    tokens, other = random_tokens(), random_tokens(seed=3)
    create(tmp_path / "index", tokens)
    (tmp_path / "index/made_of_it").mkdir()

    def encode(ids, last=1):
        if "d3" in ids and last:
            raise OSError(errno.ENOSPC, "No space left on device")
        return encoder(other)(ids)

    with pytest.raises(OSError, match="No space left"):
        token_store.create(tmp_path / "index", names(other), encode, fingerprint={"model": "b"})
    assert equal(TokenStore(tmp_path / "index").read(slice(0, 8)), tokens)
    token_store.create(tmp_path / "index", names(other), lambda ids: encode(ids, 0))
    assert equal(TokenStore(tmp_path / "index").read(slice(0, 8)), other)
    header = json.loads((tmp_path / "index/index.json").read_text())
    assert sorted(contents(tmp_path)) == sorted(["index.json", *header["shards"]]), "nothing else"


# Revised ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "codes"])
def test_a_revised_store_copies_its_documents_and_encodes_new_ones(tmp_path, shards, dtype):
    store = create(tmp_path / "index", random_tokens(salience=True), dtype)
    more, left = random_tokens([2, 3], seed=3, salience=True), [0, 1, 2, 3, 5, 7]
    kept = [f"d{number}" for number in left]
    revised = revise(store, ["y", *reversed(kept), "x"], more, ["y", "x"])
    assert revised.document_ids == [*kept, "y", "x"]
    rows = store.rows(torch.tensor(left))
    for column in ("vectors", "ids", "salience"):
        copied = revised.column(column, revised.rows(slice(0, 6)))
        assert torch.equal(copied, store.column(column, rows))
    assert equal(revised.read(slice(6, 8))[1:], more[1:])


def test_a_store_of_an_earlier_version_is_refused(tmp_path):
    """Whoever opens a saved index then makes it again, and says why (`open_index`)."""
    create(tmp_path / "index", random_tokens(), "float16")
    file = tmp_path / "index/index.json"
    header = json.loads(file.read_text())
    for dtype in ("pq", "residual"):
        file.write_text(json.dumps(header | {"dtype": dtype}))
        with pytest.raises(ValueError, match=f"index.json: stores {dtype}, as earlier versions"):
            TokenStore(tmp_path / "index")
