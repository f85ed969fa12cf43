"""Tables on disk: Arrow files that are written once, then memory-mapped, and their columns."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetInfo, Features
from datasets.table import MemoryMappedTable
from filelock import FileLock

from gr_mvdr.files import name_errors, new_file, remove_abandoned

TABLES = "tables"  # the name of a folder of cached tables
ROWS = 1000  # rows held in memory before they are written


@contextmanager
def write_once(path: Path) -> Iterator[Path | None]:
    """Yields a temporary path to write to, or None if `path` exists; other processes wait.

    At the end of the block the new file or folder is renamed to `path`. An error or interruption
    leaves nothing behind; the next call removes what a killed process left. If `path` exists,
    nothing is written: a complete cache may lie on a read-only disk.

    Args:
        path: the file or folder to write; if it exists, it is complete.
    """
    if path.exists():
        yield None
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):
        if path.exists():
            yield None
            return
        remove_abandoned(path.parent, path.name)
        with new_file(path) as partial:
            yield partial


def write_table(file: Path, features: Features, rows: Iterable[Mapping[str, Any]]) -> int:
    """Writes rows as an Arrow stream, in bounded memory; returns the number of rows."""
    schema, rows = features.arrow_schema, iter(rows)
    some = iter(lambda: list(islice(rows, ROWS)), [])
    return write_batches(file, schema, (pa.RecordBatch.from_pylist(r, schema=schema) for r in some))


def write_batches(file: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    """Writes batches of rows as an Arrow stream; returns the number of rows."""
    count = 0
    with (
        name_errors(file),
        pa.OSFile(str(file), "wb") as sink,
        pa.ipc.new_stream(sink, schema) as writer,
    ):
        for batch in batches:
            writer.write_batch(batch)
            count += len(batch)
    return count


@contextmanager
def damage_named(kept: Path) -> Iterator[None]:
    """Turns errors of reading a kept folder or file into one that says what to do."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        rule = "remove it, and it is made again"
        raise ValueError(f"{kept} is damaged ({reason}): {rule}") from None


def open_table(file: Path, features: Features, fingerprint: str) -> Dataset:
    """Memory-maps a table that `write_table` wrote.

    Args:
        fingerprint: identifies the content; tables made from this one are cached under it.

    Raises:
        ValueError: the file is not such a table.
    """
    with damage_named(file):
        table = MemoryMappedTable.from_file(str(file))
        return Dataset(table, info=DatasetInfo(features=features), fingerprint=fingerprint)


def keep_table(folder: Path, features: Features, key: str, write: Callable[[Path], Any]) -> Dataset:
    """Returns a memory-mapped table in a folder, written the first time.

    Args:
        key: identifies everything that the content depends on; becomes the table's fingerprint.
        write: writes the Arrow stream to a path.
    """
    file = folder / f"{key}.arrow"
    with write_once(file) as partial:
        if partial is not None:
            write(partial)
    return open_table(file, features, key)


def cache_table(rows: Callable[[], Iterator[dict]], features: Features, *made_from: str) -> Dataset:
    """Returns a memory-mapped table, written next to the cache of ``datasets`` the first time.

    Args:
        rows: returns an iterator over the rows; called only if the cache lacks the table.
        features: the columns and their types.
        made_from: everything that determines the rows (name and version of the code, hashes of
            files, parameters). A table with the same causes is read from the cache.

    Raises:
        Exception: any exception of ``rows``, unchanged; the cache then keeps nothing.
    """
    key = short_hash(str(features), *made_from)
    folder = cache_folder(TABLES)
    return keep_table(folder, features, key, lambda file: write_table(file, features, rows()))


def cache_folder(name: str) -> Path:
    """A folder next to the cache of ``datasets``."""
    return Path(datasets.config.HF_DATASETS_CACHE) / name


def short_hash(*causes: Any) -> str:
    """A cache key: the first 32 hexadecimal digits of the SHA-256 of the causes' JSON."""
    return hashlib.sha256(json.dumps(causes, default=str).encode()).hexdigest()[:32]


def sample_rows(table: Dataset, limit: int | None) -> Dataset:
    """A random sample of at most `limit` rows, in the table's order; None = all."""
    if limit is None or limit >= len(table):
        return table
    # Independent of the run's seed: runs with different seeds are measured on the same queries.
    chosen = np.random.default_rng(0).permutation(len(table))[:limit]
    return table.select(sorted(chosen.tolist()))


def arrow_column(table: Dataset, name: str) -> pa.ChunkedArray:
    """A column as Arrow data, in the order of the table's rows."""
    return table.with_format("arrow").select_columns([name])[:].column(name)


def integers(table: Dataset, name: str) -> np.ndarray:
    """A column of integers: (rows,) int64."""
    return arrow_column(table, name).to_numpy().astype(np.int64, copy=False)


def find_rows(ids: pa.ChunkedArray, table: Dataset) -> np.ndarray:
    """The row of each id in a table: (ids,) int64, −1 = the table lacks the id."""
    rows = pc.index_in(ids, value_set=arrow_column(table, "id"))
    return pc.fill_null(rows, -1).to_numpy().astype(np.int64)


class TokenColumn(Sequence):
    """The token lists of a table: all lengths at once, single lists on request.

    Holds at most a few numbers per row in memory, since a collection may have millions of rows.
    """

    def __init__(self, table: Dataset, name: str = "tokens"):
        """
        Args:
            table: may be a selection of rows from another table.
            name: the name of a column that holds lists of integers.
        """
        self.table, self.name = table, name
        self.column = table.data.column(name)
        chosen = table._indices
        # (rows,) int64, the place of each row in the file; None = the file's order.
        self.places = None if chosen is None else chosen.column(0).to_numpy()

    @property
    def lengths(self) -> np.ndarray:
        """(rows,) int64, the number of tokens in each list."""
        lengths = pc.list_value_length(self.column).to_numpy().astype(np.int64)
        return lengths if self.places is None else lengths[self.places]

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, row: int) -> list[int]:
        if not 0 <= row < len(self):
            raise IndexError(row)
        return self.column[int(row if self.places is None else self.places[row])].as_py()

    def __reduce__(self) -> tuple:
        return TokenColumn, (self.table, self.name)  # each loader process maps the file itself


def sample_tokens(documents: Dataset, rows: np.ndarray, most: int) -> TokenColumn:
    """Token lists of an evenly spaced sample of these rows, about `most` tokens."""
    documents = documents.select(rows)
    step = max(1, -(-int(TokenColumn(documents).lengths.sum()) // most))
    return TokenColumn(documents.select(range(0, len(documents), step)))
