"""Columns of a table without its rows as Python objects: a collection may have millions of them."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from datasets import Dataset


def arrow_column(table: Dataset, name: str) -> pa.ChunkedArray:
    """A column in the order of the table's rows, as Arrow keeps it."""
    return table.with_format("arrow").select_columns([name])[:].column(name)


def integers(table: Dataset, name: str) -> np.ndarray:
    """(rows,) int64, a column of integers."""
    return arrow_column(table, name).to_numpy().astype(np.int64, copy=False)


class TokenColumn(Sequence):
    """The token lists of a table: all lengths at once, one list when it is asked for.

    Takes the memory of a number or two for each row.
    """

    def __init__(self, table: Dataset, name: str = "tokens"):
        """
        Args:
            table: rows may be selected from another; name: of a column of lists of integers.
        """
        self.table, self.name = table, name
        self.chunks = table.data.column(name).chunks
        sizes = [len(chunk) for chunk in self.chunks]
        self.firsts = np.cumsum([0, *sizes])  # (chunks + 1,) the row that each begins with
        chosen = table._indices
        # (rows,) int64, where the row stands in the file; None = in order.
        self.places = None if chosen is None else chosen.column(0).to_numpy()

    @property
    def lengths(self) -> np.ndarray:
        """(rows,) int64, the tokens of each list."""
        parts = [np.diff(chunk.offsets.to_numpy()) for chunk in self.chunks]
        lengths = np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64)
        return lengths if self.places is None else lengths[self.places]

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, row: int) -> list[int]:
        if not 0 <= row < len(self):
            raise IndexError(row)
        place = row if self.places is None else self.places[row]
        number = int(np.searchsorted(self.firsts, place, side="right")) - 1
        return self.chunks[number][int(place - self.firsts[number])].as_py()

    def __iter__(self) -> Iterator[list[int]]:
        return (self[row] for row in range(len(self)))

    def __reduce__(self) -> tuple:
        return TokenColumn, (self.table, self.name)  # a loader's worker maps the file itself
