"""Rankings, what they cost, and relevance judgements, in memory and as TREC files."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from gr_mvdr.evaluation.metrics import METRICS, measure, read_metric
from gr_mvdr.files import new_file, read_lines
from gr_mvdr.measures import Measured, costs

Value = TypeVar("Value", int, float)
BEIR_QRELS = "query-id corpus-id score"  # the header of BEIR's files of judgements
Qrels = dict[str, dict[str, int]]  # query id → {document id: grade}


class Ranking:
    """Scored documents for each query: the result of every search and every reranking.

    Documents are ordered by score, highest first. Ties are ordered by document id, descending, as
    in trec_eval, so that trec_eval gives a written run the same metrics. It compares scores in
    single precision: only scores that first differ beyond that are ties there and not here.

    Args:
        results: query id → {document id: score}; scores may be numpy or torch scalars.
        shares: query id → {document id: the parts of its score} (`models.base.Share`), if the
            search was asked for them.
        passages: query id → {document id: id of its best passage}, if documents have passages.

    Raises:
        ValueError: a score is nan or inf. −inf is allowed: it marks an excluded document.
    """

    def __init__(
        self,
        results: Mapping[str, Mapping[str, float]],
        shares: Mapping[str, Any] | None = None,
        passages: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self.shares, self.passages = shares, passages
        self._results = {query: _ordered(query, scores) for query, scores in results.items()}

    @property
    def query_ids(self) -> list[str]:
        """The queries in the order in which they were given."""
        return list(self._results)

    def documents(self, query_id: str) -> list[str]:
        """The document ids of a query, best first; empty for a query without results."""
        return list(self._results.get(query_id, ()))

    def scores(self, query_id: str) -> dict[str, float]:
        """Document id → score of a query, best first."""
        return dict(self._results.get(query_id, ()))

    def passage(self, query_id: str, document: str) -> str:
        """The id of a document's best passage, or the document's if documents have no passages."""
        return self.passages[query_id][document] if self.passages else document

    def top(self, k: int) -> "Ranking":
        """The ranking cut to the ``k`` best documents of each query."""
        best = {q: dict(islice(scores.items(), k)) for q, scores in self._results.items()}
        return Ranking(best, self.shares, self.passages)

    def __len__(self) -> int:
        return len(self._results)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranking) and self._answered() == other._answered()

    def __repr__(self) -> str:
        return f"Ranking of {sum(map(len, self._results.values()))} documents, {len(self)} queries"

    def _answered(self) -> dict[str, dict[str, float]]:
        # Without queries that have no results: a run file has no lines for them.
        return {query: scores for query, scores in self._results.items() if scores}

    def write(self, path: str | Path, tag: str) -> None:
        """Writes a TREC run, ``query Q0 document rank score tag``, with ranks from 1, full scores.

        Raises:
            ValueError: an id or the tag is empty or holds white space.
        """
        _write_rows(
            path,
            (
                (query, "Q0", document, str(rank), repr(score), tag)
                for query, scores in self._results.items()
                for rank, (document, score) in enumerate(scores.items(), start=1)
            ),
        )

    @staticmethod
    def read(path: str | Path, folder: Path | None = None) -> "Ranking":
        """Reads a TREC run; scores decide the order, not the rank column, as in trec_eval.

        Args:
            folder: a run's folder, in which the file must lie; None = the user named the file.

        Raises:
            FileNotFoundError: the file does not exist.
            ValueError: names ``file:line`` and what was expected there.
        """
        return Ranking(_read_pairs(path, folder, "query Q0 document rank score tag", 4, float))


def _ordered(query: str, scores: Mapping[str, float]) -> dict[str, float]:
    plain = [(document, float(score)) for document, score in scores.items()]
    for document, score in plain:
        if math.isnan(score) or score == math.inf:
            raise ValueError(f"query {query!r}, document {document!r}: the score is {score}")
    return dict(sorted(plain, key=lambda result: (result[1], result[0]), reverse=True))


def evaluate(
    ranking: Ranking,
    qrels: Mapping[str, Mapping[str, int]],
    metrics: Sequence[str] = METRICS,
    relevance_level: int = 1,
) -> dict[str, float]:
    """Computes the mean of each metric over the queries of ``qrels``.

    A query without results counts as 0.

    Args:
        ranking: queries without judgements are ignored. A metric whose rank is deeper than the
            ranking reads all of it, as in trec_eval.
        qrels: query id → {document id: grade}.
        metrics: names, see `read_metric`.
        relevance_level: the least grade of a relevant document, where a name has no `rel`.

    Returns:
        Our name of each metric → its mean, in [0, 1], equal to trec_eval's.

    Raises:
        ValueError: ``qrels`` has no query, or a metric is unknown.
    """
    rows = list(evaluate_queries(ranking, qrels, metrics, relevance_level).values())
    return {name: math.fsum(row[name] for row in rows) / len(rows) for name in rows[0]}


def evaluate_queries(
    ranking: Ranking,
    qrels: Mapping[str, Mapping[str, int]],
    metrics: Sequence[str] = METRICS,
    relevance_level: int = 1,
) -> dict[str, dict[str, float]]:
    """Computes the metrics of :func:`evaluate` for each query of ``qrels``, at least one."""
    if not qrels:
        raise ValueError("qrels: there is no query to evaluate")
    asked = map(read_metric, metrics)
    named = {one.name: one._replace(rel=one.rel or relevance_level) for one in asked}
    depth, values = max(one.rank for one in named.values()), {}
    for query, grades in qrels.items():
        documents, patterns = ranking.documents(query), {}
        for condensed in {one.judged_only for one in named.values()}:
            # As in trec_eval, a negative grade does not keep a document in a condensed ranking.
            kept = [d for d in documents if not condensed or grades.get(d, -1) >= 0]
            patterns[condensed] = _grades(kept[:depth], grades)
        values[query] = {
            name: _share_judged(documents[: one.rank], grades)
            if one.kind == "judged"
            else measure(one, *patterns[one.judged_only])
            for name, one in named.items()
        }
    return values


def _share_judged(documents: Sequence[str], grades: Mapping[str, int]) -> float:
    return sum(document in grades for document in documents) / max(1, len(documents))


def _grades(
    documents: Sequence[str], grades: Mapping[str, int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the grade at each rank, and the grades of relevant documents not retrieved."""
    by_rank = [max(grades.get(document, 0), 0) for document in documents]
    while by_rank and by_rank[-1] == 0:  # so that equal patterns are measured once
        by_rank.pop()
    missed = grades.keys() - set(documents)
    return tuple(by_rank), tuple(sorted(grades[d] for d in missed if grades[d] > 0))


def best_documents(
    ids: Sequence[str], scores: np.ndarray, k: int, above: float = -math.inf
) -> dict[str, float]:
    """Returns the k best of D scored documents, best first, as id → score; see `best_places`."""
    places = best_places(scores, k, ids.__getitem__, above)
    names = [ids[place] for place in places.tolist()]
    return dict(zip(names, scores[places].tolist(), strict=True))


def best_places(
    scores: np.ndarray, k: int, id_of: Callable[[int], str], above: float = -math.inf
) -> np.ndarray:
    """Returns the places of the k best of D scored documents, best first; ties as in `Ranking`.

    Args:
        scores: (D,) float, −inf for excluded documents.
        id_of: place → document id; called only if scores tie, or to name a document in an error.
        above: only documents with a higher score are returned, so never an excluded document.

    Returns:
        (≤ k,) int64.

    Raises:
        ValueError: a score is NaN.
    """
    k = min(k, len(scores))
    if k < 1:
        return np.empty(0, np.int64)
    best = np.partition(scores, len(scores) - k)[len(scores) - k :]
    if np.isnan(best).any():  # numpy sorts NaN last
        document = id_of(int(np.isnan(scores).argmax()))
        raise ValueError(f"document {document!r}: the score is nan")
    # Includes all documents that tie with the k-th best.
    chosen = np.flatnonzero(scores >= best[0] if best[0] > above else scores > above)
    if len(np.unique(scores[chosen])) < len(chosen):
        chosen = chosen[tie_order([id_of(place) for place in chosen.tolist()])]
    return chosen[np.argsort(-scores[chosen], kind="stable")][:k]


def tie_order(ids: Sequence[str]) -> np.ndarray:
    """(D,) int64 the places of tied documents in `Ranking`'s order: by id, descending."""
    return np.array(sorted(range(len(ids)), key=ids.__getitem__, reverse=True), np.int64)


def recall_of_exact(exact: Ranking, approximate: Ranking, first: int = 10) -> float:
    """Computes the recall of an approximate search against an exact search, in [0, 1].

    Args:
        exact, approximate: rankings of the same queries.
        first: the depth to which both rankings are cut.

    Returns:
        The mean over the queries of ``exact``; 0 without queries.
    """
    pairs = [
        [{*ranking.documents(query)[:first]} for ranking in (exact, approximate)]
        for query in exact.query_ids
    ]
    shares = [len(wanted & retrieved) / max(1, len(wanted)) for wanted, retrieved in pairs]
    return math.fsum(shares) / max(1, len(shares))


def read_qrels(path: str | Path, folder: Path | None = None) -> Qrels:
    """Reads judgements as {query: {document: grade}}: TREC's, or BEIR's with their header.

    A grade may be written "1" or "1.0". Arguments and errors are as in `Ranking.read`.
    """
    beir = " ".join(next(read_lines(path, folder), "").split()) == BEIR_QRELS
    columns = BEIR_QRELS if beir else "query iteration document grade"
    return _read_pairs(path, folder, columns, -1, _read_grade)


def _read_grade(text: str) -> int:
    if not (grade := float(text)).is_integer():
        raise ValueError
    return int(grade)


def write_qrels(qrels: Mapping[str, Mapping[str, int]], path: str | Path) -> None:
    """Writes TREC judgements: ``query 0 document grade``."""
    rows = ((q, "0", d, str(int(grade))) for q, own in qrels.items() for d, grade in own.items())
    _write_rows(path, rows)


def _read_pairs(
    path: str | Path, folder: Path | None, columns: str, place: int, convert: Callable[[str], Value]
) -> dict[str, dict[str, Value]]:
    """Reads lines as query id → {document id: the value in the column at `place`}."""
    pairs: dict[str, dict[str, Value]] = {}
    document_place = 1 if columns == BEIR_QRELS else 2
    for number, line in enumerate(read_lines(path, folder), start=1):
        fields, kind = line.split(), "a number" if convert is float else "an integer"
        if fields == columns.split():  # a header
            continue
        try:
            if len(fields) != len(columns.split()):
                raise ValueError
            query, document, value = fields[0], fields[document_place], convert(fields[place])
        except ValueError:
            rule = f"{columns!r}, with {kind} as {columns.split()[place]}"
            raise ValueError(f"{path}:{number}: expected {rule}, got {line[:80]!r}") from None
        if document in pairs.setdefault(query, {}):
            raise ValueError(f"{path}:{number}: {query!r} {document!r} occurs twice")
        pairs[query][document] = value
    return pairs


def _write_rows(path: str | Path, rows: Iterable[tuple[str, ...]]) -> None:
    with new_file(path) as partial, partial.open("w", encoding="utf-8") as file:
        for columns in rows:
            for column in columns:
                if column.split() != [column]:
                    raise ValueError(
                        f"{column!r}: a TREC column must be one word without white space"
                    )
            file.write(" ".join(columns) + "\n")


@dataclass
class SearchCosts:
    """Running totals over queries; `seconds` includes the token retrieval, `flops` does not."""

    queries: int = 0
    candidates: int = 0
    scored_tokens: int = 0
    flops: float = 0.0
    seconds: float = 0.0

    def add(self, candidates: int, scored_tokens: int, flops: float, queries: int = 1) -> None:
        self.queries += queries
        self.candidates += candidates
        self.scored_tokens += scored_tokens
        self.flops += flops

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Adds the time of the block to `seconds`."""
        start = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - start

    def metrics(self) -> list[Measured]:
        """Returns the means over the queries, without what was not counted."""
        if not self.queries:
            return []
        means = {
            "candidates": self.candidates,
            "scored_tokens": self.scored_tokens,
            "scoring_flops": self.flops,
            "search_ms": 1000 * self.seconds,
        }
        return costs({name: total / self.queries for name, total in means.items() if total})
