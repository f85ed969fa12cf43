"""What a reader finds in a folder: files, iterators over what they say, and what must hold of it.

A reader knows one format and nothing else. What holds for every collection (ids that are words, no
id twice, judgements of known documents) is checked once, while it is read, by `LayoutChecks`; its
errors name ``file:line``.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from data_modules.formats.lines import numbered_lines
from gr_mvdr.texts import check_characters, check_id

EMPTY = ("refuse", "keep")
_TABLES = ("documents", "queries")
# So many of a split's judgements, or this share, may be of unknown documents (ArguAna's: 5, 0.4 %).
_FEW, _SHARE = 10, 0.1
_DOCUMENTS = 2**32  # more than a collection has: queries and documents make one number


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


class Ranked(NamedTuple):
    """A document that a file names for a query: to rerank, or to tell apart from the relevant."""

    where: str
    query_id: str
    document_id: str
    score: float


_Row = TypeVar("_Row", Judgement, Ranked)


class Asked(NamedTuple):
    """A query with its relevant documents, as formats give it that have both on one line."""

    where: str
    id: str
    text: str
    documents: Sequence[str]


@dataclass(frozen=True)
class Layout:
    """A collection that has been found and not yet been read.

    Attributes:
        name: short, for reports.
        files: all that is read.
        options: the reader with its version ("reader": "wu/1") and whatever else changes the rows.
        documents, queries: called once, when the store lacks the collection.
        judgements: by split.
        candidates: by split, documents to rerank.
        negatives: by name, documents to tell apart from the relevant ones in training.
        may_lack: splits that are left out where they turn out to be empty.
        needed_bytes: of disk; None = estimated from the files.
    """

    name: str
    files: tuple[Path, ...]
    options: Mapping[str, Any]
    documents: Callable[[], Iterator[Document]]
    queries: Callable[[], Iterator[Query]]
    judgements: Mapping[str, Callable[[], Iterator[Judgement]]]
    candidates: Mapping[str, Callable[[], Iterator[Ranked]]] = field(default_factory=dict)
    negatives: Mapping[str, Callable[[], Iterator[Ranked]]] = field(default_factory=dict)
    may_lack: frozenset[str] = frozenset()
    needed_bytes: int | None = None


def asked_layout(
    path: Path,
    reader: str,
    splits: Mapping[str, Callable[[], Iterator[Asked]]],
    parts: Mapping[str, Callable[[], Iterator[Asked]]] | None = None,
    **others: Any,
) -> Layout:
    """The layout of a format whose lines have a query and its relevant documents.

    Args:
        path: names the collection.
        reader: with its version.
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

    all_splits = {**splits, **(parts or {})}
    judged = {split: partial(judgements, asked) for split, asked in all_splits.items()}
    found = {"name": path.resolve().name, "queries": queries, **others}
    return Layout(options={"reader": reader}, judgements=judged, **found)


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
    )


def made_id(split: str, where: str) -> str:
    """The id of a query that has none: train-17 on line 17 of the training file."""
    return f"{split}-{where.rpartition(':')[2]}"


def keep_known(rows: Iterable[_Row], known: Callable[[_Row], bool], what: str) -> Iterator[_Row]:
    """The rows of queries and documents that the collection has; says how many others there are.

    Args:
        what: the rows are, for the message.

    Raises:
        ValueError: there are only others: the rows are of another collection.
    """
    kept, unknown, first = 0, 0, ""
    for row in rows:
        if known(row):
            kept += 1
            yield row
        else:
            unknown, first = unknown + 1, first or row.where
    if unknown and not kept:
        raise ValueError(
            f"{first}: none of the {unknown:,} {what} is of a query and a document of this "
            "collection: they are of another one"
        )
    if unknown:
        print(
            f"{first}: {unknown:,} of {kept + unknown:,} {what}, from this line on, are of unknown "
            "queries or documents and are left out"
        )


class LayoutChecks:
    """The rows of a layout's tables, each checked as it passes.

    Documents first, then queries, then judgements, which name both.
    """

    def __init__(self, layout: Layout, empty_documents: str = "refuse"):
        """
        Args:
            empty_documents: "refuse", or "keep" those that have neither title nor text.

        Raises:
            ValueError: another choice; a split that would take the name of another table.
        """
        if empty_documents not in EMPTY:
            raise ValueError(
                f"data.empty_documents={empty_documents}: must be {' or '.join(EMPTY)}"
            )
        if named := [split for split in layout.judgements if split in _TABLES]:
            raise ValueError(
                f"{layout.name}: the split {named[0]!r}, which a file of judgements names: must "
                f"have another name than {' and '.join(_TABLES)}"
            )
        self.layout, self.keep_empty = layout, empty_documents == "keep"
        self.document_ids: dict[str, int] = {}  # their rows
        self.query_ids: dict[str, int] = {}

    def documents(self) -> Iterator[dict[str, str]]:
        """Rows of the documents' table."""
        empty = 0
        for where, id, title, text in self.layout.documents():
            _enter("document", where, id, self.document_ids, self.layout.documents)
            check_characters(where, f"document {id!r}", title, text)
            if not (title.strip() or text.strip()):
                if not self.keep_empty:
                    raise ValueError(
                        f"{where}: document {id!r} is empty: it has neither title nor text "
                        "(data.empty_documents=keep keeps such documents)"
                    )
                empty += 1
            yield {"id": id, "title": title, "text": text}
        _check_some("documents", self.layout, self.document_ids)
        if empty:
            print(f"{self.layout.name}: {empty:,} documents without title and text are kept")

    def queries(self) -> Iterator[dict[str, str]]:
        """Rows of the queries' table."""
        for where, id, text in self.layout.queries():
            _enter("query", where, id, self.query_ids, self.layout.queries)
            check_characters(where, f"query {id!r}", text)
            if not text.strip():
                raise ValueError(f"{where}: query {id!r} is empty")
            yield {"id": id, "text": text}
        if self.layout.judgements:  # plain passages have neither
            _check_some("queries", self.layout, self.query_ids)

    def splits(self) -> Iterator[str]:
        """The splits that become tables: without the empty ones that the layout may lack."""
        for split, rows in self.layout.judgements.items():
            if split in self.layout.may_lack and next(iter(rows()), None) is None:
                print(f"{self.layout.name}: the split {split!r} is empty and is left out")
            else:
                yield split

    def judgements(self, split: str) -> Iterator[dict[str, Any]]:
        """Rows of a split's qrels.

        Those of unknown documents are kept and counted: as in trec_eval, nothing finds them, and
        the mean is over all queries (BEIR's ArguAna and others name some).
        """
        pairs: set[int] = set()
        unknown: dict[str, int] = {}  # their ids and the numbers after the documents'
        relevant, outside, first, rows = 0, 0, "", self.layout.judgements[split]
        for where, query, document, relevance in rows():
            self._check_query(split, where, query, rows)
            number = self.document_ids.get(document)
            if number is None:
                check_id(where, "document", document)
                number = len(self.document_ids) + unknown.setdefault(document, len(unknown))
                outside, first = outside + 1, first or f"{where}: document {document!r}"
            else:
                relevant += relevance > 0
            pair = self.query_ids[query] * _DOCUMENTS + number
            if pair in pairs:
                place = _first_place(rows, query, document)
                raise ValueError(
                    f"{where}: {query!r} {document!r}: the pair is judged already at {place}"
                )
            pairs.add(pair)
            yield {"query_id": query, "document_id": document, "relevance": relevance}
        self._check_documents(split, len(pairs), outside, first)
        if not relevant:
            files = ", ".join(file.name for file in self.layout.files[:4])
            raise ValueError(f"{files}: split {split!r} is empty: it names no relevant document")

    def _check_query(self, split: str, where: str, id: str, rows: Callable) -> None:
        if id in self.query_ids:
            return
        hint = ""
        if not any(row[1] in self.query_ids for row in islice(rows(), 1000)):
            hint = f": no query that the split {split!r} names is, so it judges another collection"
        raise ValueError(f"{where}: query {id!r} is not in the collection{hint}")

    def _check_documents(self, split: str, judged: int, outside: int, first: str) -> None:
        """Refuses judgements that are hardly of known documents; says how many are not."""
        if outside and (outside == judged or outside > max(_FEW, _SHARE * judged)):
            raise ValueError(
                f"{first} is not in the collection: {outside:,} of the {judged:,} judgements of "
                f"the split {split!r} are of such documents, so it judges another collection, or "
                "documents are missing"
            )
        if outside:
            print(
                f"{first} is not in the collection; {outside:,} of {judged:,} judgements of "
                f"{split!r} are of such documents: they are kept, and count as not found"
            )

    def ranked(self, kind: str, rows: Callable[[], Iterable[Ranked]]) -> Iterator[Ranked]:
        """Candidates or negatives: of queries and documents that the collection has."""

        def known(row: Ranked) -> bool:
            return row.query_id in self.query_ids and row.document_id in self.document_ids

        return keep_known(rows(), known, kind)


def _enter(kind: str, where: str, id: str, seen: dict[str, int], rows: Callable) -> None:
    check_id(where, kind, id)
    if id in seen:
        raise ValueError(f"{where}: the {kind} {id!r} is already at {_first_place(rows, id)}")
    seen[id] = len(seen)


def _first_place(rows: Callable[[], Iterable[tuple]], *ids: str) -> str:
    """Where a row of these ids is first: read again, as to remember all places takes memory."""
    return next(row[0] for row in rows() if row[1 : 1 + len(ids)] == ids)


def _check_some(what: str, layout: Layout, found: Mapping[str, int]) -> None:
    """Refuses a collection without documents or queries: names the file that has no line."""
    if found:
        return
    blank = [file for file in layout.files if next(numbered_lines(file), None) is None]
    blank.sort(key=lambda file: what[:4] not in file.name)  # "quer" of queries.jsonl, qrels last
    if blank:
        raise ValueError(f"{blank[0]}:1: no {what}: the file is empty")
    files = ", ".join(map(str, layout.files[:4])) + (", …" if len(layout.files) > 4 else "")
    raise ValueError(f"{files}: no {what}: they hold none")
