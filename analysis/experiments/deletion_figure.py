"""The picture of the deletion test."""

from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import COLOURS, MARKERS, PAGE_WIDTH, PANEL_HEIGHT, STYLE
from analysis.tables import Row

LABELS = {"aligned": "the most aligned tokens", "random": "random tokens"}
NORMAL = 1.96  # standard errors: 95 % of a normal distribution
CAPTION = (
    "How much the score of a query and its relevant document falls when some tokens of the "
    "document (left) or of the query (right) are removed and the pair is scored anew, in standard "
    "deviations of the score over pairs; bars are 95 % intervals of the mean. If the alignment "
    "tells what the score is made of, removing the tokens that contribute most to the relevance "
    "costs more than removing random ones. A generative system reads each token of the document "
    "in the context of those before it, which any gap breaks. Special tokens always stay."
)


@matplotlib.rc_context(STYLE)
def deletion_figure(rows: Sequence[Row], title: str) -> Figure:
    """A panel a side, a curve for each choice of tokens.

    Args:
        rows: the table of `analysis.experiments.deletion`.
        title: the line above the panels.
    """
    sides = list(dict.fromkeys(row["side"] for row in rows))
    figure = Figure(figsize=(PAGE_WIDTH, PANEL_HEIGHT + 0.3), layout="constrained")
    panels = figure.subplots(1, len(sides), squeeze=False)[0]
    for axes, side in zip(panels, sides, strict=True):
        _panel(axes, [row for row in rows if row["side"] == side])
        axes.set_title(f"tokens of the {side}")
    panels[0].set_ylabel("fall of the score\n(standard deviations)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle(title, fontsize=STYLE["axes.titlesize"], parse_math=False)
    return figure


def _panel(axes: Axes, rows: Sequence[Row]) -> None:
    for (name, label), colour, marker in zip(LABELS.items(), COLOURS, MARKERS, strict=False):
        drawn = [row for row in rows if row["removed"] == name]
        columns = ("tokens", "deviations", "deviations_error")
        tokens, falls, errors = zip(*([row[c] for c in columns] for row in drawn), strict=True)
        bars = [NORMAL * error for error in errors]
        style = {"color": colour, "marker": marker, "capsize": 2, "label": label}
        axes.errorbar(tokens, falls, yerr=bars, **style)
    axes.axhline(0, color="#666666", linewidth=0.8)
    counts = sorted({row["tokens"] for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_xlabel("tokens removed")
    axes.grid()
