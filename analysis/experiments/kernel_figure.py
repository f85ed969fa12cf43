"""Curves of kernelised relevance against the number of features."""

from collections.abc import Sequence
from math import log

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from analysis.experiments.kernel_search import EXACT
from analysis.figures import COLOURS, MARKERS, PAGE_WIDTH, PANEL_HEIGHT, STYLE
from analysis.kernel import ELU, UNIFORM
from analysis.tables import Row

TITLES = {
    "error": "relative error",
    "rank_correlation": "rank correlation over pairs",
    "mrr@10": "MRR@10, whole corpus",
}
# Feature map → its line's label, colour and style.
LINES = {
    ELU: ("elu + 1", COLOURS[1], "--"),
    UNIFORM: ("all weights equal", COLOURS[3], "-."),
    EXACT: ("softmax itself", COLOURS[2], ":"),
}


def caption(squared_key_norm: float) -> str:
    """How to read the curves, with the scale of this system's keys."""
    features = f"10^{squared_key_norm / log(10):.1f}"
    return (
        "Σ S ⊙ softmax with the exponential replaced by an inner product of features (Lemma 5.2): "
        "the points are positive random features, the dashed line is elu + 1, one feature a "
        "dimension; dash-dotted is no kernel at all, equal weights, above which an estimate says "
        "something. Error is ‖estimate − true‖ / ‖true‖ over pairs. Retrieval is by one inner "
        "product a document; the dotted line is the softmax's own relevance over all documents. "
        "The relative variance of the estimate of exp(d·q) is (exp ‖d + q‖² − 1) / features, and "
        f"‖d + q‖² is {squared_key_norm:.1f} on average here: it takes some {features} features "
        "until a typical weight's deviation is no larger than the weight."
    )


@matplotlib.rc_context(STYLE)
def kernel_curves(rows: Sequence[Row]) -> Figure:
    """A panel for error and one for rank correlation; a third where there was retrieval.

    Args:
        rows: of table `kernel`.
    """
    measures = [name for name in TITLES if any(row.get(name) is not None for row in rows)]
    figure = Figure(figsize=(PAGE_WIDTH, PANEL_HEIGHT), layout="constrained")
    for axes, measure in zip(figure.subplots(1, len(measures)), measures, strict=True):
        _curve(axes, [row for row in rows if measure in row], measure)
    handles = {}
    for axes in figure.axes:
        handles |= {line.get_label(): line for line in axes.get_lines()}
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False
    )
    return figure


def _curve(axes: Axes, rows: Sequence[Row], measure: str) -> None:
    points = sorted(
        (int(row["features"]), row[measure]) for row in rows if row["features"].isdigit()
    )
    numbers = [number for number, _ in points]
    axes.plot(
        numbers,
        [value for _, value in points],
        color=COLOURS[0],
        marker=MARKERS[0],
        label="random features",
    )
    for row in rows:
        if row["features"] in LINES:
            label, colour, style = LINES[row["features"]]
            axes.axhline(row[measure], color=colour, linestyle=style, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(numbers, [str(number) for number in numbers])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("random features")
    axes.set_title(TITLES[measure])
    values = [row[measure] for row in rows if row[measure] == row[measure]]
    top = max([*values, 0.0]) or 1.0
    axes.set_ylim(min([*values, 0.0]) * 1.08, top * 1.08)  # from zero, no marker cut off
    axes.grid()
