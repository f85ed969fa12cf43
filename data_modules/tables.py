"""Tables on disk: Arrow files that are made once and memory-mapped, and their columns."""

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

from gr_mvdr.files import (
    checksum,
    name_errors,
    new_file,
    read_json,
    remove_abandoned,
    verify,
    write_json,
)
from gr_mvdr.progress import track

MANIFEST = "manifest.json"
TABLE, _CONTENTS = "table.arrow", "table.json"
_ROWS = 1000  # that are held in memory before they are written


@contextmanager
def write_once(path: Path) -> Iterator[Path | None]:
    """Gives a temporary name for what is to be made, or None if it is there; other processes wait.

    What was made takes its name at the end of the block; after an error or an interruption nothing
    is left, after a kill what the next call sweeps away. What is there is not touched: a cache that
    is filled may be on a disk that cannot be written to.

    Args:
        path: of a file or folder that is whole if it is there.
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
    """Writes rows as an Arrow stream, in bounded memory; returns how many there were."""
    schema, rows = features.arrow_schema, iter(rows)
    some = iter(lambda: list(islice(rows, _ROWS)), [])
    return write_batches(file, schema, (pa.RecordBatch.from_pylist(r, schema=schema) for r in some))


def write_batches(file: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    """Writes an Arrow stream of some rows at a time; returns how many there were."""
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


def arrow_batches(table: Dataset, description: str) -> Iterator[pa.Table]:
    """A table's rows, some at a time, as Arrow keeps them; shows how far it has come."""
    arrow = table.with_format("arrow")
    for start in track(range(0, len(table), _ROWS), description):
        yield arrow[start : start + _ROWS]


def keep_folder(
    folder: Path, write: Callable[[Path], Mapping[str, Any] | None], manifest: str = MANIFEST
) -> dict[str, Any]:
    """A folder that is written once, and checked whenever it is opened; returns its manifest.

    Args:
        write: fills the empty folder; what it returns goes into the manifest, beside the checksums
            of the files.

    Raises:
        ValueError: the folder is not as it was written.
    """
    with write_once(folder) as partial:
        if partial is not None:
            partial.mkdir()
            content = dict(write(partial) or {})
            files = [file for file in sorted(partial.rglob("*")) if file.is_file()]
            content["files"] = {str(f.relative_to(partial)): checksum(f) for f in files}
            write_json(partial / manifest, content)
    with _damage_named(folder):
        content = read_json(folder / manifest)
        for name, expected in content.get("files", {}).items():
            verify(folder / name, expected)
    return content


@contextmanager
def _damage_named(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        rule = "remove it, and it is made again"
        raise ValueError(f"{folder} is damaged ({reason}): {rule}") from None


def open_table(folder: Path, name: str, features: Features, fingerprint: str) -> Dataset:
    """Memory-maps a table of `write_table`.

    Args:
        name: of the file in its folder.
        fingerprint: names its content, so that what is made from the table is cached under it.

    Raises:
        ValueError: it is no such table.
    """
    with _damage_named(folder):
        table = MemoryMappedTable.from_file(str(folder / name))
        return Dataset(table, info=DatasetInfo(features=features), fingerprint=fingerprint)


def keep_table(folder: Path, features: Features, key: str, write: Callable[[Path], Any]) -> Dataset:
    """A table that is made once, in a folder of its own, and memory-mapped from then on.

    Args:
        key: names all that its content depends on; its fingerprint.
        write: makes the Arrow stream at a path.

    Raises:
        ValueError: the table is not as it was written.
    """

    def write_folder(partial: Path) -> None:
        write(partial / TABLE)

    keep_folder(folder, write_folder, _CONTENTS)
    return open_table(folder, TABLE, features, key)


def cache_table(rows: Callable[[], Iterator[dict]], features: Features, *made_from: str) -> Dataset:
    """Writes rows once next to the cache of ``datasets`` and memory-maps them from then on.

    Args:
        rows: makes the iterator over the rows; called only if the cache lacks the table.
        features: the columns and their types.
        made_from: everything that determines the rows (name and version of the code, hashes of
            files, parameters). A table made from the same things is read back, not made again.

    Raises:
        Exception: whatever ``rows`` raised, as it was raised; the cache then keeps nothing.
    """
    key = short_hash(str(features), *made_from)
    folder = cache_folder("tables") / key
    return keep_table(folder, features, key, lambda file: write_table(file, features, rows()))


def cache_folder(name: str) -> Path:
    """A folder next to the cache of ``datasets``."""
    return Path(datasets.config.HF_DATASETS_CACHE) / name


def short_hash(*causes: Any) -> str:
    """The key of what was made from these causes: 32 hexadecimal digits of their JSON's SHA-256."""
    return hashlib.sha256(json.dumps(causes, default=str).encode()).hexdigest()[:32]


def sample_rows(table: Dataset, limit: int | None) -> Dataset:
    """A random sample of at most this many rows, in their order; None = all."""
    if limit is None or limit >= len(table):
        return table
    # Whatever the seed: runs of several seeds are measured on the same queries.
    chosen = np.random.default_rng(0).permutation(len(table))[:limit]
    return table.select(sorted(chosen.tolist()))


def arrow_column(table: Dataset, name: str) -> pa.ChunkedArray:
    """A column in the order of the table's rows, as Arrow keeps it."""
    return table.with_format("arrow").select_columns([name])[:].column(name)


def integers(table: Dataset, name: str) -> np.ndarray:
    """(rows,) int64, a column of integers."""
    return arrow_column(table, name).to_numpy().astype(np.int64, copy=False)


class TokenColumn(Sequence):
    """The token lists of a table: all lengths at once, one list when it is asked for.

    Takes the memory of a number or two for each row: a collection may have millions of them.
    """

    def __init__(self, table: Dataset, name: str = "tokens"):
        """
        Args:
            table: rows may be selected from another; name: of a column of lists of integers.
        """
        self.table, self.name = table, name
        self.column = table.data.column(name)
        chosen = table._indices
        # (rows,) int64, the row's place in the file; None = in order.
        self.places = None if chosen is None else chosen.column(0).to_numpy()

    @property
    def lengths(self) -> np.ndarray:
        """(rows,) int64, the tokens of each list."""
        lengths = pc.list_value_length(self.column).to_numpy().astype(np.int64)
        return lengths if self.places is None else lengths[self.places]

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, row: int) -> list[int]:
        if not 0 <= row < len(self):
            raise IndexError(row)
        return self.column[int(row if self.places is None else self.places[row])].as_py()

    def __reduce__(self) -> tuple:
        return TokenColumn, (self.table, self.name)  # a loader's worker maps the file itself
