"""A table as one Arrow file: written row by row in bounded memory, opened without being read."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset, DatasetInfo, Features
from datasets.table import MemoryMappedTable

from data_modules.written_once import written_once
from gr_mvdr.files.arrays import checksum, read_sealed, verify, write_sealed
from gr_mvdr.files.writing import name_errors

TABLE, _CONTENTS = "table.arrow", "table.json"
_ROWS = 1000  # that are held in memory before they are written


def write_table(file: Path, features: Features, rows: Iterable[Mapping[str, Any]]) -> int:
    """Writes rows as an Arrow stream; answers how many there were."""
    schema, count, rows = features.arrow_schema, 0, iter(rows)
    with (
        name_errors(file),
        pa.OSFile(str(file), "wb") as sink,
        pa.ipc.new_stream(sink, schema) as writer,
    ):
        while some := list(islice(rows, _ROWS)):
            writer.write_batch(pa.RecordBatch.from_pylist(some, schema=schema))
            count += len(some)
    return count


def open_table(file: Path, features: Features, made_from: str) -> Dataset:
    """Memory-maps a table of `write_table`.

    Args:
        made_from: names its content, so that what is made from the table is cached under it.
    """
    return _opened(file, features, hashlib.sha256(made_from.encode()).hexdigest()[:32])


def kept_table(folder: Path, features: Features, key: str, write: Callable[[Path], Any]) -> Dataset:
    """A table that is made once, in a folder of its own, and memory-mapped from then on.

    Args:
        key: names all that its content depends on; its fingerprint.
        write: makes the Arrow stream at a path.

    Raises:
        ValueError: the table is not as it was written.
    """
    with written_once(folder) as partial:
        if partial is not None:
            partial.mkdir()
            write(partial / TABLE)
            write_sealed(partial / _CONTENTS, {TABLE: checksum(partial / TABLE)})
    try:
        verify(folder / TABLE, read_sealed(folder / _CONTENTS)[TABLE])
        return _opened(folder / TABLE, features, key)
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise ValueError(f"{error}: remove {folder}, and it is made again") from None


def _opened(file: Path, features: Features, fingerprint: str) -> Dataset:
    table = MemoryMappedTable.from_file(str(file))
    return Dataset(table, info=DatasetInfo(features=features), fingerprint=fingerprint)
