"""Few-shot alignment adaptation: which alignment suits a collection (aligner §3.1, §4.1).

A trained model keeps its vectors; only the alignment of the refinement changes. Under every
alignment all documents are scored that the token retrieval gathers, as a search under it does
(§2.1, §3.1), and nothing is encoded again.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from torch import nn

from analysis.analysis import Findings
from analysis.evaluation import QueryMetrics, average_metrics, drop_own_hits, judge
from analysis.figures import COLOURS, PAGE_WIDTH, PANEL_HEIGHT, GalleryEntry, styled
from analysis.studies.study import check_searchable, expand_grids
from analysis.tables.metric_names import MISSING, Statistic
from analysis.tables.rows import Cell, Row, Table
from data_modules.module import RetrievalDataModule
from gr_mvdr.alignment import Alignment, SoftTopK, TopK, TopP
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.options import part
from gr_mvdr.progress import track
from models.base import System
from models.multi_vector import EncodedQueries, MultiVector

CHOSEN_BY = "ndcg@10"
# The rows of the system's own alignment, and of the best one for the collection (Figure 4).
DEFAULT, ORACLE = "default", "oracle"
CAPTION = (
    "Bars: nDCG@10 of all test queries when the same vectors are searched under another pairwise "
    "alignment. Right: what a few annotated queries reach by choosing among these alignments; the "
    "mean over folds of the queries outside each fold, whiskers are the standard deviation over "
    "folds. The dashed line is the system's own alignment. Nothing was encoded again."
)


@dataclass(frozen=True)
class Fold:
    """A few annotated queries, what they chose, and what that is worth on all the others."""

    size: int
    number: int
    strategy: str
    own: float
    rest: dict[str, float]


@dataclass(frozen=True)
class Adapted:
    """What the alignments are worth under one setting of the search.

    Attributes:
        setting: search option → value.
        scores: strategy → metrics of every query; calls: strategy → passes of the encoder.
        default: the metrics of the system's own alignment. folds: of all sizes.
    """

    setting: Row
    scores: dict[str, QueryMetrics]
    calls: dict[str, int]
    default: dict[str, float]
    folds: list[Fold]

    @property
    def grid(self) -> dict[str, float]:
        """Strategy → nDCG@10."""
        return {name: average_metrics(v)[CHOSEN_BY] for name, v in self.scores.items()}

    @property
    def few_shot(self) -> dict[int, dict[str, Statistic]]:
        """Queries in a fold → metric → mean and deviation over the folds of that size."""
        found = {}
        for size in dict.fromkeys(fold.size for fold in self.folds):
            rests = [fold.rest for fold in self.folds if fold.size == size]
            found[size] = {m: Statistic.over([rest[m] for rest in rests]) for m in rests[0]}
        return found


def describe_alignment(alignment: Alignment) -> str:
    """What tables call an alignment: "top-k=4", "top-p=1.0%", "top-k=1 ε=0.02"."""
    match alignment:
        case TopK(k=k):
            return f"top-k={k}"
        case TopP(p=p):
            return f"top-p={p:.1%}"
        case SoftTopK(k=k, epsilon=epsilon):
            return f"top-k={k} ε={epsilon:g}"
    return str(alignment)


@part("study", alignments="alignment")
class Adaptation:
    """A study: the alignments of aligner Tables 3 and 13, and a few queries that choose one."""

    def __init__(
        self,
        k: list,
        p: list,
        folds_of: list,
        alignments: list | None = None,
        settings: dict | list | None = None,
        depth: int = 1000,
        split: str | None = None,
        seed: int = 0,
    ):
        """
        Args:
            k, p: of top-k and top-p, p as a share; of equally good ones the first is chosen.
            folds_of: annotated queries in a fold.
            alignments: further ones, as parts.
            settings: search options that differ from the system's own, each with its values: all
                combinations, as of `SearchGrid`; {refine: [1000]} scores fewer candidates.
            depth: documents of a query's ranking.
            split: whose queries are scored; None = the first test split.
            seed: of the split into folds.

        Raises:
            ValueError: no strategy, a depth or a fold below 1; k and p as the alignments.
        """
        every = [*map(TopK, k), *map(TopP, p), *(alignments or [])]
        self.strategies = {describe_alignment(alignment): alignment for alignment in every}
        if not self.strategies:
            raise ValueError("study.k, study.p, study.alignments: must hold at least one strategy")
        for size in folds_of:
            if size < 1:
                raise ValueError(f"study.folds_of={size}: must be ≥ 1")
        if depth < 1:
            raise ValueError(f"study.depth={depth}: must be ≥ 1")
        self.settings = expand_grids(settings or {})
        self.folds_of, self.depth = list(folds_of), depth
        self.split, self.seed = split, seed

    def check(self, model: System) -> None:
        """Raises ValueError for a model that cannot score candidates under another alignment."""
        check_searchable(model, self.settings)
        for alignment in self.strategies.values():
            replace(model.scoring, alignment=alignment)

    def __call__(
        self, model: MultiVector, data: RetrievalDataModule, run: Path
    ) -> tuple[Findings, Table]:
        """Searches under every strategy with a model whose index is built; the folds choose."""
        split = self.split or data.test_splits[0]
        encoded = model.encoded_queries(data.test_queries(split))
        found = {}
        for setting in self.settings:
            chosen = (f"{key}={value}" for key, value in setting.items())
            name = ", ".join([f"{data.collection.name} ({split})", *chosen])
            found[name] = self._adapt(model, data, split, encoded, setting)
        return self._summarise(found), _tabulate(found)

    def _adapt(
        self,
        model: MultiVector,
        data: RetrievalDataModule,
        split: str,
        encoded: EncodedQueries,
        setting: Row,
    ) -> "Adapted":
        """What every strategy is worth under a setting of the search, and the folds' choices."""
        queries, own = data.test_queries(split), model.scoring.alignment
        scores, calls = {}, {}
        asked = self.strategies
        if own not in asked.values():
            asked = asked | {DEFAULT: own}
        for name, alignment in track(asked.items(), "searching under every alignment"):
            with count_calls(model.encoder) as counter:
                ranking = self._search(model, data, encoded, alignment, setting)
            scores[name] = judge(ranking, data, split, queries, [CHOSEN_BY])
            calls[name] = counter[0]
        default = next(scores[name] for name, alignment in asked.items() if alignment == own)
        scores.pop(DEFAULT, None)
        folds = self._draw_folds(list(default), scores)
        return Adapted(setting, scores, calls, average_metrics(default), folds)

    def _search(
        self,
        model: MultiVector,
        data: RetrievalDataModule,
        encoded: EncodedQueries,
        alignment: Alignment,
        setting: Row,
    ) -> Ranking:
        """The best of all gathered documents under an alignment."""
        # What the others would leave out by an estimate of MaxSim is scored, too.
        wide = {"mode": "gather"} if model.search.mode in ("impute", "fde") else {}
        scoring = replace(model.scoring, alignment=alignment)
        depth, search = self.depth + data.drop_identical, {**wide, "refine": None, **setting}
        ranking = model.retrieve_encoded(encoded, depth, scoring, **search)
        return drop_own_hits(ranking, data, self.depth)

    def _draw_folds(self, queries: Sequence[str], scores: Mapping[str, QueryMetrics]) -> list[Fold]:
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

    def _summarise(self, found: Mapping[str, Adapted]) -> Findings:
        """The rows of every setting; metrics of the first one alone."""
        tables = {"study": [row for adapted in found.values() for row in self._rows(adapted)]}
        if any(adapted.folds for adapted in found.values()):
            tables["study_folds"] = [
                {**adapted.setting, "folds_of": fold.size, "fold": fold.number}
                | {"chosen": fold.strategy, f"own/{CHOSEN_BY}": fold.own}
                | fold.rest
                for adapted in found.values()
                for fold in adapted.folds
            ]
        first = next(iter(found.values()))
        metrics = {
            f"analysis/adaptation/few_shot_{size}/{CHOSEN_BY}": statistics[CHOSEN_BY].mean
            for size, statistics in first.few_shot.items()
        }
        metrics["analysis/adaptation/encoder_calls"] = sum(first.calls.values())
        figures = []
        for number, (name, adapted) in enumerate(found.items(), start=1):
            place = "study" if number == 1 else f"study_{number}"
            entry = GalleryEntry(place, "Few-shot alignment adaptation", CAPTION)
            figures.append((draw_adaptation(adapted, name), entry))
        return Findings(metrics, tables, figures)

    def _rows(self, adapted: Adapted) -> Iterator[Row]:
        """The grid's, the system's own, the best one's, then those of each size of folds."""
        rows = {}
        for name, values in adapted.scores.items():
            options = vars(self.strategies[name])
            rows[name] = {key: options[key] for key in ("k", "p", "epsilon") if key in options}
            rows[name] |= average_metrics(values) | {"cost/encoder_calls": adapted.calls[name]}
        rows[DEFAULT] = adapted.default
        best = max(rows.values(), key=lambda row: row[CHOSEN_BY])
        rows[ORACLE] = {metric: best[metric] for metric in adapted.default}
        for size, statistics in adapted.few_shot.items():
            rows[f"few-shot {size}"] = {"folds_of": size}
            for metric, statistic in statistics.items():
                rows[f"few-shot {size}"] |= {metric: statistic.mean, f"{metric}/std": statistic.std}
        for name, row in rows.items():
            yield {"strategy": name} | adapted.setting | row


def _choose(size: int, number: int, own: set[str], scores: Mapping[str, QueryMetrics]) -> Fold:
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


def _tabulate(found: Mapping[str, Adapted]) -> Table:
    """A row a setting as in the paper's Table 3, then Table 2's few-shot columns, in percent."""
    rows: list[tuple[str, list[Cell]]] = []
    for name, adapted in found.items():
        best = max(adapted.grid.values())
        cells = [Cell(f"{100 * value:.1f}", value == best) for value in adapted.grid.values()]
        cells.append(Cell(f"{100 * adapted.default[CHOSEN_BY]:.1f}"))
        for statistic in (statistics[CHOSEN_BY] for statistics in adapted.few_shot.values()):
            std = MISSING if statistic.std is None else f"{100 * statistic.std:.1f}"
            cells.append(Cell(f"{100 * statistic.mean:.1f} ± {std}"))
        rows.append((name, cells))
    columns = [*adapted.grid, DEFAULT, *(f"few-shot {size}" for size in adapted.few_shot)]
    note = "Bold: the best of the alignments that are tried; differences are not tested."
    return Table("nDCG@10 under other alignments", columns, rows, "collection", note=note)


@styled
def draw_adaptation(adapted: Adapted, title: str) -> Figure:
    """Draws nDCG@10 of every strategy, and of the folds' choices; `title`: the line above."""
    grid, few_shot = adapted.grid, adapted.few_shot
    names = [name.replace("=", "\n").replace(" ", "\n") for name in grid]
    names += [f"few-shot\n{size}" for size in few_shot]
    figure = Figure(figsize=(PAGE_WIDTH, PANEL_HEIGHT), layout="constrained")
    axes = figure.subplots()
    colours = [COLOURS[name.startswith("top-p")] for name in grid]
    bars = axes.bar(range(len(grid)), list(grid.values()), 0.7, color=colours)
    axes.bar_label(bars, fmt="%.2f", fontsize=7, padding=2)
    places = [len(grid) + 0.3 + number for number in range(len(few_shot))]
    heights = [statistics[CHOSEN_BY].mean for statistics in few_shot.values()]
    spread = [statistics[CHOSEN_BY].std or 0 for statistics in few_shot.values()]
    bars = axes.bar(places, heights, 0.7, yerr=spread, capsize=2, color=COLOURS[2])
    axes.bar_label(bars, fmt="%.2f", fontsize=7, padding=2)
    axes.axhline(adapted.default[CHOSEN_BY], color="black", linestyle="--", linewidth=1)
    axes.set_xticks([*range(len(grid)), *places], names, fontsize=7)
    axes.set_ylabel("nDCG@10")
    axes.set_ylim(0, 1.1 * max([*grid.values(), *map(sum, zip(heights, spread, strict=True)), 0.1]))
    axes.grid(axis="y")
    figure.suptitle(title, parse_math=False)
    return figure
