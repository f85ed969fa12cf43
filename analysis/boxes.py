"""Boxplots as all figures draw them."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from torch import Tensor

from analysis.style import COLOURS, HATCHES

BOX_WIDTH = 0.36
STEP = BOX_WIDTH + 0.06  # between two kinds of boxes at one place


def draw_boxes(axes: Axes, values: Sequence[Tensor], number: int) -> None:
    """Boxes of one kind, the first of two at each place or the second (`number` 0 or 1).

    Quartiles, median, whiskers and the mean as a diamond; outliers are left out.

    Args:
        values: (n,) of each place, from 0; nothing is drawn where n = 0.
    """
    filled = [(place, box.numpy()) for place, box in enumerate(values) if len(box)]
    if not filled:
        return
    axes.boxplot(
        [box for _, box in filled],
        positions=[place + (number - 0.5) * STEP for place, _ in filled],
        widths=BOX_WIDTH,
        manage_ticks=False,
        patch_artist=True,
        showmeans=True,
        showfliers=False,
        boxprops={"facecolor": COLOURS[number], "hatch": HATCHES[number]},
        medianprops={"color": "black", "linewidth": 1.6},
        meanprops={"marker": "D", "markerfacecolor": "white", "markeredgecolor": "black"},
    )
