"""How well a system retrieves and reranks the test queries (gr_as_mvdr §6.3), and what it costs."""

import ctypes
import resource
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pandas import DataFrame

from analysis.runs.queries import KEPT, keep_queries, tabulate_queries
from analysis.runs.run_folder import ranking_file
from data_modules.collection import sample_rows
from data_modules.module import RetrievalDataModule
from gr_mvdr.evaluation.metrics import ranking_metric
from gr_mvdr.evaluation.ranking import Qrels, Ranking, evaluate_queries, write_qrels
from gr_mvdr.measures import COST, COSTS, RERANK, RETRIEVE, Group, Measured, costs, macro
from gr_mvdr.progress import SPENT, timed, track
from models.base import System, Table
from models.bm25 import BM25

# Query id → metric → value.
QueryMetrics = dict[str, dict[str, float]]
# The kernel's memory counters of this process; writing 5 to the second resets the peak.
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
# How many queries the latency is measured on, one at a time, and how many tune a search.
LATENCY_QUERIES, TUNING_QUERIES = 50, 64
MAIN = "mrr@10"  # the metric of a reranking that summaries show
LEAST_QUERIES = 20  # a mean over fewer says nothing of their kind


@timed("search")
def evaluate_retrieval(
    model: System, data: RetrievalDataModule, run: Path, depth: int
) -> list[Measured]:
    """Evaluates end-to-end search (gr_as_mvdr §6.3) and writes `retrieve*.trec`.

    The judgements are written next to the ranking as `retrieve*.qrels`, so that trec_eval needs no
    other file, and the metrics of each query into `queries.parquet`.

    Args:
        model: its index is built.
        run: the run's folder.
        depth: documents per query.

    Returns:
        The metrics of each test split.
    """
    rows = []
    if model.tunes_search:
        if split := model.tuning_split:
            queries = data.queries(split)
            qrels = data.evaluation.judgements(split, queries)
        else:
            queries, qrels = sample_rows(data.evaluation.tuning_queries(), TUNING_QUERIES), {}
        model.tune_search(queries, depth + data.drop_identical, qrels)
    for split in data.evaluation.test_splits:
        queries = data.evaluation.test_queries(split)
        found = model.retrieve(queries, depth + data.drop_identical)
        ranking = drop_own_hits(found, data, depth)
        rows += _record(ranking, model, data, run, split, queries, RETRIEVE)
        if split == data.evaluation.test_splits[0]:
            rows += model.search_fidelity(queries, found.top(depth), depth)
    return rows


@timed("reranking")
def evaluate_reranking(
    model: System, data: RetrievalDataModule, run: Path, forms: Mapping[str, Mapping[str, Any]]
) -> list[Measured]:
    """Reranks candidates in every form of the system and writes `rerank*.trec`.

    All forms are judged by `rerank*.qrels`, the judgements of the reranked queries.

    Args:
        model, data, run: see `evaluate_retrieval`.
        forms: name → arguments of `model.rerank`; the first form is the main one, and the others
            are the places of their metrics.
    """
    rows = []
    if isinstance(model, BM25) and model.proposes_candidates:
        data.evaluation.bm25 = model.searcher  # one index serves the search and the candidates
    for split in data.evaluation.test_splits:
        queries = data.evaluation.rerank_queries(split)
        candidates = data.evaluation.list_candidates(split, queries)
        for number, (form, arguments) in enumerate(forms.items()):
            found = model.rerank(queries, data.documents, candidates, **arguments)
            ranking, name = drop_own_hits(found, data), form if number else ""
            rows += _record(ranking, model, data, run, split, queries, RERANK, name)
    return rows


def _record(
    ranking: Ranking,
    model: System,
    data: RetrievalDataModule,
    run: Path,
    split: str,
    queries: Table,
    group: Group,
    form: str = "",
) -> list[Measured]:
    """Writes a ranking, its judgements and its metrics; returns means over queries and groups."""
    further = "" if split == data.evaluation.test_splits[0] else split
    ranking.write(run / ranking_file(group.name, form, further), type(model).__name__)
    qrels = data.evaluation.judgements(split, queries)
    write_qrels(qrels, run / ranking_file(group.name, further, ending="qrels"))
    of_queries, rows, tables = judge(ranking, data, split, queries, KEPT), [], []
    parts = divide_queries(of_queries, qrels, data) if group is RETRIEVE else {}
    shown = [m for m in data.metrics if group is RETRIEVE or m == MAIN]
    declared = [replace(ranking_metric(m), headline=m in shown) for m in data.metrics]
    for place, judged in {form: of_queries, **parts}.items():
        tables.append(tabulate_queries(group.name, judged, place, further, qrels=qrels))
        values = DataFrame.from_dict(judged, orient="index")[[m.name for m in declared]]
        about = {"group": group, "split": further, "n": len(values)}
        means = values.mean()
        rows += [metric.row(means[metric.name], place, **about) for metric in declared]
        if groups := data.collection.group_queries(split, data.groups):  # xtr Table 3
            means = values.groupby(groups).mean().mean()
            rows += [macro(m).row(means[m.name], place, **about) for m in declared]
    keep_queries(run, tables)
    return rows


def divide_queries(
    values: QueryMetrics, qrels: Qrels, data: RetrievalDataModule
) -> dict[str, QueryMetrics]:
    """Divides queries by whether training had a question about one of their relevant documents.

    A generative system may know the text of a document without ever having seen a query for it.

    Returns:
        Part → its queries; {} if a part has fewer than `LEAST_QUERIES`.
    """
    split = data.train_split
    trained = data.collection.relevant_documents(split) if split else set()
    parts: dict[str, QueryMetrics] = {"training_question": {}, "no_training_question": {}}
    for query, metrics in values.items():
        relevant = {document for document, grade in qrels[query].items() if grade > 0}
        parts["no_" * relevant.isdisjoint(trained) + "training_question"][query] = metrics
    return parts if min(map(len, parts.values())) >= LEAST_QUERIES else {}


def judge(
    ranking: Ranking,
    data: RetrievalDataModule,
    split: str,
    queries: Table,
    further: Sequence[str] = (),
) -> QueryMetrics:
    """Computes the metrics of every query; runs, studies and analyses all judge rankings here.

    If the collection asks for it (`data.drop_identical`), a query's own document never counts. To
    judge `depth` documents, search for one more; see `drop_own_hits`.

    Args:
        ranking: of any system; missing queries count 0.
        split, queries: the queries whose judgements count.
        further: metrics in addition to `data.metrics`.

    Raises:
        ValueError: there is no query.
    """
    qrels = data.evaluation.judgements(split, queries)
    metrics = tuple(dict.fromkeys((*data.metrics, *further)))
    return evaluate_queries(drop_own_hits(ranking, data), qrels, metrics, data.relevance_level or 1)


def average_metrics(values: QueryMetrics | Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Returns metric → its mean over queries, or {} if there are no queries."""
    return DataFrame(values.values() if isinstance(values, Mapping) else values).mean().to_dict()


def drop_own_hits(ranking: Ranking, data: RetrievalDataModule, depth: int | None = None) -> Ranking:
    """Removes each query's own document from the ranking, if the collection asks for that.

    Args:
        depth: documents kept per query, after a search for `depth + data.drop_identical`; None =
            all.
    """
    if not data.drop_identical:
        return ranking
    kept = {}
    for query in ranking.query_ids:
        scores = ranking.scores(query)
        kept[query] = {
            document: scores[document] for document in data.evaluation.keep_hits(query, scores)
        }
    return Ranking(kept) if depth is None else Ranking(kept).top(depth)


@timed("latency")
def measure_latency(model: System, data: RetrievalDataModule, depth: int) -> list[Measured]:
    """Measures the latency of single queries, encoding included."""
    if not data.evaluation.test_splits:
        return []
    queries = data.evaluation.test_queries(data.evaluation.test_splits[0])
    depth += data.drop_identical  # the depth that the search is tuned for
    times = []
    for row in track(range(min(LATENCY_QUERIES, len(queries))), "measuring latency"):
        query = queries.select([row])
        start = time.perf_counter()
        model.retrieve(query, depth)
        times.append(1000 * (time.perf_counter() - start))
    return costs({f"query_ms_p{share}": np.percentile(times, share) for share in (50, 95)})


def measure_index_bytes(folder: Path) -> int:
    """Returns the total size of all files in an index folder, in bytes."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def watch_run() -> None:
    """Starts to watch the process's memory and time, for `measure_memory` and `measure_stages`."""
    SPENT.clear()
    with suppress(OSError):  # if this fails, peaks count from the start of the process
        _CLEAR.write_text("5")
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def measure_memory() -> list[Measured]:
    """Measures the peak memory since `watch_run`, as the kernel counts it.

    Resident pages include mapped files (libraries, tables, the index).
    """
    try:
        lines = (line.split() for line in _STATUS.read_text().splitlines())
        peak = next(1024 * int(line[1]) for line in lines if line[0] == "VmHWM:")
    except (OSError, StopIteration):  # not Linux
        unit = 1 if sys.platform == "darwin" else 1024
        peak = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peaks = {"peak_memory_bytes": peak}
    if torch.cuda.is_available():
        peaks["gpu_memory_bytes"] = torch.cuda.max_memory_allocated()
    return costs(peaks)


def measure_stages() -> list[Measured]:
    """Returns the seconds of each stage since `watch_run`, the longest first."""
    seconds, longest = COSTS["stage_seconds"], sorted(SPENT.items(), key=lambda one: -one[1])
    return [seconds.row(value, part=name, group=COST) for name, value in longest]


def release_memory() -> None:
    """Returns freed memory to the system; glibc holds it back below memory that is in use."""
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
