"""What each query found first, and why: the best documents of some queries, with their shares.

Pages are made without the model: what their cases show of a search is kept here, in a run's
`best_documents.json`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from analysis.analysis import Analysis, Findings, Subject
from analysis.evaluation import drop_own_hits
from analysis.runs.run_folder import read_queries
from analysis.statistics import spread_numbers
from analysis.tokens import readable
from gr_mvdr.options import Count, part
from gr_mvdr.texts import text_without_title
from models.base import Share
from models.results import find_snippet

FILE = "best_documents"
DEPTH = 100  # of the search; relevant documents are looked for so far
BEST = 5  # documents a query
SHARES = 12  # of a document: the largest; the others are one sum,
LEAST = 0.01  # with those that are smaller than this part of the largest


@dataclass(frozen=True)
class KeptDocument:
    """A document that a query found.

    Attributes:
        rank: from 1. grade: of its relevance to the query; 0 = not known to be relevant.
        snippet: the passage that shares most words with the query.
        score: of the search. shares: text and value of its largest parts, in the order in which
            the system has them. others: how many further ones there are, and their sum.
    """

    id: str
    title: str
    snippet: str
    rank: int
    score: float
    grade: int
    shares: list[tuple[str, float]]
    others: tuple[int, float]


@dataclass(frozen=True)
class KeptQuery:
    """A query's text, and of its ranking the best documents and the relevant ones."""

    text: str
    documents: list[KeptDocument]


@part("analysis")
class BestDocuments(Analysis):
    """Which documents does a search put first, and what gives them their score?

    Args:
        queries: at most, of those whose alignments are kept, spread evenly.
    """

    name = FILE

    @classmethod
    def applies(cls, subject: Subject) -> bool:
        return subject.store is not None and subject.model is not None

    def __init__(self, subject: Subject, queries: Count):
        self.model, self.data = subject.model, subject.data
        names = list(dict.fromkeys(query for query, _ in subject.store.pairs))
        self.queries = {names[number] for number in spread_numbers(len(names), queries)}

    def finish(self) -> Findings:
        """No metric: `best_documents.json`, query id → `KeptQuery`."""
        data, split = self.data, self.data.test_splits[0]
        table = data.test_queries(split)
        table = table.select([n for n, q in enumerate(table["id"][:]) if q in self.queries])
        self.model.eval()
        depth = DEPTH + data.drop_identical
        found = self.model.retrieve(table, depth, with_shares=True)
        ranking, grades = drop_own_hits(found, data, DEPTH), data.judgements(split, table)
        row = {name: number for number, name in enumerate(data.documents["id"][:])}
        kept = {}
        for query, text in zip(table["id"][:], table["text"][:], strict=True):
            hits = enumerate(ranking.scores(query).items(), start=1)
            kept[query] = KeptQuery(
                text,
                [
                    self._keep(text, data.documents[row[name]], rank, score, grade, added)
                    for rank, (name, score) in hits
                    for grade, added in [(grades[query].get(name, 0), found.shares[query][name])]
                    if rank <= BEST or grade > 0
                ],
            )
        return Findings(records={FILE: {query: asdict(one) for query, one in kept.items()}})

    def _keep(
        self, query: str, row: Mapping, rank: int, score: float, grade: int, shares: Sequence[Share]
    ) -> KeptDocument:
        largest = sorted(range(len(shares)), key=lambda n: -abs(shares[n].value))
        least = LEAST * abs(shares[largest[0]].value) if shares else 0
        chosen = [n for n in largest[:SHARES] if abs(shares[n].value) >= least]
        rest = [share.value for n, share in enumerate(shares) if n not in chosen]
        return KeptDocument(
            id=row["id"],
            title=row["title"],
            snippet=find_snippet(query, text_without_title(row)),
            rank=rank,
            score=score,
            grade=grade,
            shares=[
                (readable(self.data.tokenizer, shares[n].tokens), shares[n].value)
                for n in sorted(chosen)
            ],
            others=(len(rest), sum(rest)),
        )


def read_best_documents(run: Path) -> dict[str, KeptQuery]:
    """What `BestDocuments` kept of a run; nothing where it was not asked.

    Raises:
        ValueError: the file is broken.
    """
    return read_queries(run, FILE, "the best documents of queries", _read_query)


def _read_query(kept: dict[str, Any]) -> KeptQuery:
    documents = [
        KeptDocument(
            **{name: str(row[name]) for name in ("id", "title", "snippet")},
            **{name: int(row[name]) for name in ("rank", "grade")},
            score=_finite(row["score"]),
            shares=[(str(text), _finite(value)) for text, value in row["shares"]],
            others=(int(row["others"][0]), _finite(row["others"][1])),
        )
        for row in kept["documents"]
    ]
    return KeptQuery(str(kept["text"]), documents)


def _finite(value: Any) -> float:
    if not isfinite(value):
        raise ValueError(f"{value}: must be finite")
    return float(value)
