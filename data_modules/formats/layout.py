"""A collection in files: iterators over its rows, and the rules that the rows must follow.

A format's reader knows only its format. The rules for every collection (ids are words, no id occurs
twice, judgements name known documents) are in `LayoutChecks`, which checks them once, while the
collection is read, and whose errors name ``file:line``.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from gr_mvdr.fields import FIELDS_COLUMN
from gr_mvdr.texts import check_id

# A split may have this number of judgements of unknown documents, or this fraction of all its
# judgements, whichever is larger (ArguAna has 5, 0.4 %).
_FEW, _FRACTION = 10, 0.1


class Document(NamedTuple):
    """A document in a file; `where` is ``file:line``; title and text may be empty.

    Attributes:
        fields: its further fields, with values of any type; if rows repeat a document, the first
            row's count.
    """

    where: str
    id: str
    title: str
    text: str
    fields: Mapping[str, Any] = {}


class Query(NamedTuple):
    """A query in a file."""

    where: str
    id: str
    text: str


class Judgement(NamedTuple):
    """A judgement in a file; a grade of 0 or below means irrelevant."""

    where: str
    query_id: str
    document_id: str
    relevance: int


class NamedPair(NamedTuple):
    """A document that a file names for a query: to rerank, or as a hard negative.

    Attributes:
        score: the document's score; NaN = the file has none.
        positive: whether the file calls the document relevant.
    """

    where: str
    query_id: str
    document_id: str
    score: float = math.nan
    positive: bool = False


class Asked(NamedTuple):
    """A query with its relevant documents, for formats that have both on one line."""

    where: str
    id: str
    text: str
    documents: Sequence[str]


@dataclass(frozen=True)
class Layout:
    """A collection whose files are known but not yet read.

    If the files repeat a row exactly, it counts once.

    Attributes:
        name: short name for reports.
        files: all files that are read.
        options: the reader with its version ("reader": "wu/1"), and every other option that changes
            the rows.
        documents, queries: return an iterator over the rows; called only if the store lacks the
            collection.
        judgements: split → a function that returns its rows; an empty split is left out.
        candidates: split → documents to rerank.
        negatives: name → hard negatives of training queries.
    """

    name: str
    files: tuple[Path, ...]
    options: Mapping[str, Any]
    documents: Callable[[], Iterator[Document]]
    queries: Callable[[], Iterator[Query]]
    judgements: Mapping[str, Callable[[], Iterator[Judgement]]]
    candidates: Mapping[str, Callable[[], Iterator[NamedPair]]] = field(default_factory=dict)
    negatives: Mapping[str, Callable[[], Iterator[NamedPair]]] = field(default_factory=dict)


def asked_layout(
    splits: Mapping[str, Callable[[], Iterator[Asked]]],
    parts: Mapping[str, Callable[[], Iterator[Asked]]] | None = None,
    **others: Any,
) -> Layout:
    """The layout of a format whose lines hold a query and its relevant documents.

    Args:
        splits: split → its queries.
        parts: further splits; their queries also occur in `splits`.
        others: the other attributes of the layout.
    """

    def queries() -> Iterator[Query]:
        for asked in splits.values():
            for where, id, text, _ in asked():
                yield Query(where, id, text)

    def judgements(asked: Callable[[], Iterator[Asked]]) -> Iterator[Judgement]:
        for where, id, _, documents in asked():
            for document in documents:
                yield Judgement(where, id, document, 1)

    judged = {s: partial(judgements, asked) for s, asked in {**splits, **(parts or {})}.items()}
    return Layout(queries=queries, judgements=judged, **others)


def join_layouts(name: str, layouts: Mapping[str, Layout]) -> Layout:
    """Joins several collections into one; ids get the collection's key as a prefix, "nq/d17".

    Splits of the same name are joined. Candidates and negatives are left out.
    """

    def rows(kind: str) -> Iterator[Any]:
        for place, layout in layouts.items():
            for row in getattr(layout, kind)():
                yield row._replace(id=f"{place}/{row.id}")

    def judgements(split: str) -> Iterator[Judgement]:
        for place, layout in layouts.items():
            for where, query, document, grade in layout.judgements.get(split, lambda: iter(()))():
                yield Judgement(where, f"{place}/{query}", f"{place}/{document}", grade)

    splits = dict.fromkeys(split for layout in layouts.values() for split in layout.judgements)
    return Layout(
        name=name,
        files=tuple(file for layout in layouts.values() for file in layout.files),
        options={place: dict(layout.options) for place, layout in layouts.items()},
        documents=partial(rows, "documents"),
        queries=partial(rows, "queries"),
        judgements={split: partial(judgements, split) for split in splits},
    )


class LayoutChecks:
    """Yields the rows of a layout's tables, checking each; read documents first, then queries."""

    def __init__(self, layout: Layout, empty_documents: str = "refuse"):
        """
        Args:
            empty_documents: "refuse", or "keep" documents that have neither title nor text.
        """
        self.layout, self.keep_empty = layout, empty_documents == "keep"
        self.document_ids: dict[str, int] = {}  # id → hash of the row
        self.query_ids: dict[str, int] = {}

    def documents(self) -> Iterator[dict[str, Any]]:
        """Yields the rows of the documents' table, with the further fields as `fields`."""
        empty = 0
        every = self._rows("document", "documents", self.document_ids)
        for where, id, title, text, fields in every:
            if not (title.strip() or text.strip()):
                if not self.keep_empty:
                    raise ValueError(
                        f"{where}: document {id!r} is empty: it has neither title nor text "
                        "(data.empty_documents=keep keeps such documents)"
                    )
                empty += 1
            yield {"id": id, "title": title, "text": text, FIELDS_COLUMN: fields}
        if empty:
            print(f"{self.layout.name}: {empty:,} documents without title and text are kept")

    def queries(self) -> Iterator[dict[str, str]]:
        """Yields the rows of the queries' table."""
        for where, id, text in self._rows("query", "queries", self.query_ids):
            if not text.strip():
                raise ValueError(f"{where}: query {id!r} is empty")
            yield {"id": id, "text": text}

    def _rows(self, kind: str, name: str, seen: dict[str, int]) -> Iterator[Any]:
        """Yields the documents or queries, each id once.

        Raises:
            ValueError: two different rows have the same id; or there is no document, or no query of
                a layout with judgements.
        """
        repeated = _Count()
        for row in getattr(self.layout, name)():
            check_id(row.where, kind, row.id)
            content = hash(row[1:4])
            if row.id not in seen:
                seen[row.id] = content
                yield row
            elif seen[row.id] == content:
                repeated.add(row.where)
            else:
                raise ValueError(f"{row.where}: another {kind} has the id {row.id!r}, too")
        repeated.report(name)
        if not seen and (kind == "document" or self.layout.judgements):
            raise ValueError(f"data.path: {self.layout.name} holds no {name}")

    def judgements(self, split: str) -> Iterator[dict[str, Any]]:
        """Yields the rows of a split's qrels.

        Judgements of unknown documents are kept and counted. As in trec_eval, these documents count
        as missed, and means are over all queries (ArguAna in BEIR has such judgements).
        """
        grades: dict[tuple[str, str], int] = {}
        repeated, outside, relevant = _Count(), _Count(), 0
        for where, query, document, grade in self.layout.judgements[split]():
            if query not in self.query_ids:
                raise ValueError(f"{where}: query {query!r} of {split!r} is not in the collection")
            if document not in self.document_ids:
                check_id(where, "document", document)
            if (before := grades.get((query, document))) is not None:
                if before != grade:
                    rule = f"is judged {grade}, and {before} before"
                    raise ValueError(f"{where}: {query!r} {document!r} {rule}")
                repeated.add(where)
                continue
            grades[query, document] = grade
            if document not in self.document_ids:
                outside.add(f"{where}: document {document!r}")
            elif grade > 0:
                relevant += 1
            yield {"query_id": query, "document_id": document, "relevance": grade}
        repeated.report("judgements")
        if outside.number:
            said = (
                f"{outside.first} is not in the collection: {outside.number:,} of the "
                f"{len(grades):,} judgements of the split {split!r} are of such documents"
            )
            if outside.number == len(grades) or outside.number > max(_FEW, _FRACTION * len(grades)):
                rule = "so it judges another collection, or documents are missing"
                raise ValueError(f"{said}, {rule}")
            print(f"{said}; no search can find them, and they count as missed")
        if grades and not relevant:
            raise ValueError(f"data.path: the split {split!r} names no relevant document")

    def ranked(self, kind: str, rows: Callable[[], Iterable[NamedPair]]) -> Iterator[NamedPair]:
        """Yields the candidates or negatives whose query and document the collection has.

        Prints how many others there are.

        Raises:
            ValueError: there are others alone.
        """
        kept, unknown = 0, _Count()
        for row in rows():
            if row.query_id in self.query_ids and row.document_id in self.document_ids:
                kept += 1
                yield row
            else:
                unknown.add(row.where)
        if unknown.number and not kept:
            raise ValueError(
                f"{unknown.first}: none of the {unknown.number:,} {kind} is of a query and a "
                "document of this collection"
            )
        if unknown.number:
            print(
                f"{unknown.first}: {unknown.number:,} of {kept + unknown.number:,} {kind}, from "
                "this line on, are of unknown queries or documents and are left out"
            )


class _Count:
    """Counts rows of one kind and remembers the place of the first."""

    def __init__(self) -> None:
        self.number, self.first = 0, ""

    def add(self, where: str) -> None:
        self.number, self.first = self.number + 1, self.first or where

    def report(self, what: str) -> None:
        if self.number:
            print(f"{self.first}: {self.number:,} {what}, from this line on, repeat earlier ones")
