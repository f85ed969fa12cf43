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
from pandas import DataFrame

from analysis.questions.analysis import Findings
from analysis.runs.evaluation import QueryMetrics, average_metrics
from analysis.runs.numbers import make_frame
from analysis.studies.search_grid import STRATEGY, Relevant, Search, SearchGrid, Setting
from analysis.studies.study import StudyTable, draw_all, read_study, study_rows
from gr_mvdr.alignment import Alignment, SoftTopK, TopK, TopP
from gr_mvdr.evaluation.metrics import ranking_metric
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.measures import STUDY, Group, Measured, keep_finite
from gr_mvdr.options import Count, Proportion, Size, part
from gr_mvdr.token_index.search import FullRelevance
from models.base import System, Table
from models.multi_vector import MultiVector

CHOSEN_BY = "ndcg@10"
CHOSEN, GROUP = ranking_metric(CHOSEN_BY), Group("adaptation", "Alignment adaptation")
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

    def open(self, model: MultiVector, queries: Table, depth: int, relevant: Relevant) -> Search:
        encoded = model.encoded_queries(queries)
        # An estimate of MaxSim may drop documents: all that are proposed are scored.
        own = replace(model.search, scorer=FullRelevance(), recall=None)

        def search(setting: Setting) -> tuple[Ranking, list[Measured]]:
            options = dict(setting)
            alignment = self.strategies.get(options.pop(STRATEGY), model.scoring.alignment)
            scoring = replace(model.scoring, alignment=alignment)
            search = self.options(own, options)
            return model.searcher.search(encoded, scoring, depth, search), []

        return search

    def summarise(
        self,
        found: list[tuple[Setting, list[Measured]]],
        judged: Sequence[QueryMetrics],
        title: str,
    ) -> Findings:
        """Adds rows of the best strategy and of the folds, for each setting of the search."""
        rows, folds, numbers = [], [], {}
        values = zip(found, judged, strict=True)
        for key, group in groupby(values, lambda pair: _search(pair[0][0])):
            setting, same = dict(key), list(group)
            rows += [row for one, _ in same for row in study_rows(*one)]
            grid = {own[STRATEGY]: qs for (own, _), qs in same if own[STRATEGY] != DEFAULT}
            best = max((own for (_, own), _ in same), key=_quality)
            rows += study_rows(setting | {STRATEGY: ORACLE}, best)
            drawn = list(self._draw_folds(setting, grid))
            folds += drawn
            for size, few in groupby(drawn, itemgetter("folds_of")):
                own, measured = setting | {STRATEGY: f"few-shot {size}", "folds_of": size}, []
                values_of = DataFrame(few)
                for metric in (one.metric for one in best if one.metric.name in values_of):
                    measured.append(metric.row(values_of[metric.name].mean()))
                    deviation = replace(
                        metric, name=f"{metric.name}/std", label=f"{metric.form}, deviation"
                    )
                    measured.append(deviation.row(values_of[metric.name].std()))
                rows += study_rows(own, measured)
                numbers.setdefault(size, CHOSEN.row(_quality(measured), f"few_shot_{size}"))
        tables = {"study_folds": folds} if folds else {}
        rows = keep_finite(rows, STUDY)
        table = StudyTable.of(*read_study(make_frame(rows)))
        figures = draw_all(self.curves, table, title, CAPTION)
        return Findings(rows + keep_finite(numbers.values(), GROUP), tables, figures)

    def _draw_folds(self, setting: Setting, grid: Mapping[str, QueryMetrics]) -> Iterator[Setting]:
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


def _search(setting: Setting) -> tuple:
    """Returns the search options of a setting."""
    return tuple((k, v) for k, v in setting.items() if k != STRATEGY)


def _quality(rows: list[Measured]) -> float:
    return next(row.value for row in rows if row.metric.name == CHOSEN_BY)
