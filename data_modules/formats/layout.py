"""A collection as found in files: iterators over its rows, and what must hold of them.

A format's reader knows that format and nothing else. What holds for every collection (ids are
words, no id twice, judgements of known documents) is checked once, while it is read, by
`LayoutChecks`, whose errors name ``file:line``.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from gr_mvdr.texts import check_characters, check_id

# So many of a split's judgements, or this share, may be of unknown documents (ArguAna's: 5, 0.4 %).
_FEW, _SHARE = 10, 0.1


class Document(NamedTuple):
    """A document as a file gives it; `where` is ``file:line``, title and text may be empty."""

    where: str
    id: str
    title: str
    text: str


class Query(NamedTuple):
    """A query as a file gives it."""

    where: str
    id: str
    text: str


class Judgement(NamedTuple):
    """A judgement as a file gives it; a grade of 0 and below is irrelevant."""

    where: str
    query_id: str
    document_id: str
    relevance: int


class NamedPair(NamedTuple):
    """A document that a file names for a query: to rerank, or as a hard negative.

    Attributes:
        score: the document's; NaN where the file gives none.
        positive: whether the file says that the document is relevant.
    """

    where: str
    query_id: str
    document_id: str
    score: float = math.nan
    positive: bool = False


class Asked(NamedTuple):
    """A query with its relevant documents, as formats give it that have both on one line."""

    where: str
    id: str
    text: str
    documents: Sequence[str]


_Pair = TypeVar("_Pair", Judgement, NamedPair)


@dataclass(frozen=True)
class Layout:
    """A collection whose files are known and not yet read.

    A row that a download repeats word for word counts once.

    Attributes:
        name: short, for reports.
        files: all that is read.
        options: the reader with its version ("reader": "wu/1") and whatever else changes the rows.
        documents, queries: called once, when the store lacks the collection.
        judgements: by split; a split without judgements is left out.
        candidates: by split, documents to rerank.
        negatives: by name, hard negatives of training queries.
        known_only: leave out judgements of documents that the collection lacks; else they are kept.
    """

    name: str
    files: tuple[Path, ...]
    options: Mapping[str, Any]
    documents: Callable[[], Iterator[Document]]
    queries: Callable[[], Iterator[Query]]
    judgements: Mapping[str, Callable[[], Iterator[Judgement]]]
    candidates: Mapping[str, Callable[[], Iterator[NamedPair]]] = field(default_factory=dict)
    negatives: Mapping[str, Callable[[], Iterator[NamedPair]]] = field(default_factory=dict)
    known_only: bool = False


def asked_layout(
    splits: Mapping[str, Callable[[], Iterator[Asked]]],
    parts: Mapping[str, Callable[[], Iterator[Asked]]] | None = None,
    **others: Any,
) -> Layout:
    """The layout of a format whose lines have a query and its relevant documents.

    Args:
        splits: by name, their queries.
        parts: further splits, whose queries are in `splits`, too.
        others: the attributes of the layout that do not follow from these.
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
    """Several collections as one: every id follows its collection's key, "nq/d17".

    Splits of the same name become one. Candidates and negatives are left out.
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
        known_only=any(layout.known_only for layout in layouts.values()),
    )


class LayoutChecks:
    """The rows of a layout's tables, each checked as it passes: documents, queries, judgements."""

    def __init__(self, layout: Layout, empty_documents: str = "refuse"):
        """
        Args:
            empty_documents: "refuse", or "keep" those that have neither title nor text.
        """
        self.layout, self.keep_empty = layout, empty_documents == "keep"
        self.document_ids: dict[str, int] = {}  # id → hash of the row
        self.query_ids: dict[str, int] = {}

    def documents(self) -> Iterator[dict[str, str]]:
        """Rows of the documents' table."""
        empty = 0
        found = self._rows("document", "documents", self.document_ids)
        for where, id, title, text in found:
            check_characters(where, f"document {id!r}", title, text)
            if not (title.strip() or text.strip()):
                if not self.keep_empty:
                    raise ValueError(
                        f"{where}: document {id!r} is empty: it has neither title nor text "
                        "(data.empty_documents=keep keeps such documents)"
                    )
                empty += 1
            yield {"id": id, "title": title, "text": text}
        if empty:
            print(f"{self.layout.name}: {empty:,} documents without title and text are kept")

    def queries(self) -> Iterator[dict[str, str]]:
        """Rows of the queries' table."""
        for where, id, text in self._rows("query", "queries", self.query_ids):
            check_characters(where, f"query {id!r}", text)
            if not text.strip():
                raise ValueError(f"{where}: query {id!r} is empty")
            yield {"id": id, "text": text}

    def _rows(self, kind: str, name: str, seen: dict[str, int]) -> Iterator[Any]:
        """The documents or queries, each id once.

        Raises:
            ValueError: two rows of one id differ, or there is no row.
        """
        repeated = _Count()
        for row in getattr(self.layout, name)():
            check_id(row.where, kind, row.id)
            content = hash(row[1:])
            if row.id not in seen:
                seen[row.id] = content
                yield row
            elif seen[row.id] == content:
                repeated.add(row.where)
            else:
                raise ValueError(f"{row.where}: another {kind} has the id {row.id!r}, too")
        repeated.report(name)
        if not seen and self.layout.judgements:  # plain passages have no queries
            raise ValueError(f"data.path: {self.layout.name} holds no {name}")

    def judgements(self, split: str) -> Iterator[dict[str, Any]]:
        """Rows of a split's qrels.

        Those of unknown documents are kept and counted, unless the layout leaves them out: as in
        trec_eval, nothing finds them, and the mean is over all queries (BEIR's ArguAna and others
        name some).
        """
        grades: dict[tuple[str, str], int] = {}
        repeated, outside, relevant = _Count(), _Count(), 0
        rows = self.layout.judgements[split]()
        if self.layout.known_only:
            rows = keep_known(rows, lambda row: row.document_id in self.document_ids, "judgements")
        for where, query, document, grade in rows:
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
            if outside.number == len(grades) or outside.number > max(_FEW, _SHARE * len(grades)):
                rule = "so it judges another collection, or documents are missing"
                raise ValueError(f"{said}, {rule}")
            print(f"{said}; no search can find them, and they count as missed")
        if grades and not relevant:
            raise ValueError(f"data.path: the split {split!r} names no relevant document")

    def ranked(self, kind: str, rows: Callable[[], Iterable[NamedPair]]) -> Iterator[NamedPair]:
        """Candidates or negatives: of queries and documents that the collection has."""

        def known(row: NamedPair) -> bool:
            return row.query_id in self.query_ids and row.document_id in self.document_ids

        return keep_known(rows(), known, kind)


class _Count:
    """How many rows of a kind there are, and where the first is."""

    def __init__(self) -> None:
        self.number, self.first = 0, ""

    def add(self, where: str) -> None:
        self.number, self.first = self.number + 1, self.first or where

    def report(self, what: str) -> None:
        if self.number:
            print(f"{self.first}: {self.number:,} {what}, from this line on, repeat earlier ones")


def keep_known(rows: Iterable[_Pair], known: Callable[[_Pair], bool], what: str) -> Iterator[_Pair]:
    """The rows of queries and documents that the collection has; prints how many others there are.

    Args:
        what: the rows are, for the message.

    Raises:
        ValueError: no row is of this collection.
    """
    kept, unknown = 0, _Count()
    for row in rows:
        if known(row):
            kept += 1
            yield row
        else:
            unknown.add(row.where)
    if unknown.number and not kept:
        raise ValueError(
            f"{unknown.first}: none of the {unknown.number:,} {what} is of a query and a document "
            "of this collection"
        )
    if unknown.number:
        print(
            f"{unknown.first}: {unknown.number:,} of {kept + unknown.number:,} {what}, from this "
            "line on, are of unknown queries or documents and are left out"
        )
