"""Figures of exact match: boxes by IDF bin (gr_as_mvdr Figures 2 and 3), a map of heads."""

from collections.abc import Mapping

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from analysis.exact_match import MEASURES
from analysis.figures import ALIGNING, COLOURS, HATCHES, PAGE_WIDTH, PANEL_HEIGHT, STYLE, draw_boxes
from analysis.measurements.exact_match_table import ExactMatchTable
from analysis.token_types import DEFINITIONS
from analysis.tokens import BIN_NAMES

DEFINITION_LABELS = {
    "all": "all occurrences",
    "matched": "only where an equal token exists",
}


@matplotlib.rc_context(STYLE | {"hatch.linewidth": 0.4})
def exact_match_boxes(table: ExactMatchTable, direction: str, title: str) -> Figure:
    """Hard and soft exact match of token types by IDF bin, as boxes (Figures 2 and 3).

    Args:
        table: the measurements.
        direction: "query_to_document" (Figure 2) or "document_to_query" (Figure 3).
        title: the line above both panels.
    """
    figure = Figure(figsize=(PAGE_WIDTH, PANEL_HEIGHT + 0.6), layout="constrained")
    for axes, measure in zip(figure.subplots(1, 2), MEASURES, strict=True):
        for number, definition in enumerate(DEFINITIONS):
            draw_boxes(axes, table.by_bin(direction, measure, definition), number)
        counts = [len(box) for box in table.by_bin(direction, measure, "all")]
        labels = [f"{name}\nn={n:,}" for name, n in zip(BIN_NAMES, counts, strict=True)]
        axes.set_xticks(range(len(labels)), labels)
        axes.set_xlim(-0.6, len(labels) - 0.4)
        if measure == "hard":
            axes.set_ylim(-0.03, 1.03)
        else:  # a softmax over a long text spreads thin: its own scale, from zero
            axes.set_ylim(bottom=-0.03 * axes.get_ylim()[1])
        axes.grid(axis="y")
        axes.set_title(f"{measure} exact match")
        axes.set_xlabel(f"IDF of the {ALIGNING[direction]} token (n = token types)")
    figure.axes[0].set_ylabel("rate of a token type")
    handles = [
        Patch(facecolor=colour, edgecolor="black", hatch=hatch, label=DEFINITION_LABELS[definition])
        for colour, hatch, definition in zip(COLOURS, HATCHES, DEFINITIONS, strict=False)
    ]
    figure.suptitle(title, fontsize=9, parse_math=False)
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    return figure


@matplotlib.rc_context(STYLE)
def head_map(rates: Mapping[str, Tensor], title: str) -> Figure:
    """Soft exact match of every head as a map, one panel a direction.

    Args:
        rates: {direction: (L, H) rates}.
        title: the line above the panels.
    """
    layers = max(map(len, rates.values()))
    height = 1.2 + 0.22 * layers
    figure = Figure(figsize=(PAGE_WIDTH, max(height, PANEL_HEIGHT)), layout="constrained")
    for axes, (direction, values) in zip(figure.subplots(1, 2), rates.items(), strict=True):
        axes.spines[:].set_visible(True)
        edges = 0.5, values.shape[1] + 0.5, values.shape[0] + 0.5, 0.5
        # White is zero, so that a map of heads alike does not look like a map of contrasts.
        image = axes.imshow(values.numpy(), cmap="Blues", vmin=0, aspect="auto", extent=edges)
        figure.colorbar(image, ax=axes, label="soft exact match")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True, nbins=12, min_n_ticks=1))
        axes.set_title(direction.replace("_", " "))
        axes.set_xlabel("head")
    figure.axes[0].set_ylabel("decoder layer")
    figure.suptitle(title, fontsize=9, parse_math=False)
    return figure
