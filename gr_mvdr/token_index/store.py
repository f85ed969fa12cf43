"""Every document token's vector on disk: shards of documents, and one header that lists them.

A shard is one file, written whole and never changed. `create` writes the shards first and then the
header, so that at every moment the store is either the old or the new one. A file that the header
does not list is not part of the store. A store of other documents is a new one (`revise`).
"""

import hashlib
import json
import secrets
import shutil
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gr_mvdr.batch import ragged_range
from gr_mvdr.files import (
    check_fingerprint,
    open_tensors,
    read_json,
    reading,
    write_json,
    write_tensors,
)
from gr_mvdr.progress import track
from gr_mvdr.ranks import broadcast, rank, wait, world_size
from gr_mvdr.token_index.codec import Codec, Storage
from gr_mvdr.token_vectors import Encode, PackedTokens, TokenVectors

HEADER = "index.json"
_SHARD = 2048  # documents
_CACHED = 1024  # vectors decoded at once
_DTYPES = ("float32", "float16", "codes")
_SMALL_ID = 2**15  # token ids below this take two bytes


class TokenStore:
    """The T packed tokens of D documents, numbered in the order in which they are stored.

    Attributes:
        document_ids: D ids.
        counts: (D,) int64 number of tokens of each document.
        offsets: (D + 1,) int64; the tokens of document n are the rows offsets[n] to
            offsets[n + 1] − 1.
        sizes: {"vectors": d}, and "keys": h if keys are stored.
        searched: the column from which alignments are made: "keys" if stored, else "vectors".
        dtype: how vectors and keys are stored.
        codecs: column → the codec that decodes it; empty if columns are not coded.
        fingerprint: what the store was made from, such as {"model": …, "collection": …}.
        revision: a hash of the header.
    """

    def __init__(self, directory: str | Path, fingerprint: dict[str, str] | None = None):
        """Opens a store by memory map.

        Raises:
            FileNotFoundError: the folder holds no store.
            ValueError: the store has another fingerprint, or a file is damaged.
        """
        self.directory = Path(directory)
        self.header = read_json(self.directory / HEADER)
        self.revision = _hash(self.header)
        with reading(f"{self.directory / HEADER}"):  # a header of an earlier version lacks keys
            keys = ("dtype", "fingerprint", "codec", "shards")
            self.dtype, self.fingerprint, codec, shards = (self.header[key] for key in keys)
        if self.dtype not in _DTYPES:
            raise ValueError(f"{self.directory / HEADER}: stores {self.dtype}, as earlier versions")
        check_fingerprint(f"index={self.directory}", self.fingerprint, fingerprint or {})
        self.codecs = _read_codecs(self.directory, codec)
        opened = [_read_shard(self.directory / name) for name in shards]
        self._shards = [columns for columns, _ in opened]
        self.document_ids: list[str] = [name for _, names in opened for name in names]
        if len({columns["ids"].dtype for columns in self._shards}) > 1:
            for columns in self._shards:
                columns["ids"] = columns["ids"].astype(np.int32)
        self.counts = torch.cat([torch.from_numpy(part["counts"]) for part in self._shards])
        self.offsets = torch.cat([self.counts.new_zeros(1), self.counts.cumsum(0)])
        # The first document and the first row of every shard, and the ends of the last shard.
        self._documents = np.cumsum([0, *(len(names) for _, names in opened)])
        self._starts = self.offsets[self._documents].numpy()
        columns = {n: part for n, part in self._shards[0].items() if n in ("vectors", "keys")}
        self.sizes = {name: part.shape[1] for name, part in columns.items()}
        self.sizes |= {name: codec.size for name, codec in self.codecs.items()}
        self.searched = "keys" if "keys" in self.sizes else "vectors"

    def __len__(self) -> int:
        return len(self.document_ids)

    @property
    def n_tokens(self) -> int:
        """T, the number of tokens."""
        return int(self.offsets[-1])

    @property
    def has_salience(self) -> bool:
        return "salience" in self._shards[0]

    @property
    def size_in_bytes(self) -> int:
        """Bytes of the columns and of the codecs."""
        held = [*self._shards, *(codec.tensors for codec in self.codecs.values())]
        return sum(part.nbytes for tensors in held for part in tensors.values())

    def vectors(self, name: str, rows: slice | Tensor, turned: bool = False) -> Tensor:
        """(t, size) fp32 rows of the column "vectors" or "keys", decoded.

        Args:
            turned: whether to return them in the basis of `turn`.
        """
        stored = self.column(name, rows)
        return self.codecs[name].decode(stored, turned) if self.codecs else stored.float()

    def turn(self, queries: TokenVectors) -> TokenVectors:
        """Turns queries into the basis of the codecs, where decoding is cheapest; S is the same."""
        turned = {n: codec.turn(getattr(queries, n)) for n, codec in self.codecs.items()}
        return replace(queries, **turned)

    def similarities(self, name: str, documents: slice | Tensor, queries: Tensor) -> Tensor:
        """(C, t) fp32 the products of vectors, or keys, with the tokens of documents.

        Args:
            documents: see `read`.
            queries: (…, d) fp32, as from `turn`: C vectors in all.
        """
        queries, rows = queries.flatten(0, -2), self.rows(documents)
        if self.codecs:  # a few at a time are decoded in a CPU's cache
            blocks = self.column(name, rows).split(_CACHED)
            decoded = (self.codecs[name].decode(block, turned=True) for block in blocks)
            return torch.cat([queries @ part.to(queries).T for part in decoded], 1)
        if isinstance(documents, slice) or queries.device.type != "cpu":
            return queries @ self.vectors(name, rows).to(queries).T
        # Each document's vectors are read where they are, without a copy.
        begins, sizes = self.offsets[documents].numpy(), self.counts[documents].numpy()
        matrix, products = queries.T.numpy(), np.empty((sizes.sum(), len(queries)), np.float32)
        shards = np.searchsorted(self._starts, begins, side="right") - 1
        places = zip(shards, begins - self._starts[shards], sizes, sizes.cumsum(), strict=True)
        for shard, begin, size, end in (map(int, place) for place in places):
            vectors = self._shards[shard][name][begin : begin + size]
            np.dot(vectors.astype(np.float32, copy=False), matrix, out=products[end - size : end])
        return torch.from_numpy(products.T)

    def salience(self, rows: slice | Tensor) -> Tensor | None:
        """(t,) fp32 the saliences of rows, or None if none are stored."""
        return self.column("salience", rows) if self.has_salience else None

    def ids(self, rows: slice | Tensor) -> Tensor:
        """(t,) int64, the token ids of rows."""
        return self.column("ids", rows).long()

    def read(self, documents: slice | Tensor, turned: bool = False) -> PackedTokens:
        """Reads the documents with these numbers: a slice, or (C,) int64 in any order.

        Args:
            turned: see `vectors`.
        """
        rows = self.rows(documents)
        return PackedTokens(
            vectors=self.vectors("vectors", rows, turned),
            counts=self.counts[documents],
            ids=self.ids(rows),
            salience=self.salience(rows),
            keys=self.vectors("keys", rows, turned) if "keys" in self.sizes else None,
        )

    def rows(self, documents: slice | Tensor) -> slice | Tensor:
        """Returns the rows of these documents' tokens: a slice for a slice, else (t,) int64."""
        if isinstance(documents, slice):
            start, stop, _ = documents.indices(len(self))
            return slice(int(self.offsets[start]), int(self.offsets[stop]))
        begins, ends = self.offsets[documents], self.offsets[documents + 1]
        return torch.from_numpy(ragged_range(begins.numpy(), ends.numpy())[1])

    def owners(self, tokens: Tensor) -> Tensor:
        """Returns the document number of each token row, int64; −1 for row −1 (no token)."""
        owners = self._owners.index_select(0, tokens.flatten().clamp(min=0)).view_as(tokens)
        return owners.long().masked_fill_(tokens < 0, -1)

    @cached_property
    def _owners(self) -> Tensor:
        """(T,) int32 the document of every row: a search has too many rows for bisection."""
        return torch.arange(len(self), dtype=torch.int32).repeat_interleave(self.counts)

    def context(self, row: int, around: int) -> tuple[str, list[int], list[int], list[int]]:
        """Returns a token row's document id, and the token ids before it, at it and after it.

        Args:
            around: largest number of tokens on each side; they are of the same document.
        """
        owner = int(self._owners[row])
        first, end = self.offsets[owner : owner + 2].tolist()
        bounds = max(first, row - around), row, row + 1, min(end, row + 1 + around)
        ids = (self.ids(slice(*place)).tolist() for place in pairwise(bounds))
        return self.document_ids[owner], *ids

    def blocks(self, tokens: int) -> Iterator[slice]:
        """Yields slices of documents with at most this many tokens, but at least one document.

        A slice lies in one shard, so that its columns are read without a copy.
        """
        for start, end in pairwise(self._documents.tolist()):
            while start < end:
                full = torch.searchsorted(self.offsets, self.offsets[start] + tokens, right=True)
                stop = min(end, max(start + 1, int(full) - 1))
                yield slice(start, stop)
                start = stop

    def column(self, name: str, rows: slice | Tensor) -> Tensor:
        """(t, …) rows of a column as stored, in the given order; ascending rows are fastest."""
        if isinstance(rows, slice):
            first = bisect_right(self._starts[:-1], rows.start) - 1
            last = max(first + 1, bisect_left(self._starts, rows.stop))
            parts = [
                shard[name][max(0, rows.start - start) : rows.stop - start]
                for shard, start in zip(
                    self._shards[first:last], self._starts[first:last], strict=True
                )
            ]
            return torch.from_numpy(np.concatenate(parts) if len(parts) > 1 else parts[0])
        order = None
        if (rows.diff() < 0).any():
            rows, order = rows.sort()
        taken = self._empty(name, len(rows))
        self._take(name, rows.numpy(), taken)
        return torch.from_numpy(taken if order is None else taken[order.argsort()])

    def _empty(self, name: str, rows: int) -> np.ndarray:
        column = self._shards[0][name]
        return np.empty((rows, *column.shape[1:]), column.dtype)

    def _take(self, name: str, rows: np.ndarray, out: np.ndarray) -> None:
        """Copies ascending rows (t,) of a column into `out`."""
        bounds = pairwise(np.searchsorted(rows, self._starts).tolist())
        for shard, start, (low, high) in zip(self._shards, self._starts, bounds, strict=False):
            if low < high:
                # "clip" spares numpy a copy for rows out of range.
                shard[name].take(rows[low:high] - start, 0, out[low:high], mode="clip")


def create(
    directory: Path,
    document_ids: Sequence[str],
    encode: Encode,
    storage: Storage | None = None,
    fingerprint: Mapping[str, Any] | None = None,
) -> None:
    """Writes a store, replacing an older one. All ranks call it, and each writes its own shards.

    If a build with a fingerprint is killed, the next call writes only the missing shards. Codes are
    learned from the first `Storage.sample_size` vectors, which should be a fair sample of all
    vectors (`Storage.sample_first`).

    Args:
        storage: how vectors are stored; None = in fp32.
        fingerprint: what the store is made from, such as {"model": …, "collection": …}.

    Raises:
        ValueError: a document has no token or a vector that is not finite, or `code_bytes` does not
            divide the size of a vector.
    """
    storage = storage or Storage()
    made_from = fingerprint or int(broadcast(torch.tensor(secrets.randbits(62))))
    key = _hash([made_from, *storage, list(document_ids)])
    codec = f"{key}-codec.safetensors" if storage.is_coded else None
    shards = _split(key, document_ids)
    header = {"dtype": storage.dtype, "fingerprint": fingerprint or {}, "codec": codec}
    header["shards"] = list(shards)
    if rank() == 0:
        directory.mkdir(parents=True, exist_ok=True)
        if codec and not (directory / codec).is_file():
            _learn(directory, codec, shards, encode, storage)
    wait()
    codecs = _read_codecs(directory, codec)
    own = dict(list(shards.items())[rank() :: world_size()])
    missing = {name: ids for name, ids in own.items() if not (directory / name).is_file()}
    for name, tokens in encoded(f"index={directory}", missing, encode):
        _write_shard(directory / name, shards[name], tokens, storage.dtype, codecs)
    wait()
    held = None
    with suppress(OSError, ValueError):  # there is no header, or it is damaged
        held = read_json(directory / HEADER)
    if rank() == 0 and held != header:
        write_json(directory / HEADER, header)
        _remove_unlisted(directory.iterdir(), header)
    wait()


def revise(
    store: TokenStore,
    directory: Path,
    document_ids: Sequence[str],
    encode: Encode,
    fingerprint: Mapping[str, str] | None = None,
) -> None:
    """Writes a store of exactly these documents: copies those that `store` holds, encodes others.

    Args:
        directory: the folder of the new store.
        fingerprint: see `create`; None = that of `store`.
    """
    wanted, held, shards = {*document_ids}, {*store.document_ids}, []
    for file, (start, end) in zip(
        store.header["shards"], pairwise(store._documents.tolist()), strict=True
    ):
        names = store.document_ids[start:end]
        if own := [name for name in names if name in wanted]:
            if own == names:
                shutil.copyfile(store.directory / file, directory / file)
            else:
                numbers = torch.tensor([n for n, name in enumerate(names, start) if name in wanted])
                rows = store.rows(numbers)
                columns = {n: store.column(n, rows) for n in store._shards[0] if n != "counts"}
                columns["counts"] = store.counts[numbers]
                write_tensors(directory / file, columns, {"document_ids": own})
            shards.append(file)
    if codec := store.header["codec"]:
        shutil.copyfile(store.directory / codec, directory / codec)
    new = [name for name in document_ids if name not in held]
    added = _split(_hash([store.revision, new]), new)
    for name, tokens in encoded(f"index={store.directory}", added, encode):
        _write_shard(directory / name, added[name], tokens, store.dtype, store.codecs)
    header = {"fingerprint": fingerprint or store.fingerprint, "shards": [*shards, *added]}
    write_json(directory / HEADER, store.header | header)


def _learn(
    directory: Path, codec: str, shards: dict[str, list[str]], encode: Encode, storage: Storage
) -> None:
    """Learns the codecs of a new store from its first shards, and writes codecs and shards."""
    held: dict[str, PackedTokens] = {}
    tokens = documents = 0
    for name, part in encoded(f"index={directory}", shards, encode):
        held[name] = part
        tokens, documents = tokens + len(part.vectors), documents + len(part.counts)
        expected = tokens * sum(map(len, shards.values())) // documents
        if tokens >= storage.sample_size(expected):
            break
    codecs, ids = {}, torch.cat([part.ids for part in held.values()])
    for name in ("vectors", "keys"):
        parts = [getattr(part, name) for part in held.values()]
        if parts[0] is not None:
            codecs[name] = Codec.train(torch.cat(parts).float(), ids, storage, expected)
    tensors = {f"{n}.{m}": t for n, codec in codecs.items() for m, t in codec.tensors.items()}
    unit = [name for name, codec in codecs.items() if codec.is_unit]
    write_tensors(directory / codec, tensors, {"unit": unit})
    for name, part in held.items():
        _write_shard(directory / name, shards[name], part, storage.dtype, codecs)


def _split(key: str, document_ids: Sequence[str]) -> dict[str, list[str]]:
    """Divides documents into shards: file name → document ids."""
    starts = range(0, len(document_ids), _SHARD)
    return {
        f"{key}-{number:05}.safetensors": list(document_ids[start : start + _SHARD])
        for number, start in enumerate(starts)
    }


def encoded(
    what: str, shards: dict[str, list[str]], encode: Encode
) -> Iterator[tuple[str, PackedTokens]]:
    """Encodes the documents shard by shard; yields each shard's name and checked tokens.

    Raises:
        ValueError: a document of `what` has no vector, or one that is not finite.
    """
    total = sum(map(len, shards.values()))
    with track(None, "encoding documents", total=total) as bar:
        for name, ids in shards.items():
            batches = []
            for batch in encode(ids):
                batches.append(batch.to("cpu"))
                bar.update(len(batch.counts))
            tokens = join_batches(batches)
            _check(what, ids, tokens)
            yield name, tokens


def join_batches(batches: Sequence[PackedTokens]) -> PackedTokens:
    """Joins batches of documents, at least one."""
    parts = zip(*batches, strict=True)
    return PackedTokens(*(None if p[0] is None else torch.cat(p) for p in parts))


def _check(what: str, names: list[str], tokens: PackedTokens) -> None:
    """Raises ValueError for a document without a vector, or with one that is not finite."""
    counts = tokens.counts.tolist()
    columns = [
        c.split(counts) for c in (tokens.vectors, tokens.keys, tokens.salience) if c is not None
    ]
    for name, *parts in zip(names, *columns, strict=True):
        fault = "a vector that is not finite" if len(parts[0]) else "no token vector"
        if not len(parts[0]) or not all(part.isfinite().all() for part in parts):
            raise ValueError(f"{what}: document {name!r} has {fault}")


def _write_shard(
    file: Path, names: list[str], tokens: PackedTokens, dtype: str, codecs: dict[str, Codec]
) -> None:
    small = int(tokens.ids.max()) < _SMALL_ID
    columns = {"counts": tokens.counts, "ids": tokens.ids.to(torch.int16 if small else torch.int32)}
    if tokens.salience is not None:
        columns["salience"] = tokens.salience.float()
    for name in ("vectors", "keys"):
        if (part := getattr(tokens, name)) is not None:
            coded = codecs[name].encode(part, tokens.ids) if codecs else None
            columns[name] = part.to(getattr(torch, dtype)) if coded is None else coded
    write_tensors(file, columns, {"document_ids": names})


def _read_shard(file: Path) -> tuple[dict[str, np.ndarray], list[str]]:
    columns, settings = open_tensors(file)
    return {name: part.numpy() for name, part in columns.items()}, settings["document_ids"]


def _read_codecs(directory: Path, name: str | None) -> dict[str, Codec]:
    if name is None:
        return {}
    tensors, settings = open_tensors(directory / name)
    columns: dict[str, dict[str, Tensor]] = {}
    for key, part in tensors.items():
        column, _, table = key.partition(".")
        columns.setdefault(column, {})[table] = part
    return {n: Codec(tables, n in settings["unit"]) for n, tables in columns.items()}


def _remove_unlisted(paths: Iterable[Path], header: dict[str, Any]) -> None:
    """Removes files that the header does not list: an older store's, and those made from it."""
    for path in list(paths):
        if path.name not in (HEADER, header["codec"], *header["shards"]):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
