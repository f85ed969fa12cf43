"""Every document token's vector on disk, a file a column, memory-mapped; whole or quantised."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gr_mvdr.files.arrays import check, read_sealed, verify
from gr_mvdr.token_vectors import PackedTokens

HEADER = "index.json"
# Stored types of vectors and keys; "pq" stores codes.
DTYPES = {"float32": np.float32, "float16": np.float16, "pq": np.uint8}
# Of the other columns: an id fits into 4 bytes, as vocabularies do.
_DTYPES = {"counts": np.int64, "ids": np.int32, "salience": np.float32}
_CENTROIDS = 256  # what one byte of a code tells apart
# Vectors a centroid is trained on, as faiss asks for.
_SAMPLE = 256

Header = dict[str, Any]


def empty_header(dtype: str, fingerprint: dict[str, str]) -> Header:
    return {
        "document_ids": [],
        "deleted": [],
        "tokens": 0,
        "revision": 0,  # counts changes, so that what was made from the store knows its age
        "dtype": dtype,
        "pq_bytes": 0,
        "sizes": {},  # {"vectors": d}, and "keys": h if there are any
        "salience": False,
        "fingerprint": fingerprint,
        "files": {},  # checksums
    }


class Column(NamedTuple):
    """How a file of rows is stored: `width` items a row, 0 = rows are single items."""

    dtype: Any
    width: int
    rows: int

    @property
    def size(self) -> int:
        """Bytes of all rows."""
        return np.dtype(self.dtype).itemsize * max(self.width, 1) * self.rows


def columns_of(header: Header) -> dict[str, Column]:
    """The files `NAME.bin` of a store and how they are stored, by its header."""
    columns = {name: Column(dtype, 0, header["tokens"]) for name, dtype in _DTYPES.items()}
    columns["counts"] = Column(_DTYPES["counts"], 0, len(header["document_ids"]))
    if not header["salience"]:
        del columns["salience"]
    for name, size in header["sizes"].items():
        width = header["pq_bytes"] if header["dtype"] == "pq" else size
        columns[name] = Column(DTYPES[header["dtype"]], width, header["tokens"])
    return columns


class TokenStore:
    """Packed tokens (T) of D documents, numbered in the order in which they were added.

    A deleted document keeps its number and its place on disk, and `live` is False there; an id that
    is added again gets a new number. A store that `append` or `delete` has changed is opened again.

    Attributes:
        document_ids: D ids; live: (D,) bool; counts: (D,) int64 tokens of each document.
        offsets: (D + 1,) int64, document n's tokens are the rows offsets[n] … offsets[n + 1].
        sizes: {"vectors": d}, and "keys": h where keys are stored.
    """

    def __init__(self, directory: str | Path, fingerprint: dict[str, str] | None = None):
        """Opens a store by memory map.

        Args:
            fingerprint: what must have made it, such as {"model": …, "collection": …}.

        Raises:
            FileNotFoundError: there is none.
            ValueError: something else made it, or a file is cut short or damaged.
        """
        self.directory = Path(directory)
        self.header = _read_header(self.directory)
        for key, value in (fingerprint or {}).items():
            if (found := self.header["fingerprint"].get(key)) != value:
                raise ValueError(
                    f"index={self.directory}: was made with {key} {found}, expected {value}"
                )
        self.document_ids: list[str] = self.header["document_ids"]
        self.sizes: dict[str, int] = self.header["sizes"]
        self.live = torch.ones(len(self.document_ids), dtype=torch.bool)
        self.live[self.header["deleted"]] = False
        self._maps = {
            name: _open(self.directory / f"{name}.bin", column)
            for name, column in columns_of(self.header).items()
        }
        for name, expected in self.header.get("files", {}).items():  # an old index has none
            verify(self.directory / name, expected)
        self.counts = self._maps["counts"]
        self.offsets = torch.cat([self.counts.new_zeros(1), self.counts.cumsum(0)])
        counted = (self.counts > 0).all() and int(self.counts.sum()) == self.n_tokens
        rule = f"must hold counts ≥ 1 of {self.n_tokens:,} tokens"
        check(bool(counted), self.directory / "counts.bin", rule)
        self.quantisers: dict[str, ProductQuantiser] = {}
        for name, size in self.sizes.items() if self.header["dtype"] == "pq" else ():
            path, parts = self.directory / f"{name}.codebook.npy", self.header["pq_bytes"]
            self.quantisers[name] = quantiser = ProductQuantiser.load(path)
            fits = quantiser.codebooks.shape == (parts, 256, size // parts)
            check(fits, path, "must fit the vectors")

    def __len__(self) -> int:
        return len(self.document_ids)

    @property
    def n_tokens(self) -> int:
        """T, the tokens of deleted documents included."""
        return self.header["tokens"]

    @property
    def searched(self) -> str:
        """The column that alignments are made from: "keys" where there are any, else "vectors"."""
        return "keys" if "keys" in self.sizes else "vectors"

    @property
    def size_in_bytes(self) -> int:
        """Bytes of the columns and codebooks."""
        quantisers = 4 * sum(q.codebooks.numel() for q in self.quantisers.values())
        return quantisers + sum(map_.numel() * map_.itemsize for map_ in self._maps.values())

    def numbers(self, document_ids: Sequence[str]) -> Tensor:
        """(C,) int64 numbers of live documents.

        Raises:
            ValueError: an id that is not in the index.
        """
        for name in document_ids:
            if name not in self._live_numbers:
                raise ValueError(f"index={self.directory}: document {name!r} is not in it")
        found = [self._live_numbers[name] for name in document_ids]
        return torch.tensor(found, dtype=torch.int64)

    @cached_property
    def _live_numbers(self) -> dict[str, int]:
        return {self.document_ids[n]: n for n in self.live.nonzero()[:, 0].tolist()}

    def vectors(self, name: str, rows: slice | Tensor) -> Tensor:
        """(t, size) fp32 of the column "vectors" or "keys", decoded."""
        stored = self._rows(name, rows)
        return self.quantisers[name].decode(stored) if self.quantisers else stored.float()

    def salience(self, rows: slice | Tensor) -> Tensor | None:
        """(t,) fp32, or None where none is stored."""
        return self._rows("salience", rows) if "salience" in self._maps else None

    def read(self, documents: slice | Tensor) -> PackedTokens:
        """The documents with these numbers; a slice of neighbours, or (C,) int64 in any order."""
        rows = self.rows(documents)
        return PackedTokens(
            vectors=self.vectors("vectors", rows),
            counts=self.counts[documents],
            ids=self.ids(rows),
            salience=self.salience(rows),
            keys=self.vectors("keys", rows) if "keys" in self.sizes else None,
        )

    def ids(self, rows: slice | Tensor) -> Tensor:
        """(t,) int64, the token ids of rows."""
        return self._rows("ids", rows).long()

    def rows(self, documents: slice | Tensor) -> slice | Tensor:
        """The rows of these documents' tokens: a slice for a slice, else (t,) int64."""
        if isinstance(documents, slice):
            start, stop, _ = documents.indices(len(self))
            return slice(int(self.offsets[start]), int(self.offsets[stop]))
        counts = self.counts[documents]
        starts = self.offsets[documents] - (counts.cumsum(0) - counts)
        return torch.arange(int(counts.sum())) + starts.repeat_interleave(counts)

    def owners(self, tokens: Tensor) -> Tensor:
        """The document numbers of token rows, −1 (no token) for −1; of the same shape, int64."""
        found = self._owners.index_select(0, tokens.flatten().clamp(min=0)).view_as(tokens)
        return found.long().masked_fill_(tokens < 0, -1)

    @cached_property
    def _owners(self) -> Tensor:
        """(T,) int32 every row's document: a search asks for too many to bisect."""
        return torch.arange(len(self), dtype=torch.int32).repeat_interleave(self.counts)

    def blocks(self, tokens: int) -> Iterator[slice]:
        """Neighbouring documents with about so many tokens together, at least one document."""
        start = 0
        while start < len(self):
            target = self.offsets[start] + tokens
            end = int(torch.searchsorted(self.offsets, target, right=True)) - 1
            end = min(max(start + 1, end), len(self))
            yield slice(start, end)
            start = end

    def _rows(self, name: str, rows: slice | Tensor) -> Tensor:
        column = self._maps[name]
        return column[rows] if isinstance(rows, slice) else column.index_select(0, rows)


def _read_header(directory: Path) -> Header:
    path = directory / HEADER
    if not path.is_file():
        raise FileNotFoundError(f"index={directory}: no token index there ({HEADER} missing)")
    header = read_sealed(path)
    missing = empty_header("", {}).keys() - {"fingerprint", "files"} - header.keys()
    check(not missing, path, f"must name {', '.join(sorted(missing))}")
    numbers, count = header["deleted"], len(header["document_ids"])
    check(all(0 <= number < count for number in numbers), path, "a deleted document is unknown")
    return header


def _open(path: Path, column: Column) -> Tensor:
    size = path.stat().st_size if path.is_file() else 0
    if size < column.size:
        raise ValueError(f"index={path}: {size} bytes, expected {column.size}: it was cut short")
    shape = (column.rows, column.width) if column.width else (column.rows,)
    if not column.rows:
        return torch.from_numpy(np.empty(shape, column.dtype))
    # "c" keeps the map writable for torch without ever writing to the file. A file may be longer:
    # what an interrupted `append` left behind does not count.
    return torch.from_numpy(np.memmap(path, column.dtype, "c", shape=shape))


class ProductQuantiser:
    """A vector as one byte for each of its parts, after Jégou et al. (2011).

    Codebooks (bytes, 256, d / bytes): part p of a vector is the number of a row of table p.
    """

    def __init__(self, codebooks: Tensor):
        self.codebooks = codebooks
        self._rows = codebooks.flatten(0, 1)
        self._starts = _CENTROIDS * torch.arange(len(codebooks))

    @staticmethod
    def sample_size() -> int:
        """Vectors that `train` can use."""
        return _CENTROIDS * _SAMPLE

    @classmethod
    def train(cls, sample: Tensor, n_bytes: int, seed: int) -> "ProductQuantiser":
        """Learns the codebooks by k-means (faiss) from a sample (n, d) fp32, n ≥ 1.

        Raises:
            ValueError: the bytes do not divide the vector.
        """
        import faiss

        size = sample.shape[1]
        if n_bytes < 1 or size % n_bytes:
            raise ValueError(f"model.search.pq_bytes={n_bytes}: must divide the {size} dimensions")
        if len(sample) < _CENTROIDS:  # then every vector of it becomes a centroid
            sample = sample.repeat(-(-_CENTROIDS // len(sample)), 1)[:_CENTROIDS]
        quantiser = faiss.ProductQuantizer(size, n_bytes, 8)
        quantiser.cp.seed, quantiser.cp.min_points_per_centroid = seed, 1
        quantiser.train(np.ascontiguousarray(sample.numpy()))
        centroids = torch.from_numpy(faiss.vector_to_array(quantiser.centroids).copy())
        return cls(centroids.view(n_bytes, _CENTROIDS, -1))

    def encode(self, vectors: Tensor) -> Tensor:
        """(t, d) → codes (t, bytes) uint8, the nearest rows."""
        import faiss

        parts, _, width = self.codebooks.shape
        quantiser = faiss.ProductQuantizer(parts * width, parts, 8)
        faiss.copy_array_to_vector(self.codebooks.flatten().numpy(), quantiser.centroids)
        return torch.from_numpy(quantiser.compute_codes(vectors.float().numpy()))

    def decode(self, codes: Tensor) -> Tensor:
        """Codes (t, bytes) uint8 → (t, d) fp32."""
        return self._rows.index_select(0, (codes + self._starts).flatten()).view(len(codes), -1)

    @classmethod
    def load(cls, path: Path) -> "ProductQuantiser":
        return cls(torch.from_numpy(np.load(path, allow_pickle=False)))
