"""A collection as found in files: iterators over its rows, and what must hold of them.

A format's reader knows that format and nothing else. What holds for every collection (ids are
words, no id twice, judgements of known documents) is checked once, while it is read, by
`LayoutChecks`, whose errors name ``file:line``.
"""

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from gr_mvdr.texts import check_characters, check_id

# So many of a split's judgements, or this share, may be of unknown documents (ArguAna's: 5, 0.4 %).
_FEW, _SHARE = 10, 0.1
_DOCUMENTS = 2**32  # more than a collection has: a query and a document make one number


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
    """A collection that has been found and not yet been read.

    A row that a download holds twice, word for word, counts once.

    Attributes:
        name: short, for reports.
        files: all that is read.
        options: the reader with its version ("reader": "wu/1") and whatever else changes the rows.
        documents, queries: called once, when the store lacks the collection.
        judgements: by split.
        candidates: by split, documents to rerank.
        negatives: by name, hard negatives of training queries.
        known_only: leave out judgements of documents that the collection lacks; else they are kept.
        may_lack: splits that are left out if they turn out to be empty.
        needed_bytes: of disk; None = estimated from the files.
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
    may_lack: frozenset[str] = frozenset()
    needed_bytes: int | None = None


def asked_layout(
    splits: Mapping[str, Callable[[], Iterator[Asked]]],
    parts: Mapping[str, Callable[[], Iterator[Asked]]] | None = None,
    **others: Any,
) -> Layout:
    """The layout of a format whose lines have a query and its relevant documents.

    Args:
        splits: by name, their queries.
        parts: further splits, of queries that are in `splits`, too.
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
    """The rows of a layout's tables, each checked as it passes.

    Documents come first, then queries, then judgements, which name both.
    """

    def __init__(self, layout: Layout, empty_documents: str = "refuse"):
        """
        Args:
            empty_documents: "refuse", or "keep" those that have neither title nor text.
        """
        self.layout, self.keep_empty = layout, empty_documents == "keep"
        self.document_ids: dict[str, int] = {}  # their rows
        self.query_ids: dict[str, int] = {}

    def documents(self) -> Iterator[dict[str, str]]:
        """Rows of the documents' table."""
        empty = 0
        for where, id, title, text in self._rows("document", self.document_ids):
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
        for where, id, text in self._rows("query", self.query_ids):
            check_characters(where, f"query {id!r}", text)
            if not text.strip():
                raise ValueError(f"{where}: query {id!r} is empty")
            yield {"id": id, "text": text}

    def _rows(self, kind: str, numbers: dict[str, int]) -> Iterator[Any]:
        """The documents or queries; gives each id its row number.

        Raises:
            ValueError: two rows of one id differ, or there is no row.
        """
        name = {"document": "documents", "query": "queries"}[kind]
        read: Callable[[], Iterator[Any]] = getattr(self.layout, name)
        contents, repeated = array("q"), _Count()
        for row in read():
            check_id(row.where, kind, row.id)
            number, content = numbers.setdefault(row.id, len(numbers)), hash(row[1:])
            if number == len(contents):
                contents.append(content)
                yield row
            elif contents[number] == content:
                repeated.add(row.where)
            else:
                place = next(other.where for other in read() if other.id == row.id)
                raise ValueError(f"{row.where}: the {kind} {row.id!r} is already at {place}")
        repeated.report(name)
        if not numbers and self.layout.judgements:  # plain passages have no queries
            raise ValueError(f"{self._files()}: hold no {name}")

    def _files(self) -> str:
        files = ", ".join(map(str, self.layout.files[:4]))
        return files + (", …" if len(self.layout.files) > 4 else "")

    def splits(self) -> Iterator[str]:
        """The splits that become tables: all but the empty ones that the layout may lack."""
        for split, rows in self.layout.judgements.items():
            if split in self.layout.may_lack and next(iter(rows()), None) is None:
                print(f"{self.layout.name}: the split {split!r} is empty and is left out")
            else:
                yield split

    def judgements(self, split: str) -> Iterator[dict[str, Any]]:
        """Rows of a split's qrels.

        Those of unknown documents are kept and counted, unless the layout leaves them out: as in
        trec_eval, nothing finds them, and the mean is over all queries (BEIR's ArguAna and others
        name some).
        """
        grades: dict[int, int] = {}
        unknown: dict[str, int] = {}  # their ids and the numbers after the documents'
        repeated, outside, relevant = _Count(), _Count(), 0
        rows = self.layout.judgements[split]()
        if self.layout.known_only:
            rows = keep_known(rows, lambda row: row.document_id in self.document_ids, "judgements")
        for where, query, document, grade in rows:
            if query not in self.query_ids:
                raise ValueError(f"{where}: query {query!r} of {split!r} is not in the collection")
            number = self.document_ids.get(document)
            if known := number is not None:
                relevant += grade > 0
            else:
                check_id(where, "document", document)
                number = len(self.document_ids) + unknown.setdefault(document, len(unknown))
            pair = self.query_ids[query] * _DOCUMENTS + number
            if pair in grades:
                if grades[pair] != grade:
                    raise ValueError(
                        f"{where}: {query!r} {document!r} is judged {grade}, and {grades[pair]} "
                        "before"
                    )
                repeated.add(where)
                continue
            grades[pair] = grade
            if not known:
                outside.add(f"{where}: document {document!r}")
            yield {"query_id": query, "document_id": document, "relevance": grade}
        repeated.report("judgements")
        self._check_documents(split, len(grades), outside)
        if not relevant:
            raise ValueError(
                f"{self._files()}: split {split!r} is empty: it names no relevant document"
            )

    def _check_documents(self, split: str, judged: int, outside: "_Count") -> None:
        """Raises ValueError if most judgements are of unknown documents; prints how many are."""
        if not (number := outside.number):
            return
        if number == judged or number > max(_FEW, _SHARE * judged):
            raise ValueError(
                f"{outside.first} is not in the collection: {number:,} of the {judged:,} "
                f"judgements of the split {split!r} are of such documents, so it judges another "
                "collection, or documents are missing"
            )
        print(
            f"{outside.first} is not in the collection; {number:,} of {judged:,} judgements of "
            f"{split!r} are of such documents: they are kept, and count as not found"
        )

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
        """Says how many rows are repeats."""
        if self.number:
            print(
                f"{self.first}: {self.number:,} {what}, from this line on, are there already, word "
                "for word, and are left out"
            )


def keep_known(rows: Iterable[_Pair], known: Callable[[_Pair], bool], what: str) -> Iterator[_Pair]:
    """The rows of queries and documents that the collection has; says how many others there are.

    Args:
        what: the rows are, for the message.

    Raises:
        ValueError: there are only others: the rows are of another collection.
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
            "of this collection: they are of another one"
        )
    if unknown.number:
        print(
            f"{unknown.first}: {unknown.number:,} of {kept + unknown.number:,} {what}, from this "
            "line on, are of unknown queries or documents and are left out"
        )
