"""Every document token's vector on disk: shards of documents, and one header that lists them.

A shard is one file, written whole and never changed. `create`, `append` and `delete` write new
shards first and then replace the header, so that the store is the old one or the new one at every
moment. A file that the header does not list does not count.
"""

import hashlib
import json
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gr_mvdr.batch import ragged_range
from gr_mvdr.files import (
    check,
    checksum,
    open_tensors,
    read_json,
    reading,
    write_json,
    write_tensors,
)
from gr_mvdr.progress import track
from gr_mvdr.ranks import broadcast, rank, wait, world_size
from gr_mvdr.token_index.codec import Codec, n_centroids, sample_size
from gr_mvdr.token_vectors import PackedTokens, TokenVectors, stack

# The encoded documents with these ids, in batches, in this order.
Encode = Callable[[Sequence[str]], Iterable[PackedTokens]]
Header = dict[str, Any]

HEADER = "index.json"
CODED = ("pq", "residual")
_SHARD = 2048  # documents
_SMALL_ID = 2**15  # token ids below it take two bytes


class TokenStore:
    """Packed tokens (T) of D documents, numbered in the order in which they were added.

    A deleted document keeps its number and its place on disk, and `live` is False there; an id that
    is added again gets a new number. A store that `append` or `delete` has changed is opened again.

    Attributes:
        document_ids: D ids; live: (D,) bool; counts: (D,) int64 tokens of each document.
        offsets: (D + 1,) int64, document n's tokens are the rows offsets[n] … offsets[n + 1].
        sizes: {"vectors": d}, and "keys": h where keys are stored.
        dtype: how vectors and keys are stored; codecs: what decodes them, by column.
        fingerprint: what the store was made from, such as {"model": …, "collection": …}.
        revision: a hash of the documents and their vectors; it differs after every change.
    """

    def __init__(self, directory: str | Path, fingerprint: dict[str, str] | None = None):
        """Opens a store by memory map.

        Raises:
            FileNotFoundError: the folder holds no store.
            ValueError: the store has another fingerprint, or a file is damaged.
        """
        self.directory = Path(directory)
        self.header = _read_header(self.directory)
        self.dtype: str = self.header["dtype"]
        self.fingerprint: dict[str, str] = self.header["fingerprint"]
        self.revision = _hash(self.header)
        for key, expected in (fingerprint or {}).items():
            if (own := self.fingerprint.get(key)) != expected:
                rule = f"was made with {key} {own}, expected {expected}"
                raise ValueError(f"index={self.directory}: {rule}")
        self.codecs = _read_codecs(self.directory, self.header["codec"])
        self.document_ids: list[str] = []
        self._shards: list[dict[str, Tensor]] = []
        for name in self.header["shards"]:
            columns, names = _read_shard(self.directory / name)
            self._shards.append(columns)
            self.document_ids += names
            same = _layout(columns) == self.layout
            check(same, self.directory / name, "its columns must be those of the other shards")
        if len({columns["ids"].dtype for columns in self._shards}) > 1:
            for columns in self._shards:
                columns["ids"] = columns["ids"].int()
        self.counts = torch.cat([columns["counts"] for columns in self._shards])
        self.offsets = torch.cat([self.counts.new_zeros(1), self.counts.cumsum(0)])
        lengths = [len(columns["ids"]) for columns in self._shards]
        self._starts = torch.tensor([0, *lengths]).cumsum(0)  # the first row of every shard
        self.live = torch.ones(len(self.document_ids), dtype=torch.bool)
        self.live[self.header["deleted"]] = False
        self.sizes: dict[str, int] = {
            name: self.layout[name] for name in ("vectors", "keys") if name in self.layout
        }
        for name, codec in self.codecs.items():
            fits = codec.code_size == self.sizes.get(name)
            check(fits, self.directory / self.header["codec"], "must fit the codes of the shards")
            self.sizes[name] = codec.size

    def __len__(self) -> int:
        return len(self.document_ids)

    @property
    def n_tokens(self) -> int:
        """T, the tokens of deleted documents included."""
        return int(self.offsets[-1])

    @property
    def layout(self) -> dict[str, int]:
        """The columns and how many items a row of them has; 0 = rows are single items."""
        return _layout(self._shards[0])

    @property
    def has_salience(self) -> bool:
        return "salience" in self.layout

    @property
    def searched(self) -> str:
        """The column that alignments are made from: "keys" where there are any, else "vectors"."""
        return "keys" if "keys" in self.sizes else "vectors"

    @property
    def size_in_bytes(self) -> int:
        """Bytes of the columns and of the codecs."""
        held = [*self._shards, *(codec.tensors for codec in self.codecs.values())]
        return sum(part.nbytes for tensors in held for part in tensors.values())

    def numbers(self, document_ids: Sequence[str]) -> Tensor:
        """(C,) int64 numbers of live documents.

        Raises:
            ValueError: an id is not in the index.
        """
        for name in document_ids:
            if name not in self._live_numbers:
                raise ValueError(f"index={self.directory}: document {name!r} is not in it")
        numbers = [self._live_numbers[name] for name in document_ids]
        return torch.tensor(numbers, dtype=torch.int64)

    @cached_property
    def _live_numbers(self) -> dict[str, int]:
        return {self.document_ids[n]: n for n in self.live.nonzero()[:, 0].tolist()}

    def vectors(self, name: str, rows: slice | Tensor, turned: bool = False) -> Tensor:
        """(t, size) fp32 of the column "vectors" or "keys", decoded.

        Args:
            turned: in the basis of `turn`.
        """
        stored, codec = self.column(name, rows), self.codecs.get(name)
        return codec.decode(stored, turned) if codec else stored.float()

    def turn(self, queries: TokenVectors) -> TokenVectors:
        """Queries in the basis of the codecs, where decoding is cheapest; S stays the same."""
        turned = {n: codec.turn(getattr(queries, n)) for n, codec in self.codecs.items()}
        return replace(queries, **turned)

    def salience(self, rows: slice | Tensor) -> Tensor | None:
        """(t,) fp32, or None where none is stored."""
        return self.column("salience", rows) if self.has_salience else None

    def ids(self, rows: slice | Tensor) -> Tensor:
        """(t,) int64, the token ids of rows."""
        return self.column("ids", rows).long()

    def read(self, documents: slice | Tensor, turned: bool = False) -> PackedTokens:
        """The documents with these numbers: a slice of them, or (C,) int64 in any order.

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
        """The rows of these documents' tokens: a slice for a slice, else (t,) int64."""
        if isinstance(documents, slice):
            start, stop, _ = documents.indices(len(self))
            return slice(int(self.offsets[start]), int(self.offsets[stop]))
        begins, ends = self.offsets[documents], self.offsets[documents + 1]
        return torch.from_numpy(ragged_range(begins.numpy(), ends.numpy())[1])

    def owners(self, tokens: Tensor) -> Tensor:
        """The document numbers of token rows, of the same shape, int64; −1 for row −1, no token."""
        owners = self._owners.index_select(0, tokens.flatten().clamp(min=0)).view_as(tokens)
        return owners.long().masked_fill_(tokens < 0, -1)

    def context(self, row: int, around: int) -> tuple[str, list[int], list[int], list[int]]:
        """A token row's document, the token ids before it in there, its own, and those after."""
        owner = int(self._owners[row])
        first, end = self.offsets[owner : owner + 2].tolist()
        bounds = max(first, row - around), row, row + 1, min(end, row + 1 + around)
        ids = (self.ids(slice(*place)).tolist() for place in pairwise(bounds))
        return self.document_ids[owner], *ids

    @cached_property
    def _owners(self) -> Tensor:
        """(T,) int32 every row's document: a search asks for too many rows to bisect."""
        return torch.arange(len(self), dtype=torch.int32).repeat_interleave(self.counts)

    def blocks(self, tokens: int) -> Iterator[slice]:
        """Slices of documents with at most this many tokens together, at least one document.

        A slice lies in one shard, so that its columns are read without a copy.
        """
        start = 0
        while start < len(self):
            first = self.offsets[start]
            end_of_shard = self._starts[torch.searchsorted(self._starts, first, right=True)]
            target = torch.minimum(first + tokens, end_of_shard)
            end = int(torch.searchsorted(self.offsets, target, right=True)) - 1
            end = min(max(start + 1, end), len(self))
            yield slice(start, end)
            start = end

    def column(self, name: str, rows: slice | Tensor) -> Tensor:
        """Rows (t, …) of a column as it is stored, in the order asked for; ascending is fastest."""
        empty = self._shards[0][name][:0]
        if isinstance(rows, slice):
            first = int(torch.searchsorted(self._starts, rows.start, right=True)) - 1
            end = int(torch.searchsorted(self._starts, rows.stop))
            parts = [
                shard[name][max(0, rows.start - start) : rows.stop - start]
                for shard, start in zip(
                    self._shards[first:end], self._starts[first:end].tolist(), strict=False
                )
            ]
            return torch.cat(parts) if len(parts) > 1 else parts[0] if parts else empty
        if len(self._shards) == 1:
            return self._shards[0][name].index_select(0, rows)
        order = None
        if (rows.diff() < 0).any():
            rows, order = rows.sort()
        selected = empty.new_empty(len(rows), *empty.shape[1:])
        bounds, starts = torch.searchsorted(rows, self._starts), self._starts.tolist()
        ends, places, out = bounds.tolist(), rows.numpy(), selected.numpy()
        for n in bounds.diff().nonzero()[:, 0].tolist():  # the shards that hold some of the rows
            own = slice(ends[n], ends[n + 1])
            column = self._shards[n][name].numpy()
            column.take(places[own] - starts[n], 0, out=out[own], mode="clip")
        if order is None:
            return selected
        return torch.empty_like(selected).index_copy_(0, order, selected)


def create(
    directory: Path,
    document_ids: Sequence[str],
    encode: Encode,
    dtype: str = "float32",
    pq_bytes: int | None = None,
    fingerprint: dict[str, str] | None = None,
    seed: int = 0,
    lists: int | None = None,
) -> None:
    """Writes a store, in the place of an older one. All ranks call it, each writes its own shards.

    A build that was killed goes on with the shards that it lacks, if it has a fingerprint. Codes
    are learned from the first `sample_size` vectors, which should be a fair sample of all.

    Args:
        dtype: of the vectors: "float32", "float16", "pq" or "residual"; see `Codec`.
        pq_bytes: of a code, None = `default_bytes`; lists: centroids, None = `n_centroids`.
        fingerprint: what the store is made from, such as {"model": …, "collection": …}.
        seed: of the k-means.

    Raises:
        ValueError: an id occurs twice, a document has no token or a vector that is not finite, ids
            and documents differ in number, or the bytes do not divide the vectors.
    """
    _check_unique(directory, document_ids)
    made_from = fingerprint or int(broadcast(torch.tensor(secrets.randbits(62))))
    key = _hash([made_from, dtype, pq_bytes, seed, lists, list(document_ids)])
    codec = f"{key}-codec.safetensors" if dtype in CODED else None
    shards = _split(key, document_ids)
    header = {"dtype": dtype, "fingerprint": fingerprint or {}, "codec": codec, "deleted": []}
    header["shards"] = list(shards)
    if rank() == 0:
        directory.mkdir(parents=True, exist_ok=True)
        if codec and not (directory / codec).is_file():
            _learn(directory, shards, encode, header, pq_bytes, seed, lists)
    wait()
    codecs = _read_codecs(directory, codec)
    own = dict(list(shards.items())[rank() :: world_size()])
    missing = {name: ids for name, ids in own.items() if not (directory / name).is_file()}
    with _bar(missing) as bar:
        for name, ids in missing.items():
            columns = _columns(_join(encode, ids, directory, bar), dtype, codecs)
            write_tensors(directory / name, columns, {"document_ids": ids})
    wait()
    if rank() == 0 and _held_header(directory) != header:
        write_json(directory / HEADER, header)
        _remove_unlisted(directory.iterdir(), header)
    wait()


def append(store: TokenStore, document_ids: Sequence[str], encode: Encode) -> None:
    """Adds documents to a store on disk, which stays as it was if anything goes wrong.

    Raises: as `create`, and ValueError for an id that the store holds already.
    """
    _check_unique(store.directory, document_ids)
    known = {store.document_ids[number] for number in store.live.nonzero()[:, 0].tolist()}
    for name in document_ids:
        if name in known:
            raise ValueError(f"index={store.directory}: document {name!r} is in it already")
    shards = _split(_hash([store.revision, list(document_ids)]), document_ids)
    header = {**store.header, "shards": [*store.header["shards"], *shards]}
    try:
        with _bar(shards) as bar:
            for name, ids in shards.items():
                tokens = _join(encode, ids, store.directory, bar)
                columns = _columns(tokens, store.dtype, store.codecs)
                if (new := _layout(columns)) != store.layout:
                    rule = f"must have the columns {store.layout}, has {new}"
                    raise ValueError(f"index={store.directory}: document {ids[0]!r}: {rule}")
                write_tensors(store.directory / name, columns, {"document_ids": ids})
        write_json(store.directory / HEADER, header)
    finally:  # the header on disk says which shards count
        on_disk = store.directory.glob("*-*.safetensors")
        _remove_unlisted(on_disk, read_json(store.directory / HEADER))


def delete(store: TokenStore, document_ids: Sequence[str]) -> None:
    """Declares documents of a store deleted; their bytes remain.

    Raises:
        ValueError: an id is not in the store.
    """
    numbers = sorted({*store.header["deleted"], *store.numbers(document_ids).tolist()})
    write_json(store.directory / HEADER, {**store.header, "deleted": numbers})


def _learn(
    directory: Path,
    shards: dict[str, list[str]],
    encode: Encode,
    header: Header,
    pq_bytes: int | None,
    seed: int,
    lists: int | None,
) -> None:
    """Learns the codecs of a new store from its first shards, and writes both."""
    held, dtype, total = {}, header["dtype"], sum(map(len, shards.values()))
    tokens = documents = wanted = 0
    with _bar(shards) as bar:
        for name, ids in shards.items():
            held[name] = _join(encode, ids, directory, bar)
            documents, tokens = documents + len(ids), tokens + len(held[name].vectors)
            expected = tokens * total // documents
            if tokens >= (wanted := sample_size(dtype, expected, lists)):
                break
    centroids = n_centroids(expected, lists) if dtype == "residual" else None
    codecs = {}
    for name in ("vectors", "keys"):
        parts = [getattr(part, name) for part in held.values()]
        if parts[0] is not None:
            sample = torch.cat(parts)[:wanted].float()
            codecs[name] = Codec.train(sample, pq_bytes, centroids, seed)
    tensors = {f"{n}.{m}": t for n, codec in codecs.items() for m, t in codec.tensors.items()}
    unit = [name for name, codec in codecs.items() if codec.is_unit]
    write_tensors(directory / header["codec"], tensors, {"unit": unit})
    for name, part in held.items():
        columns = _columns(part, dtype, codecs)
        write_tensors(directory / name, columns, {"document_ids": shards[name]})


def _split(key: str, document_ids: Sequence[str]) -> dict[str, list[str]]:
    """The documents of every shard, by its file's name."""
    starts = range(0, len(document_ids), _SHARD)
    return {
        f"{key}-{number:05}.safetensors": list(document_ids[start : start + _SHARD])
        for number, start in enumerate(starts)
    }


def _bar(shards: dict[str, list[str]]) -> Any:
    return track(None, "encoding documents", total=sum(map(len, shards.values())))


def _join(encode: Encode, names: list[str], directory: Path, bar: Any) -> PackedTokens:
    """The documents of a shard, on the CPU, checked."""
    batches = []
    for batch in encode(names):
        batches.append(batch.to("cpu"))
        bar.update(len(batch.counts))
    parts = zip(*batches, strict=True)
    tokens = PackedTokens(*(None if part[0] is None else torch.cat(part) for part in parts))
    if len(tokens.counts) != len(names):
        raise ValueError(f"index={directory}: {len(names)} ids but {len(tokens.counts)} documents")
    if (tokens.counts < 1).any():
        name = names[int((tokens.counts < 1).nonzero()[0])]
        raise ValueError(f"index={directory}: document {name!r} has no token vector, must have one")
    for part in (tokens.vectors, tokens.keys, tokens.salience):
        if part is not None and not part.isfinite().all():
            row = int((~part.isfinite()).nonzero()[0, 0])
            name = names[int(torch.searchsorted(tokens.counts.cumsum(0), row, right=True))]
            raise ValueError(
                f"index={directory}: document {name!r} has a vector that is not finite"
            )
    return tokens


def _columns(tokens: PackedTokens, dtype: str, codecs: dict[str, Codec]) -> dict[str, Tensor]:
    """The columns of a shard, as they are stored."""
    small = int(tokens.ids.max()) < _SMALL_ID
    columns = {"counts": tokens.counts, "ids": tokens.ids.to(torch.int16 if small else torch.int32)}
    if tokens.salience is not None:
        columns["salience"] = tokens.salience.float()
    for name, part in (("vectors", tokens.vectors), ("keys", tokens.keys)):
        if part is not None:
            coded = dtype in CODED
            columns[name] = codecs[name].encode(part) if coded else part.to(getattr(torch, dtype))
    return columns


def _layout(columns: dict[str, Tensor]) -> dict[str, int]:
    return {name: part.shape[1] if part.dim() > 1 else 0 for name, part in sorted(columns.items())}


def _read_shard(file: Path) -> tuple[dict[str, Tensor], list[str]]:
    columns, settings = open_tensors(file)
    names = settings["document_ids"]
    counts, rows = columns["counts"], {len(c) for n, c in columns.items() if n != "counts"}
    fits = len(counts) == len(names) and rows == {int(counts.sum())}  # which may overflow
    fits = fits and bool(((counts > 0) & (counts <= max(rows))).all())
    check(fits, file, "each document must have its tokens, and each token a row of every column")
    return columns, names


def _read_codecs(directory: Path, name: str | None) -> dict[str, Codec]:
    if name is None:
        return {}
    with reading(f"{directory / name}"):
        tensors, settings = open_tensors(directory / name)
        columns: dict[str, dict[str, Tensor]] = {}
        for key, part in tensors.items():
            column, _, table = key.partition(".")
            columns.setdefault(column, {})[table] = part
        return {n: Codec(tables, n in settings["unit"]) for n, tables in columns.items()}


def _read_header(directory: Path) -> Header:
    if not (directory / HEADER).is_file():
        raise FileNotFoundError(f"index={directory}: no token index there ({HEADER} is missing)")
    header = read_json(directory / HEADER)
    missing = {"dtype", "fingerprint", "codec", "shards", "deleted"} - header.keys()
    if missing:
        rule = f"must name {', '.join(sorted(missing))}, an earlier version's is made again"
        raise ValueError(f"{directory / HEADER}: {rule}")
    return header


def _held_header(directory: Path) -> Header:
    """The header of a folder; {} where there is none that can be read."""
    try:
        return read_json(directory / HEADER)
    except (OSError, ValueError):
        return {}


def _files(header: Header) -> list[str]:
    codec = [header["codec"]] if header["codec"] else []
    return [*codec, *header["shards"]]


def _remove_unlisted(paths: Iterable[Path], header: Header) -> None:
    """Removes what the header does not list: an older store's files, and what was made of it."""
    for path in list(paths):
        if path.name not in (HEADER, *_files(header)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _check_unique(directory: Path, document_ids: Sequence[str]) -> None:
    different = len(set(document_ids))
    if different != len(document_ids) or not different:
        raise ValueError(
            f"index={directory}: {len(document_ids)} ids, {different} of them different: "
            "must be at least one, and all different"
        )


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


class Sample:
    """Queries on which the open options of a search are chosen, kept in the folder of an index."""

    def __init__(self, directory: Path):
        self.file = directory / "sample.safetensors"

    def write(self, queries: Sequence[TokenVectors]) -> None:
        """Keeps token vectors (N, …) without padding in the place of earlier ones."""
        packed = stack(queries).pack().to("cpu")._asdict()
        parts = {name: part for name, part in packed.items() if part is not None}
        write_tensors(self.file, parts, {})

    def read(self) -> list[TokenVectors]:
        """The queries; [] where none were kept. ValueError where the file is damaged."""
        if not self.file.is_file():
            return []
        parts, _ = open_tensors(self.file)
        counts = parts.pop("counts").tolist()
        split = {name: part.split(counts) for name, part in parts.items()}
        masks = [torch.ones(count, dtype=torch.bool) for count in counts]
        return [
            TokenVectors(mask=mask, **{name: part[row] for name, part in split.items()})
            for row, mask in enumerate(masks)
        ]

    @property
    def made_of(self) -> dict[str, int]:
        """Its checksum; {} where no queries were kept."""
        return checksum(self.file) if self.file.is_file() else {}
