"""Few-shot alignment adaptation: which alignment suits a collection (aligner §3.1, §4.1).

A trained model keeps its vectors; only the alignment of the refinement changes. Each alignment
scores all documents that token retrieval gathers, as a search with it would (§2.1, §3.1). Nothing
is encoded again.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from statistics import fmean
from typing import Any

import numpy as np

from analysis.questions.analysis import Findings, named
from analysis.runs.evaluation import QueryMetrics, average_metrics
from analysis.studies.search_grid import STRATEGY, Search, SearchGrid
from analysis.studies.study import draw_all, is_measure
from analysis.tables.metric_names import Statistic
from analysis.tables.rows import Row
from gr_mvdr.alignment import Alignment, SoftTopK, TopK, TopP
from gr_mvdr.evaluation.ranking import Qrels, Ranking
from gr_mvdr.options import Count, Proportion, Size, part
from gr_mvdr.token_index.search import FullRelevance
from models.base import System, Table
from models.multi_vector import MultiVector

CHOSEN_BY = "ndcg@10"
# Names of the rows for the system's own alignment and the collection's best one (Figure 4).
DEFAULT, ORACLE = "default", "oracle"
CAPTION = (
    "nDCG@10 of all test queries when the same vectors are searched under another pairwise "
    "alignment. Few-shot: the annotated queries of a fold choose the alignment, which is evaluated "
    "on the queries outside the fold; the mean over folds. Default: the system's own alignment."
)


def describe_alignment(alignment: Alignment) -> str:
    """Returns an alignment's name in tables: "top-k=4", "top-p=1.0%", "top-k=1 ε=0.02"."""
    match alignment:
        case TopK(k=k):
            return f"top-k={k}"
        case TopP(p=p):
            return f"top-p={p:.1%}"
        case SoftTopK(k=k, epsilon=epsilon):
            return f"top-k={k} ε={epsilon:g}"
    return str(alignment)


@part("study", alignments="alignment")
class Adaptation(SearchGrid):
    """A study: the alignments of aligner Tables 3 and 13, and the choice of one by few queries."""

    def __init__(
        self,
        k: list[Size],
        p: list[Proportion],
        folds_of: list[Size],
        alignments: list[Any] | None = None,
        settings: dict | list | None = None,
        depth: Size = 1000,
        seed: Count = 0,
    ):
        """
        Args:
            k, p: the values for top-k and top-p, p as a share; ties go to the first strategy.
            folds_of: the sizes of folds, in annotated queries.
            alignments: further alignments, as parts.
            settings: search option → values to use instead of the system's own; all combinations
                are searched, as in `SearchGrid`. {refine: [1000]} scores fewer candidates.
            depth: as in `SearchGrid`.
            seed: the random seed of the split into folds.

        Raises:
            ValueError: no strategy.
        """
        every = [*map(TopK, k), *map(TopP, p), *(alignments or [])]
        self.strategies = {describe_alignment(alignment): alignment for alignment in every}
        if not self.strategies:
            raise ValueError("study.k, study.p, study.alignments: must hold at least one strategy")
        grids = [settings or {}] if isinstance(settings, dict | None) else settings
        names = {STRATEGY: [*self.strategies, DEFAULT]}
        hues = list(dict.fromkeys(key for grid in grids for key in grid))
        curves = {"x": STRATEGY, "y": CHOSEN_BY, "hue": hues}
        super().__init__([grid | names for grid in grids], curves, depth)
        self.folds_of, self.seed = folds_of, seed

    def check(self, model: System) -> None:
        """Raises ValueError for a model that cannot score candidates under another alignment."""
        super().check(model)
        for alignment in self.strategies.values():
            replace(model.scoring, alignment=alignment)

    def open(self, model: MultiVector, queries: Table, depth: int, qrels: Qrels) -> Search:
        encoded = model.encoded_queries(queries)
        # An estimate of MaxSim may drop documents: all that are proposed are scored.
        own = replace(model.search, scorer=FullRelevance(), recall=None)

        def search(setting: Row) -> tuple[Ranking, Row]:
            options = dict(setting)
            alignment = self.strategies.get(options.pop(STRATEGY), model.scoring.alignment)
            scoring = replace(model.scoring, alignment=alignment)
            search = self.options(own, options)
            return model.searcher.search(encoded, scoring, depth, search), {}

        return search

    def summarise(self, rows: list[Row], judged: Sequence[QueryMetrics], title: str) -> Findings:
        """Adds rows of the best strategy and of the folds, for each setting of the search."""
        study, folds, metrics = [], [], {}
        pairs = zip(rows, judged, strict=True)
        for key, group in groupby(pairs, lambda pair: _search(pair[0])):
            setting, found = dict(key), list(group)
            grid = {row[STRATEGY]: values for row, values in found if row[STRATEGY] != DEFAULT}
            study += [row for row, _ in found]
            best = max((row for row, _ in found), key=lambda row: row[CHOSEN_BY])
            measures = {name: value for name, value in best.items() if is_measure(name)}
            study.append(setting | {STRATEGY: ORACLE} | measures)
            drawn = list(self._draw_folds(setting, grid))
            folds += drawn
            for size, few in groupby(drawn, itemgetter("folds_of")):
                row = setting | {STRATEGY: f"few-shot {size}", "folds_of": size}
                values = list(few)
                for metric in filter(is_measure, values[0]):
                    statistic = Statistic.over([fold[metric] for fold in values])
                    row |= {metric: statistic.mean, f"{metric}/std": statistic.std}
                study.append(row)
                metrics.setdefault(f"few_shot_{size}/{CHOSEN_BY}", row[CHOSEN_BY])
        tables = {"study": study} | ({"study_folds": folds} if folds else {})
        figures = draw_all(self.curves, study, title, CAPTION)
        return Findings(named("adaptation", metrics), tables, figures)

    def _draw_folds(self, setting: Row, grid: Mapping[str, QueryMetrics]) -> Iterator[Row]:
        """Yields each fold's choice of a strategy, and its metrics on the queries outside."""
        queries = list(next(iter(grid.values())))
        order = np.random.default_rng(self.seed).permutation(len(queries))
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
                worth = {n: fmean(v[q][CHOSEN_BY] for q in own) for n, v in grid.items()}
                best = max(worth, key=worth.__getitem__)  # ties go to the first
                rest = [metrics for query, metrics in grid[best].items() if query not in own]
                fold = {"folds_of": size, "fold": number, "chosen": best}
                fold[f"own/{CHOSEN_BY}"] = worth[best]
                yield setting | fold | average_metrics(rest)


def _search(row: Row) -> tuple:
    """Returns the search options of a row."""
    return tuple((k, v) for k, v in row.items() if not is_measure(k) and k != STRATEGY)
