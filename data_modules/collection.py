"""A retrieval collection: documents, queries and the judgements between them, as tables."""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Features, Value
from datasets.table import InMemoryTable

from data_modules.arrow_file import kept_table, write_table
from data_modules.columns import arrow_column

DOCUMENTS = Features({"id": Value("string"), "title": Value("string"), "text": Value("string")})
QUERIES = Features({"id": Value("string"), "text": Value("string")})
JUDGEMENTS = Features(
    {"query_id": Value("string"), "document_id": Value("string"), "relevance": Value("int64")}
)


@dataclass(frozen=True)
class Collection:
    """Documents, queries and qrels (gr_as_mvdr.txt §5.1) as memory-mapped tables.

    Args:
        name: short name for reports.
        documents: columns ``id``, ``title`` (may be empty), ``text``.
        queries: columns ``id``, ``text``; a generated collection may add ``gold``, the character
            spans of the relevant document's ``text`` that answer the query.
        qrels: for each split a table with columns ``query_id``, ``document_id``, ``relevance``
            (an integer grade; 0 and below is judged irrelevant). A document that the collection
            lacks may be judged: no search finds it.
        sources: what the tables were made from: the SHA-256 of each file by its path, or a
            generator's parameters.
        folder: where it is stored; None = nowhere as a whole.
        candidates: TREC runs of documents to rerank, by split.
        negatives: TREC runs of documents to tell apart from the relevant ones, by name.
    """

    name: str
    documents: Dataset
    queries: Dataset
    qrels: dict[str, Dataset]
    sources: dict[str, str]
    folder: Path | None = None
    candidates: dict[str, Path] = field(default_factory=dict)
    negatives: dict[str, Path] = field(default_factory=dict)

    def judgements(self, split: str) -> dict[str, dict[str, int]]:
        """The qrels of one split: query id → {document id: grade}.

        Raises:
            ValueError: the collection has no such split.
        """
        grades: dict[str, dict[str, int]] = {}
        for query_id, document_id, grade in judged_triples(self._split(split)):
            grades.setdefault(query_id, {})[document_id] = grade
        return grades

    def split_queries(self, split: str) -> Dataset:
        """The queries that have a judgement in a split, in the order of the queries' table.

        Raises:
            ValueError: the collection has no such split.
        """
        judged = arrow_column(self._split(split), "query_id")
        chosen = pc.is_in(arrow_column(self.queries, "id"), value_set=judged)
        return self.queries.select(np.flatnonzero(chosen.to_numpy()))

    def _split(self, split: str) -> Dataset:
        if split not in self.qrels or len(self.qrels[split]) == 0:
            present = ", ".join(sorted(name for name, table in self.qrels.items() if len(table)))
            raise ValueError(
                f"split {split!r}: collection {self.name} has no judgements under that name; "
                f"its splits are {present or 'none'}"
            )
        return self.qrels[split]


def judged_triples(table: Dataset) -> Iterator[tuple[str, str, int]]:
    """Rows of a qrels table as (query id, document id, grade)."""
    columns = (table[name][:] for name in ("query_id", "document_id", "relevance"))
    return zip(*columns, strict=True)


def relevant_pairs(judgements: Dataset, queries: Dataset, documents: Dataset) -> Dataset:
    """The relevant (grade > 0) judgements as row numbers.

    Args:
        judgements: columns query_id, document_id, relevance.
        queries, documents: tables with an id column; judgements of others are left out.

    Returns:
        A table with the columns query_row and document_row.
    """
    rows = {
        "query_row": _rows_of(arrow_column(judgements, "query_id"), queries),
        "document_row": _rows_of(arrow_column(judgements, "document_id"), documents),
    }
    relevant = pc.greater(arrow_column(judgements, "relevance"), 0)
    known = pc.and_(*map(pc.is_valid, rows.values()))
    kept = pc.and_(relevant, known)
    made_from = [table._fingerprint for table in (judgements, queries, documents)]
    return Dataset(
        InMemoryTable(pa.table(rows).filter(kept)),
        fingerprint=hashlib.sha256(json.dumps(["pairs/1", *made_from]).encode()).hexdigest()[:32],
    )


def _rows_of(ids: pa.ChunkedArray, table: Dataset) -> pa.ChunkedArray:
    """The row of each id in a table; null where it has none."""
    return pc.index_in(ids, value_set=arrow_column(table, "id")).cast(pa.int64())


def cached_table(
    rows: Callable[[], Iterator[dict]], features: Features, *made_from: str
) -> Dataset:
    """Write rows once next to the cache of ``datasets`` and memory-map them from then on.

    Args:
        rows: makes the iterator over the rows; called only if the cache lacks the table.
        features: the columns and their types.
        made_from: everything that determines the rows (name and version of the code, hashes of
            files, parameters). A table made from the same things is read back, not made again.

    Raises:
        Exception: whatever ``rows`` raised, as it was raised; the cache then keeps nothing.
    """
    key = hashlib.sha256(json.dumps([str(features), *made_from]).encode()).hexdigest()[:32]
    folder = Path(datasets.config.HF_DATASETS_CACHE) / "tables" / key
    return kept_table(folder, features, key, lambda file: write_table(file, features, rows()))


@contextmanager
def no_bars() -> Iterator[None]:
    """Keep the bars of ``datasets`` out of ours, and leave the user's setting as it was."""
    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()
