"""A chain of finished systems, each with a depth, and its joint compute (mva Table 6)."""

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from gr_mvdr.batch import PairBatch
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.files import reading, temporary_folder
from gr_mvdr.options import (
    TARGET,
    Size,
    Text,
    build,
    check_options,
    inspect_signature,
    part,
    show,
)
from gr_mvdr.run_files import PROVENANCE, read_provenance
from gr_mvdr.tokenizers import build_word_tokenizer
from models.base import Share, Shares, System, Table
from models.finished_run import FinishedRun


class WordTable:
    """A table whose tokens are words: the tokens of a lexical stage."""

    def __init__(self, table: Table, tokenizer: Any):
        self.table, self.tokenizer = table, tokenizer

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, column: str) -> Any:
        if column != "tokens":
            return self.table[column]
        return self.tokenizer(self.table["text"][:], add_special_tokens=False)["input_ids"]


class Stage:
    """A finished run as a stage of a search: its model, its index, its form of reranking."""

    def __init__(self, key: str, run: Text, depth: Size | None = None, trust: bool = False):
        """
        Args:
            key: of `run` in the configuration.
            run: the folder of a finished run.
            depth: documents a query that the stage passes on; None for the last stage.
            trust: whether the folder may name your own classes (docs/security.md).

        Raises:
            FileNotFoundError: no such folder; ValueError: the run is unfinished.
        """
        self.run, self.depth = FinishedRun.read(key, run, trust), depth
        # The system's name as a part of a folder's; a foreign run may have "../..".
        self.name = re.sub(r"[^\w +-]", "_", self.run.provenance["system"])
        self.words: Any = None  # the tokeniser of a lexical stage

    def prepare(self, documents: Table, known: Sequence[int]) -> None:
        """Loads the model; the arguments are those of `System.prepare`.

        Raises:
            ValueError: the run is of other documents or had another tokeniser.
            FileNotFoundError: it has no checkpoint.
        """
        run = self.run
        run.check_documents(documents)
        is_lexical = run.config.get("tokenizer", {}).get("unit") == "word"
        if is_lexical and not (run.path / "tokenizer").is_dir():
            # Words of no document match nothing, so these give the run's own scores.
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
    """The first stage retrieves; each further stage reranks the best documents of the previous one.

    BM25 1000 → mva 50 → cross-encoder: `depth` documents go to the next stage. The others keep
    their order, below all documents that the next stage scores.
    """

    paradigm = "pipeline"
    share_of, score_is = "stage", "the last stage's score"
    trainable = False
    alignable = False

    def __init__(self, stages: list[Annotated[dict[str, Any], Stage]]):
        """
        Args:
            stages: of each stage the options of `Stage`; all but the last have a depth.

        Raises:
            FileNotFoundError: a run's folder is not there.
            ValueError: no stage, an unknown option, an unfinished run, runs of different
                collections.
        """
        super().__init__()
        self.save_hyperparameters()
        if not stages:
            raise ValueError("model.stages=[]: must be a list of {run: FOLDER, depth: NUMBER}")
        self.stages: list[Stage] = []
        for number, settings in enumerate(stages, start=1):
            key = f"model.stages.{number - 1}"
            check_options(key, inspect_signature(Stage), settings, given=["key"])
            if (settings.get("depth") is None) != (number == len(stages)):
                rule = "must be null for the last stage, a whole number ≥ 1 for the others"
                raise ValueError(f"{key}.depth={show(settings.get('depth'))}: {rule}")
            stage = Stage(f"{key}.run", **settings)
            stage.name = f"{number}-{stage.name}"
            self.stages.append(stage)
        for stage in self.stages[1:]:
            stage.run.check_collection(self.stages[0].run.provenance, "the first stage")

    def prepare(self, documents: Table, known: Sequence[int], directory: str | Path) -> None:
        """Loads the model of every stage, with its run's identifiers; raises as `Stage.prepare`."""
        for stage in self.stages:
            stage.prepare(documents, known)
        self.models = nn.ModuleList(stage.model for stage in self.stages)
        self.template = self.stages[-1].model.template  # pairs are for the last stage's `score`

    def index(self, documents: Table, directory: str | Path | None = None) -> list[Stage]:
        """Opens the index of each stage's run, or makes it in a folder of the stage's name.

        Raises:
            ValueError: the run that `directory` belongs to has another collection than the stages.
        """
        directory = Path(directory or temporary_folder("pipeline"))
        own = directory.with_name(PROVENANCE)
        if own.is_file():
            self.stages[0].run.check_collection(read_provenance(own.parent), "this run")
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
        """Opens the index of each stage's run, as `index` does."""
        return self.index(documents, temporary_folder("pipeline"))

    def retrieve(self, queries: Table, k: int = 100) -> Ranking:
        """The first stage's `depth` best documents, reranked stage by stage; sums up the costs.

        The first stage counts as if it scored every document, which an approximate search does not.
        """
        return self.retrieve_with_shares(queries, k)[0]

    @torch.inference_mode()
    def retrieve_with_shares(
        self, queries: Table, k: int = 100, among: Sequence[str] | None = None
    ) -> tuple[Ranking, Shares]:
        """`retrieve`; the last stage that scored a document has its whole score as its share."""
        first, cost = self.stages[0], self.costs[0]
        with cost.timing(len(queries)):
            ranking = first.retrieve(queries, first.depth or k, among)
        query_lengths = Counter(self._query_lengths(queries).values())
        document_lengths = Counter(self.lengths.values())
        cost.add(
            first.model,
            {
                (n, m): query_lengths[n] * document_lengths[m]
                for n in query_lengths
                for m in document_lengths
            },
        )
        scored: dict[tuple[str, str], str] = {}
        ranking = self._refine(queries, self.documents, ranking, self.costs, scored).top(k)
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
        """All stages in turn; the first scores all candidates. `statistics` does not count them."""
        ranking = self.stages[0].rerank(queries, documents, candidates)
        return self._refine(queries, documents, ranking, [StageCost() for _ in self.stages])

    def _refine(
        self,
        queries: Table,
        documents: Table,
        ranking: Ranking,
        costs: list["StageCost"],
        scored: dict[tuple[str, str], str] | None = None,
    ) -> Ranking:
        """The first stage's ranking, reranked by all others; fills `scored`: (query, document) →
        the last stage that scored the pair."""
        lengths = self._query_lengths(queries)
        later = zip(self.stages[1:], costs[1:], self.stages[:-1], strict=True)
        for stage, cost, before in later:
            best = {query: ranking.documents(query)[: before.depth] for query in lengths}
            # Not every system can rerank an empty list of candidates.
            answered = queries.select([row for row, query in enumerate(lengths) if best[query]])
            with cost.timing(len(queries)):
                if len(answered):
                    ranking = put_above(stage.rerank(answered, documents, best), ranking)
            if scored is not None:
                scored |= {(query, name): stage.name for query in best for name in best[query]}
            pairs = ((lengths[query], self.lengths[d]) for query in best for d in best[query])
            cost.add(stage.model, Counter(pairs))
        return ranking

    def _query_lengths(self, queries: Table) -> dict[str, int]:
        """Query id → number of tokens, special tokens included."""
        around = len(self.template.read_query((), 0))
        rows = zip(queries["id"][:], queries["tokens"][:], strict=True)
        return {query: len(tokens) + around for query, tokens in rows}

    def score(self, batch: PairBatch) -> Tensor:
        """(B,) the scores of the last stage."""
        return self.stages[-1].model.score(batch)

    def statistics(self) -> dict[str, float]:
        """Mean FLOPs of joint compute, and milliseconds, of a query of `retrieve` in each stage.

        Without the FLOPs of one stage there is no sum.
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


@dataclass
class StageCost:
    """The costs of a stage so far.

    Attributes:
        queries, seconds: of its searches; flops: joint compute, None = unknown.
    """

    queries: int = 0
    seconds: float = 0.0
    flops: float | None = 0.0

    @contextmanager
    def timing(self, queries: int) -> Iterator[None]:
        """Adds the time of the block, and the queries that it serves."""
        start = time.perf_counter()
        yield
        self.queries += queries
        self.seconds += time.perf_counter() - start

    def add(self, model: System, pairs: Mapping[tuple[int, int], int]) -> None:
        """Adds scored pairs: (query tokens, document tokens) → number of pairs."""
        for lengths, count in pairs.items():
            flops = model.joint_flops(*lengths)
            if flops is None or self.flops is None:
                self.flops = None
                return
            self.flops += count * flops


def put_above(best: Ranking, earlier: Ranking) -> Ranking:
    """A ranking above the other documents of an earlier one, which keep their order."""
    results = {}
    for query in earlier.query_ids:
        results[query] = best.scores(query)
        lowest = min(results[query].values(), default=0.0)
        others = [
            document for document in earlier.documents(query) if document not in results[query]
        ]
        results[query] |= {d: lowest - place for place, d in enumerate(others, start=1)}
    return Ranking(results)
