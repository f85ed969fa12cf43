"""The style of figures, and the list of a run's figures with their captions.

Colours are Okabe and Ito's palette, which readers with any colour vision can distinguish. Sizes
follow the ACM's two-column page.
"""

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame, Series

from gr_mvdr.files import check, check_file, new_file, read_json, reading, write_json

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

COLUMN_WIDTH, PAGE_WIDTH = 3.33, 7.0  # inches
PANEL_HEIGHT = 2.5

STYLE = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "figure.dpi": 100,
    "pdf.fonttype": 42,  # text stays text in the PDF
}
styled = matplotlib.rc_context(STYLE)  # decorates a function that draws

LIST = "figures.json"
_NAME = re.compile(r"[\w-][\w.=+ -]*")
DOTS = 200  # per inch of a PNG: sharp on high-resolution screens


def page_figure(title: str, height: float) -> Figure:
    """Creates an empty figure as wide as a page, with a title above its panels."""
    figure = Figure(figsize=(PAGE_WIDTH, height), layout="constrained")
    figure.suptitle(title, fontsize=9, parse_math=False)
    return figure


def has_points(values: Series | DataFrame | None) -> bool:
    """Whether a figure of these values shows anything; if not, a drawing function returns a figure
    without axes, which `Gallery` leaves out.
    """
    return values is not None and bool(values.notna().to_numpy().any())


LETTERS = {1: 48, 2: 110}  # letters in a row of the legend, below one panel or several


@styled
def draw_lines(
    points: DataFrame,
    title: str,
    x: str,
    y: str,
    errorbar: Any = "sd",
    shared: bool = True,
    band: bool = False,
) -> Figure:
    """Draws a long table of points: a panel for each `panel`, a line for each `line`.

    Args:
        points: columns `x`, `y`, `line` and `panel`; points of a line with equal x are averaged.
        title: the title above all panels.
        x, y: labels of the axes.
        errorbar: what whiskers at a mean show, as seaborn takes it: "sd", ("se", 1.96).
        shared: all panels have the same scales.
        band: draw a band without markers instead of whiskers, for many points.
    """
    import seaborn

    if not has_points(points.get("y")):
        return Figure()
    names, panels = list(points["line"].unique()), points["panel"].nunique()
    across = 2 if panels == 4 else min(panels, 3)
    width = PAGE_WIDTH / across if panels > 1 else COLUMN_WIDTH
    styles = range(len(names))
    grid = seaborn.relplot(
        points.reset_index(drop=True),  # seaborn needs distinct labels
        **{"x": "x", "y": "y", "hue": "line", "style": "line", "col": "panel"},
        kind="line",
        errorbar=errorbar,
        err_style="band" if band else "bars",
        err_kws={} if band else {"capsize": 2},
        palette=[COLOURS[n % len(COLOURS)] for n in styles],
        markers=False if band else [MARKERS[n % len(MARKERS)] for n in styles],
        dashes=["" if n < len(COLOURS) else (4, 2) for n in styles],
        legend="full" if names != [""] else False,
        col_wrap=across,
        height=PANEL_HEIGHT,
        aspect=width / PANEL_HEIGHT,
        facet_kws={"sharex": shared, "sharey": shared},
    )
    for line in [line for axes in grid.axes.flat for line in axes.lines]:
        if len(line.get_xdata()) == 1:  # without a marker, a single point would not be seen
            line.set_marker("o")
    return _finish(grid, points, title, x, y)


def _finish(grid: Any, points: DataFrame, title: str, x: str, y: str) -> Figure:
    """Adds titles to a grid of panels, and moves its legend below them."""
    import seaborn
    from matplotlib import pyplot

    pyplot.close(grid.figure)  # it is saved, not shown
    grid.set_titles("{col_name}")
    grid.set_axis_labels(x, y)
    if grid.legend is not None:
        names, panels = points["line"].unique(), points["panel"].nunique()
        columns = LETTERS[min(panels, 2)] // (max(map(len, names)) + 6)  # 6: for the line itself
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "title": None}
        seaborn.move_legend(grid, **place, ncols=max(1, min(len(names), columns)))
    grid.figure.draw_without_rendering()  # writes the labels of the ticks
    letters = [label.get_text() for label in grid.axes.flat[0].get_xticklabels()]
    if sum(map(len, letters)) > LETTERS[1]:
        grid.tick_params("x", rotation=90)
    grid.figure.suptitle(title, y=1.02, parse_math=False)
    # seaborn has kept a margin for a legend beside the panels. Later labels move panels, too.
    grid.figure.set_layout_engine("tight")
    return grid.figure


def scale_by_doubling(axes: Axes, ticks: Iterable[float]) -> None:
    """Draws x on a scale to the base 2, with a tick at each value."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks := sorted({*ticks}), [f"{tick:g}" for tick in ticks])


BOXES = "Boxes span the quartiles, the line is the median, the diamond the mean."


@styled
def draw_boxes(
    points: DataFrame, title: str, x: str, y: str, order: Sequence[str] | None = None
) -> Figure:
    """Draws boxplots with the mean as a diamond, without outliers: panels as `draw_lines` has.

    Args:
        points: columns `x`, `y`, `line` (a colour) and `panel`.
        title: the title above all panels.
        x, y: labels of the axes.
        order: the values of `x`; None = as they appear.
    """
    import seaborn

    if not has_points(points.get("y")):
        return Figure()
    panels = points["panel"].nunique()
    across = min(panels, 2)
    grid = seaborn.catplot(
        points.reset_index(drop=True),
        **{"x": "x", "y": "y", "hue": "line", "col": "panel"},
        kind="box",
        order=order,
        col_wrap=across,
        palette=COLOURS[: points["line"].nunique()],
        saturation=1,
        gap=0.15,
        showmeans=True,
        showfliers=False,
        medianprops={"color": "black", "linewidth": 1.6},
        meanprops={"marker": "D", "markerfacecolor": "white", "markeredgecolor": "black"},
        sharey=False,
        height=PANEL_HEIGHT,
        aspect=PAGE_WIDTH / across / PANEL_HEIGHT,
    )
    return _finish(grid, points, title, x, y)


ONE_SERIES = {"": (COLOURS[0], MARKERS[0])}


@styled
def forest_figure(
    table: DataFrame,
    title: str,
    looks: Mapping[str, tuple[str, str]] = ONE_SERIES,
    axis: str = "",
) -> Figure:
    """Draws values with intervals: a panel per place, a row per name, a marker per series.

    Args:
        table: `place`, `name`, `series`, `value`, `low` and `high`; the first name is at the top.
        looks: series → colour and marker; by default the table has no `series`.
        axis: label of the horizontal axis.
    """
    if not has_points(table.get("value")):
        return Figure()
    names, places = [*table["name"].unique()[::-1]], table.groupby("place", sort=False)
    height = 1.2 + 0.26 * len(names)
    rows_of_panels = -(-len(places) // 3)
    figure = page_figure(title, height * rows_of_panels)
    across = -(-len(places) // rows_of_panels)
    grid = figure.subplots(rows_of_panels, across, squeeze=False, sharey=True).flat
    for axes in grid[len(places) :]:
        axes.remove()
    for axes, (place, rows) in zip(grid, places, strict=False):
        for series, (colour, marker) in looks.items():
            own = rows[rows["series"] == series] if series else rows
            lines = [names.index(name) for name in own["name"]]
            # A bootstrap interval need not hold the mean, and bars must not be negative.
            sides = own["value"] - own["low"], own["high"] - own["value"]
            bars = [side.clip(lower=0) for side in sides]
            look = {"linestyle": "none", "marker": marker, "color": colour, "label": series}
            axes.errorbar(own["value"], lines, xerr=bars, **look)
        axes.axvline(0, color="#666666", linewidth=0.8)
        axes.set_yticks(range(len(names)), names)
        axes.set_title(place, parse_math=False)
        axes.set_xlabel(axis)
        axes.grid(axis="x")
    handles = grid[0].get_legend_handles_labels()[0]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    return figure


@dataclass(frozen=True)
class GalleryEntry:
    """One figure; `name`.png and `name`.pdf lie in the list's folder.

    Attributes:
        name: file name without suffix.
        title: a heading.
        caption: how to read the figure.
        chapter, reading: the heading of its chapter on pages, and how to read it.
    """

    name: str
    title: str
    caption: str
    chapter: str = ""
    reading: str = ""


class Gallery:
    """Collects the figures of a run in its folder `figures/`.

    Args:
        directory: where figures and their list go.
        keep: extend an existing list instead of replacing it.
    """

    def __init__(self, directory: Path, keep: bool = False):
        self.directory = Path(directory)
        self.entries = read_gallery(self.directory) if keep else []

    @property
    def paths(self) -> list[Path]:
        """The paths of the PNG files, in order."""
        return [self.directory / f"{entry.name}.png" for entry in self.entries]

    def add(self, figure: Figure, entry: GalleryEntry) -> None:
        """Saves a figure and lists it; a figure with the same name is replaced.

        A figure without points, which has no axes, is left out.
        """
        if not figure.axes:
            return
        save_figure(figure, self.directory, entry.name)
        self.entries = [other for other in self.entries if other.name != entry.name] + [entry]
        write_json(self.directory / LIST, [asdict(entry) for entry in self.entries])


def save_figure(figure: Figure, directory: Path, name: str) -> Path:
    """Writes `name`.png and `name`.pdf (temporary name, then renamed); returns the PNG's path."""
    directory.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        # Characters that the font lacks show as boxes; one warning per character does not help.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        for kind in ("pdf", "png"):
            # Without a date, equal figures are equal files.
            metadata = {"CreationDate": None} if kind == "pdf" else None
            look = {"dpi": DOTS, "bbox_inches": "tight", "metadata": metadata}
            with new_file(directory / f"{name}.{kind}") as partial:
                figure.savefig(partial, format=kind, **look)
    return directory / f"{name}.png"


def read_gallery(directory: Path) -> list[GalleryEntry]:
    """Reads the list of a run's figures, in order; it is empty if nothing was drawn.

    Raises:
        ValueError: the list is broken, or names a file outside its folder.
    """
    path = Path(directory) / LIST
    if not path.exists():
        return []
    with reading(f"{path}: must be a list of figures"):
        entries = [GalleryEntry(**e) for e in read_json(check_file(path, path.parent.parent), list)]
        for name in (entry.name for entry in entries):
            check(_NAME.fullmatch(name), path, f"name={name!r}: must be a file's name")
    return entries
