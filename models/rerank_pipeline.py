"""Any chain of finished systems with a depth each, and its joint compute (mva.txt Table 6)."""

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gr_mvdr.batch import PairBatch
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.files import reading, temporary_folder
from gr_mvdr.options import TARGET, build, part
from gr_mvdr.relevance import PairAlignment
from gr_mvdr.run_files import PROVENANCE, read_provenance
from gr_mvdr.tokenizers import build_word_tokenizer
from models.base import Share, Shares, System, Table
from models.finished_run import FinishedRun

STAGE_KEYS = {"run", "depth", "trust"}


class WordTable:
    """A table's columns, with words for tokens: what a lexical stage was indexed with."""

    def __init__(self, table: Table, tokenizer: Any):
        self.table, self.tokenizer = table, tokenizer

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, column: str) -> Any:
        if column != "tokens":
            return self.table[column]
        return self.tokenizer(self.table["text"][:], add_special_tokens=False)["input_ids"]


class Stage:
    """A system of the pipeline, in the form in which its run reranked (the first one)."""

    def __init__(self, run: FinishedRun, name: str, documents: Table, known: Sequence[int]):
        """
        Args:
            run: of the collection of the documents.
            name: of the stage in metrics and folders.
            documents, known: see `System.prepare`.

        Raises:
            ValueError: the run is of other documents or had another tokeniser.
        """
        run.check_documents(documents)
        self.run, self.name, self.words = run, name, None
        if (run.path / "tokenizer").is_dir():
            run.check_tokenizer(documents)
        elif run.config.get("tokenizer", {}).get("unit") == "word":
            # Words that no document has match nothing, so that these make the run's own terms.
            self.words = build_word_tokenizer(documents["text"])
        with reading(run.key):
            self.model = run.load_model(documents, known)
            form = next(iter((run.config.get("rerank") or {}).values()), {})
            with run.trusting(form):
                self.form = {key: _built(key, value) for key, value in form.items()}

    def index(self, documents: Table, directory: Path) -> None:
        """Opens the run's own index where that is possible, else makes one in `directory`."""
        if self.words is not None:
            self.words = build_word_tokenizer(documents["text"])
        self.run.open_index(self.model, self._table(documents), directory)

    def retrieve(self, queries: Table, k: int, among: Sequence[str] | None = None) -> Ranking:
        """See `System.retrieve`."""
        if among is not None:
            return self.model.retrieve_with_shares(self._table(queries), k, among)[0]
        return self.model.retrieve(self._table(queries), k)

    def rerank(
        self, queries: Table, documents: Table, candidates: dict[str, Sequence[str]]
    ) -> Ranking:
        """See `System.rerank`."""
        return self.model.rerank(self._table(queries), documents, candidates, **self.form)

    def _table(self, table: Table) -> Table:
        return table if self.words is None else WordTable(table, self.words)


def _built(kind: str, value: Any) -> Any:
    return build(kind, value) if isinstance(value, dict) and TARGET in value else value


@part("model")
class RerankPipeline(System):
    """The first stage retrieves, each further one reranks the best of what came before.

    BM25 1000 → mva 50 → cross-encoder: `depth` is what a stage hands on. What it does not hand on
    keeps its order, below all that the next stage has scored.
    """

    paradigm = "pipeline"
    share_of, score_is = "stage", "the last stage's score"
    trainable = False
    alignable = False

    def __init__(self, stages: list[dict[str, Any]]):
        """
        Args:
            stages: `run`, the folder of a finished run, and `depth`, documents a query for the
                next stage (the last one has none). `trust: true` where the run was made with a
                class of your own (docs/security.md).

        Raises:
            FileNotFoundError: a run's folder is not there.
            ValueError: no stage, an unknown key, a depth below 1, an unfinished run, runs of
                different collections.
        """
        super().__init__()
        self.save_hyperparameters()
        if not stages:
            raise ValueError("model.stages=[]: must be a list of {run: FOLDER, depth: NUMBER}")
        for number, settings in enumerate(stages):
            _check(f"model.stages.{number}", settings, last=number == len(stages) - 1)
        self.depths = [settings.get("depth") for settings in stages]
        self.runs = [
            FinishedRun.read(
                f"model.stages.{number}.run", settings["run"], settings.get("trust", False)
            )
            for number, settings in enumerate(stages)
        ]
        for run in self.runs[1:]:
            run.check_collection(self.runs[0].provenance, "the first stage")
        self.stages: list[Stage] = []

    def prepare(self, documents: Table, known: Sequence[int], directory: str | Path) -> None:
        """Loads the model of every stage, with the identifiers of its own run.

        Raises:
            ValueError: a run is of other documents, had another tokeniser or has no checkpoint.
        """
        self.stages = [
            Stage(run, f"{number}-{_file_name(run.provenance['system'])}", documents, known)
            for number, run in enumerate(self.runs, start=1)
        ]
        self.models = nn.ModuleList(stage.model for stage in self.stages)
        self.template = self.stages[-1].model.template  # pairs are for the last stage's `score`

    def index(self, documents: Table, directory: str | Path | None = None) -> list[Stage]:
        """Every stage's own index, in a folder of its name if its run has none to open.

        Raises:
            ValueError: the stages are of another collection than the run in `directory`'s parent.
        """
        directory = Path(directory or temporary_folder("pipeline"))
        own = directory.with_name(PROVENANCE)
        if own.is_file():
            self.runs[0].check_collection(read_provenance(own.parent), "this run")
        directory.mkdir(parents=True, exist_ok=True)
        for stage in self.stages:
            stage.index(documents, directory / stage.name)
        self.documents = documents
        rows = zip(documents["id"][:], documents["tokens"][:], strict=True)
        around = len(self.template.read_document((), 0))
        self.lengths = {document: len(tokens) + around for document, tokens in rows}
        self.costs = [StageCost() for _ in self.stages]
        return self.stages

    def open_index(self, documents: Table, directory: str | Path) -> list[Stage]:
        """Opens every stage's own index, as `index` does where there is one."""
        return self.index(documents, temporary_folder("pipeline"))

    def retrieve(self, queries: Table, k: int = 100) -> Ranking:
        """The first stage's `depth` best documents, reranked stage by stage; its costs add up.

        The first stage counts as scoring every document, which an approximate search does not.
        """
        return self.retrieve_with_shares(queries, k)[0]

    @torch.inference_mode()
    def retrieve_with_shares(
        self, queries: Table, k: int = 100, among: Sequence[str] | None = None
    ) -> tuple[Ranking, Shares]:
        """`retrieve`; the share of the last stage that scored a document is its whole score."""
        first, cost = self.stages[0], self.costs[0]
        with cost.timing(len(queries)):
            found = first.retrieve(queries, self.depths[0] or k, among)
        asked = Counter(self._query_lengths(queries).values())
        held = Counter(self.lengths.values())
        cost.add(first.model, {(n, m): asked[n] * held[m] for n in asked for m in held})
        scored: dict[tuple[str, str], str] = {}
        ranking = self._refined(queries, self.documents, found, self.costs, scored).top(k)
        return ranking, {
            query: {
                name: [Share(scored.get((query, name), first.name), score)]
                for name, score in ranking.scores(query).items()
            }
            for query in ranking.query_ids
        }

    def rerank(
        self, queries: Table, documents: Table, candidates: dict[str, Sequence[str]]
    ) -> Ranking:
        """All stages in turn; the first scores all candidates. Leaves the statistics alone."""
        found = self.stages[0].rerank(queries, documents, candidates)
        return self._refined(queries, documents, found, [StageCost() for _ in self.stages])

    def _refined(
        self,
        queries: Table,
        documents: Table,
        found: Ranking,
        costs: list["StageCost"],
        scored: dict[tuple[str, str], str] | None = None,
    ) -> Ranking:
        """The first stage's ranking after all others; `scored`: by which stage a pair was, last."""
        asked = self._query_lengths(queries)
        later = zip(self.stages[1:], costs[1:], self.depths[:-1], strict=True)
        for stage, cost, depth in later:
            best = {query: found.documents(query)[:depth] for query in asked}
            # A first stage may have found nothing, which not every system can rerank.
            answered = queries.select([row for row, query in enumerate(asked) if best[query]])
            with cost.timing(len(queries)):
                if len(answered):
                    found = put_above(stage.rerank(answered, documents, best), found)
            if scored is not None:
                scored |= {(query, name): stage.name for query in best for name in best[query]}
            pairs = Counter((asked[query], self.lengths[d]) for query in best for d in best[query])
            cost.add(stage.model, pairs)
        return found

    def _query_lengths(self, queries: Table) -> dict[str, int]:
        """Query id → tokens, those around the query included."""
        around = len(self.template.read_query((), 0))
        rows = zip(queries["id"][:], queries["tokens"][:], strict=True)
        return {query: len(tokens) + around for query, tokens in rows}

    def score(self, batch: PairBatch) -> Tensor:
        """(B,) of the last stage, which has the last word."""
        return self.stages[-1].model.score(batch)

    def align(self, batch: PairBatch) -> PairAlignment:
        """Raises NotImplementedError: several systems share the ranking."""
        raise NotImplementedError(
            "a pipeline has no alignment of its own: analyse the runs of its stages"
        )

    def statistics(self) -> dict[str, float]:
        """A query's joint compute in FLOPs, and milliseconds, stage by stage; of `retrieve` alone.

        A stage whose operations nobody has counted has no number, and then the sum has none.
        """
        named = [(stage.name, cost) for stage, cost in zip(self.stages, self.costs, strict=True)]
        if not self.costs[0].queries:
            return {}
        metrics = {f"cost/stage_ms/{name}": 1000 * c.seconds / c.queries for name, c in named}
        flops = {name: c.flops / c.queries for name, c in named if c.flops is not None}
        metrics |= {f"cost/joint_flops/{name}": value for name, value in flops.items()}
        if len(flops) == len(named):
            metrics["cost/joint_flops"] = sum(flops.values())
        return metrics

    def configure_optimizers(self) -> None:
        """Its stages were trained in their own runs."""
        return None


@dataclass
class StageCost:
    """What a stage has taken so far.

    Attributes:
        queries, seconds: of its searches; flops: joint compute, None = nobody has counted it.
    """

    queries: int = 0
    seconds: float = 0.0
    flops: float | None = 0.0

    @contextmanager
    def timing(self, queries: int) -> Iterator[None]:
        """Adds the time of what is done within, for so many queries."""
        start = time.perf_counter()
        yield
        self.queries += queries
        self.seconds += time.perf_counter() - start

    def add(self, model: System, pairs: Mapping[tuple[int, int], int]) -> None:
        """Adds pairs that a system scored: (query tokens, document tokens) → how many."""
        for lengths, count in pairs.items():
            flops = model.joint_flops(*lengths)
            if flops is None or self.flops is None:
                self.flops = None
                return
            self.flops += count * flops


def put_above(best: Ranking, earlier: Ranking) -> Ranking:
    """A ranking on top of an earlier one, whose other documents keep their order below it."""
    results = {}
    for query in earlier.query_ids:
        results[query] = best.scores(query)
        lowest = min(results[query].values(), default=0.0)
        others = [
            document for document in earlier.documents(query) if document not in results[query]
        ]
        results[query] |= {d: lowest - place for place, d in enumerate(others, start=1)}
    return Ranking(results)


def _file_name(system: str) -> str:
    """A system's name as a part of a folder's: it may come from anyone, "../.." too."""
    return re.sub(r"[^\w +-]", "_", system)


def _check(key: str, settings: dict[str, Any], last: bool) -> None:
    """Raises ValueError if the settings of a stage are none."""
    if unknown := set(settings) - STAGE_KEYS:
        raise ValueError(f"{key}.{min(unknown)}: must be run, depth or trust")
    if "run" not in settings:
        raise ValueError(f"{key}={settings}: must have a run, the folder of a finished one")
    depth = settings.get("depth")
    if last and depth is not None:
        raise ValueError(f"{key}.depth={depth}: must be absent, the last stage hands nothing on")
    if not last and not (isinstance(depth, int) and depth >= 1):
        raise ValueError(f"{key}.depth={depth}: must be ≥ 1, the documents for the next stage")
