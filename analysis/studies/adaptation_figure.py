"""The picture of alignment adaptation (aligner Table 3 and Figure 5)."""

from collections.abc import Mapping

import matplotlib
from matplotlib.figure import Figure

from analysis.figures import COLOURS, PAGE_WIDTH, PANEL_HEIGHT, STYLE
from analysis.metric_names import Statistic

CAPTION = (
    "Bars: nDCG@10 of all test queries when the same vectors are scored under another pairwise "
    "alignment. Right: what a few annotated queries reach by choosing among these alignments; the "
    "mean over folds of the queries outside each fold, whiskers are the standard deviation over "
    "folds. The dashed line is the first alignment. Nothing was encoded again."
)


@matplotlib.rc_context(STYLE)
def adaptation_figure(
    grid: Mapping[str, float], few_shot: Mapping[int, Statistic], title: str
) -> Figure:
    """Draws nDCG@10 of every strategy, and of the folds' choices.

    Args:
        grid: strategy's name → nDCG@10. few_shot: queries in a fold → mean and deviation.
        title: the line above.
    """
    names = [name.replace("=", "\n") for name in grid]
    names += [f"few-shot\n{size}" for size in few_shot]
    figure = Figure(figsize=(PAGE_WIDTH, PANEL_HEIGHT), layout="constrained")
    axes = figure.subplots()
    colours = [COLOURS[name.startswith("top-p")] for name in grid]
    bars = axes.bar(range(len(grid)), list(grid.values()), 0.7, color=colours)
    axes.bar_label(bars, fmt="%.2f", fontsize=7, padding=2)
    places = [len(grid) + 0.3 + number for number in range(len(few_shot))]
    means = [statistic.mean for statistic in few_shot.values()]
    spread = [statistic.std or 0 for statistic in few_shot.values()]
    bars = axes.bar(places, means, 0.7, yerr=spread, capsize=2, color=COLOURS[2])
    axes.bar_label(bars, fmt="%.2f", fontsize=7, padding=2)
    axes.axhline(next(iter(grid.values())), color="black", linestyle="--", linewidth=1)
    axes.set_xticks([*range(len(grid)), *places], names, fontsize=7)
    axes.set_ylabel("nDCG@10")
    axes.set_ylim(0, 1.1 * max([*grid.values(), *map(sum, zip(means, spread, strict=True)), 0.1]))
    axes.grid(axis="y")
    figure.suptitle(title, parse_math=False)
    return figure
