"""Every document token's vector on disk, a file a column, memory-mapped; whole or quantised."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gr_mvdr.batch import ragged_range
from gr_mvdr.files import (
    check,
    checksum,
    read_arrays,
    read_sealed,
    reading,
    verify,
    write_arrays,
)
from gr_mvdr.token_index.quantiser import Quantiser, ResidualQuantiser, load
from gr_mvdr.token_vectors import PackedTokens, TokenVectors, stack

HEADER, SAMPLE = "index.json", "sample"
# Stored types of vectors and keys; "pq" and "residual" store codes.
DTYPES = {"float32": np.float32, "float16": np.float16, "pq": np.uint8, "residual": np.uint8}
WHOLE, CODED = ("float32", "float16"), ("pq", "residual")
# Of the other columns.
_DTYPES = {"counts": np.int64, "ids": np.int32, "salience": np.float32}
_SMALL_VOCABULARY = 1 << 16  # ids that 2 bytes tell apart

Header = dict[str, Any]


def empty_header(dtype: str, fingerprint: dict[str, str], vocabulary: int | None = None) -> Header:
    is_small = vocabulary is not None and vocabulary <= _SMALL_VOCABULARY
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
        "ids": "uint16" if is_small else "int32",
        "unit": [],  # columns of residual codes whose vectors have length 1
    }


# What earlier versions did not write.
_LATER = {"fingerprint", "files", "ids", "unit"}


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
    columns["ids"] = Column(np.dtype(header.get("ids", "int32")), 0, header["tokens"])
    if not header["salience"]:
        del columns["salience"]
    for name, size in header["sizes"].items():
        width = header["pq_bytes"] if header["dtype"] in CODED else size
        columns[name] = Column(DTYPES[header["dtype"]], width, header["tokens"])
        if header["dtype"] == "residual":
            columns[f"{name}_centroids"] = Column(np.uint16, 0, header["tokens"])
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
            name: open_column(self.directory / f"{name}.bin", column)
            for name, column in columns_of(self.header).items()
        }
        for name, expected in self.header.get("files", {}).items():  # an old index has none
            verify(self.directory / name, expected)
        self.counts = self._maps["counts"]
        self.offsets = torch.cat([self.counts.new_zeros(1), self.counts.cumsum(0)])
        counted = (self.counts > 0).all() and int(self.counts.sum()) == self.n_tokens
        rule = f"must hold counts ≥ 1 of {self.n_tokens:,} tokens"
        check(bool(counted), self.directory / "counts.bin", rule)
        dtype, n_bytes = self.header["dtype"], self.header["pq_bytes"]
        self.quantisers: dict[str, Quantiser] = {
            name: load(
                self.directory, name, dtype, n_bytes, size, name in self.header.get("unit", [])
            )
            for name, size in (self.sizes.items() if dtype in CODED else ())
        }

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
        """Bytes of the columns and what decodes them."""
        quantisers = sum(path.stat().st_size for path in self.directory.glob("*.npy"))
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

    def vectors(self, name: str, rows: slice | Tensor, turned: bool = False) -> Tensor:
        """(t, size) fp32 of the column "vectors" or "keys", decoded.

        Args:
            turned: in the basis that `turn` brings queries into; see `ResidualQuantiser`.
        """
        stored, quantiser = self._rows(name, rows), self.quantisers.get(name)
        if isinstance(quantiser, ResidualQuantiser):
            numbers = self._rows(f"{name}_centroids", rows).long()
            found = quantiser.decode(stored, numbers)
            return found if turned else found @ quantiser.basis.T
        return quantiser.decode(stored) if quantiser else stored.float()

    def turn(self, queries: TokenVectors) -> TokenVectors:
        """Queries in the basis in which `read(…, turned=True)` gives documents."""
        turned = {
            name: getattr(queries, name) @ quantiser.basis.to(queries.mask.device)
            for name, quantiser in self.quantisers.items()
            if isinstance(quantiser, ResidualQuantiser)
        }
        return replace(queries, **turned)

    def codes(self, name: str, rows: Tensor) -> Tensor:
        """(t, bytes) uint8 of rows of a column that is stored as codes."""
        return self._rows(name, rows)

    def centroids(self, name: str) -> np.ndarray:
        """(T,) uint16, the centroid of every row's residual code."""
        return self._maps[f"{name}_centroids"].numpy()

    def salience(self, rows: slice | Tensor) -> Tensor | None:
        """(t,) fp32, or None where none is stored."""
        return self._rows("salience", rows) if "salience" in self._maps else None

    def read(self, documents: slice | Tensor, turned: bool = False) -> PackedTokens:
        """The documents with these numbers; a slice of neighbours, or (C,) int64 in any order.

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

    def ids(self, rows: slice | Tensor) -> Tensor:
        """(t,) int64, the token ids of rows."""
        return self._rows("ids", rows).long()

    def rows(self, documents: slice | Tensor) -> slice | Tensor:
        """The rows of these documents' tokens: a slice for a slice, else (t,) int64."""
        if isinstance(documents, slice):
            start, stop, _ = documents.indices(len(self))
            return slice(int(self.offsets[start]), int(self.offsets[stop]))
        begins, ends = self.offsets[documents], self.offsets[documents + 1]
        return torch.from_numpy(ragged_range(begins.numpy(), ends.numpy())[1])

    def owners(self, tokens: Tensor) -> Tensor:
        """The document numbers of token rows, −1 (no token) for −1; of the same shape, int64."""
        found = self._owners.index_select(0, tokens.flatten().clamp(min=0)).view_as(tokens)
        return found.long().masked_fill_(tokens < 0, -1)

    def context(self, row: int, around: int) -> tuple[str, list[int], list[int], list[int]]:
        """A token row's document, the token ids before it in there, its own, and those after."""
        owner = int(self._owners[row])
        first, end = self.offsets[owner : owner + 2].tolist()
        bounds = max(first, row - around), row, row + 1, min(end, row + 1 + around)
        ids = (self.ids(slice(*place)).tolist() for place in pairwise(bounds))
        return self.document_ids[owner], *ids

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
        if column.dtype == torch.uint16:  # of which torch selects no rows
            return torch.from_numpy(
                column.numpy()[rows if isinstance(rows, slice) else rows.numpy()]
            )
        return column[rows] if isinstance(rows, slice) else column.index_select(0, rows)


def _read_header(directory: Path) -> Header:
    path = directory / HEADER
    if not path.is_file():
        raise FileNotFoundError(f"index={directory}: no token index there ({HEADER} missing)")
    header = read_sealed(path)
    missing = empty_header("", {}).keys() - _LATER - header.keys()
    check(not missing, path, f"must name {', '.join(sorted(missing))}")
    known = header["dtype"] in DTYPES and header.get("ids", "int32") in ("int32", "uint16")
    check(known, path, "must name types of vectors and ids that are known")
    numbers, count = header["deleted"], len(header["document_ids"])
    check(all(0 <= number < count for number in numbers), path, "a deleted document is unknown")
    return header


def open_column(path: Path, column: Column) -> Tensor:
    """A file of rows by memory map; ValueError where it is too short."""
    size = path.stat().st_size if path.is_file() else 0
    if size < column.size:
        raise ValueError(f"index={path}: {size} bytes, expected {column.size}: it was cut short")
    shape = (column.rows, column.width) if column.width else (column.rows,)
    if not column.rows:
        return torch.from_numpy(np.empty(shape, column.dtype))
    # "c" keeps the map writable for torch without ever writing to the file. A file may be longer:
    # what an interrupted `append` left behind does not count.
    return torch.from_numpy(np.memmap(path, column.dtype, "c", shape=shape))


class Sample:
    """Queries that a search is planned on, kept in the folder of an index."""

    def __init__(self, directory: Path):
        self.folder = directory / SAMPLE

    def write(self, queries: Sequence[TokenVectors]) -> None:
        """Keeps token vectors (N, …) without padding in the place of earlier ones."""
        packed = stack(queries).pack()._asdict()
        parts = {name: part.cpu().numpy() for name, part in packed.items() if part is not None}
        write_arrays(self.folder, parts, {"parts": sorted(parts)}, replace=True)

    def read(self) -> list[TokenVectors]:
        """The queries; none where none were kept. ValueError where the folder is damaged."""
        if not self.folder.is_dir():
            return []
        with reading(f"{self.folder}"):
            return list(self._queries())

    def _queries(self) -> Iterator[TokenVectors]:
        names = tuple(read_arrays(self.folder, ())[1]["parts"])
        arrays = read_arrays(self.folder, names)[0]
        parts = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
        counts = parts.pop("counts").tolist()
        split = {name: part.split(counts) for name, part in parts.items()}
        for row, count in enumerate(counts):
            mask = torch.ones(count, dtype=torch.bool)
            yield TokenVectors(mask=mask, **{name: part[row] for name, part in split.items()})

    @property
    def made_of(self) -> dict[str, int]:
        """What tells it from another."""
        return checksum(self.folder / "arrays.json") if self.folder.is_dir() else {}
