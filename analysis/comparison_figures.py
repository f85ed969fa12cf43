"""Pictures of a comparison: effectiveness as bars, exact match by IDF as curves."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import metric_names
from analysis.comparison import Group, Section
from analysis.exact_match import DIRECTIONS
from analysis.figures import ALIGNING, COLOURS, STYLE
from analysis.gallery import Gallery, GalleryEntry
from analysis.inverse_document_frequency import BIN_NAMES

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
HATCHES = ("", "//", "..", "xx", "\\\\", "--", "++", "oo")
SHOWN_VALUES = 24  # more bars than these leave no room for numbers over them


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
        gallery.add(effectiveness_bars(section, keys), entry)
    curves = [group for group in section.groups if any(map(metric_names.by_bin, group.statistics))]
    if curves:
        caption = (
            "How much of a token's alignment falls on equal tokens, averaged over the token types "
            "of each IDF range; rarer tokens stand to the right. The scales of the two panels "
            "differ: a document has more tokens to choose from than a query."
        )
        entry = GalleryEntry(f"{prefix}exact_match_soft", "Soft exact match by IDF", caption)
        gallery.add(exact_match_curves(section.setting, curves), entry)
    return gallery


def _shared(section: Section, suffix: str) -> list[str]:
    """The headlines that bars can compare: those of two systems or more, if there are as many."""
    keys = [key for key in section.headlines if key.endswith(suffix)]
    needed = min(2, len(section.groups))
    return [key for key in keys if sum(key in g.statistics for g in section.groups) >= needed]


@matplotlib.rc_context(STYLE)
def effectiveness_bars(section: Section, keys: Sequence[str]) -> Figure:
    """One cluster of bars for each metric, one bar for each system."""
    figure = Figure(figsize=(max(9.5, 1.2 + 1.9 * len(keys)), 4.2), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(section.groups)
    for number, group in enumerate(section.groups):
        present = [(x, group.statistics[k]) for x, k in enumerate(keys) if k in group.statistics]
        bars = axes.bar(
            [x + (number + 0.5) * width - 0.4 for x, _ in present],
            [statistic.mean for _, statistic in present],
            width=0.92 * width,
            yerr=[statistic.std or 0 for _, statistic in present],
            error_kw={"capsize": 3},
            color=COLOURS[number % len(COLOURS)],
            hatch=HATCHES[number % len(HATCHES)],
            edgecolor="white",
            label=group.label,
        )
        if len(keys) * len(section.groups) <= SHOWN_VALUES:
            axes.bar_label(bars, fmt="%.2f", fontsize=8, padding=2)
    labels = [metric_names.section(key).replace(" ", "\n", 1) for key in keys]
    axes.set_xticks(range(len(keys)), labels)
    axes.set_ylabel("MRR@10")
    axes.set_ylim(0, 1.05)
    axes.grid(axis="y")
    _finish(figure, axes, section.setting)
    return figure


@matplotlib.rc_context(STYLE)
def exact_match_curves(setting: str, groups: Sequence[Group]) -> Figure:
    """The soft exact-match rate of all systems against IDF, both directions (Figures 2 and 3)."""
    figure = Figure(figsize=(9.5, 4.2), layout="constrained")
    for axes, direction in zip(figure.subplots(1, 2), DIRECTIONS, strict=True):
        for number, group in enumerate(groups):
            _curve(axes, group, direction, number)
        axes.set_xticks(range(len(BIN_NAMES)), BIN_NAMES)
        axes.set_xlim(-0.3, len(BIN_NAMES) - 0.7)
        axes.set_ylim(bottom=0)
        axes.grid(axis="y")
        axes.set_title(direction.replace("_", " "))
        axes.set_xlabel(f"IDF of the {ALIGNING[direction]} token")
    figure.axes[0].set_ylabel("soft exact match")
    _finish(figure, figure.axes[0], setting)
    return figure


def _curve(axes: Axes, group: Group, direction: str, number: int) -> None:
    prefix = f"analysis/exact_match/{direction}/soft/idf_"
    points = [
        (x, group.statistics[key])
        for x, name in enumerate(BIN_NAMES)
        if (key := prefix + name.replace("-", "_")) in group.statistics
    ]
    axes.errorbar(
        [x for x, _ in points],
        [statistic.mean for _, statistic in points],
        yerr=[statistic.std or 0 for _, statistic in points],
        color=COLOURS[number % len(COLOURS)],
        marker=MARKERS[number % len(MARKERS)],
        capsize=3,
        label=group.label,
    )


def _finish(figure: Figure, axes: Axes, title: str) -> None:
    handles, labels = axes.get_legend_handles_labels()
    columns = 1 if max(map(len, labels)) > 40 else min(len(labels), 4)
    figure.suptitle(title, parse_math=False)
    legend = figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, frameon=False
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
