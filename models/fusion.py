"""Fusion: one ranking from those of several finished runs, or of TREC files; trains nothing."""

from collections.abc import Mapping, Sequence
from itertools import product
from math import fsum, isfinite
from pathlib import Path
from typing import Any, Literal

from torch import nn

from gr_mvdr.evaluation.metrics import name_metric
from gr_mvdr.evaluation.ranking import Qrels, Ranking, evaluate
from gr_mvdr.files import plain_name, temporary_folder
from gr_mvdr.options import NonNegative, Size, Text, part
from gr_mvdr.progress import track
from gr_mvdr.texts import TextTable
from models.base import Among, Candidates, Share, System, Table
from models.rerank_pipeline import Stage

_STEPS = 10  # steps of a weight from 0 to 1 when weights are chosen
_LEAST = 1e-9  # scores of a smaller range are equal


class SavedRanking:
    """A TREC run as a source: it ranks for the collection's queries that are in the file."""

    def __init__(self, key: str, file: Text):
        self.key, self.ranking = f"{key}={file}", Ranking.read(file)
        self.name = Path(plain_name(Path(file))).stem

    def retrieve(self, queries: Table, k: int, among: Among = None) -> Ranking:
        """See `System.retrieve`.

        Raises:
            ValueError: the queries are texts of a caller, whose ids say nothing.
        """
        if isinstance(queries, TextTable):
            rule = "must be a run's folder, a file only knows the queries of its collection"
            raise ValueError(f"{self.key}: {rule}")
        scores = {query: self.ranking.scores(query) for query in queries["id"][:]}
        if among is not None:
            scores = {q: _restrict(own, among) for q, own in scores.items()}
        return Ranking(scores).top(k)

    def rerank(self, queries: Table, documents: Table, candidates: Candidates) -> Ranking:
        """See `System.rerank`; a document that the file lacks is omitted."""
        scores = {q: self.ranking.scores(q) for q in queries["id"][:]}
        return Ranking({q: _restrict(own, candidates[q]) for q, own in scores.items()})


def _restrict(scores: Mapping[str, float], documents: Sequence[str]) -> dict[str, float]:
    return {name: scores[name] for name in documents if name in scores}


@part("model")
class Fusion(System):
    """Ranks by a weighted sum over the runs that retrieve a document.

    A run contributes 1 / (k + rank) (reciprocal rank fusion, Cormack et al. 2009), or its score,
    scaled to [0, 1] for each query (CombSUM, Fox and Shaw 1994).
    """

    paradigm = "pipeline"
    share_of, score_is = "run", "weighted sum over the runs"
    trainable = False
    alignable = False

    def __init__(
        self,
        runs: list[Text],
        method: Literal["rrf", "combsum"] = "rrf",
        k: Size = 60,
        weights: list[NonNegative] | None = None,
        depth: Size = 100,
        tune: Text | None = None,
        metric: Text = "mrr@10",
    ):
        """
        Args:
            runs: folders of finished runs, and TREC files.
            method, k: see the class; k is the constant of "rrf".
            weights: one for each run; None = 1 each, or those that `tune` chooses.
            depth: the number of documents per query that each run retrieves.
            tune: the split on which the weights are chosen, by `metric`.

        Raises:
            FileNotFoundError: a run or file does not exist.
            ValueError: there are fewer than two runs, or not as many weights; a run is unfinished;
                or the runs are of different collections.
        """
        super().__init__()
        self.save_hyperparameters()
        if len(runs) < 2:
            raise ValueError(f"model.runs=[{', '.join(runs)}]: must be two or more")
        if weights is not None and len(weights) != len(runs):
            rule = f"must be {len(runs)} numbers, one for each of the runs"
            raise ValueError(f"model.weights={list(weights)}: {rule}")
        if tune and weights is not None:
            raise ValueError(f"model.tune={tune}: must be null with model.weights")
        kinds = [SavedRanking if Path(run).expanduser().is_file() else Stage for run in runs]
        keyed = zip(kinds, runs, strict=True)
        self.sources: list[Any] = [
            kind(f"model.runs.{n}", run) for n, (kind, run) in enumerate(keyed)
        ]
        self.stages = [source for source in self.sources if isinstance(source, Stage)]
        for stage in self.stages[1:]:
            stage.run.check_collection(self.stages[0].run.provenance, "the first run")
        # Two runs of one system have different names.
        self.names = [f"{n}-{source.name}" for n, source in enumerate(self.sources, start=1)]
        self.weights = None if tune else weights or [1.0] * len(runs)
        self.tunes_search, self.tuning_split = bool(tune), tune

    def prepare(self, documents: Table, known: Sequence[int], directory: str | Path) -> None:
        """Loads every run's model with its identifiers; raises as `Stage.prepare`."""
        for stage in self.stages:
            stage.prepare(documents, self.passages)
        self.models = nn.ModuleList(stage.model for stage in self.stages)

    def index(self, documents: Table, directory: str | Path | None = None) -> None:
        """Opens the index of each run, or builds it in a folder named after the run.

        Raises:
            ValueError: `directory` belongs to a run with another collection than the runs'.
        """
        self.directory = Path(directory or temporary_folder("fusion"))
        self.directory.mkdir(parents=True, exist_ok=True)
        for number, stage in enumerate(self.stages, start=1):
            stage.run.check_index_owner(self.directory)
            place = self.directory / f"{number}-{stage.name}"
            stage.run.open_index(stage.model, documents, place)

    def open_index(self, documents: Table, directory: str | Path) -> None:
        """Opens the index of each run."""
        self.index(documents, temporary_folder("fusion"))

    def tune_search(self, queries: Table, depth: int, qrels: Qrels) -> None:
        """Chooses the weights that are best for judged queries: tenths that sum to one."""
        rankings, name = self._rankings(queries, None), name_metric(self.hparams.metric)
        every = product(range(_STEPS + 1), repeat=len(rankings))
        simplex = [[tenths / _STEPS for tenths in one] for one in every if sum(one) == _STEPS]
        values = [
            evaluate(self._fuse(rankings, weights), qrels, [name])[name]
            for weights in track(simplex, "choosing weights")
        ]
        self.weights = simplex[values.index(max(values))]
        print(f"model.weights={self.weights}: {name} is {max(values):.3f} on {self.tuning_split}")
        self.hparams.update(weights=self.weights, tune=None)
        self.tunes_search = False

    def _rankings(self, queries: Table, among: Among) -> list[Ranking]:
        """Returns the ranking of each run."""
        options = queries, self.hparams.depth, among
        searchers = [s.model if isinstance(s, Stage) else s for s in self.sources]
        return [searcher.retrieve(*options) for searcher in searchers]

    def _retrieve(self, queries: Table, k: int, among: Among, with_shares: bool) -> Ranking:
        """Fuses the rankings of the runs; a document has a share for each run that retrieves it."""
        rankings = self._rankings(queries, among)
        fused = self._fuse(rankings, self.weights).top(k)
        if with_shares:
            parts = self._contributions(rankings, self.weights)
            fused.shares = {
                query: {
                    document: [
                        Share(name, own[query][document])
                        for name, own in zip(self.names, parts, strict=True)
                        if document in own[query]
                    ]
                    for document in fused.documents(query)
                }
                for query in fused.query_ids
            }
        return fused

    def _rerank(self, queries: Table, documents: Table, candidates: Candidates) -> Ranking:
        """Fuses the runs' rerankings of the candidates."""
        rankings = [source.rerank(queries, documents, candidates) for source in self.sources]
        return self._fuse(rankings, self.weights)

    def _fuse(self, rankings: Sequence[Ranking], weights: Sequence[float] | None) -> Ranking:
        """Adds up what the rankings contribute, exactly: the order of the runs does not matter."""
        parts, results = self._contributions(rankings, weights), {}
        for query in parts[0]:
            names = dict.fromkeys(name for own in parts for name in own[query])
            results[query] = {n: fsum(own[query].get(n, 0.0) for own in parts) for n in names}
        return Ranking(results)

    def _contributions(
        self, rankings: Sequence[Ranking], weights: Sequence[float] | None
    ) -> list[dict[str, dict[str, float]]]:
        """Returns, for each run, query id → document id → what the run adds to the score."""
        if weights is None:
            raise ValueError(f"model.tune={self.hparams.tune}: no weights are chosen yet")
        return [
            {
                query: {d: weight * v for d, v in self._scale(one.scores(query)).items()}
                for query in one.query_ids
            }
            for one, weight in zip(rankings, weights, strict=True)
        ]

    def _scale(self, scores: Mapping[str, float]) -> dict[str, float]:
        """Scales one query's scores, best first; −inf means not retrieved."""
        scores = {document: score for document, score in scores.items() if isfinite(score)}
        if self.hparams.method == "rrf":
            return {d: 1 / (self.hparams.k + rank) for rank, d in enumerate(scores, start=1)}
        least, most = min(scores.values(), default=0.0), max(scores.values(), default=0.0)
        width = most - least
        # A single score, or equal ones, are the best of a run.
        return {d: (s - least) / width if width >= _LEAST else 1.0 for d, s in scores.items()}
