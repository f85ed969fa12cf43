"""What a reader finds in a folder: files, and iterators over what they say.

A reader knows one format and nothing else. What holds for every collection (ids that are words, no
id twice, judgements of known documents) is checked once, by `data_modules.store`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple


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
        expected: counts that must hold: "documents", "queries", or a split's judgements.
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
    expected: Mapping[str, int] = field(default_factory=dict)
    may_lack: frozenset[str] = frozenset()
    needed_bytes: int | None = None
