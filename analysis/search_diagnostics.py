"""What goes wrong in a generative system's search: is it the model's fault or the beam's?

On a sample of test queries, one at a time: the step at which the gold document's hypothesis fell
out of the beam and its rank there (`gr_mvdr.decoding.search_trace`), the beam's result against the
scores of all documents, outputs that name no document, the time of a step.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.analysis import Analysis, Findings, Subject, named
from analysis.figures import COLOURS, GalleryEntry, page_figure, styled
from analysis.statistics import spread_numbers
from analysis.tables.metric_names import Metric
from analysis.tables.rows import Row
from gr_mvdr.decoding.search_trace import SearchPath, SearchTrace
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.options import Count, part
from gr_mvdr.progress import track

DEPTHS = (1, 10)
TOLERANCE = 1e-3  # of a document's score, beam against exhaustive
CAPTION = (
    "Left: the share of queries whose gold document is still among the hypotheses after each step; "
    "where a step lost it for some, the median rank of its best continuation there, among all that "
    "were allowed, is over the bar: the beam keeps only the first ones. Right: what became of "
    "the relevant documents in the first places. A search error is a document that scoring every "
    "identifier would have put there and the beam did not find; a model error is one to which the "
    "model itself prefers others; luck is one that is there only because the beam lost a "
    "better one."
)
UPRIGHT_LABELS = 8  # more bars than these leave no room for words next to each other
_SEGMENTS = {
    "found": COLOURS[2],
    "found by luck": COLOURS[4],
    "search error": COLOURS[1],
    "model error": COLOURS[5],
    "not found": "#999999",
}


@dataclass(frozen=True)
class SearchErrors:
    """One query's relevant documents, ranked by the search and by scoring every document.

    Attributes:
        beam: the rank (from 1) of each relevant document in the search's result, None if missing.
        exhaustive: its rank among all documents; None as a whole where these cannot be scored.
        difference: the largest difference of the two scores of a document that was found; both
            score the same identifier, so that anything but rounding is a fault.
    """

    beam: list[int | None]
    exhaustive: list[int | None] | None
    difference: float | None

    @classmethod
    def of(
        cls,
        relevant: Sequence[int | None],
        found: dict[int, float],
        scores: np.ndarray | None,
        document_ids: Sequence[str],
    ) -> "SearchErrors":
        """Ranks the relevant documents of a query in both ways.

        Args:
            relevant: document numbers; None for one that the collection lacks.
            found: document number → score, the search's result.
            scores: (D,) of all documents, −inf for those without an identifier; None where they
                cannot be had.
            document_ids: of all D documents; they order equal scores, as in `Ranking`.
        """
        ranking = Ranking({"": {document_ids[number]: score for number, score in found.items()}})
        place = {document: rank for rank, document in enumerate(ranking.documents(""), start=1)}
        beam = [None if number is None else place.get(document_ids[number]) for number in relevant]
        if scores is None:
            return cls(beam, None, None)
        exhaustive = [None if n is None else _rank(scores, n, document_ids) for n in relevant]
        differences = [abs(score - float(scores[number])) for number, score in found.items()]
        return cls(beam, exhaustive, max(differences, default=0.0))

    def at(self, k: int) -> dict[str, float]:
        """Shares of the relevant documents, such as "search_error@10".

        With b and e for "in the first k of the search" and "… of all documents": recall b, model
        error ¬e, search error e ∧ ¬b, luck b ∧ ¬e (a better competitor was pruned). Hence recall
        = 1 − model error − search error + luck.
        """
        beam = np.array([rank is not None and rank <= k for rank in self.beam])
        shares = {"recall": beam}
        if self.exhaustive is not None:
            exhaustive = np.array([rank is not None and rank <= k for rank in self.exhaustive])
            shares["model_error"] = ~exhaustive
            shares["search_error"] = exhaustive & ~beam
            shares["luck"] = beam & ~exhaustive
        return {f"{name}@{k}": float(share.mean()) for name, share in shares.items()}


def _rank(scores: np.ndarray, number: int, document_ids: Sequence[str]) -> int | None:
    if scores[number] == -np.inf:
        return None
    equal = np.flatnonzero(scores == scores[number])
    before = sum(document_ids[other] > document_ids[number] for other in equal.tolist())
    return 1 + int((scores > scores[number]).sum()) + before


class Diagnosis(NamedTuple):
    """The search of one query: its row of the table, its errors, the gold in the beam by step."""

    row: Row
    errors: SearchErrors
    path: SearchPath


@part("analysis")
class SearchDiagnostics(Analysis):
    """Diagnoses the search of a generative system.

    Args:
        queries: test queries at most, spread evenly over the first test split.
    """

    name, title = "search", "Search"
    reading = (
        "The beam's result and the scores of all documents: a model error at k is a relevant "
        "document that these do not put among the first k, a search error one that they do and the "
        "beam does not, luck the reverse; recall = 1 − model error − search error + luck. “gold "
        "alive” is the share of queries whose gold document is still in the beam after a step, "
        "“lost rank” the median rank of its continuation at the step where it fell out."
    )
    metrics = (
        Metric(
            "model_error@#",
            "The share of relevant documents that the model itself ranks below the first k.",
            better="low",
            headline=True,
        ),
        Metric(
            "search_error@#",
            "The share of relevant documents that the model ranks among the first k, and that the "
            "beam lost.",
            better="low",
            headline=True,
        ),
        Metric(
            "luck@#",
            "The share of relevant documents that were found only because the beam lost better "
            "ones.",
        ),
        Metric("queries", "How many queries were measured.", unit="count"),
        Metric(
            "invalid", "The share of outputs that name no document; a constraint keeps it at 0."
        ),
        Metric("duplicates", "The share of outputs that occur twice."),
        Metric(
            "score_difference",
            "The largest difference between a document's score in the search and its exact one: "
            "rounding alone.",
            unit="rounding",
        ),
        Metric(
            "model_ms_per_step",
            "Milliseconds of one step of the search that the model takes.",
            *("a step, model", "ms"),
        ),
        Metric(
            "constraint_ms_per_step",
            "Milliseconds of one step of the search that the constraint takes.",
            *("a step, constraint", "ms"),
        ),
        Metric("gold_alive", "The share of queries whose relevant document is still in the beam."),
        Metric(
            "lost_rank",
            "The median rank of the relevant document's best continuation where it fell out of the "
            "beam.",
            unit="count",
        ),
    )
    words: ClassVar[dict[str, str]] = {
        "step # | any step": "A step of the search: one more generated token."
    }

    @classmethod
    def applies(cls, subject: Subject) -> bool:
        return getattr(subject.model, "names", None) is not None

    def __init__(self, subject: Subject, queries: Count):
        self.model, self.data, self.queries = subject.model, subject.data, queries

    def finish(self) -> Findings:
        """Metrics, the table `search_diagnostics` and a figure."""
        found = self._diagnoses()
        if not found:
            return Findings()
        metrics = search_metrics(found)
        difference = metrics.get("score_difference", 0.0)
        if difference > TOLERANCE:
            warnings.warn(
                f"a document's score in the search and its exhaustive score differ by "
                f"{difference:.3g} > {TOLERANCE}: analysis/search/*_error is not to be relied on",
                stacklevel=2,
            )
        title = f"{self.data.collection.name}: search of {len(found)} test queries"
        heading = "Where the search loses the gold document"
        entry = GalleryEntry("search_diagnostics", heading, CAPTION)
        tables = {"search_diagnostics": [one.row for one in found]}
        return Findings(named(self.name, metrics), tables, [(search_figure(metrics, title), entry)])

    @torch.inference_mode()
    def _diagnoses(self) -> list[Diagnosis]:
        model, sample = self.model.eval(), self._sample()
        ids, exact = self.data.documents["id"][:], None
        if not model.targets_are_ngrams:  # T5-SEAL has no exact search
            queries = [query for query, *_ in sample]
            every = {query["id"]: ids for query in queries}
            exact = model.rerank(queries, self.data.documents, every)
        rows = track(sample, "diagnosing", total=len(sample))
        return [self._diagnose(*row, exact and exact.scores(row[0]["id"]), ids) for row in rows]

    def _sample(self) -> list[tuple[dict[str, Any], list[int | None], int | None]]:
        """Queries with their relevant documents' numbers (None for one that is not there).

        Last, the number of the document that the query itself is, if that is no hit.
        """
        data = self.data
        table = data.test_queries(data.test_splits[0])
        qrels = data.judgements(data.test_splits[0], table)
        row = {identifier: number for number, identifier in enumerate(data.documents["id"][:])}
        sample = []
        for query in (table[number] for number in spread_numbers(len(table), self.queries)):
            grades = qrels[query["id"]].items()
            relevant = [row.get(document) for document, grade in grades if grade > 0]
            own = row.get(query["id"]) if data.drop_identical else None
            sample += [(query, relevant, own)] if relevant else []
        return sample

    def _diagnose(
        self,
        query: dict[str, Any],
        relevant: Sequence[int | None],
        own: int | None,
        exact: dict[str, float] | None,
        document_ids: Sequence[str],
    ) -> Diagnosis:
        model, names, scores = self.model, self.model.names, None
        if exact is not None:
            scores = np.array([exact.get(document, -np.inf) for document in document_ids])
        known = [number for number in relevant if number is not None]
        gold = set().union(*(names.gold_prefixes(number) for number in known))
        trace = SearchTrace(gold, model.template.stop)
        result = model.search([query["tokens"]], texts=[query["text"]], trace=trace)
        path = trace.path(result)
        found = names.scores(result, 0)
        if own is not None:
            found.pop(own, None)
            if scores is not None:
                scores = np.where(np.arange(len(scores)) == own, -np.inf, scores)
        errors = SearchErrors.of(relevant, found, scores, document_ids)
        outputs = [tuple(tokens) for tokens, _ in result.final.of(0)]
        total = max(1, len(outputs))
        row = {
            "query": query["id"],
            "relevant": len(relevant),
            "steps": len(path.steps),
            "lost_at_step": path.lost,
            "lost_rank": path.lost_step and path.lost_step.rank,
            # the best relevant document's
            "rank_beam": min(filter(None, errors.beam), default=None),
            "rank_exhaustive": min(filter(None, errors.exhaustive or []), default=None),
            "score_difference": errors.difference,
            "outputs": len(outputs),
            "invalid": sum(not len(names.documents_of(tokens)) for tokens in outputs) / total,
            "duplicates": (len(outputs) - len(set(outputs))) / total,
            "model_ms_per_step": path.model_ms,
            "constraint_ms_per_step": path.constraint_ms,
        }
        return Diagnosis(row, errors, path)


def search_metrics(diagnoses: Sequence[Diagnosis]) -> dict[str, float]:
    """Means over one query or more (medians of times and ranks), named as in `metrics.json`."""
    metrics: dict[str, float] = {"queries": len(diagnoses)}
    errors = [{k: v for d in DEPTHS for k, v in one.errors.at(d).items()} for one in diagnoses]
    metrics |= {name: fmean(values[name] for values in errors) for name in errors[0]}
    differences = [one.errors.difference for one in diagnoses]
    if None not in differences:
        metrics["score_difference"] = max(differences)
    for name in ("invalid", "duplicates"):
        metrics[name] = fmean(one.row[name] for one in diagnoses)
    for name in ("model_ms_per_step", "constraint_ms_per_step"):
        metrics[name] = median(one.row[name] for one in diagnoses)
    return metrics | _by_step([one.path for one in diagnoses])


def _by_step(paths: Sequence[SearchPath]) -> dict[str, float]:
    """Share of queries whose gold is alive after each step; where it fell, its median rank."""
    metrics = {}
    steps = range(1, max(len(path.steps) for path in paths) + 1)
    for step in steps:
        # A search that ended earlier keeps what it had.
        alive = [path.steps[min(step, len(path.steps)) - 1].alive for path in paths]
        metrics[f"gold_alive/step_{step}"] = fmean(alive)
    lost = [(p.lost, p.lost_step.rank) for p in paths if p.lost and p.lost_step.rank is not None]
    for step in steps:
        if ranks := [rank for at, rank in lost if at == step]:
            metrics[f"lost_rank/step_{step}"] = median(ranks)
    if lost:
        metrics["lost_rank/any_step"] = median(rank for _, rank in lost)
    return metrics


@styled
def search_figure(metrics: Mapping[str, float], title: str) -> Figure:
    """Where the gold is lost, and what became of it, from `search_metrics`."""
    figure = page_figure(title)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_survival(left, metrics)
    _draw_errors(right, metrics)
    return figure


def _draw_survival(axes: Axes, values: Mapping[str, float]) -> None:
    names = [name for name in values if name.startswith("gold_alive/")]
    steps = range(1, len(names) + 1)
    bars = axes.bar(steps, [values[name] for name in names], 0.7, color=COLOURS[0])
    ranks = [values.get(f"lost_rank/step_{step}") for step in steps]
    labels = ["" if rank is None else f"rank {rank:,g}" for rank in ranks]
    rotation = 0 if len(names) <= UPRIGHT_LABELS else 90
    axes.bar_label(bars, labels, padding=2, fontsize=7, rotation=rotation)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlim=(0.4, len(names) + 0.6), ylim=(0, 1.05 if rotation == 0 else 1.3))
    axes.set_yticks([share / 5 for share in range(6)])
    axes.grid(axis="y")
    axes.set(
        title="gold document still in the beam",
        xlabel="step of the search",
        ylabel="share of queries",
    )


def _draw_errors(axes: Axes, values: Mapping[str, float]) -> None:
    bars = [outcome(values, k) for k in DEPTHS]
    bottom = [0.0] * len(bars)
    for name, colour in _SEGMENTS.items():
        heights = [bar.get(name, 0.0) for bar in bars]
        if not any(heights):
            continue
        drawn = axes.bar(range(len(bars)), heights, 0.55, bottom, color=colour, label=name)
        labels = [f"{height:.2f}" if height >= 0.04 else "" for height in heights]
        axes.bar_label(drawn, labels, label_type="center", fontsize=7)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set_xticks(range(len(bars)), [f"first {k}" if k > 1 else "first place" for k in DEPTHS])
    axes.set(xlim=(-0.5, len(bars) - 0.5), ylim=(0, 1), title="relevant documents")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, reverse=True)


def outcome(values: Mapping[str, float], k: int) -> dict[str, float]:
    """Shares of the relevant documents that add up to one: found, luck, and either error.

    Args:
        values: metrics without their prefix, such as "search_error@10".
        k: places of the ranking.
    """
    recall = values[f"recall@{k}"]
    if f"luck@{k}" not in values:  # there is no exhaustive ranking to compare with
        return {"found": recall, "not found": 1 - recall}
    luck = values[f"luck@{k}"]
    return {
        "found": recall - luck,
        "found by luck": luck,
        "search error": values[f"search_error@{k}"],
        "model error": values[f"model_error@{k}"] - luck,
    }
