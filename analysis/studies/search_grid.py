"""One index searched under many settings: quality against cost (aligner Figure 6, xtr Table 5)."""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from analysis.analysis import Findings
from analysis.evaluation import average_metrics, judge, measure_index_bytes
from analysis.figures import GalleryEntry
from analysis.studies.study import (
    Curves,
    check_searchable,
    draw_curves,
    expand_grids,
    tabulate_study,
)
from analysis.tables.rows import Row, Table
from data_modules.module import RetrievalDataModule
from gr_mvdr.evaluation.metrics import METRICS, rank_of
from gr_mvdr.evaluation.ranking import Qrels, Ranking, recall_of_exact
from gr_mvdr.options import check_choice, part
from gr_mvdr.progress import track
from gr_mvdr.token_index.costs import SearchCosts
from gr_mvdr.token_vectors import TokenVectors
from models.base import System
from models.docid import Docid
from models.multi_vector import MultiVector

# Places of a ranking that are compared with the exact search's.
FIRST = 10
KEPT = ("mrr@10", "ndcg@10")  # of every query
Searched = tuple[Ranking, dict[str, float]]  # what was found, what a query costs


@part("study")
class SearchGrid:
    """A study: `retrieve` under every combination of search options, queries encoded once."""

    def __init__(
        self,
        settings: dict | list,
        curves: dict | list,
        depth: int = 100,
        split: str | None = None,
        max_queries: int | None = None,
    ):
        """
        Args:
            settings: search option → its values, such as {keep_document: [0.2, 1.0]}: all their
                combinations. A list of such grids is searched in order.
            curves: what the figure shows, see `Curves`; a list: a figure each.
            depth: documents a query, at least as many as the deepest of `data.metrics` looks at.
            split: whose queries are searched; None = the first test split.
            max_queries: the most queries searched; None = all.

        Raises:
            ValueError: an option without a list of values, or no setting at all.
        """
        self.settings = expand_grids(settings)
        if not any(self.settings):
            raise ValueError("study.settings: must hold at least one search option")
        if depth < 1:
            raise ValueError(f"study.depth={depth}: must be ≥ 1")
        if max_queries is not None and max_queries < 1:
            raise ValueError(f"study.max_queries={max_queries}: must be ≥ 1 or null")
        drawn = [curves] if isinstance(curves, Mapping) else curves
        self.curves, self.depth = [Curves(**one) for one in drawn], depth
        self.split, self.max_queries = split, max_queries

    def check(self, model: System) -> None:
        """Raises ValueError for a model without a token index, or for unknown settings."""
        check_searchable(model, self.settings)

    def __call__(
        self, model: MultiVector, data: RetrievalDataModule, run: Path
    ) -> tuple[Findings, Table]:
        """Searches under every setting.

        The table `study_queries` has a row a query and of the setting in row n of `study` (from 0)
        the columns n/METRIC: what tests of two settings ask for.

        Args:
            model: its index is built. run: the run's folder, which holds `index/`.

        Raises:
            ValueError: no setting could be searched under.
        """
        split = self.split or data.test_splits[0]
        queries = data.test_queries(split)
        if self.max_queries is not None:
            queries = queries.select(range(min(self.max_queries, len(queries))))
        rows, values = self._measure(model, data, split, queries, run / "index")
        if not rows:
            raise ValueError("study.settings: none of them fits this index")
        setting = f"{data.collection.name} ({split}), {len(queries):,} queries"
        figures = []
        for number, curves in enumerate(self.curves):
            caption = curves.caption or "One point for each setting of the search."
            name = f"study_{number + 1}" if number else "study"
            entry = GalleryEntry(name, curves.title, f"{caption} {setting}.")
            figures.append((draw_curves(curves, rows, setting), entry))
        table = tabulate_study(rows, f"{self.curves[0].title}: {setting}")
        return Findings(tables={"study": rows, "study_queries": values}, figures=figures), table

    def _measure(
        self, model: Any, data: RetrievalDataModule, split: str, queries: Any, index: Path
    ) -> tuple[list[Row], list[Row]]:
        """The rows of both tables."""
        depth = max(self.depth, *map(rank_of, data.metrics)) + data.drop_identical
        exact, search = self.searches(model, queries, depth)
        qrels = data.judgements(split, queries)
        rows, values = [], {query: {"query": query} for query in qrels}
        for setting in track(self.settings, "searching under every setting"):
            try:
                ranking, costs = search(setting)
            except ValueError as error:  # such as more neighbours than the index has tokens
                warnings.warn(f"study: {setting} left out: {error}", stacklevel=2)
                continue
            costs["cost/index_bytes"] = measure_index_bytes(index)
            # The curves may name any of the usual metrics.
            judged = judge(ranking, data, split, queries, METRICS)
            for query, found in judged.items():
                values[query] |= {f"{len(rows)}/{name}": found[name] for name in KEPT}
            quality = average_metrics(judged)
            quality[f"recall_of_exact@{FIRST}"] = recall_of_exact(exact, ranking, FIRST)
            quality[f"search_error@{FIRST}"] = search_error(exact, ranking, qrels)
            rows.append(setting | quality | costs)
        return rows, list(values.values())

    def searches(
        self, model: Any, queries: Any, depth: int
    ) -> tuple[Ranking, Callable[[Row], Searched]]:
        """The exact search's best, and the search under a setting with a query's costs."""
        encoded = model.encoded_queries(queries)
        exact = model.retrieve_encoded(encoded, FIRST, mode="exact")
        return exact, lambda setting: _search(model, encoded, setting, depth)


@part("study")
class BeamGrid(SearchGrid):
    """A study: a docid system's `retrieve` under every beam size, with and without its plan."""

    def check(self, model: System) -> None:
        """Raises ValueError for a system without identifiers, or for other settings."""
        if not isinstance(model, Docid):
            raise ValueError(
                f"study: {type(model).__name__} generates no docids whose beam could be varied; "
                "choose such a model, or ~study"
            )
        for key in dict.fromkeys(key for setting in self.settings for key in setting):
            check_choice("study.settings", key, ("beam_size", "plan_weight"))

    def searches(
        self, model: Docid, queries: Any, depth: int
    ) -> tuple[Ranking, Callable[[Row], Searched]]:
        ids = model.document_ids
        # The scores of docids read no more of a table than its ids.
        exact = model.rerank(queries, {"id": ids}, dict.fromkeys(queries["id"], ids))

        def search(setting: Row) -> Searched:
            if model.plan is not None:
                model.plan.restart()
            start = time.perf_counter()
            ranking = model.retrieve(queries, depth, **setting)
            milliseconds = 1000 * (time.perf_counter() - start) / len(queries)
            costs = model.plan.statistics() if model.plan is not None else {}
            return ranking, {"cost/query_ms": milliseconds} | costs

        return exact.top(FIRST), search


def search_error(exact: Ranking, found: Ranking, qrels: Qrels) -> float:
    """The share of relevant documents that the exact search has among its first and this lost."""
    shares = []
    for query, grades in qrels.items():
        relevant = {document for document, grade in grades.items() if grade > 0}
        lost = relevant & {*exact.documents(query)[:FIRST]} - {*found.documents(query)[:FIRST]}
        shares.append(len(lost) / max(1, len(relevant)))
    return fmean(shares)


def _search(
    model: MultiVector, encoded: Sequence[tuple[str, TokenVectors]], setting: Row, depth: int
) -> Searched:
    """The ranking under one setting, and what a query costs."""
    # What a setting needs is made before the clock starts.
    model.retrieve_encoded(encoded[:1], depth, **setting)
    before = dict(vars(model.searcher.costs))
    start, cpu = time.perf_counter(), time.process_time()
    ranking = model.retrieve_encoded(encoded, depth, **setting)
    spent = {"ms": time.perf_counter() - start, "cpu_ms": time.process_time() - cpu}
    counted = {key: value - before[key] for key, value in vars(model.searcher.costs).items()}
    costs = {f"cost/query_{unit}": 1000 * value / len(encoded) for unit, value in spent.items()}
    costs |= SearchCosts(**counted).metrics()
    return ranking, costs | model.storage_costs(depth, **setting)
