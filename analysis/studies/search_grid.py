"""One index searched with many settings: quality against cost (aligner Figure 6, xtr Table 5)."""

import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from analysis.questions.analysis import Findings
from analysis.runs.evaluation import QueryMetrics, average_metrics, judge, measure_index_bytes
from analysis.runs.numbers import make_frame
from analysis.runs.queries import tabulate_queries
from analysis.runs.settings import write_setting
from analysis.runs.tables import describe_value
from analysis.studies.study import StudyTable, draw_all, read_curves, read_study, study_rows
from data_modules.module import RetrievalDataModule
from gr_mvdr.evaluation.metrics import METRICS, rank_of, ranking_metric
from gr_mvdr.evaluation.ranking import Ranking, SearchCosts, recall_of_exact
from gr_mvdr.measures import RANKINGS, STUDY, Measured, Metric, costs
from gr_mvdr.options import Size, check_choice, part
from gr_mvdr.progress import track
from gr_mvdr.token_index.search import SearchOptions
from models.base import System, Table
from models.docid import Docid
from models.multi_vector import MultiVector

FIRST = 10  # how many first documents are compared with the exact search's
KEPT = ("mrr@10", "ndcg@10")  # metrics that are kept for every query
STRATEGY = "strategy"  # a setting that is not a search option: an alignment (adaptation.py)
Setting = dict[str, Any]
Relevant = Mapping[str, Sequence[str]]  # query → its relevant documents
# Searches with a setting; returns the ranking and further measures of the search.
Search = Callable[[Setting], tuple[Ranking, list[Measured]]]
ERROR = Metric(
    f"search_error@{FIRST}",
    "The share of relevant documents that the exact search has in the top k but this one lost.",
    better="low",
)


@part("study")
class SearchGrid:
    """A study: `retrieve` with every combination of search options; queries are encoded once."""

    def __init__(
        self,
        settings: dict | list,
        curves: dict | list,
        depth: Size = 100,
        max_queries: Size | None = None,
        searches: dict[str, dict] | None = None,
    ):
        """
        Args:
            settings: search option → its values, such as {keep_document: [0.2, 1.0]}; all
                combinations are searched. A list of such grids is searched in order. `search`
                names one of `searches`; an option of its parts is given by its name alone.
            curves: what the figure shows, see `Curves`; a list gives several figures.
            depth: documents retrieved for a query, or more if a metric of `data.metrics` looks at
                deeper ranks.
            max_queries: the most queries of the first test split that are searched; None = all.
            searches: name → the proposer and the scorer of a search; none = every document is
                scored. The vectors are those of `model.search.source`.

        Raises:
            ValueError: an option without a list of values, or no setting at all.
        """
        self.settings = expand_grids(settings)
        if not any(self.settings):
            raise ValueError("study.settings: must hold at least one search option")
        self.curves, self.depth = read_curves(curves), depth
        self.max_queries, self.searches = max_queries, searches or {}

    def check(self, model: System) -> None:
        """Raises ValueError for a model without a token index, or for impossible settings."""
        if not isinstance(model, MultiVector):
            raise ValueError(
                f"study: {type(model).__name__} has no index of token vectors that could be "
                "searched in other ways; choose a multi-vector model, or ~study"
            )
        for setting in self.settings:
            options = {key: value for key, value in setting.items() if key != STRATEGY}
            model.searcher.check(self.options(model.search, options), model.scoring)

    def options(self, search: SearchOptions, setting: Setting) -> SearchOptions:
        """Returns a search with a setting."""
        setting, parts = dict(setting), {"proposer": None, "scorer": None, "recall": None}
        if "search" in setting:
            check_choice("study.settings.search", name := setting.pop("search"), self.searches)
            search = search.changed(**parts | self.searches[name])
        return search.changed(**setting)

    def __call__(self, model: System, data: RetrievalDataModule, run: Path) -> Findings:
        """Searches with every setting.

        The values of each query are kept, so that two settings can be tested for a difference.

        Args:
            model: a model whose index is built.
            run: the run's folder, which holds `index/`.

        Raises:
            ValueError: no setting fits the index.
        """
        split = data.evaluation.test_splits[0]
        queries = data.evaluation.test_queries(split)
        queries = queries.select(range(min(self.max_queries or len(queries), len(queries))))
        depth = max(self.depth, *map(rank_of, data.metrics)) + data.drop_identical
        search = self.open(model, queries, depth, data.evaluation.relevant(split, queries))
        found, judged = [], []
        for setting in track(self.settings, "searching under every setting"):
            try:
                ranking, measured = search(setting)
            except ValueError as error:  # such as more neighbours than the index has tokens
                warnings.warn(f"study: {setting} left out: {error}", stacklevel=2)
                continue
            # The curves may name any of the usual metrics.
            judged.append(judge(ranking, data, split, queries, METRICS))
            size = costs({"index_bytes": measure_index_bytes(run / "index")})
            shown = {k: None if v is None else describe_value(v) for k, v in setting.items()}
            found.append((shown, measure(judged[-1]) + measured + size))
        if not found:
            raise ValueError("study.settings: none of them fits this index")
        title = f"{data.collection.name} ({split}), {len(queries):,} queries"
        return self.summarise(found, judged, title)

    def open(self, model: MultiVector, queries: Table, depth: int, relevant: Relevant) -> Search:
        """Encodes the queries and returns the function that searches them."""
        encoded = model.encoded_queries(queries)

        def retrieve(depth: int, options: SearchOptions) -> Ranking:
            def ask(_: list[str], k: int, among: Any) -> Ranking:
                return model.searcher.search(encoded, model.scoring, k, options, among)

            return model.passages.search(queries["id"][:], depth, ask)

        exact = retrieve(FIRST, model.searcher.exact_search())

        def search(setting: Setting) -> tuple[Ranking, list[Measured]]:
            options = self.options(model.search, setting)
            # A first search makes what the setting needs before the clock starts.
            model.searcher.search(encoded[:1], model.scoring, depth, options)
            before = dict(vars(model.searcher.costs))
            start, cpu = time.perf_counter(), time.process_time()
            ranking = retrieve(depth, options)
            spent = {"query_ms": time.perf_counter() - start}
            spent |= {"query_cpu_ms": time.process_time() - cpu}
            counted = {key: now - before[key] for key, now in vars(model.searcher.costs).items()}
            rows = compare_with_exact(exact, ranking, relevant)
            rows += costs({name: 1000 * value / len(encoded) for name, value in spent.items()})
            rows += SearchCosts(**counted).metrics() + model.searcher.storage_costs(options)
            return ranking, rows

        return search

    def summarise(
        self,
        found: list[tuple[Setting, list[Measured]]],
        judged: Sequence[QueryMetrics],
        title: str,
    ) -> Findings:
        """Makes the findings from each setting's numbers and its metrics of all queries."""
        rows = [row for setting, own in found for row in study_rows(setting, own)]
        queries = [
            tabulate_queries(
                STUDY.name,
                {query: {m: values[m] for m in KEPT} for query, values in own.items()},
                part=write_setting(setting),
            )
            for (setting, _), own in zip(found, judged, strict=True)
        ]
        table = StudyTable.of(*read_study(make_frame(rows)))
        return Findings(rows, figures=draw_all(self.curves, table, title), queries=queries)


@part("study")
class BeamGrid(SearchGrid):
    """A study: a docid system's `retrieve` with every beam size, with and without its plan."""

    def check(self, model: System) -> None:
        """Raises ValueError for a system without identifiers, or for other settings."""
        if not isinstance(model, Docid):
            raise ValueError(
                f"study: {type(model).__name__} generates no docids whose beam could be varied; "
                "choose such a model, or ~study"
            )
        for key in dict.fromkeys(key for setting in self.settings for key in setting):
            check_choice("study.settings", key, ("beam_size", "plan_weight"))

    def open(self, model: Docid, queries: Table, depth: int, relevant: Relevant) -> Search:
        ids = model.document_ids
        # Scoring docids needs only the ids of the documents' table.
        named = dict.fromkeys(queries["id"], [*model.passages.counts] or ids)
        exact = model.rerank(queries, {"id": ids}, named).top(FIRST)

        def search(setting: Setting) -> tuple[Ranking, list[Measured]]:
            if model.plan is not None:
                model.plan.costs = SearchCosts()
            start = time.perf_counter()
            ranking = model.retrieve(queries, depth, **setting)
            milliseconds = 1000 * (time.perf_counter() - start) / len(queries)
            rows = compare_with_exact(exact, ranking, relevant) + costs({"query_ms": milliseconds})
            return ranking, rows + (model.plan.statistics() if model.plan is not None else [])

        return search


def expand_grids(
    settings: Mapping[str, Sequence] | Iterable[Mapping[str, Sequence]],
) -> list[Setting]:
    """Returns every combination of a grid's values; several grids follow each other.

    Raises:
        ValueError: an option without a list of values.
    """
    grids = [settings] if isinstance(settings, Mapping) else settings
    for key, values in (option for grid in grids for option in grid.items()):
        if not isinstance(values, list | tuple) or not values:
            raise ValueError(f"study.settings.{key}={values}: must be a list of values")
    return [dict(zip(grid, row, strict=True)) for grid in grids for row in product(*grid.values())]


def measure(judged: QueryMetrics) -> list[Measured]:
    """Returns the means of metrics over queries."""
    means = average_metrics(judged).items()
    return [ranking_metric(name).row(value, n=len(judged)) for name, value in means]


def compare_with_exact(exact: Ranking, ranking: Ranking, relevant: Relevant) -> list[Measured]:
    """Measures what an approximate search loses of the exact search's first documents.

    `search_error` is the share of a query's relevant documents that are among the first `FIRST` of
    the exact search but not of the approximate one, averaged over queries.
    """
    shares = []
    for query, own in relevant.items():
        lost = {*exact.documents(query)[:FIRST]} - {*ranking.documents(query)[:FIRST]}
        shares.append(len(lost.intersection(own)) / max(1, len(own)))
    recall = RANKINGS["recall_of_exact"].at(FIRST)
    return [recall.row(recall_of_exact(exact, ranking, FIRST)), ERROR.row(fmean(shares))]
