"""Bars of how well parts of the logit rank, and how well they agree with log p(d | q)."""

from collections.abc import Sequence

import matplotlib
from matplotlib.figure import Figure

from analysis.figures import COLOURS, HATCHES, PAGE_WIDTH, PANEL_HEIGHT, STYLE
from analysis.tables import Row

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


@matplotlib.rc_context(STYLE)
def ranking_bars(rows: Sequence[Row]) -> Figure:
    """Two panels of bars, one group a score, one bar a form.

    Args:
        rows: of table `framework_ranking`.
    """
    figure = Figure(figsize=(PAGE_WIDTH, PANEL_HEIGHT), layout="constrained")
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
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure
