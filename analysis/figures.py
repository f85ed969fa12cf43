"""Figures: exact match by IDF bin and alignment matrices (Wu et al. Figures 2, 3 and 5).

Colours are Okabe and Ito's, told apart by every kind of colour vision, or one sequential scale.
"""

from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from torch import Tensor

from analysis.exact_match import MEASURES
from analysis.exact_match_report import ExactMatchReport
from analysis.inverse_document_frequency import BIN_NAMES
from analysis.token_types import DEFINITIONS

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
STYLE = {
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "figure.dpi": 100,
    "pdf.fonttype": 42,  # text stays text in the PDF
}
DEFINITION_LABELS = {
    "all": "all occurrences",
    "matched": "only where an equal token exists",
}
ALIGNING = {"query_to_document": "query", "document_to_query": "document"}
BOX_WIDTH = 0.36
LETTER = 0.085  # inches that a letter of a token label takes
MAXIMUM_ROWS = 40  # document tokens in a heatmap: more cannot be read on a page


@matplotlib.rc_context(STYLE)
def exact_match_boxes(report: ExactMatchReport, direction: str, title: str) -> Figure:
    """Hard and soft exact match of token types by IDF bin, as boxes (Figures 2 and 3).

    Args:
        report: the measurements.
        direction: "query_to_document" (Figure 2) or "document_to_query" (Figure 3).
        title: the line above both panels.
    """
    figure = Figure(figsize=(9.5, 4.2), layout="constrained")
    for axes, measure in zip(figure.subplots(1, 2), MEASURES, strict=True):
        for number, definition in enumerate(DEFINITIONS):
            boxes = report.by_bin(direction, measure, definition)
            _boxes(axes, boxes, (number - 0.5) * (BOX_WIDTH + 0.06), COLOURS[number])
        counts = [len(box) for box in report.by_bin(direction, measure, "all")]
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
        Patch(facecolor=colour, edgecolor="black", label=DEFINITION_LABELS[definition])
        for colour, definition in zip(COLOURS, DEFINITIONS, strict=False)
    ]
    figure.suptitle(title, parse_math=False)
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    return figure


def _boxes(axes: Axes, boxes: Sequence[Tensor], offset: float, colour: str) -> None:
    filled = [(number, box.numpy()) for number, box in enumerate(boxes) if len(box)]
    if not filled:
        return
    axes.boxplot(
        [values for _, values in filled],
        positions=[number + offset for number, _ in filled],
        widths=BOX_WIDTH,
        manage_ticks=False,
        patch_artist=True,
        showmeans=True,
        showfliers=False,
        boxprops={"facecolor": colour},
        medianprops={"color": "black", "linewidth": 1.6},
        meanprops={"marker": "D", "markerfacecolor": "white", "markeredgecolor": "black"},
    )


@matplotlib.rc_context(STYLE)
def alignment_heatmap(
    weights: Tensor,
    same: Tensor,
    document_tokens: Sequence[str],
    query_tokens: Sequence[str],
    title: str,
    label: str = "alignment",
) -> Figure:
    """An alignment matrix with its tokens, document tokens as rows (Figure 5).

    Args:
        weights: (M, N) the alignment to draw, from 0 to 1.
        same: (M, N) bool, where both tokens are equal: these cells get an outline.
        document_tokens: M strings.
        query_tokens: N strings.
        title: the line above.
        label: what the colours mean.
    """
    rows, columns = weights.shape
    width = 1.8 + 0.3 * columns + LETTER * max(map(len, document_tokens))
    height = 1.0 + 0.22 * rows + LETTER * max(map(len, query_tokens))
    figure = Figure(figsize=(max(width, 5.0), height), layout="constrained")
    axes = figure.subplots()
    axes.spines[:].set_visible(True)
    # White is the smallest weight: a softmax over a long text leaves every weight close to it.
    image = axes.imshow(weights.numpy(), cmap="Blues", aspect="auto", interpolation="nearest")
    figure.colorbar(image, ax=axes, label=label, shrink=min(1.0, 4 / height))
    for row, column in same.nonzero().tolist():
        cell = Rectangle((column - 0.46, row - 0.46), 0.92, 0.92, fill=False, ec=COLOURS[5], lw=1.5)
        axes.add_patch(cell)
    # A "$" in a text would otherwise start a formula.
    axes.set_xticks(range(columns), query_tokens, rotation=90, fontsize=9, parse_math=False)
    axes.set_yticks(range(rows), document_tokens, fontsize=9, parse_math=False)
    axes.set_xlabel("query tokens")
    axes.set_ylabel("document tokens")
    figure.suptitle(title, fontsize=10, parse_math=False)
    return figure


def readable_rows(contributions: Tensor, limit: int = MAXIMUM_ROWS) -> slice:
    """The stretch of at most `limit` document tokens that carries most of the relevance.

    Args:
        contributions: (M,) Σ_hj S A of each document token.
        limit: the most tokens to show.
    """
    if len(contributions) <= limit:
        return slice(0, len(contributions))
    start = int(contributions.double().unfold(0, limit, 1).sum(1).argmax())
    return slice(start, start + limit)
