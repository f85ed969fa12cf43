"""One figure of an alignment's shape: weight in the strongest partners, entropy by layer."""

from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import COLOURS, MARKERS, PAGE_WIDTH, PANEL_HEIGHT, STYLE
from analysis.tables import Row

CAPTION = (
    "Left: the share of a token's alignment that its strongest partners hold, last layer; a high "
    "line is a sparse alignment. Right: entropy as a share of its largest value, 0 is one "
    "partner, 1 an even spread; one mark a head, slightly apart where systems or directions meet. "
    '"Directed" is the alignment as all systems are compared: the softmax of the similarity over '
    "the other side, or the mean of the attention's heads; \"own\" is the system's A itself."
)


@matplotlib.rc_context(STYLE)
def shape_figure(rows: Sequence[Row], title: str) -> Figure:
    """Mass in the top k and relative entropy.

    Args:
        rows: the table `shape`. title: the line above both panels.
    """
    figure = Figure(figsize=(PAGE_WIDTH, PANEL_HEIGHT + 0.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    series = list(dict.fromkeys((row["alignment"], row["direction"]) for row in rows))
    for number, (alignment, direction) in enumerate(series):
        label = f"{alignment}, {direction.replace('_', ' ')}"
        look = {"color": COLOURS[number], "marker": MARKERS[number], "label": label}
        chosen = [r for r in rows if (r["alignment"], r["direction"]) == (alignment, direction)]
        _draw_top(left, chosen, look)
        _draw_entropy(right, chosen, (number - (len(series) - 1) / 2) * 0.15, look)
    left.set_ylim(0, 1.03)
    left.set_xlabel("strongest partners")
    left.set_ylabel("share of the weight")
    right.set_ylim(-0.03, 1.03)
    right.set_xticks(sorted({row["layer"] for row in rows}))
    right.set_xlabel("layer")
    right.set_ylabel("entropy / largest entropy")
    for axes in (left, right):
        axes.grid(axis="y")
    figure.suptitle(title, fontsize=9, parse_math=False)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure


def _draw_top(axes: Axes, rows: Sequence[Row], look: dict) -> None:
    """The mean over the last layer's heads."""
    last = [row for row in rows if row["layer"] == max(row["layer"] for row in rows)]
    depths = [int(name.removeprefix("top_")) for name in last[0] if name.startswith("top_")]
    means = [sum(row[f"top_{k}"] for row in last) / len(last) for k in depths]
    axes.plot(depths, means, **look)
    axes.set_xticks(depths)


def _draw_entropy(axes: Axes, rows: Sequence[Row], offset: float, look: dict) -> None:
    layers = [row["layer"] + offset for row in rows]
    axes.plot(layers, [row["relative_entropy"] for row in rows], linestyle="", alpha=0.8, **look)
    axes.set_xlim(0.4, max(row["layer"] for row in rows) + 0.6)
