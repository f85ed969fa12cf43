"""A retrieval collection: documents, queries and the judgements between them, as tables."""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import datasets
from datasets import Dataset, Features, Value
from datasets.exceptions import DatasetGenerationError

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
            (an integer grade; 0 and below is judged irrelevant).
        sources: what the tables were made from: the SHA-256 of each file by its path, or a
            generator's parameters.
    """

    name: str
    documents: Dataset
    queries: Dataset
    qrels: dict[str, Dataset]
    sources: dict[str, str]

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
        judged = set(self._split(split)["query_id"][:])
        ids = self.queries["id"][:]
        return self.queries.select([row for row, id in enumerate(ids) if id in judged])

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
        queries, documents: tables with an id column; judgements of other queries are left out.

    Returns:
        A table with the columns query_row and document_row.
    """
    query_rows = {identifier: row for row, identifier in enumerate(queries["id"][:])}
    document_rows = {identifier: row for row, identifier in enumerate(documents["id"][:])}
    pairs = [
        (query_rows[query], document_rows[document])
        for query, document, grade in judged_triples(judgements)
        if grade > 0 and query in query_rows
    ]
    columns = zip(*pairs, strict=True) if pairs else ([], [])
    return Dataset.from_dict(
        dict(zip(("query_row", "document_row"), map(list, columns), strict=True))
    )


def check(collection: Collection) -> Collection:
    """Refuse a collection that would only fail, or mislead, later; returns it unchanged.

    Raises:
        ValueError: names the table, the row (counted from 0) and the rule: no document or query, a
            repeated id, an id with white space, an empty text, a split without relevant documents,
            a judgement of an unknown document or query or one given twice.
    """
    document_ids = _check_texts(f"collection {collection.name}: documents", collection.documents)
    query_ids = _check_texts(f"collection {collection.name}: queries", collection.queries)
    if not collection.qrels:
        raise ValueError(f"collection {collection.name}: no split; at least one is needed")
    for split, table in collection.qrels.items():
        _check_split(
            f"collection {collection.name}: split {split!r}", table, document_ids, query_ids
        )
    return collection


def _check_texts(table_name: str, table: Dataset) -> set[str]:
    if len(table) == 0:
        raise ValueError(f"{table_name}: the table is empty")
    first_row: dict[str, int] = {}
    for row, (id, text) in enumerate(zip(table["id"][:], table["text"][:], strict=True)):
        if not is_identifier(id):
            raise ValueError(f"{table_name}, row {row}: id {id!r}: must be {IDENTIFIER_RULE}")
        if id in first_row:
            raise ValueError(f"{table_name}, row {row}: id {id!r} is already row {first_row[id]}")
        if not text.strip():
            raise ValueError(f"{table_name}, row {row}: id {id!r} has an empty text")
        first_row[id] = row
    return set(first_row)


def _check_split(
    table_name: str, table: Dataset, document_ids: set[str], query_ids: set[str]
) -> None:
    seen = set()
    relevant = 0
    for row, (query_id, document_id, grade) in enumerate(judged_triples(table)):
        if query_id not in query_ids:
            raise ValueError(f"{table_name}, row {row}: unknown query {query_id!r}")
        if document_id not in document_ids:
            raise ValueError(f"{table_name}, row {row}: unknown document {document_id!r}")
        if (query_id, document_id) in seen:
            raise ValueError(f"{table_name}, row {row}: {query_id!r} {document_id!r} judged twice")
        seen.add((query_id, document_id))
        relevant += grade > 0
    if not relevant:
        raise ValueError(f"{table_name}: the split is empty: it names no relevant document")


IDENTIFIER_RULE = "a word without white space, as TREC runs need"


def is_identifier(id: object) -> bool:
    """Whether an id can stand in a TREC run, whose columns are separated by white space."""
    return isinstance(id, str) and id.split() == [id]


def cached_table(
    rows: Callable[[], Iterator[dict]], features: Features, *made_from: str
) -> Dataset:
    """Write rows once to the Arrow cache of ``datasets`` and memory-map them from then on.

    Args:
        rows: makes the iterator over the rows; called only if the cache lacks the table.
        features: the columns and their types.
        made_from: everything that determines the rows (name and version of the code, hashes of
            files, parameters). A table made from the same things is read back, not made again.

    Raises:
        Exception: whatever ``rows`` raised, as it was raised; the cache then keeps nothing.
    """
    key = hashlib.sha256(json.dumps([str(features), *made_from]).encode()).hexdigest()[:32]
    try:
        with no_bars():
            return Dataset.from_generator(rows, features=features, fingerprint=key)
    except DatasetGenerationError as error:
        if error.__cause__ is None:
            raise
        raise error.__cause__ from None


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
