"""A table as one Arrow file: written row by row in bounded memory, opened without being read."""

import hashlib
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset, DatasetInfo, Features
from datasets.table import MemoryMappedTable

_ROWS = 1000  # that are held in memory before they are written


def write_table(file: Path, features: Features, rows: Iterable[Mapping[str, Any]]) -> int:
    """Writes rows as an Arrow stream; answers how many there were."""
    schema, count = features.arrow_schema, 0
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        rows = iter(rows)
        while some := list(islice(rows, _ROWS)):
            writer.write_batch(pa.RecordBatch.from_pylist(some, schema=schema))
            count += len(some)
    return count


def open_table(file: Path, features: Features, made_from: str) -> Dataset:
    """Memory-maps a table of `write_table`.

    Args:
        made_from: names its content, so that what is made from the table is cached under it.
    """
    fingerprint = hashlib.sha256(made_from.encode()).hexdigest()[:32]
    table = MemoryMappedTable.from_file(str(file))
    return Dataset(table, info=DatasetInfo(features=features), fingerprint=fingerprint)
