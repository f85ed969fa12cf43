"""What goes wrong in a generative system's search: is it the model's fault or the beam's?

On a sample of test queries, one at a time: the step at which the gold document's hypothesis fell
out of the beam and its rank there (`search_trace`), the beam's result against the scores of all
documents (`search_errors`), outputs that name no document, the time of a step.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import numpy as np
import torch

from analysis.analysis import Findings
from analysis.experiments.search_errors import DEPTHS, SearchErrors, search_errors
from analysis.experiments.search_figure import CAPTION, search_figure
from analysis.experiments.search_trace import SearchTrace
from analysis.figures import GalleryEntry
from analysis.statistics import spread_numbers
from gr_mvdr.parts import part
from gr_mvdr.progress import track

PREFIX = "analysis/search/"
TOLERANCE = 1e-3  # of a document's score, beam against exhaustive


@dataclass(frozen=True)
class QueryDiagnosis:
    """The search of one query.

    Attributes:
        query: its id.
        trace: the gold in the beam, step by step, and the time of a step.
        errors: the relevant documents' ranks, beam and exhaustive.
        outputs: sequences that the search ended with.
        invalid: of these, the share that is no document's identifier.
        duplicates: the share that repeats another output.
    """

    query: str
    trace: SearchTrace
    errors: SearchErrors
    outputs: int
    invalid: float
    duplicates: float


@part("experiment")
def diagnose_search(model: Any, data: Any, queries: int) -> Findings:
    """Diagnoses the search of a generative system; nothing for others, or if `queries` is 0.

    Args:
        model: a `models.base.System` whose index is built; data: a `RetrievalDataModule`.
        queries: test queries at most, spread evenly over the first test split.

    Returns:
        Metrics "analysis/search/…", the table `search_diagnostics` and a figure.
    """
    if not queries or getattr(model, "searcher", None) is None or model.paradigm != "generative":
        return Findings()
    found = _diagnoses(model, data, queries)
    if not found:
        return Findings()
    metrics = search_metrics(found)
    difference = metrics.get(f"{PREFIX}score_difference", 0.0)
    if difference > TOLERANCE:
        warnings.warn(
            f"a document's score in the search and its exhaustive score differ by "
            f"{difference:.3g} > {TOLERANCE}: analysis/search/*_error is not to be relied on",
            stacklevel=2,
        )
    title = f"{data.collection.name}: search of {len(found)} test queries"
    entry = GalleryEntry("search_diagnostics", "Where the search loses the gold document", CAPTION)
    tables = {"search_diagnostics": [_row(one) for one in found]}
    return Findings(metrics, tables, [(search_figure(metrics, title), entry)])


@torch.inference_mode()
def _diagnoses(system: Any, data: Any, limit: int) -> list[QueryDiagnosis]:
    system.eval()
    sample, document_ids = _sample(data, limit), data.documents["id"][:]
    scores = system.score_all([query["tokens"] for query, *_ in sample])
    columns = [None] * len(sample) if scores is None else scores.double().cpu().numpy().T
    rows = track(zip(sample, columns, strict=True), "diagnosing", total=len(sample))
    return [_diagnose(system, *row, column, document_ids) for row, column in rows]


def _sample(data: Any, limit: int) -> list[tuple[dict[str, Any], list[int | None], int | None]]:
    """Queries with their relevant documents' numbers (None for one that is not there).

    Last, the number of the document that the query itself is, if that is no hit.
    """
    split = data.test_splits[0]
    table = data.test_queries(split)
    qrels = data.judgements(split, table)
    row = {identifier: number for number, identifier in enumerate(data.documents["id"][:])}
    numbers = spread_numbers(len(table), limit)
    sample = []
    for query in (table[number] for number in numbers):
        grades = qrels[query["id"]].items()
        relevant = [row.get(document) for document, grade in grades if grade > 0]
        own = row.get(query["id"]) if data.drop_identical else None
        sample += [(query, relevant, own)] if relevant else []
    return sample


def _diagnose(
    system: Any,
    query: dict[str, Any],
    relevant: Sequence[int | None],
    own: int | None,
    scores: np.ndarray | None,
    document_ids: Sequence[str],
) -> QueryDiagnosis:
    known = [number for number in relevant if number is not None]
    trace = SearchTrace(set().union(*(system.gold_prefixes(number) for number in known)))
    result = system.search([query["tokens"]], observer=trace.observe, wrap=trace.timed)
    trace.end(result)
    found = system.documents_of(result, 0)
    if own is not None:
        found.pop(own, None)
        scores = (
            None if scores is None else np.where(np.arange(len(scores)) == own, -np.inf, scores)
        )
    errors = search_errors(relevant, found, scores, document_ids)
    outputs = [tuple(tokens) for tokens, _ in result.final.of(0)]
    invalid = sum(not system.is_identifier(tokens) for tokens in outputs)
    total = max(1, len(outputs))
    duplicates = len(outputs) - len(set(outputs))
    return QueryDiagnosis(
        query["id"], trace, errors, len(outputs), invalid / total, duplicates / total
    )


def search_metrics(diagnoses: Sequence[QueryDiagnosis]) -> dict[str, float]:
    """Means over one query or more (medians of times and ranks), as flat metrics."""
    metrics: dict[str, float] = {"queries": len(diagnoses)}
    errors = [{k: v for d in DEPTHS for k, v in one.errors.at(d).items()} for one in diagnoses]
    metrics |= {name: fmean(values[name] for values in errors) for name in errors[0]}
    differences = [one.errors.difference for one in diagnoses]
    if None not in differences:
        metrics["score_difference"] = max(differences)
    metrics["invalid"] = fmean(one.invalid for one in diagnoses)
    metrics["duplicates"] = fmean(one.duplicates for one in diagnoses)
    metrics["model_ms_per_step"] = median(one.trace.model_ms for one in diagnoses)
    metrics["constraint_ms_per_step"] = median(one.trace.constraint_ms for one in diagnoses)
    metrics |= _by_step([one.trace for one in diagnoses])
    return {PREFIX + name: float(value) for name, value in metrics.items()}


def _by_step(traces: Sequence[SearchTrace]) -> dict[str, float]:
    """Share of queries whose gold is alive after each step; where it fell, its median rank."""
    metrics = {}
    steps = range(1, max(len(trace.alive) for trace in traces) + 1)
    for step in steps:
        # A search that ended earlier keeps what it had.
        alive = [trace.alive[min(step, len(trace.alive)) - 1] for trace in traces]
        metrics[f"gold_alive/step_{step}"] = fmean(alive)
    lost = [(trace.lost, trace.lost_rank) for trace in traces if trace.lost_rank is not None]
    for step in steps:
        if ranks := [rank for at, rank in lost if at == step]:
            metrics[f"lost_rank/step_{step}"] = median(ranks)
    if lost:
        metrics["lost_rank/any_step"] = median(rank for _, rank in lost)
    return metrics


def _row(one: QueryDiagnosis) -> dict[str, Any]:
    """A query's line; ranks are the best relevant document's."""
    beam, exhaustive = one.errors.beam, one.errors.exhaustive or []
    return {
        "query": one.query,
        "relevant": len(beam),
        "steps": len(one.trace.alive),
        "lost_at_step": one.trace.lost,
        "lost_rank": one.trace.lost_rank,
        "rank_beam": min((rank for rank in beam if rank), default=None),
        "rank_exhaustive": min((rank for rank in exhaustive if rank), default=None),
        "score_difference": one.errors.difference,
        "outputs": one.outputs,
        "invalid": one.invalid,
        "duplicates": one.duplicates,
        "model_ms_per_step": one.trace.model_ms,
        "constraint_ms_per_step": one.trace.constraint_ms,
    }
