"""Precision over recall of alignments against the answer's tokens."""

from collections.abc import Sequence
from itertools import groupby

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.exact_match import DIRECTIONS
from analysis.figures import COLOURS, MARKERS, PAGE_WIDTH, PANEL_HEIGHT, STYLE
from analysis.tables import Row

MAXIMUM_LAYERS = 4  # more curves in a panel cannot be told apart
TITLES = {"query_to_document": "query to document", "document_to_query": "document to query"}
# What tokens are held against, and the columns of the table.
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
    "beside it. Special tokens are left out; heads are averaged. Multi-vector and lexical systems "
    "are drawn by the softmax of their similarity and by their own alignment, whose equal "
    "strengths share a place."
)


@matplotlib.rc_context(STYLE)
def gold_figure(rows: Sequence[Row], title: str) -> Figure:
    """A column a direction, a row a kind of gold, a curve a layer or kind of alignment.

    Args:
        rows: the table of `analysis.measurements.gold_alignment_report`.
        title: the line above the panels.
    """
    drawn = [row for row in rows if row["selection"] == "top" and row["head"] == "mean"]
    figure = Figure(figsize=(PAGE_WIDTH, 2 * PANEL_HEIGHT), layout="constrained")
    panels = figure.subplots(2, 2, sharey="row")
    for line, (gold, columns) in zip(panels, GOLDS.items(), strict=True):
        for axes, direction in zip(line, DIRECTIONS, strict=True):
            mine = [row for row in drawn if row["direction"] in (direction, "")]
            _panel(axes, mine, *columns)
            axes.set_title(f"{TITLES[direction]}: {gold}")
        line[0].set_ylabel("precision")
        line[0].set_ylim(bottom=0)
    for axes in panels[1]:
        axes.set_xlabel("recall")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle(title, fontsize=STYLE["axes.titlesize"], parse_math=False)
    return figure


def _panel(axes: Axes, rows: Sequence[Row], x: str, y: str) -> None:
    curves = {key: list(group) for key, group in groupby(rows, _curve)}
    random = curves.pop(("random", ""))
    shown = _spread(list(curves))
    layers = {layer for _, layer in shown}
    for (alignment, layer), colour, marker in zip(shown, COLOURS, MARKERS, strict=False):
        label = f"layer {layer}" if len(layers) > 1 else LABELS[alignment]
        points = _column(curves[alignment, layer], x), _column(curves[alignment, layer], y)
        axes.plot(*points, color=colour, marker=marker, label=label)
    axes.axhline(random[0][y], color="#666666", linestyle="--", label="random order")
    axes.grid()


def _curve(row: Row) -> tuple[str, int | str]:
    return row["alignment"], row["layer"]


def _column(rows: Sequence[Row], name: str) -> list[float]:
    return [row[name] for row in rows]


def _spread(curves: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """The first layer, the last, and some between them."""
    chosen = np.linspace(0, len(curves) - 1, min(len(curves), MAXIMUM_LAYERS)).round()
    return [curves[int(number)] for number in chosen]
