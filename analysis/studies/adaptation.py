"""Few-shot alignment adaptation: which top-k or top-p suits a collection (aligner §3.1, §4.1).

A trained model keeps its vectors; only the alignment of the refinement changes. Candidates are
retrieved once, every strategy scores them from the index's vectors, and nothing is encoded again.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from torch import nn

from analysis.analysis import Findings
from analysis.evaluation import QueryMetrics, average_metrics, drop_own_hits, judge
from analysis.figures import COLOURS, PAGE_WIDTH, PANEL_HEIGHT, GalleryEntry, styled
from analysis.metric_names import MISSING, Statistic
from analysis.tables import Cell, Row, Table
from data_modules.module import RetrievalDataModule
from gr_mvdr.alignment import TopK, TopP
from gr_mvdr.parts import part
from gr_mvdr.progress import track
from gr_mvdr.scoring import Scoring
from models.base import System
from models.multi_vector import MultiVector

CHOSEN_BY = "ndcg@10"
CAPTION = (
    "Bars: nDCG@10 of all test queries when the same vectors are scored under another pairwise "
    "alignment. Right: what a few annotated queries reach by choosing among these alignments; the "
    "mean over folds of the queries outside each fold, whiskers are the standard deviation over "
    "folds. The dashed line is the first alignment. Nothing was encoded again."
)


@dataclass(frozen=True)
class Strategy:
    """A pairwise alignment of the refinement: exactly one of k and p is set."""

    k: int | None = None
    p: float | None = None

    @property
    def name(self) -> str:
        return f"top-k={self.k}" if self.p is None else f"top-p={self.p:.1%}"

    @property
    def alignment(self) -> TopK | TopP:
        return TopK(self.k) if self.p is None else TopP(self.p)


@dataclass(frozen=True)
class Fold:
    """A few annotated queries, what they chose, and what that is worth on all the others."""

    size: int
    number: int
    strategy: Strategy
    own: float
    rest: dict[str, float]


@part("study")
class Adaptation:
    """A study: the k × p grid of aligner Table 3, and folds of a few queries that choose in it."""

    def __init__(
        self,
        k: list,
        p: list,
        folds_of: list,
        depth: int = 1000,
        search: dict | None = None,
        split: str | None = None,
        seed: int = 0,
    ):
        """
        Args:
            k, p: of the strategies, p as a share; of equally good ones the first is chosen.
            folds_of: annotated queries in a fold.
            depth: candidates a query.
            search: search options that differ from the system's own, for the candidates.
            split: whose queries are scored; None = the first test split.
            seed: of the split into folds.

        Raises:
            ValueError: no strategy, a depth or a fold below 1; k and p as the alignments.
        """
        self.strategies = [Strategy(k=value) for value in k] + [Strategy(p=value) for value in p]
        if not self.strategies:
            raise ValueError("study.k and study.p: must hold at least one strategy")
        for strategy in self.strategies:
            _ = strategy.alignment  # refuses what is no number of tokens
        for size in folds_of:
            if size < 1:
                raise ValueError(f"study.folds_of={size}: must be ≥ 1")
        if depth < 1:
            raise ValueError(f"study.depth={depth}: must be ≥ 1")
        self.folds_of, self.depth, self.search = list(folds_of), depth, dict(search or {})
        self.split, self.seed = split, seed

    def check(self, model: System) -> None:
        """Refuses a model that cannot score candidates under another alignment."""
        if not hasattr(model, "rerank_encoded"):
            raise ValueError(
                f"study: {type(model).__name__} has no token vectors whose alignment could be "
                "changed; choose a multi-vector model, or ~study"
            )
        model.search.changed(**self.search)

    def __call__(
        self, model: MultiVector, data: RetrievalDataModule, run: Path
    ) -> tuple[Findings, Table]:
        """Scores every strategy with a model whose index is built, and lets the folds choose."""
        split = self.split or data.test_splits[0]
        queries = data.test_queries(split)
        qrels = data.judgements(split, queries)
        encoded = model.encoded_queries(queries)
        ranking = model.retrieve_encoded(encoded, self.depth + data.drop_identical, **self.search)
        ranking = drop_own_hits(ranking, data, self.depth)
        candidates = {query: ranking.documents(query) for query in qrels}
        scores, calls = {}, {}
        for strategy in track(self.strategies, "scoring every strategy"):
            scoring = Scoring(strategy.alignment, model.scoring.normaliser)
            with count_calls(model.encoder) as counter:
                found = model.rerank_encoded(encoded, candidates, scoring)
            scores[strategy] = judge(found, data, split, queries, [CHOSEN_BY])
            calls[strategy] = counter[0]
        folds = self._draw_folds(list(qrels), scores)
        return _summarise(scores, calls, folds, f"{data.collection.name} ({split})")

    def _draw_folds(
        self, queries: Sequence[str], scores: Mapping[Strategy, QueryMetrics]
    ) -> list[Fold]:
        """All folds of all sizes; queries that do not fill a fold choose nothing."""
        order = np.random.default_rng(self.seed).permutation(len(queries))
        folds = []
        for size in self.folds_of:
            if size >= len(queries):
                warnings.warn(
                    f"study.folds_of={size}: left out, it needs more than {size} queries and there "
                    f"are {len(queries)}",
                    stacklevel=2,
                )
                continue
            for number in range(len(queries) // size):
                own = {queries[i] for i in order[number * size : (number + 1) * size]}
                folds.append(_choose(size, number, own, scores))
        return folds


def _choose(size: int, number: int, own: set[str], scores: Mapping[Strategy, QueryMetrics]) -> Fold:
    """What a fold's queries choose, and its metrics on the queries outside."""
    worth = {
        strategy: fmean(values[query][CHOSEN_BY] for query in sorted(own))
        for strategy, values in scores.items()
    }
    best = max(worth, key=worth.get)  # the first of equally good ones
    others = [values for query, values in scores[best].items() if query not in own]
    return Fold(size, number, best, worth[best], average_metrics(others))


@contextmanager
def count_calls(module: nn.Module) -> Iterator[list[int]]:
    """Counts a module's forward passes: yields a list of one number."""
    counter = [0]

    def count(*_: Any) -> None:
        counter[0] += 1

    handle = module.register_forward_hook(count)
    try:
        yield counter
    finally:
        handle.remove()


def _summarise(
    scores: Mapping[Strategy, QueryMetrics],
    calls: Mapping[Strategy, int],
    folds: Sequence[Fold],
    setting: str,
) -> tuple[Findings, Table]:
    """The grid's rows, then those of each size of folds: mean and deviation over its folds."""
    rows: list[Row] = []
    for strategy, values in scores.items():
        options = {"k": strategy.k, "p": strategy.p}
        row = {"strategy": strategy.name} | {k: v for k, v in options.items() if v is not None}
        rows.append(row | average_metrics(values) | {"cost/encoder_calls": calls[strategy]})
    grid = {row["strategy"]: row[CHOSEN_BY] for row in rows}
    few, tables = {}, {"study": rows}
    for size in dict.fromkeys(fold.size for fold in folds):
        rests = [fold.rest for fold in folds if fold.size == size]
        row = {"strategy": f"few-shot {size}", "folds_of": size}
        for metric in rests[0]:
            statistic = Statistic.over([rest[metric] for rest in rests])
            row |= {metric: statistic.mean, f"{metric}/std": statistic.std}
            if metric == CHOSEN_BY:
                few[size] = statistic
        rows.append(row)
    if folds:
        tables["study_folds"] = [
            {"folds_of": fold.size, "fold": fold.number, "chosen": fold.strategy.name}
            | {f"own/{CHOSEN_BY}": fold.own}
            | fold.rest
            for fold in folds
        ]
    metrics = {
        f"analysis/adaptation/few_shot_{size}/{CHOSEN_BY}": statistic.mean
        for size, statistic in few.items()
    }
    metrics["analysis/adaptation/encoder_calls"] = sum(calls.values())
    entry = GalleryEntry("study", "Few-shot alignment adaptation", CAPTION)
    figures = [(draw_adaptation(grid, few, setting), entry)]
    return Findings(metrics, tables, figures), _tabulate(grid, few, setting)


def _tabulate(grid: Mapping[str, float], few_shot: Mapping[int, Statistic], setting: str) -> Table:
    """One row as in the paper's Table 3, then Table 2's few-shot columns, in percent."""
    cells = [Cell(f"{100 * value:.1f}", value == max(grid.values())) for value in grid.values()]
    for statistic in few_shot.values():
        std = MISSING if statistic.std is None else f"{100 * statistic.std:.1f}"
        cells.append(Cell(f"{100 * statistic.mean:.1f} ± {std}"))
    columns = [*grid, *(f"few-shot {size}" for size in few_shot)]
    return Table("nDCG@10 under other alignments", columns, [(setting, cells)], corner="collection")


@styled
def draw_adaptation(
    grid: Mapping[str, float], few_shot: Mapping[int, Statistic], title: str
) -> Figure:
    """Draws nDCG@10 of every strategy, and of the folds' choices.

    Args:
        grid: strategy's name → nDCG@10. few_shot: queries in a fold → mean and deviation.
        title: the line above.
    """
    names = [name.replace("=", "\n") for name in grid]
    names += [f"few-shot\n{size}" for size in few_shot]
    figure = Figure(figsize=(PAGE_WIDTH, PANEL_HEIGHT), layout="constrained")
    axes = figure.subplots()
    colours = [COLOURS[name.startswith("top-p")] for name in grid]
    bars = axes.bar(range(len(grid)), list(grid.values()), 0.7, color=colours)
    axes.bar_label(bars, fmt="%.2f", fontsize=7, padding=2)
    places = [len(grid) + 0.3 + number for number in range(len(few_shot))]
    heights = [statistic.mean for statistic in few_shot.values()]
    spread = [statistic.std or 0 for statistic in few_shot.values()]
    bars = axes.bar(places, heights, 0.7, yerr=spread, capsize=2, color=COLOURS[2])
    axes.bar_label(bars, fmt="%.2f", fontsize=7, padding=2)
    axes.axhline(next(iter(grid.values())), color="black", linestyle="--", linewidth=1)
    axes.set_xticks([*range(len(grid)), *places], names, fontsize=7)
    axes.set_ylabel("nDCG@10")
    axes.set_ylim(0, 1.1 * max([*grid.values(), *map(sum, zip(heights, spread, strict=True)), 0.1]))
    axes.grid(axis="y")
    figure.suptitle(title, parse_math=False)
    return figure
