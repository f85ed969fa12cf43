"""An alignment against the tokens that answer the question: precision, recall, error rate.

A document token is aligned if its strength, the largest A_ij over the query's tokens, reaches a
threshold, or is among the k largest. Tokens of equal strength share the places that are left to
them, so that every number is the expectation over their order: constant strengths are a random
choice. Och and Ney (2003): S, the sure tokens, answer the question; P, the possible ones, also
those that state what it gives.

Special tokens never count here, on neither side: an end token that all look at says nothing about
where the answer is. Where a system's document is not the text itself (a docid, pooled vectors)
it has no tokens to compare, and its pairs are left out.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from analysis.analysis import Analysis, Findings, GoldTokens, Subject, named
from analysis.figures import (
    COLOURS,
    MARKERS,
    PANEL_HEIGHT,
    GalleryEntry,
    legend_below,
    page_figure,
    styled,
)
from analysis.statistics import select, spread_numbers
from analysis.tables.metric_names import Metric
from analysis.tables.rows import Row
from analysis.viewer.directed_alignment import DIRECTIONS, directed_alignment, normalised
from gr_mvdr.options import part
from gr_mvdr.relevance import Explanation, PairAlignment

MEASURES = ("precision", "recall", "possible_precision", "possible_recall", "aer", "aligned")
# A softmax over a long text spreads thin, cross-attention does not: from one end to the other.
THRESHOLDS = (0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
DEPTHS = (1, 2, 3, 5, 10, 20)
SELECTIONS = [*(("threshold", value) for value in THRESHOLDS), *(("top", k) for k in DEPTHS)]

Key = tuple[str, str, int]  # alignment ("own", "softmax", "random"), direction, layer
# Strengths of 1 all over: the k strongest are a random choice, at any threshold all are aligned.
CONSTANT: Key = ("random", "", 0)

MAXIMUM_LAYERS = 4  # more curves in a panel cannot be distinguished
# What tokens are compared with, and the columns of the table.
GOLDS = {
    "the answer": ("recall", "precision"),
    "the answer and what is given": ("possible_recall", "possible_precision"),
}
LABELS = {"own": "its own alignment", "softmax": "softmax of similarity"}
CAPTION = (
    "A document's tokens in the order of their strongest alignment with a query token; the points "
    "of a curve are its first 1, 2, 3, 5, 10 and 20 tokens, from left to right. Precision: the "
    "share of these that are gold; recall: the share of the gold that is among them. Gold are the "
    "tokens that answer the question (above), and with them those that state what it gives "
    "(below). The dashed line is what tokens in random order reach: a curve above it on the lower "
    "panels alone belongs to a system that aligns what the question says and finds the answer "
    "next to it. Special tokens are left out; heads are averaged. Multi-vector and lexical systems "
    "are drawn by the softmax of their similarity and by their own alignment, whose equal "
    "strengths share a place."
)


def strength(alignment: Tensor, query_mask: Tensor) -> Tensor:
    """max_j A_ij, how strongly the query's tokens align each document token.

    Args:
        alignment: (..., M, N), not negative.
        query_mask: (..., N) bool, the query tokens that count.

    Returns:
        (..., M).
    """
    return (alignment * query_mask.unsqueeze(-2)).amax(-1)


def at_thresholds(strengths: Tensor, mask: Tensor, thresholds: Sequence[float]) -> Tensor:
    """Which document tokens are aligned at each of T thresholds θ: strength ≥ θ.

    Args:
        strengths: (..., M); mask: (..., M) bool, the document tokens that count.

    Returns:
        (..., T, M) fp32, 1 where aligned.
    """
    least = torch.tensor(thresholds, dtype=strengths.dtype, device=strengths.device)
    return ((strengths.unsqueeze(-2) >= least.unsqueeze(-1)) & mask.unsqueeze(-2)).float()


def at_top(strengths: Tensor, mask: Tensor, depths: Sequence[int]) -> Tensor:
    """How likely each document token is among the k strongest, ties in random order.

    Args:
        strengths: (..., M); mask: (..., M) bool, the document tokens that count.
        depths: T values of k; a document with fewer tokens aligns them all.

    Returns:
        (..., T, M) fp32 from 0 to 1, summing to min(k, number of tokens).
    """
    values = strengths.masked_fill(~mask, -torch.inf)
    places = torch.tensor(depths, device=values.device)
    ordered = values.sort(-1, descending=True).values
    last = ordered[..., (places - 1).clamp(max=values.shape[-1] - 1)].unsqueeze(-1)
    above = (values.unsqueeze(-2) > last).float()
    tied = ((values.unsqueeze(-2) == last) & mask.unsqueeze(-2)).float()
    left = places.unsqueeze(-1) - above.sum(-1, keepdim=True)
    share = (left / tied.sum(-1, keepdim=True).clamp(min=1)).clamp(max=1)
    return above + tied * share


def measure(aligned: Tensor, answer: Tensor, evidence: Tensor) -> Tensor:
    """Precision, recall and alignment error rate of aligned tokens A (Och and Ney 2003).

    precision |A∩S| / |A| and recall |A∩S| / |S|, of the answer; possible_precision |A∩P| / |A| and
    possible_recall |A∩P| / |P|; a precision is NaN if nothing is aligned.
    AER = 1 − (|A∩S| + |A∩P|) / (|A| + |S|), which is 0 for any A between S and P.

    Args:
        aligned: (..., T, M) from 0 to 1, zero at tokens that do not count.
        answer: (..., M) bool, S, at least one token of each; evidence: (..., M) bool.

    Returns:
        (..., T, 6) fp32 in the order of `MEASURES`; the last is |A|.
    """
    golden = torch.stack([answer, answer | evidence, torch.ones_like(answer)], -1).float()
    sure, possible, total = (aligned @ golden).unbind(-1)
    sizes = golden.sum(-2, keepdim=True)
    n_sure, n_possible = sizes[..., 0], sizes[..., 1]
    error = 1 - (sure + possible) / (total + n_sure)
    answered = sure / total, sure / n_sure
    return torch.stack([*answered, possible / total, possible / n_possible, error, total], -1)


@part("analysis")
class GoldAlignment(Analysis):
    """Precision, recall and alignment error rate (Och and Ney 2003), means over pairs with gold.

    A precision averages over those of them in which something is aligned. Of every layer and
    direction, heads averaged and one by one. A multi-vector or lexical system is read as the
    softmax of its similarity, and by its own A with columns that sum to one.

    The metric `aer` is that of the best threshold, cross-fitted: on the pairs with even numbers in
    the store it is measured at the threshold that is best for those with odd numbers, and the
    reverse; one half alone has none. `align_all_aer` is what takes no alignment: every token that
    counts is aligned.
    """

    name, title = "gold", "Gold alignments"
    reading = (
        "The alignment against the document tokens that answer the question. “random” is the "
        "precision of tokens in random order. AER is the alignment error rate, 0 at best, of each "
        "half of the pairs at the threshold that is best for the other half; “align all” is the "
        "error of aligning every token, which takes no alignment."
    )
    metrics = (
        Metric("precision@#", "The share of the chosen tokens that answer the question."),
        Metric(
            "possible_precision@#",
            "The share of the chosen tokens that answer the question or state what it gives.",
        ),
        Metric(
            "aer",
            "Alignment error rate against the tokens that answer the question: 0 is perfect, 1 "
            "the worst.",
            label="AER",
            headline=True,
        ),
        Metric("align_all_aer", "The alignment error rate of aligning every token."),
        Metric("random_precision", "The precision of tokens in random order."),
        Metric(
            "random_possible_precision",
            "The share of tokens in random order that answer the question or state what it gives.",
        ),
    )

    def __init__(self, subject: Subject):
        self.description, self._pairs = subject.store.description, subject.store.pairs
        self._gold, self.special = subject.texts.gold, subject.texts.kinds.special
        self.generative = self.description.paradigm == "generative"
        self.sums: dict[Key, Tensor] = {}  # (2, heads, selections, measures)
        self.counts: dict[Key, Tensor] = {}  # the same shape, pairs with a value
        self.n_pairs = 0

    def update(self, batch: Explanation, first: int) -> None:
        last = batch.layers[-1]
        real = last.document_mask & ~self.special[last.document_ids]
        answer, evidence = self._gold_of(last, first)
        rows = (answer & real).any(1).nonzero()[:, 0]
        if not len(rows):
            return
        self.n_pairs += len(rows)
        gold = real[rows], (answer & real)[rows], (evidence & real)[rows]
        odd = (first + rows) % 2
        self._add(CONSTANT, odd, torch.ones(len(rows), 1, real.shape[1]), *gold)
        for number, layer in enumerate(batch.layers, start=1):
            pairs = select(layer, rows)
            for alignment, direction, strengths in self._strengths(pairs):
                self._add((alignment, direction, number), odd, strengths, *gold)

    def _gold_of(self, pairs: PairAlignment, first: int) -> tuple[Tensor, Tensor]:
        """Answer and evidence (B, M) bool; no token of a pair without gold of its length."""
        answer, evidence = torch.zeros(2, *pairs.document_ids.shape, dtype=torch.bool)
        for row, length in enumerate(pairs.document_mask.sum(1).tolist()):
            gold: GoldTokens | None = self._gold.get(tuple(self._pairs[first + row]))
            if gold is not None and len(gold.answer) == length:
                answer[row, :length], evidence[row, :length] = gold.answer, gold.evidence
        return answer, evidence

    def _strengths(self, pairs: PairAlignment) -> Iterator[tuple[str, str, Tensor]]:
        """Alignment, direction and strengths (B, heads, M); the heads' average comes first."""
        counted = (pairs.query_mask & ~self.special[pairs.query_ids]).unsqueeze(1)
        for direction in DIRECTIONS:
            mean = directed_alignment(pairs, self.description.paradigm, direction).unsqueeze(1)
            found = strength(mean, counted)
            if self.generative and pairs.alignment.shape[1] > 1:
                heads = normalised(pairs.alignment, direction)
                found = torch.cat([found, strength(heads, counted)], 1)
            yield "own" if self.generative else "softmax", direction, found
        if not self.generative:
            own = normalised(pairs.alignment, "query_to_document")
            yield "own", "query_to_document", strength(own, counted)

    def _add(
        self,
        key: Key,
        odd: Tensor,
        strengths: Tensor,
        real: Tensor,
        answer: Tensor,
        evidence: Tensor,
    ) -> None:
        """Adds (B, heads, M) strengths to the half of each pair, `odd` (B,) 0 or 1."""
        mask, answer, evidence = real[:, None], answer[:, None], evidence[:, None]
        chosen = at_thresholds(strengths, mask, THRESHOLDS), at_top(strengths, mask, DEPTHS)
        values = measure(torch.cat(chosen, -2), answer, evidence).double()
        none = values.new_zeros(2, *values.shape[1:])
        sums = none.index_add(0, odd, values.nan_to_num(0.0))
        counts = none.index_add(0, odd, values.isfinite().double())
        self.sums[key] = self.sums.get(key, 0) + sums
        self.counts[key] = self.counts.get(key, 0) + counts

    def finish(self) -> Findings:
        """Metrics of the last layer, the table, the curves; nothing without gold."""
        if not self.n_pairs:
            return Findings()
        rows = list(self._rows())
        title = f"{self.description.title}: alignments against {self.n_pairs:,} gold pairs"
        entry = GalleryEntry("gold_alignment", "Alignments against the answer's tokens", CAPTION)
        figures = [(gold_figure(rows, title), entry)]
        return Findings(named(self.name, self._metrics()), {"gold_alignment": rows}, figures)

    def _means(self, key: Key) -> Tensor:
        """(heads, selections, measures) over all pairs."""
        return self.sums[key].sum(0) / self.counts[key].sum(0)

    def _mean_head(self, key: Key) -> dict[tuple[str, float], dict[str, float]]:
        """The heads' average at every selection."""
        means = self._means(key)[0].tolist()
        return {
            s: dict(zip(MEASURES, m, strict=True)) for s, m in zip(SELECTIONS, means, strict=True)
        }

    def _rows(self) -> Iterator[Row]:
        for key in self.sums:
            alignment, direction, layer = key
            for head, table in enumerate(self._means(key)):
                place = {"alignment": alignment, "direction": direction, "layer": layer or ""}
                place["head"] = head or "mean"
                for (selection, value), means in zip(SELECTIONS, table.tolist(), strict=True):
                    if key == CONSTANT and selection == "threshold":
                        continue
                    chosen = {"selection": selection, "value": value}
                    measures = dict(zip(MEASURES, means, strict=True))
                    yield place | chosen | measures | {"pairs": self.n_pairs}
        place = {"alignment": "all", "direction": "", "layer": "", "head": "mean"}
        everything = self._mean_head(CONSTANT)["threshold", THRESHOLDS[0]]
        yield place | {"selection": "all", "value": ""} | everything | {"pairs": self.n_pairs}

    def _metrics(self) -> dict[str, float]:
        """Of the last layer, heads averaged."""
        alignment = "own" if self.generative else "softmax"
        last = max(layer for _, _, layer in self.sums)
        random, flat = self._mean_head(CONSTANT), {}
        for direction in DIRECTIONS:
            found = self._mean_head((alignment, direction, last))
            values = {
                "precision@1": found["top", 1]["precision"],
                "recall@5": found["top", 5]["recall"],
                "possible_precision@1": found["top", 1]["possible_precision"],
                "aer": self._fitted_error((alignment, direction, last)),
                "align_all_aer": random["threshold", THRESHOLDS[0]]["aer"],
                "random_precision": random["top", 1]["precision"],
                "random_possible_precision": random["top", 1]["possible_precision"],
            }
            flat |= {f"{direction}/{name}": value for name, value in values.items()}
        return flat

    def _fitted_error(self, key: Key) -> float:
        """The heads' average's AER, each half at the other's best threshold; NaN of one half."""
        errors = slice(len(THRESHOLDS)), MEASURES.index("aer")
        sums, pairs = (part[key][:, 0, *errors] for part in (self.sums, self.counts))
        means = (sums / pairs).tolist()
        best = [min(range(len(THRESHOLDS)), key=half.__getitem__) for half in means]
        fitted = sums[0, best[1]] + sums[1, best[0]]
        return float(fitted / pairs[:, 0].sum()) if pairs.all() else float("nan")


@styled
def gold_figure(rows: Sequence[Row], title: str) -> Figure:
    """A column a direction, a row a kind of gold, a curve a layer or kind of alignment."""
    drawn = [row for row in rows if row["selection"] == "top" and row["head"] == "mean"]
    figure = page_figure(title, 2 * PANEL_HEIGHT)
    panels = figure.subplots(2, 2, sharey="row")
    for line, (gold, columns) in zip(panels, GOLDS.items(), strict=True):
        for axes, direction in zip(line, DIRECTIONS, strict=True):
            _draw_curves(
                axes, [row for row in drawn if row["direction"] in (direction, "")], *columns
            )
            axes.set_title(f"{direction.replace('_', ' ')}: {gold}")
        line[0].set(ylabel="precision", ylim=(0, None))
    for axes in panels[1]:
        axes.set_xlabel("recall")
    legend_below(figure, 6)
    return figure


def _draw_curves(axes: Axes, rows: Sequence[Row], x: str, y: str) -> None:
    grouped = groupby(rows, lambda row: (row["alignment"], row["layer"]))
    curves = {key: list(group) for key, group in grouped}
    random = curves.pop(("random", ""))
    # The first layer, the last, and some between them.
    shown = [list(curves)[number] for number in spread_numbers(len(curves), MAXIMUM_LAYERS)]
    layers = {layer for _, layer in shown}
    for (alignment, layer), colour, marker in zip(shown, COLOURS, MARKERS, strict=False):
        label = f"layer {layer}" if len(layers) > 1 else LABELS[alignment]
        points = ([row[name] for row in curves[alignment, layer]] for name in (x, y))
        axes.plot(*points, color=colour, marker=marker, label=label)
    axes.axhline(random[0][y], color="#666666", linestyle="--", label="random order")
    axes.grid()
