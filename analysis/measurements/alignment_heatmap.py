"""Figures of alignment matrices (Wu et al. Figure 5)."""

from collections.abc import Sequence

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from analysis.figures import COLOURS, COLUMN_WIDTH, PAGE_WIDTH, STYLE

CELL, LETTER = 0.13, 0.055  # inches that a token's row or column takes, and a letter of its label
LABEL_SIZE = 6.5  # points: the largest at which the labels of 40 rows stand on a page
MAXIMUM_ROWS = 40  # document tokens in a heatmap: more cannot be read on a page


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
    width = 1.2 + CELL * columns + LETTER * max(map(len, document_tokens))
    height = 0.9 + CELL * rows + LETTER * max(map(len, query_tokens))
    size = max(COLUMN_WIDTH, min(width, PAGE_WIDTH)), height
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    axes.spines[:].set_visible(True)
    # White is the smallest weight: a softmax over a long text leaves every weight close to it.
    image = axes.imshow(weights.numpy(), cmap="Blues", aspect="auto", interpolation="nearest")
    figure.colorbar(image, ax=axes, label=label, shrink=min(1.0, 2.5 / height))
    for row, column in same.nonzero().tolist():
        cell = Rectangle((column - 0.46, row - 0.46), 0.92, 0.92, fill=False, ec=COLOURS[5], lw=1)
        axes.add_patch(cell)
    axes.tick_params(length=2, pad=1)
    # A "$" in a text would otherwise start a formula.
    axes.set_xticks(
        range(columns), query_tokens, rotation=90, fontsize=LABEL_SIZE, parse_math=False
    )
    axes.set_yticks(range(rows), document_tokens, fontsize=LABEL_SIZE, parse_math=False)
    axes.set_xlabel("query tokens")
    axes.set_ylabel("document tokens")
    figure.suptitle(title, parse_math=False)
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
