"""Bars of the paths' shares in a generative system's logits."""

from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import COLOURS, HATCHES, PAGE_WIDTH, STYLE
from analysis.framework import path_kind
from analysis.tables import Row

CAPTION = (
    "Every logit of a target token is the sum of what these paths of the decoder add to it, top to "
    "bottom as in the model. Left: how much of what tells tokens' logits apart comes through a "
    "path, cov(path, logit) / var(logit); negative where it works against the others. Middle: the "
    "same of the means over each pair's tokens, which is what tells pairs apart. Right: the mean "
    "size of a path among the sizes of all. The bars of a panel sum to 1. The framework of Eq. 14 "
    "is the last layer's cross-attention alone; what other layers pass on of an earlier "
    "cross-attention counts as theirs."
)
PANELS = {
    "covariance_share": "covariance with\nthe {total}, over tokens",
    "pair_mean_share": "covariance with\nthe {total}, over pairs",
    "absolute_share": "absolute size,\nover tokens",
}
KINDS = ("embedding", "self_attention", "cross_attention", "feed_forward")
ROW_HEIGHT = 0.19  # inches a path takes
NUMBER_ROOM = 0.22  # of the bars' range, for the numbers at their ends


@matplotlib.rc_context(STYLE)
def share_bars(rows: Sequence[Row], total: str = "logit") -> Figure:
    """One bar a path, three panels of shares.

    Args:
        rows: of table `framework`, one a path, in the model's order.
        total: what the paths add up to.
    """
    figure = Figure(figsize=(PAGE_WIDTH, 0.9 + ROW_HEIGHT * len(rows)), layout="constrained")
    panels = figure.subplots(1, len(PANELS), sharey=True)
    for axes, (share, title) in zip(panels, PANELS.items(), strict=True):
        _bars(axes, rows, share)
        axes.set_title(title.format(total=total))
        axes.set_xlabel("share")
    panels[0].set_yticks(range(len(rows)), [_label(row["path"]) for row in rows])
    panels[0].set_ylim(len(rows) - 0.4, -0.6)  # the model's input above, as people read
    return figure


def _bars(axes: Axes, rows: Sequence[Row], share: str) -> None:
    for place, row in enumerate(rows):
        kind = KINDS.index(path_kind(row["path"]))
        axes.barh(place, row[share], color=COLOURS[kind], hatch=HATCHES[kind], edgecolor="black")
        if row[share] == row[share]:
            _write(axes, row[share], place)
    values = [0.0, *(row[share] for row in rows if row[share] == row[share])]
    low, high = min(values), max(values)
    room = NUMBER_ROOM * ((high - low) or 1.0)
    axes.set_xlim(low - room * (low < 0), high + room)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.grid(axis="x")


def _write(axes: Axes, value: float, place: int) -> None:
    """A bar's number at its end."""
    shown = round(value, 2) + 0.0  # no minus sign before a zero
    side, at = (2, "left") if shown >= 0 else (-2, "right")
    end = value if shown else max(value, 0)
    how = dict(textcoords="offset points", ha=at, va="center", fontsize=7)
    axes.annotate(f"{shown:.2f}", (end, place), (side, 0), **how)


def _label(path: str) -> str:
    kind = path_kind(path)
    words = kind.replace("_", "-")
    return words if path == kind else f"{words} {path.removeprefix(kind + '_')}"
