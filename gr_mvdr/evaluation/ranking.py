"""Rankings and relevance judgements, in memory and as TREC files."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TextIO, TypeVar

import numpy as np

from gr_mvdr.evaluation.metrics import METRICS, measure, name_metric, rank_of
from gr_mvdr.files import new_file, read_lines

Value = TypeVar("Value", int, float)
Qrels = dict[str, dict[str, int]]  # query id → {document id: grade}


class Ranking:
    """Scored documents for each query, the one result of every search and every reranking.

    Documents are ordered by score, highest first, and equal scores by document id, last first:
    the rule of trec_eval, so that a written run is judged there as it is here.

    Args:
        results: query id → {document id: score}; scores may be numpy or torch scalars.

    Raises:
        ValueError: a score is nan or inf; −inf is the score of an excluded document.
    """

    def __init__(self, results: Mapping[str, Mapping[str, float]]) -> None:
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

    def top(self, k: int) -> "Ranking":
        """The ranking cut to the ``k`` best documents of each query."""
        return Ranking(
            {query: dict(list(scores.items())[:k]) for query, scores in self._results.items()}
        )

    def __len__(self) -> int:
        return len(self._results)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranking) and self._answered() == other._answered()

    __hash__ = None

    def __repr__(self) -> str:
        return f"Ranking of {sum(map(len, self._results.values()))} documents, {len(self)} queries"

    def _answered(self) -> dict[str, dict[str, float]]:
        # a run file has no line for a query without results
        return {query: scores for query, scores in self._results.items() if scores}

    def write(self, path: str | Path, tag: str) -> None:
        """Write a TREC run: ``query Q0 document rank score tag``, ranks from 1, scores in full.

        Raises:
            ValueError: an id or the tag is empty or holds white space.
        """
        with new_file(path) as partial, partial.open("w", encoding="utf-8") as file:
            for query, scores in self._results.items():
                for rank, (document, score) in enumerate(scores.items(), start=1):
                    _write_columns(file, query, "Q0", document, str(rank), repr(score), tag)

    @staticmethod
    def read(path: str | Path, folder: Path | None = None) -> "Ranking":
        """Read a TREC run; the scores decide the order, as in trec_eval, not the rank column.

        Args:
            folder: a run's, in which the file must lie; None = the user named the file.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: names ``file:line`` and what was expected there.
        """
        columns = ("query", "Q0", "document", "rank", "score", "tag")
        return Ranking(_read_pairs(path, folder, columns, "score", float))


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
) -> dict[str, float]:
    """Mean metrics over the queries of ``qrels``; a query without results counts as 0.

    Args:
        ranking: queries without judgements are ignored. A metric deeper than the ranking reads
            what is there, as in trec_eval.
        qrels: query id → {document id: grade}; a document is relevant from grade 1.
        metrics: names, see `KINDS` and `find_metric`.

    Returns:
        Metric, by our name → its mean, in [0, 1], equal to trec_eval's.

    Raises:
        ValueError: ``qrels`` has no query, or a metric is unknown.
    """
    rows = list(evaluate_queries(ranking, qrels, metrics).values())
    return {name: math.fsum(row[name] for row in rows) / len(rows) for name in rows[0]}


def evaluate_queries(
    ranking: Ranking,
    qrels: Mapping[str, Mapping[str, int]],
    metrics: Sequence[str] = METRICS,
) -> dict[str, dict[str, float]]:
    """The metrics of :func:`evaluate` for each query of ``qrels``, which must hold one."""
    if not qrels:
        raise ValueError("qrels: there is no query to evaluate")
    metrics = list(map(name_metric, metrics))
    depth, values = max(map(rank_of, metrics)), {}
    for query, grades in qrels.items():
        by_rank, missed = _grades(ranking.documents(query)[:depth], grades)
        values[query] = {name: measure(name, by_rank, missed) for name in metrics}
    return values


def _grades(
    documents: Sequence[str], grades: Mapping[str, int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The relevant grades by rank, and those of documents that were not retrieved."""
    by_rank = [max(grades.get(document, 0), 0) for document in documents]
    while by_rank and by_rank[-1] == 0:
        by_rank.pop()
    missed = grades.keys() - set(documents)
    return tuple(by_rank), tuple(sorted(grades[d] for d in missed if grades[d] > 0))


def values_by_query(
    rankings: Sequence[Ranking], qrels: Mapping[str, Mapping[str, int]], metric: str
) -> np.ndarray:
    """A metric of each query, averaged over the rankings of several seeds.

    Args:
        rankings: one for each seed. qrels: the judgements of all of them.
        metric: a name, see `gr_mvdr.evaluation.metrics.KINDS`.

    Returns:
        (Q,) float64, in the order of `qrels`.
    """
    per_seed = [evaluate_queries(ranking, qrels, [metric]) for ranking in rankings]
    return np.array([[values[query][metric] for query in qrels] for values in per_seed]).mean(0)


def best_documents(
    ids: Sequence[str], scores: np.ndarray, k: int, above: float = -math.inf
) -> dict[str, float]:
    """The k best of D scored documents, best first: document id → score; ties as in `Ranking`.

    Args:
        ids: of the documents; scores: (D,) float.
        above: only documents with a higher score are returned.

    Raises:
        ValueError: a score is not a number.
    """
    chosen = _contenders(scores, k, ids.__getitem__, above)
    pairs = zip(scores[chosen].tolist(), [ids[place] for place in chosen.tolist()], strict=True)
    return {name: score for score, name in sorted(pairs, reverse=True)[:k]}


def best_places(scores: np.ndarray, k: int, id_of: Callable[[int], str]) -> np.ndarray:
    """The places of the k best of D scored documents, best first; ties as in `Ranking`.

    Args:
        scores: (D,) float, −inf for excluded documents.
        id_of: place → document id; called only for documents that may be among the best.

    Returns:
        (≤ k,) int64.

    Raises:
        ValueError: a score is not a number.
    """
    chosen = _contenders(scores, k, id_of, -math.inf)
    chosen = chosen[tie_order([id_of(place) for place in chosen.tolist()])]
    return chosen[np.argsort(-scores[chosen], kind="stable")][:k]


def _contenders(
    scores: np.ndarray, k: int, id_of: Callable[[int], str], above: float
) -> np.ndarray:
    """(≥ k,) int64 ascending places of the k best and of all documents that tie with the last."""
    k = min(k, len(scores))
    if k < 1:
        return np.empty(0, np.int64)
    best = np.partition(scores, len(scores) - k)[len(scores) - k :]
    if np.isnan(best).any():  # they are put last
        document = id_of(int(np.isnan(scores).argmax()))
        raise ValueError(f"document {document!r}: the score is nan")
    return np.flatnonzero(scores >= best[0] if best[0] > above else scores > above)


def tie_order(ids: Sequence[str]) -> np.ndarray:
    """(D,) int64 places of documents with equal scores in the order of `Ranking`: last id first."""
    return np.array(sorted(range(len(ids)), key=ids.__getitem__, reverse=True), np.int64)


def recall_of_exact(exact: Ranking, approximate: Ranking, first: int = 10) -> float:
    """The recall of an approximate search against an exact one, in [0, 1].

    Args:
        exact, approximate: rankings of the same queries.
        first: depth at which both rankings are cut.

    Returns:
        The mean over the queries of ``exact``; 0 without queries.
    """
    shares = []
    for query in exact.query_ids:
        wanted = set(exact.documents(query)[:first])
        retrieved = {*approximate.documents(query)[:first]}
        shares.append(len(wanted & retrieved) / max(1, len(wanted)))
    return math.fsum(shares) / max(1, len(shares))


def read_qrels(path: str | Path, folder: Path | None = None) -> Qrels:
    """Read TREC judgements, ``query iteration document grade``, as {query: {document: grade}}.

    Arguments and errors are those of `Ranking.read`.
    """
    return _read_pairs(path, folder, ("query", "iteration", "document", "grade"), "grade", int)


def write_qrels(qrels: Mapping[str, Mapping[str, int]], path: str | Path) -> None:
    """Write TREC judgements: ``query 0 document grade``."""
    with new_file(path) as partial, partial.open("w", encoding="utf-8") as file:
        for query, grades in qrels.items():
            for document, grade in grades.items():
                _write_columns(file, query, "0", document, str(int(grade)))


def _read_pairs(
    path: str | Path,
    folder: Path | None,
    columns: tuple[str, ...],
    value_column: str,
    convert: Callable[[str], Value],
) -> dict[str, dict[str, Value]]:
    pairs: dict[str, dict[str, Value]] = {}
    for number, line in enumerate(read_lines(path, folder), start=1):
        fields = line.split()
        if len(fields) != len(columns):
            expected = " ".join(columns)
            raise ValueError(f"{path}:{number}: expected {expected!r}, got {line[:80]!r}")
        query, document = fields[0], fields[2]
        if document in pairs.setdefault(query, {}):
            raise ValueError(f"{path}:{number}: {query!r} {document!r} is there already")
        value = fields[columns.index(value_column)]
        try:
            pairs[query][document] = convert(value)
        except ValueError:
            kind = "an integer" if convert is int else "a number"
            raise ValueError(
                f"{path}:{number}: expected {kind} as {value_column}, got {value!r:.80}"
            ) from None
    return pairs


def _write_columns(file: TextIO, *columns: str) -> None:
    for column in columns:
        if column.split() != [column]:
            raise ValueError(f"{column!r}: a TREC column must be one word without white space")
    file.write(" ".join(columns) + "\n")
