"""What must hold of every collection, checked while it is read, named with ``file:line``."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from data_modules.collection import IDENTIFIER_RULE, is_identifier
from data_modules.layout import Layout, Ranked

EMPTY = ("refuse", "keep")


class LayoutChecks:
    """The rows of a layout's tables, each checked as it passes.

    Documents first, then queries, then judgements, which name both.
    """

    def __init__(self, layout: Layout, empty_documents: str = "refuse"):
        """
        Args:
            layout: whose rows they are.
            empty_documents: "refuse", or "keep" those that have neither title nor text.

        Raises:
            ValueError: another choice.
        """
        if empty_documents not in EMPTY:
            raise ValueError(
                f"data.empty_documents={empty_documents}: must be {' or '.join(EMPTY)}"
            )
        self.layout, self.keep_empty = layout, empty_documents == "keep"
        self.document_ids: set[str] = set()
        self.query_ids: set[str] = set()

    def documents(self) -> Iterator[dict[str, str]]:
        """Rows of the documents' table."""
        for where, id, title, text in self.layout.documents():
            _enter("document", where, id, self.document_ids, self.layout.documents)
            if not (title.strip() or text.strip() or self.keep_empty):
                raise ValueError(
                    f"{where}: document {id!r} is empty: it has neither title nor text "
                    "(data.empty_documents=keep keeps such documents)"
                )
            yield {"id": id, "title": title, "text": text}
        _check_some("documents", self.layout, self.document_ids)

    def queries(self) -> Iterator[dict[str, str]]:
        """Rows of the queries' table."""
        for where, id, text in self.layout.queries():
            _enter("query", where, id, self.query_ids, self.layout.queries)
            if not text.strip():
                raise ValueError(f"{where}: query {id!r} is empty")
            yield {"id": id, "text": text}
        _check_some("queries", self.layout, self.query_ids)

    def judgements(self, split: str) -> Iterator[dict[str, Any]]:
        """Rows of a split's qrels."""
        judged: set[tuple[str, str]] = set()
        relevant, rows = 0, self.layout.judgements[split]
        for where, query, document, relevance in rows():
            self._check_known(split, where, query, self.query_ids, "query", rows)
            self._check_known(split, where, document, self.document_ids, "document", rows)
            pair = (query, document)
            if pair in judged:
                raise ValueError(
                    f"{where}: {query!r} {document!r}: the pair is judged already at "
                    f"{_first_place(rows, *pair)}"
                )
            judged.add(pair)
            relevant += relevance > 0
            yield {"query_id": query, "document_id": document, "relevance": relevance}
        if not relevant:
            raise ValueError(
                f"{self._files()}: split {split!r} is empty: it names no relevant document"
            )

    def _check_known(
        self, split: str, where: str, id: str, known: set[str], kind: str, rows: Callable
    ) -> None:
        if id in known:
            return
        hint = ""
        if not any(known & {row[1], row[2]} for row in islice(rows(), 1000)):
            hint = f": no {kind} that the split {split!r} names is, so it judges another collection"
        raise ValueError(f"{where}: {kind} {id!r} is not in the collection{hint}")

    def ranked(self, rows: Callable[[], Iterable[Ranked]]) -> Iterator[Ranked]:
        """Candidates or negatives: of queries and documents that the collection has."""
        unknown = 0
        for row in rows():
            if row.query_id in self.query_ids and row.document_id in self.document_ids:
                yield row
            else:
                unknown += 1
        if unknown:
            print(f"{self.layout.name}: {unknown:,} lines name unknown queries or documents")

    def counts(self, found: Mapping[str, int]) -> None:
        """Refuses counts other than those the layout promises (ValueError)."""
        for name, expected in self.layout.expected.items():
            if found[name] != expected:
                raise ValueError(
                    f"{self.layout.name}: expected {expected:,} {name}, found {found[name]:,}; "
                    f"{self._first_difference(name, expected, found[name])}"
                )

    def _first_difference(self, name: str, expected: int, found: int) -> str:
        """Where the item stands that is one too many, or after which the rest is missing."""
        rows = {"documents": self.layout.documents, "queries": self.layout.queries}.get(name)
        rows = rows or self.layout.judgements[name]
        last = next(islice(rows(), min(expected, found - 1), None), None)
        if last is None:
            return "the files hold none"
        what = "the first beyond them" if found > expected else "the last before they end"
        return f"{what} is {last[1]!r} at {last.where}"

    def _files(self) -> str:
        return ", ".join(file.name for file in self.layout.files[:4])


def _enter(kind: str, where: str, id: str, seen: set[str], rows: Callable) -> None:
    if not is_identifier(id):
        raise ValueError(f"{where}: the {kind}'s id is {id!r}: must be {IDENTIFIER_RULE}")
    if id in seen:
        place = _first_place(rows, id)
        raise ValueError(f"{where}: the {kind} {id!r} stands already at {place}")
    seen.add(id)


def _first_place(rows: Callable[[], Iterable[tuple]], *ids: str) -> str:
    """Where a row of these ids stands first: read again, as to remember all places takes memory."""
    return next(row[0] for row in rows() if row[1 : 1 + len(ids)] == ids)


def _check_some(what: str, layout: Layout, found: set[str]) -> None:
    if not found:
        raise ValueError(f"{', '.join(map(str, layout.files))}: the file is empty: no {what}")
