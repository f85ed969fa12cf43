"""The picture of a search: where the gold document is lost, and what is to blame for it."""

from collections.abc import Mapping

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.experiments.search_errors import DEPTHS
from analysis.figures import COLOURS, PAGE_WIDTH, PANEL_HEIGHT, STYLE

CAPTION = (
    "Left: the share of queries whose gold document is still among the hypotheses after each step; "
    "where a step lost it for some, the median rank of its best continuation there, among all that "
    "were allowed, stands over the bar: the beam keeps only the first ones. Right: what became of "
    "the relevant documents in the first places. A search error is a document that scoring every "
    "identifier would have put there and the beam did not find; a model error is one to which the "
    "model itself prefers others; luck is one that stands there only because the beam lost a "
    "better one."
)
UPRIGHT_LABELS = 8  # more bars than these leave no room for words beside each other
_SEGMENTS = {
    "found": COLOURS[2],
    "found by luck": COLOURS[4],
    "search error": COLOURS[1],
    "model error": COLOURS[5],
    "not found": "#999999",
}


@matplotlib.rc_context(STYLE)
def search_figure(metrics: Mapping[str, float], title: str) -> Figure:
    """Draws the metrics of `analysis.experiments.search_diagnostics`.

    Args:
        metrics: "analysis/search/…".
        title: the line above both panels.
    """
    figure = Figure(figsize=(PAGE_WIDTH, PANEL_HEIGHT), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    values = {key.removeprefix("analysis/search/"): value for key, value in metrics.items()}
    _draw_survival(left, values)
    _draw_errors(right, values)
    figure.suptitle(title, parse_math=False)
    return figure


def _draw_survival(axes: Axes, values: Mapping[str, float]) -> None:
    names = [name for name in values if name.startswith("gold_alive/")]
    steps = range(1, len(names) + 1)
    bars = axes.bar(steps, [values[name] for name in names], 0.7, color=COLOURS[0])
    ranks = [values.get(f"lost_rank/step_{step}") for step in steps]
    labels = ["" if rank is None else f"rank {rank:,g}" for rank in ranks]
    rotation = 0 if len(names) <= UPRIGHT_LABELS else 90
    axes.bar_label(bars, labels, padding=2, fontsize=7, rotation=rotation)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlim(0.4, len(names) + 0.6)
    axes.set_ylim(0, 1.05 if rotation == 0 else 1.3)
    axes.set_yticks([share / 5 for share in range(6)])
    axes.grid(axis="y")
    axes.set_title("gold document still in the beam")
    axes.set_xlabel("step of the search")
    axes.set_ylabel("share of queries")


def _draw_errors(axes: Axes, values: Mapping[str, float]) -> None:
    bars = [outcome(values, k) for k in DEPTHS]
    bottom = [0.0] * len(bars)
    for name, colour in _SEGMENTS.items():
        heights = [bar.get(name, 0.0) for bar in bars]
        if not any(heights):
            continue
        drawn = axes.bar(range(len(bars)), heights, 0.55, bottom, color=colour, label=name)
        labels = [f"{height:.2f}" if height >= 0.04 else "" for height in heights]
        axes.bar_label(drawn, labels, label_type="center", fontsize=7)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set_xticks(range(len(bars)), [f"first {k}" if k > 1 else "first place" for k in DEPTHS])
    axes.set_xlim(-0.5, len(bars) - 0.5)
    axes.set_ylim(0, 1)
    axes.set_title("relevant documents")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, reverse=True)


def outcome(values: Mapping[str, float], k: int) -> dict[str, float]:
    """Shares of the relevant documents that add up to one: found, luck, and either error.

    Args:
        values: metrics without their prefix, such as "search_error@10".
        k: places of the ranking.
    """
    recall = values[f"recall@{k}"]
    if f"luck@{k}" not in values:  # there is no exhaustive ranking to compare with
        return {"found": recall, "not found": 1 - recall}
    luck = values[f"luck@{k}"]
    return {
        "found": recall - luck,
        "found by luck": luck,
        "search error": values[f"search_error@{k}"],
        "model error": values[f"model_error@{k}"] - luck,
    }
