"""Pairs of a query and a document as row numbers, read from files that name them by their ids."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from data_modules.formats.named_pairs import read_pairs
from gr_mvdr.progress import track

if TYPE_CHECKING:
    from data_modules.tasks import TrainingTables


class PairSet:
    """Pairs of a query's row and a document's row, each held once."""

    def __init__(self, queries: np.ndarray, documents: np.ndarray, n_documents: int):
        """
        Args:
            queries, documents: (pairs,) int64 rows; n_documents: of the corpus.
        """
        self.n_documents = n_documents
        keys = np.asarray(queries, np.int64) * n_documents + np.asarray(documents, np.int64)
        # (P,) int64 ascending: query row · documents + document row; so a query's stand together.
        self.keys, self.first = np.unique(keys, return_index=True)

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def queries(self) -> np.ndarray:
        """(P,) int64, ascending."""
        return self.keys // self.n_documents

    @property
    def documents(self) -> np.ndarray:
        """(P,) int64."""
        return self.keys % self.n_documents

    def of(self, query: int) -> np.ndarray:
        """(documents,) int64, the rows of a query's documents, ascending."""
        start, end = np.searchsorted(self.keys, np.array([query, query + 1]) * self.n_documents)
        return self.keys[start:end] % self.n_documents

    def counts(self, n_queries: int) -> np.ndarray:
        """(queries,) int64, the documents of each query."""
        return np.bincount(self.queries, minlength=n_queries)

    def places(self, query: int | np.ndarray, documents: Sequence[int] | np.ndarray) -> np.ndarray:
        """(n,) int64, where the pairs stand in `keys`; −1 = nowhere."""
        wanted = np.asarray(query, np.int64) * self.n_documents + np.asarray(documents, np.int64)
        if not len(self):
            return np.full(wanted.shape, -1)
        found = np.searchsorted(self.keys, wanted).clip(max=len(self) - 1)
        return np.where(self.keys[found] == wanted, found, -1)


@dataclass(frozen=True)
class NamedRows:
    """What a file says of the queries and documents of a collection.

    Attributes:
        queries, documents: (lines,) int64 rows, pair by pair as in the file.
        scores: (lines,) fp32, NaN = none.
        positive: (lines,) bool, the file says that the document answers the query.
    """

    queries: np.ndarray
    documents: np.ndarray
    scores: np.ndarray
    positive: np.ndarray


def read_named_rows(
    key: str, file: Path, tables: "TrainingTables", forms: Sequence[tuple[str, ...]]
) -> NamedRows:
    """Reads a file of named pairs and says how many of them name what the tables lack.

    Args:
        key: of the configuration, for the message.
        forms: see `read_pairs`.

    Raises:
        ValueError: a line breaks the format, or, in training, no pair is known.
    """
    ids = tables.documents["id"][:]
    query_rows = {identifier: row for row, identifier in enumerate(tables.queries["id"][:])}
    document_rows = {ids[row]: row for row in tables.known_rows.tolist()}
    columns = array("q"), array("q"), array("f"), array("b")
    other_queries = unknown_documents = 0
    for pair in track(read_pairs(file, *forms), f"reading {file.name}"):
        if pair.query not in query_rows:
            other_queries += 1
        elif pair.document not in document_rows:
            unknown_documents += 1
        else:
            rows = query_rows[pair.query], document_rows[pair.document]
            for column, value in zip(columns, (*rows, pair.score, pair.positive), strict=True):
                column.append(value)
    _report(key, file, tables.training, len(columns[0]), other_queries, unknown_documents)
    kinds = np.int64, np.int64, np.float32, np.int8
    found = [np.asarray(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    return NamedRows(*found[:3], positive=found[3].astype(bool))


def _report(
    key: str, file: Path, training: bool, used: int, other_queries: int, unknown_documents: int
) -> None:
    split = "training" if training else "validation"
    left_out = (
        f"{other_queries:,} are of queries outside the {split} split, "
        f"{unknown_documents:,} name documents that are not known in training"
    )
    total = used + other_queries + unknown_documents
    if not used and training:
        raise ValueError(f"{key}={file}: none of its {total:,} pairs can be used: {left_out}")
    if used < total:
        print(f"{file}: {used:,} of {total:,} pairs are used; {left_out}")
