"""Long documents as passages: how a text is split, and how passages' scores rank documents (MaxP).

A table of passages has a row for each passage: its `id` is DOCUMENT#NUMBER, its `text` the passage,
after the document's title, and its `start` the place of its first character in the document's text.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import fsum
from typing import Any, Literal, NamedTuple

import regex

from gr_mvdr.analyzer import UNSPACED
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.options import Size

# What passages are measured in: a character of a script without spaces counts as a word.
_WORD = regex.compile(rf"{UNSPACED}|(?:(?!{UNSPACED})\S)+")
_SENTENCE_END = regex.compile(r"[.!?…。！？।؟]['\"”’»)\]]*$")
# Searches passages: ids of queries, number of passages, and the ids of those that it may find.
Search = Callable[[list[str], int, Sequence[str] | None], Ranking]


@dataclass(frozen=True)
class PassageOptions:
    """How documents become passages, and passages' scores those of documents (`data.passages`).

    Args:
        words: the most words of a passage.
        stride: words from the start of a passage to the start of the next.
        score: a document's score: that of its best passage ("max", MaxP of Dai and Callan, SIGIR
            2019); that of its first passage, and no other is kept ("first"); or the "sum" or the
            "mean" of its `best` best passages, by which the documents of the best passages are
            ordered.
        best: the number of passages in "sum" and "mean".
        identifiers: whether docids name passages, or documents, whose passages then share them.
    """

    words: Size = 120
    stride: Size = 60
    score: Literal["max", "first", "sum", "mean"] = "max"
    best: Size = 3
    identifiers: Literal["passages", "documents"] = "passages"

    def __post_init__(self):
        if not self.stride <= self.words:
            rule = f"must be ≤ {self.words}, the words of a passage"
            raise ValueError(f"data.passages.stride={self.stride}: {rule}")

    def split(self, text: str) -> list[tuple[int, int]]:
        """Returns the characters [start, end) of each passage; together they cover every word.

        A start or an end moves back to the end of a sentence or line that is less than a quarter of
        the stride away.
        """
        words, spans, start = [word.span() for word in _WORD.finditer(text)], [], 0
        while start + self.words < len(words):
            end = self._move_back(text, words, start + self.words)
            spans.append((words[start][0], words[end - 1][1]))
            start = self._move_back(text, words, start + self.stride)
        spans.append((words[start][0] if start else 0, len(text)))
        if spans[0][0]:
            spans[0] = 0, spans[0][1]
        return spans[:1] if self.score == "first" else spans

    def split_all(
        self, ids: Sequence[str], texts: Sequence[str]
    ) -> tuple[list[int], dict[str, list]]:
        """Splits documents; returns the number of each passage's document, and its columns."""
        rows, columns = [], dict[str, list](id=[], text=[], start=[])
        for row, (document, text) in enumerate(zip(ids, texts, strict=True)):
            for number, (start, end) in enumerate(self.split(text)):
                rows.append(row)
                columns["id"].append(f"{document}#{number}")
                columns["text"].append(text[start:end])
                columns["start"].append(start)
        return rows, columns

    def _move_back(self, text: str, words: list[tuple[int, int]], number: int) -> int:
        """Returns the number of the word before which the closest sentence or line ends."""
        for near in range(number, number - (self.stride + 3) // 4, -1):
            (start, end), following = words[near - 1], words[near][0]
            if _SENTENCE_END.search(text, start, end) or "\n" in text[end:following]:
                return near
        return number


class Passage(NamedTuple):
    """A passage of a document: its id, and its characters [start, end) in the document's text."""

    id: str
    start: int
    end: int


def name_document(passage: str) -> str:
    """Returns the id of a passage's document."""
    return passage.rpartition("#")[0]


def document_ids(table: Any) -> list[str]:
    """Returns the id of the document of each row, in a table of passages or of whole documents."""
    ids = table["id"][:]
    return list(map(name_document, ids)) if "start" in table.column_names else ids


def join_passages(passages: Iterable[tuple[int, str]]) -> str:
    """Joins the (start, text) of a document's passages to its text; between them are blanks."""
    text = ""
    for start, passage in passages:
        text = text[:start].ljust(start) + passage
    return text


class Passages:
    """Makes rankings of documents from rankings of passages.

    Without options a row is a whole document, and every method returns what it was given.
    """

    def __init__(self, options: PassageOptions | None = None, table: Any = None):
        """
        Args:
            options: None = documents are not split.
            table: the passages; None = nothing is indexed yet.
        """
        self.options = options
        # The number of each document's passages.
        self.counts = Counter(document_ids(table) if options and table is not None else ())

    def of(self, documents: Sequence[str]) -> Sequence[str]:
        """Returns the ids of the documents' passages."""
        if self.options is None:
            return documents
        return [f"{d}#{number}" for d in documents for number in range(self.counts[d])]

    def name_by(self, ids: Sequence[str]) -> Sequence[str]:
        """Returns, for each passage, the id of the passage whose identifier it has."""
        if self.options is None or self.options.identifiers == "passages":
            return ids
        return [f"{name_document(name)}#0" for name in ids]

    def search(
        self,
        queries: Sequence[str],
        k: int,
        search: Search,
        among: Sequence[str] | None = None,
        at_once: bool = False,
    ) -> Ranking:
        """Finds the k best documents of each query by a search that deepens until it has them.

        Args:
            among: ids of the documents that can be found; None = all.
            at_once: whether to ask for all passages at once, since a deeper search costs the same.
        """
        if self.options is None:
            return search([*queries], k, among)
        among = None if among is None else self.of(among)
        missing, parts = [*queries], dict[str, Ranking]()
        total = self.counts.total()
        depth = max(k, total if at_once else k * -(-total // max(1, len(self.counts))))
        while missing:
            found = search(missing, depth, among)
            parts |= dict.fromkeys(missing, ranked := self.rank(found))
            missing = [
                query
                for query in missing
                if len(found.documents(query)) == depth and len(ranked.documents(query)) < k
            ]
            depth *= 2
        if self.options.score in ("sum", "mean"):  # also over passages that were not retrieved
            for query, ranked in parts.items():
                own = self.of(ranked.documents(query)[:k])
                parts[query] = self.rank(search([query], len(own), own))
        return Ranking(
            {query: ranked.scores(query) for query, ranked in parts.items()},
            {q: ranked.shares[q] for q, ranked in parts.items() if ranked.shares is not None},
            {query: ranked.passages[query] for query, ranked in parts.items()},
        ).top(k)

    def rank(self, ranking: Ranking) -> Ranking:
        """Turns a ranking of passages into one of documents, which names their best passages.

        A document's shares are those of its passages that count.
        """
        if self.options is None:
            return ranking
        most = self.options.best if self.options.score in ("sum", "mean") else 1
        scores: dict[str, dict[str, float]] = {query: {} for query in ranking.query_ids}
        passages: dict[str, dict[str, str]] = {query: {} for query in scores}
        shares: dict[str, dict[str, list]] = {query: {} for query in scores}
        for query in scores:
            found, own = ranking.scores(query), defaultdict(list)
            for passage in found:
                own[name_document(passage)].append(passage)
            for document, names in own.items():
                names = names[:most]
                weight = 1 / len(names) if self.options.score == "mean" else 1
                scores[query][document] = weight * fsum(found[name] for name in names)
                passages[query][document] = names[0]
                if ranking.shares is not None:
                    every = chain(*(ranking.shares[query][name] for name in names))
                    shares[query][document] = [s._replace(value=weight * s.value) for s in every]
        return Ranking(scores, None if ranking.shares is None else shares, passages)
