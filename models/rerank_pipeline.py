"""A pipeline of finished systems, each with a depth, and its joint compute (mva Table 6)."""

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from torch import Tensor, nn

from gr_mvdr.batch import PairBatch
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.files import reading, temporary_folder
from gr_mvdr.measures import COST, COSTS, Measured, keep_finite
from gr_mvdr.options import TARGET, Size, Text, admitting, build, part, show
from gr_mvdr.passages import Passages
from models.base import Among, Candidates, Share, System, Table, check_form
from models.bm25 import BM25
from models.saved_model import FinishedRun


class Stage:
    """A finished run as a stage of a search: its model, its index, its form of reranking."""

    model: System | None = None  # until `prepare`

    def __init__(self, key: str, run: Text, depth: Size | None = None, trust: bool = False):
        """
        Args:
            key: the key of `run` in the configuration.
            run: the folder of a finished run.
            depth: the number of documents per query for the next stage; None for the last stage.
            trust: whether the folder may name your own classes (docs/design.md).

        Raises:
            FileNotFoundError: the folder does not exist.
            ValueError: the run is unfinished.
        """
        self.run, self.depth = FinishedRun.read(key, run, trust), depth
        # The system's name, made safe as a folder's name: a run from elsewhere may have "../..".
        self.name = re.sub(r"[^\w +-]", "_", self.run.provenance["system"])

    def prepare(self, documents: Table, passages: Passages = System.passages) -> None:
        """Loads the model.

        Args:
            passages: see `System`.

        Raises:
            ValueError: the run is of other documents or had another tokeniser.
            FileNotFoundError: a file of the model is missing.
        """
        run = self.run
        run.check_documents(documents)
        with reading(run.key):
            self.model = run.load_model(documents, passages)
            words = run.config.get("tokenizer", {}).get("unit") == "word"
            if words and isinstance(self.model, BM25):  # its tokens were the texts' words
                self.model = BM25(**self.model.hparams | {"reads": "texts"})
                self.model.passages = passages
            name, form = next(iter((run.config.get("rerank") or {}).items()), ("", {}))
            check_form(self.model, f"rerank.{name}", form)
            with admitting(form if run.trust else None):
                self.form = {
                    key: build(key, value) if isinstance(value, dict) and TARGET in value else value
                    for key, value in form.items()
                }

    def rerank(self, queries: Table, documents: Table, candidates: Candidates) -> Ranking:
        """See `System.rerank`."""
        return self.model.rerank(queries, documents, candidates, **self.form)


@part("model")
class RerankPipeline(System):
    """The first stage retrieves; each further stage reranks the best documents of the previous one.

    For example, BM25 1000 → mva 50 → cross-encoder: the best `depth` documents go to the next
    stage. The others keep their order, below all documents that the next stage scores.
    """

    paradigm = "pipeline"
    share_of, score_is = "stage", "the last stage's score"
    trainable = False
    alignable = False

    def __init__(self, stages: list[Annotated[dict[str, Any], Stage]]):
        """
        Args:
            stages: the options of each `Stage`; all but the last have a depth.

        Raises:
            FileNotFoundError: a run's folder does not exist.
            ValueError: there is no stage, a run is unfinished, or the runs are of different
                collections.
        """
        super().__init__()
        self.save_hyperparameters()
        if not stages:
            raise ValueError("model.stages=[]: must be a list of {run: FOLDER, depth: NUMBER}")
        self.stages: list[Stage] = []
        for number, settings in enumerate(stages, start=1):
            key = f"model.stages.{number - 1}"
            if (settings.get("depth") is None) != (number == len(stages)):
                rule = "must be null for the last stage, a whole number ≥ 1 for the others"
                raise ValueError(f"{key}.depth={show(settings.get('depth'))}: {rule}")
            stage = Stage(f"{key}.run", **settings)
            stage.name = f"{number}-{stage.name}"
            self.stages.append(stage)
        for stage in self.stages[1:]:
            stage.run.check_collection(self.stages[0].run.provenance, "the first stage")

    def prepare(self, documents: Table, known: Sequence[int], directory: str | Path) -> None:
        """Loads every stage's model with its run's identifiers; raises as `Stage.prepare`."""
        for stage in self.stages:
            stage.prepare(documents, self.passages)
        self.models = nn.ModuleList(stage.model for stage in self.stages)
        self.template = self.stages[-1].model.template  # pairs are for the last stage's `score`

    def index(self, documents: Table, directory: str | Path | None = None) -> None:
        """Opens the index of each stage's run, or builds it in a folder named after the stage.

        Raises:
            ValueError: `directory` belongs to a run with another collection than the stages'.
        """
        directory = Path(directory or temporary_folder("pipeline"))
        self.stages[0].run.check_index_owner(directory)
        directory.mkdir(parents=True, exist_ok=True)
        for stage in self.stages:
            stage.run.open_index(stage.model, documents, directory / stage.name)
        self.documents, self.lengths = documents, _lengths(documents, self.template.read_document)
        # (stages, 3): queries, seconds and joint compute of `retrieve` so far; nan = unknown.
        self.costs = np.zeros((len(self.stages), 3))

    def open_index(self, documents: Table, directory: str | Path) -> None:
        """Opens the index of each stage's run, as `index` does."""
        self.index(documents, temporary_folder("pipeline"))

    def _retrieve(self, queries: Table, k: int, among: Among, with_shares: bool) -> Ranking:
        """Reranks the first stage's `depth` best documents stage by stage, and counts the costs.

        The first stage counts as if it scored every document, which an approximate search does not.
        A document has one share, its whole score, named after the last stage that scored it.
        """
        first, start = self.stages[0], time.perf_counter()
        ranking = first.model.retrieve(queries, first.depth or k, among)
        seconds = time.perf_counter() - start
        lengths = _lengths(queries, self.template.read_query)
        counts = product(*(Counter(sizes.values()).items() for sizes in (lengths, self.lengths)))
        self._count(0, len(queries), seconds, {(n, m): a * b for (n, a), (m, b) in counts})
        scored_by: dict[tuple[str, str], str] = {}
        steps = self._refine(queries, self.documents, ranking)
        for number, (refined, pairs, seconds) in enumerate(steps, start=1):
            ranking = refined
            scored_by |= dict.fromkeys(pairs, self.stages[number].name)
            read = ((query, row) for query, name in pairs for row in self.passages.of([name]))
            sizes = Counter((lengths[query], self.lengths[row]) for query, row in read)
            self._count(number, len(queries), seconds, sizes)
        ranking = ranking.top(k)
        if with_shares:
            ranking.shares = {
                query: {
                    name: [Share(scored_by.get((query, name), first.name), score)]
                    for name, score in ranking.scores(query).items()
                }
                for query in ranking.query_ids
            }
        return ranking

    def _rerank(self, queries: Table, documents: Table, candidates: Candidates) -> Ranking:
        """Reranks the candidates by all stages in turn; `statistics` does not count this."""
        ranking = self.stages[0].rerank(queries, documents, candidates)
        return [ranking, *(step[0] for step in self._refine(queries, documents, ranking))][-1]

    def _refine(
        self, queries: Table, documents: Table, ranking: Ranking
    ) -> Iterator[tuple[Ranking, list[tuple[str, str]], float]]:
        """Yields each further stage's ranking, the (query, document) pairs it scored, its time."""
        for before, stage in pairwise(self.stages):
            best = {query: ranking.documents(query)[: before.depth] for query in queries["id"][:]}
            start = time.perf_counter()
            # Not every system can rerank an empty list of candidates.
            answered = queries.select([row for row, names in enumerate(best.values()) if names])
            if len(answered):
                ranking = put_above(stage.rerank(answered, documents, best), ranking)
            seconds = time.perf_counter() - start
            yield ranking, [(query, name) for query in best for name in best[query]], seconds

    def _count(
        self, stage: int, queries: int, seconds: float, pairs: Mapping[tuple[int, int], int]
    ) -> None:
        """Adds to a stage's costs; `pairs`: (query tokens, document tokens) → number of pairs."""
        model = self.stages[stage].model
        flops = sum(count * model.joint_flops(*lengths) for lengths, count in pairs.items())
        self.costs[stage] += queries, seconds, flops

    def cut_query(self, tokens: Sequence[int]) -> list[int]:
        """Truncates a query as the last stage, which `score` asks, does."""
        return self.stages[-1].model.cut_query(tokens)

    def cut_document(self, tokens: Sequence[int]) -> list[int]:
        """Truncates a document as the last stage does."""
        return self.stages[-1].model.cut_document(tokens)

    def score(self, batch: PairBatch) -> Tensor:
        """Computes the scores (B,) of the last stage."""
        return self.stages[-1].model.score(batch)

    def statistics(self) -> list[Measured]:
        """Returns each stage's mean joint FLOPs and milliseconds per query of `retrieve`.

        If a stage's FLOPs are unknown, they and the sum are omitted.
        """
        queries, seconds, flops = self.costs.T
        if not queries.all():
            return []
        rows = [COSTS["joint_flops"].row(sum(flops / queries))]
        for number, stage in enumerate(self.stages):
            milliseconds = 1000 * seconds[number] / queries[number]
            rows.append(COSTS["stage_ms"].row(milliseconds, part=stage.name))
            rows.append(COSTS["joint_flops"].row(flops[number] / queries[number], part=stage.name))
        return keep_finite(rows, COST)


def _lengths(table: Table, read: Any) -> dict[str, int]:
    """Returns id → number of tokens of each text, special tokens included."""
    around, rows = len(read((), 0)), zip(table["id"][:], table["tokens"][:], strict=True)
    return {name: len(tokens) + around for name, tokens in rows}


def put_above(best: Ranking, earlier: Ranking) -> Ranking:
    """Puts a ranking above the other documents of an earlier ranking, which keep their order."""
    results = {}
    for query in earlier.query_ids:
        results[query] = best.scores(query)
        lowest = min(results[query].values(), default=0.0)
        others = [name for name in earlier.documents(query) if name not in results[query]]
        results[query] |= {name: lowest - place for place, name in enumerate(others, start=1)}
    return Ranking(results)
