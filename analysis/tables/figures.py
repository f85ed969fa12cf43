"""Pictures of a comparison: effectiveness as bars, exact match by IDF as curves."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.exact_match import DIRECTIONS, MEASURES
from analysis.figures import (
    ALIGNING,
    COLOURS,
    HATCHES,
    MARKERS,
    PAGE_WIDTH,
    PANEL_HEIGHT,
    Gallery,
    GalleryEntry,
    styled,
)
from analysis.tables import metric_names
from analysis.tables.comparison import Group, Section
from analysis.tables.metric_names import Statistic
from analysis.tokens import BIN_NAMES

SHOWN_VALUES = 24  # more bars than these leave no room for numbers over them
LEGEND_LETTERS = 110  # of a legend's row, with room for its marks


def draw_comparison(section: Section, directory: Path, prefix: str = "") -> Gallery:
    """Draws what the section's runs measured.

    Args:
        section: groups over one collection.
        directory: where PNG and PDF go.
        prefix: put before the file names when there are several sections.
    """
    gallery = Gallery(directory)
    if keys := _shared(section, "/mrr@10"):
        caption = "Mean over seeds; whiskers are the standard deviation of two or more seeds."
        entry = GalleryEntry(f"{prefix}mrr", "MRR@10, searching and reranking", caption)
        gallery.add(draw_effectiveness(section, keys), entry)
    curves = [group for group in section.groups if any("/idf_" in key for key in group.statistics)]
    if curves:
        caption = (
            "How often a token aligns to an equal token, averaged over the token types of each IDF "
            "range; rarer tokens are on the right. Hard: its strongest partner is the same "
            "token. Soft: the share of its alignment that falls on equal tokens; each soft panel "
            "has its own scale, since a document has more tokens to choose from than a query."
        )
        entry = GalleryEntry(f"{prefix}exact_match", "Exact match by IDF", caption)
        gallery.add(draw_exact_match(section.setting, curves), entry)
    return gallery


def _shared(section: Section, suffix: str) -> list[str]:
    """The headlines that bars can compare: those of two systems or more, if there are as many."""
    keys = [key for key in section.headlines if key.endswith(suffix)]
    needed = min(2, len(section.groups))
    return [key for key in keys if sum(key in g.statistics for g in section.groups) >= needed]


@styled
def draw_effectiveness(section: Section, keys: Sequence[str]) -> Figure:
    """One cluster of bars for each metric, one bar for each system."""
    figure = Figure(figsize=(PAGE_WIDTH, 2.8), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(section.groups)
    for number, group in enumerate(section.groups):
        present = [(x, group.statistics[k]) for x, k in enumerate(keys) if k in group.statistics]
        bars = axes.bar(
            [x + (number + 0.5) * width - 0.4 for x, _ in present],
            [statistic.mean for _, statistic in present],
            width=0.92 * width,
            yerr=_whiskers(present),
            error_kw={"capsize": 2, "elinewidth": 0.8},
            color=COLOURS[number % len(COLOURS)],
            hatch=HATCHES[number % len(HATCHES)],
            edgecolor="white",
            label=group.label,
        )
        if len(keys) * len(section.groups) <= SHOWN_VALUES:
            axes.bar_label(bars, fmt="%.2f", fontsize=6.5, padding=2)
    labels = [metric_names.section(key).replace(" ", "\n", 1) for key in keys]
    axes.set_xticks(range(len(keys)), labels)
    axes.set_ylabel("MRR@10")
    axes.set_ylim(0, 1.05)
    axes.grid(axis="y")
    _finish(figure, axes, section.setting)
    return figure


@styled
def draw_exact_match(setting: str, groups: Sequence[Group]) -> Figure:
    """Exact-match rates of all systems against IDF, hard and soft, in both directions.

    Figures 2 and 3 of Wu et al. (§7.2), with every system in one plot.
    """
    figure = Figure(figsize=(PAGE_WIDTH, 2 * PANEL_HEIGHT), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True)
    for row, measure in zip(panels, MEASURES, strict=True):
        for axes, direction in zip(row, DIRECTIONS, strict=True):
            for number, group in enumerate(groups):
                _curve(axes, group, direction, measure, number)
            axes.set_xticks(range(len(BIN_NAMES)), BIN_NAMES)
            axes.set_xlim(-0.3, len(BIN_NAMES) - 0.7)
            axes.set_ylim(bottom=0)
            if measure == "hard":
                axes.set_ylim(0, 1.03)
            axes.grid(axis="y")
        row[0].set_ylabel(f"{measure} exact match")
    for top, bottom, direction in zip(*panels, DIRECTIONS, strict=True):
        top.set_title(direction.replace("_", " "))
        bottom.set_xlabel(f"IDF of the {ALIGNING[direction]} token")
    _finish(figure, panels[0, 0], setting)
    return figure


def _curve(axes: Axes, group: Group, direction: str, measure: str, number: int) -> None:
    prefix = f"analysis/exact_match/{direction}/{measure}/idf_"
    points = [
        (x, group.statistics[key])
        for x, name in enumerate(BIN_NAMES)
        if (key := prefix + name.replace("-", "_")) in group.statistics
    ]
    axes.errorbar(
        [x for x, _ in points],
        [statistic.mean for _, statistic in points],
        yerr=_whiskers(points),
        color=COLOURS[number % len(COLOURS)],
        marker=MARKERS[number % len(MARKERS)],
        capsize=2,
        label=group.label,
    )


def _whiskers(points: Sequence[tuple[int, Statistic]]) -> list[float] | None:
    """The standard deviation of each point; None with a single seed, which has none to draw."""
    found = [statistic.std or 0.0 for _, statistic in points]
    return found if any(found) else None


def _finish(figure: Figure, axes: Axes, title: str) -> None:
    handles, labels = axes.get_legend_handles_labels()
    columns = max(1, min(len(labels), LEGEND_LETTERS // (max(map(len, labels)) + 6)))
    figure.suptitle(title, parse_math=False)
    legend = figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, frameon=False
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
