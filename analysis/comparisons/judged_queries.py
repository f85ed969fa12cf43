"""The metrics of every single test query, from the rankings and judgements that runs left."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from analysis.run_folder import Run
from gr_mvdr.evaluation.ranking import Qrels, Ranking, read_qrels
from gr_mvdr.evaluation.significance import values_by_query

# Of all test queries, and of those that were reranked.
JUDGEMENTS, RERANKED = "retrieve.qrels", "rerank.qrels"


@dataclass
class JudgedQueries:
    """Runs that differ in their seed only, query by query.

    Attributes:
        runs: one for each seed.
        place: which of their rankings: "retrieve", "rerank", "rerank/document_to_query".
    """

    runs: Sequence[Run]
    place: str = "retrieve"

    @property
    def file(self) -> str:
        """The file of a run's ranking: "rerank-document_to_query.trec"."""
        return f"{self.place.replace('/', '-', 1)}.trec"

    @cached_property
    def judgements(self) -> Qrels | None:
        """What the runs were judged by; None where a run lacks its files or seeds differ."""
        folders = [run.path for run in self.runs]
        files = [folder / name for folder in folders for name in (self.file, JUDGEMENTS)]
        if not files or not all(file.is_file() for file in files):
            return None
        first, *others = map(self._judged, folders)
        return first if all(other == first for other in others) else None

    def _judged(self, folder: Path) -> Qrels:
        own = folder / RERANKED
        if self.place != "retrieve" and own.is_file():
            return read_qrels(own)
        qrels = read_qrels(folder / JUDGEMENTS)
        if self.place == "retrieve":  # a query that found nothing counts, too
            return qrels
        # An older run has no file of them.
        reranked = set(Ranking.read(folder / self.file).query_ids)
        return {query: grades for query, grades in qrels.items() if query in reranked}

    def values(self, metrics: Iterable[str]) -> dict[str, np.ndarray]:
        """Metric → (Q,) of every query, averaged over seeds, in the order of sorted query ids."""
        qrels = {query: self.judgements[query] for query in sorted(self.judgements)}
        rankings = [Ranking.read(run.path / self.file) for run in self.runs]
        return {name: values_by_query(rankings, qrels, name) for name in metrics}
