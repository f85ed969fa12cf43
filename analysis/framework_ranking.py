"""What the framework's simplifications cost in reranking (gr_as_mvdr §8, Appendix A).

The paper goes from log p(d | q) (Eq. 8) to the sum of logits (Eq. 11) and on to the last layer's
cross-attention (Eq. 14). Each of these ranks the same candidates here.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from statistics import fmean

import torch
from matplotlib.figure import Figure
from torch import Tensor

from analysis.analysis import Analysis, Findings, Subject, named
from analysis.evaluation import QueryMetrics, average_metrics, judge
from analysis.figures import COLOURS, HATCHES, GalleryEntry, legend_below, page_figure, styled
from analysis.statistics import interval, pearson, spearman, spread
from analysis.tables import Row
from data_modules.module import RetrievalDataModule
from gr_mvdr.batch import PairBatch, pad
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.options import part
from gr_mvdr.progress import track
from gr_mvdr.relevance import Explanation
from models.base import System, Table

NAMES = ("last_layer", "all_layers", "logits", "log_prob")
FORMS = ("sum", "mean")
QUALITY = ("mrr@10", "recall@1", "recall@10")
_BATCH = 16  # pairs explained at once
CAPTION = (
    "Candidates ranked by ever more of the model: Eq. 14 of the last layer's cross-attention, of "
    "all layers', the sum of logits (Eq. 11), and log p(d | q) itself (Eq. 8), each as a sum over "
    "target tokens and as their mean. Left: MRR@10 of the reranking. Right: Spearman's correlation "
    "with log p within a query's candidates, averaged over queries. Where that is low, what the "
    "framework leaves out decides the model's order; MRR says which order is better. The last bar "
    "is what the system itself ranks by."
)
LABELS = {
    "last_layer": "Eq. 14,\nlast layer",
    "all_layers": "Eq. 14,\nall layers",
    "logits": "Σ e·h\n(Eq. 11)",
    "log_prob": "log p(d|q)\n(Eq. 8)",
    "score": "own\nscore",
}
PANELS = {"mrr@10": "MRR@10", "rank_correlation": "rank correlation with log p(d|q)"}
BAR = 0.38

# The row of a query, and that of a document.
CandidatePair = tuple[int, int]
# (name, form) → query id → {document id: value}; the model's own score has the form "own".
Scores = dict[tuple[str, str], dict[str, dict[str, float]]]


def relevances(explanation: Explanation) -> dict[str, Tensor]:
    """Each name of `NAMES` → (B,) fp64, a sum over the target tokens of each pair.

    "last_layer": rel(d, q) of Eq. 14. "all_layers": the same of every layer's cross-attention,
    added up. "logits": Σ e·h (Eq. 11). "log_prob": log p(d | q) (Eq. 8).
    """
    layers = [pairs.relevance.double() for pairs in explanation.layers]
    paths = explanation.decoder
    sums = layers[-1], sum(layers), paths.logits.double().sum(1), paths.log_probs.double().sum(1)
    return dict(zip(NAMES, sums, strict=True))


def candidate_pairs(
    model: System, data: RetrievalDataModule, split: str, queries: Table
) -> list[CandidatePair]:
    """All candidates of queries that the model knows (gr_as_mvdr §6.3)."""
    row = {identifier: number for number, identifier in enumerate(data.documents["id"][:])}
    candidates, ids = data.list_candidates(split, queries), queries["id"][:]
    found = [(number, row[name]) for number, query in enumerate(ids) for name in candidates[query]]
    return [(query, document) for query, document in found if model.covers(document)]


def candidate_batches(
    data: RetrievalDataModule, queries: Table, pairs: Sequence[CandidatePair]
) -> Iterator[tuple[Sequence[CandidatePair], PairBatch]]:
    """Pairs of like length, and their batch."""
    texts, read, length = (
        data.documents["tokens"],
        data.template.read_document,
        data.document_length,
    )
    documents = {row: read(texts[row], length) for _, row in pairs}
    sources = [data.template.read_query(text, data.query_length) for text in queries["tokens"]]
    ordered = sorted(pairs, key=lambda pair: (len(documents[pair[1]]), pair))
    starts = range(0, len(ordered), _BATCH)
    for start in track(starts, "explaining candidates", total=len(starts)):
        group = ordered[start : start + _BATCH]
        asked, rows = zip(*group, strict=True)
        sides = pad([sources[query] for query in asked]), pad([documents[row] for row in rows])
        yield group, PairBatch(*sides[0], *sides[1], torch.tensor(rows))


@part("analysis")
class FrameworkRanking(Analysis):
    """How well do Eq. 14, Eq. 11 and log p(d | q) rerank, and how far do they agree?

    Each is taken as the sum over target tokens, as in the paper, and as their mean: log p falls
    with every further token, so that sums favour short documents. Other systems than generative
    ones rank by the relevance itself: there is nothing to find.

    Args:
        queries: how many rerank queries of the first test split, evenly spread.
    """

    name = "framework"

    @classmethod
    def applies(cls, subject: Subject) -> bool:
        return getattr(subject.model, "generates", None) == "document"

    def __init__(self, subject: Subject, queries: int):
        self.model, self.data = subject.model, subject.data
        self.split = self.data.test_splits[0]
        self.queries = spread(self.data.rerank_queries(self.split), queries)

    def finish(self) -> Findings:
        pairs = candidate_pairs(self.model, self.data, self.split, self.queries)
        if not pairs:
            return Findings()
        scores, rows = self._scores(pairs), []
        for (name, form), values in scores.items():
            found = judge(Ranking(values), self.data, self.split, self.queries, QUALITY)
            truth = scores["log_prob", form if form in FORMS else "mean"]
            rows.append({"score": name, "form": form} | _columns(values, truth, found))
        entry = GalleryEntry("framework_ranking", "Ranking by parts of the logit", CAPTION)
        figures = [(ranking_bars(rows), entry)]
        return Findings(named(self.name, _metrics(rows)), {"framework_ranking": rows}, figures)

    @torch.inference_mode()
    def _scores(self, pairs: Sequence[CandidatePair]) -> Scores:
        model, data = self.model.eval(), self.data
        keys = [(name, form) for form in FORMS for name in NAMES] + [("score", "own")]
        scores: Scores = {key: defaultdict(dict) for key in keys}
        query_ids, document_ids = self.queries["id"][:], data.documents["id"][:]
        for group, batch in candidate_batches(data, self.queries, pairs):
            explanation = model.explain(batch.to(model.device))
            last = explanation.layers[-1]
            counts = last.document_mask.sum(1).clamp(min=1)
            values = {("score", "own"): last.score}
            for name, value in relevances(explanation).items():
                values |= {(name, "sum"): value, (name, "mean"): value / counts}
            for key, column in values.items():
                for (query, document), value in zip(group, column.tolist(), strict=True):
                    scores[key][query_ids[query]][document_ids[document]] = value
        return scores


def _columns(
    own: Mapping[str, Mapping[str, float]],
    truth: Mapping[str, Mapping[str, float]],
    found: QueryMetrics,
) -> Row:
    """The measures of a row: quality, and correlation with log p of the same form."""
    columns = [
        torch.tensor([[values[d], truth[query][d]] for d in values], dtype=torch.float64).unbind(1)
        for query, values in own.items()
    ]
    by_query = [value for value in (spearman(*pair) for pair in columns) if isfinite(value)]
    quality = average_metrics(found)
    mrr = torch.tensor([[values["mrr@10"]] for values in found.values()])
    low, high = interval(mrr, torch.ones_like(mrr))
    return {
        **{metric: quality[metric] for metric in QUALITY},
        **{"mrr@10_low": float(low[0]), "mrr@10_high": float(high[0])},
        "correlation": pearson(*(torch.cat(part) for part in zip(*columns, strict=True))),
        "rank_correlation": fmean(by_query) if by_query else float("nan"),
        "queries": len(found),
        "pairs": sum(map(len, own.values())),
    }


def _metrics(rows: Sequence[Row]) -> dict[str, float]:
    """MRR@10 of each, and all but log p's own rank correlation with log p.

    The equations are sums over target tokens; the means are what is left of them when documents
    differ in length.
    """
    flat = {}
    for row in rows:
        key = f"{row['score']}/{row['form']}"
        flat |= {f"{key}/mrr@10{end}": row[f"mrr@10{end}"] for end in ("", "_low", "_high")}
        if row["score"] != "log_prob":
            flat[f"{key}/rank_correlation"] = row["rank_correlation"]
    return flat


@styled
def ranking_bars(rows: Sequence[Row]) -> Figure:
    """Two panels of bars, one group a score, one bar a form: the table `framework_ranking`."""
    figure = page_figure()
    forms = ("sum", "mean", "own")
    for axes, (measure, title) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        for number, form in enumerate(forms):
            values = {row["score"]: row[measure] for row in rows if row["form"] == form}
            shift = 0 if form == "own" else (number - 0.5) * BAR
            bars = axes.bar(
                [place + shift for place, name in enumerate(LABELS) if name in values],
                [values[name] for name in LABELS if name in values],
                BAR,
                color=COLOURS[number],
                hatch=HATCHES[number],
                edgecolor="black",
                label="the system's own" if form == "own" else f"{form} over target tokens",
            )
            axes.bar_label(bars, fmt="%.2f", fontsize=7, padding=1)
        axes.set_xticks(range(len(LABELS)), LABELS.values())
        axes.set_title(title)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.margins(y=0.12)
        axes.grid(axis="y")
    legend_below(figure, 3)
    return figure
