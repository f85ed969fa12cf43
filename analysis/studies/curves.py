"""Curves of a study's table: one measure against one setting, lines and panels by others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from analysis import metric_names
from analysis.figures import COLOURS, COLUMN_WIDTH, MARKERS, PAGE_WIDTH, PANEL_HEIGHT, styled
from analysis.metric_names import Statistic
from analysis.studies.study import average_seeds, is_measure, order_columns
from analysis.tables import Row

LEGEND_ROW = 0.2  # inches that a row of the legend takes
LEGEND_LETTERS = {True: 110, False: 48}  # of a row, below a page's width or a column's
MAXIMUM_TICKS = 8  # x values that are all named on the axis


@dataclass(frozen=True)
class Point:
    """A value of y at x; `settings` tells which row it comes from."""

    x: Any
    y: Statistic
    settings: Row


@dataclass(frozen=True)
class Curves:
    """Which columns of a study's table are drawn, and how.

    Attributes:
        x: a setting, or a measure such as "cost/index_bytes". y: a measure.
        hue: the settings that tell the lines apart. column: the one that tells panels apart.
        where: setting → the only value, or values, to draw.
        log: draw x on a logarithmic scale.
        labels: a column's name or a setting's value → what to write in its place.
        title, caption: the figure's heading, and how to read it.
    """

    x: str
    y: str = "mrr@10"
    hue: str | Sequence[str] = ()
    column: str | None = None
    where: Mapping[str, Any] = field(default_factory=dict)
    log: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    title: str = "Study"
    caption: str = ""

    @property
    def hues(self) -> list[str]:
        return [self.hue] if isinstance(self.hue, str) else list(self.hue)

    def label(self, column: str) -> str:
        """A column's name on an axis."""
        known = metric_names.column_label(column) if is_measure(column) else column
        return self.labels.get(column, known)

    def value_label(self, column: str, value: Any) -> str:
        """A setting in a legend: a number with its name, a word alone."""
        shown = f"{value:g}" if _is_number(value) else "null" if value is None else str(value)
        if shown in self.labels:
            return self.labels[shown]
        named = _is_number(value) or value is None or isinstance(value, bool)
        return f"{self.label(column)} = {shown}" if named else shown


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


@styled
def draw_curves(curves: Curves, rows: Sequence[Row], title: str) -> Figure:
    """Draws a study's table; seeds are averaged, whiskers are their standard deviation.

    Args:
        rows: of one study, or of a sweep's runs.
        title: the line above all panels.

    Raises:
        ValueError: a column is missing, nothing is left to draw, or two rows fall on one point.
    """
    panels = _group_points(curves, rows)
    names = list(dict.fromkeys(line for lines in panels.values() for line in lines))
    wide = len(panels) > 1
    widest = max(map(len, names)) + 6  # with room for the line itself
    columns = max(1, min(len(names), LEGEND_LETTERS[wide] // widest))
    height = PANEL_HEIGHT + LEGEND_ROW * -(-len(names) // columns)
    size = (PAGE_WIDTH if wide else COLUMN_WIDTH, height)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for place, (panel, lines) in zip(axes, panels.items(), strict=True):
        _draw_panel(place, curves, lines, names)
        place.set_title(panel, parse_math=False)
    axes[0].set_ylabel(curves.label(curves.y), parse_math=False)
    figure.suptitle(title, parse_math=False)
    _add_legend(figure, axes, columns)
    return figure


def _add_legend(figure: Figure, axes: Sequence[Axes], columns: int) -> None:
    """One legend of all panels' lines; none where there is only one, unnamed."""
    handles = {}
    for place in axes:
        found, labels = place.get_legend_handles_labels()
        handles |= {label: handle for label, handle in zip(labels, found, strict=True) if label}
    if handles:
        place = "outside lower center"
        legend = figure.legend(handles.values(), handles, loc=place, ncols=columns, frameon=False)
        for text in legend.get_texts():
            text.set_parse_math(False)


def _group_points(curves: Curves, rows: Sequence[Row]) -> dict[str, dict[str, list[Point]]]:
    """Panel → line → its points by x, panels and lines in the rows' order."""
    _check_columns(curves, rows)
    panels: dict[str, dict[str, list[Point]]] = {}
    for settings, statistics in average_seeds(rows):
        x = statistics[curves.x].mean if curves.x in statistics else settings.get(curves.x)
        if x is None or curves.y not in statistics or not _is_chosen(curves, settings):
            continue
        panel, line = (
            ", ".join(curves.value_label(key, settings[key]) for key in keys if key in settings)
            for keys in ([curves.column], curves.hues)
        )
        points = panels.setdefault(panel, {}).setdefault(line, [])
        points.append(Point(x, statistics[curves.y], settings))
    if not panels:
        raise ValueError(
            f"curves.where={dict(curves.where)}: no row has it and {curves.x} and {curves.y}"
        )
    for lines in panels.values():
        for points in lines.values():
            _check_apart(curves, points)
            if all(_is_number(point.x) for point in points):
                points.sort(key=lambda point: point.x)
    return panels


def _is_chosen(curves: Curves, settings: Row) -> bool:
    """Whether a row has what `where` asks for; a setting that it lacks is null."""
    return all(
        settings.get(name) in (values if isinstance(values, list | tuple) else [values])
        for name, values in curves.where.items()
    )


def _check_columns(curves: Curves, rows: Sequence[Row]) -> None:
    known = order_columns(rows)
    asked = [("x", curves.x), ("y", curves.y), *(("hue", name) for name in curves.hues)]
    asked += [("column", curves.column)] if curves.column else []
    asked += [("where", name) for name in curves.where]
    for key, name in asked:
        if name not in known:
            raise ValueError(f"curves.{key}={name}: must be one of {', '.join(known)}")


def _check_apart(curves: Curves, points: Sequence[Point]) -> None:
    """Averaging different settings in silence would draw what nobody measured."""
    if is_measure(curves.x):
        return
    first: dict[Any, Row] = {}
    for point in points:
        other = first.setdefault(point.x, point.settings)
        if other is not point.settings:
            names = {**other, **point.settings}
            differ = [name for name in names if other.get(name) != point.settings.get(name)]
            raise ValueError(
                f"curves: several rows have {curves.x}={point.x} on one line; they differ in "
                f"{', '.join(differ)}: name it in hue or column, or choose with where"
            )


def _draw_panel(
    axes: Axes, curves: Curves, lines: Mapping[str, list[Point]], names: Sequence[str]
) -> None:
    numeric = all(_is_number(p.x) for points in lines.values() for p in points)
    for name, points in lines.items():
        number = names.index(name)
        axes.errorbar(
            [point.x if numeric else str(point.x) for point in points],
            [point.y.mean for point in points],
            yerr=[point.y.std or 0 for point in points],
            color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)],
            linestyle="-" if number < len(COLOURS) else "--",
            capsize=2,
            label=name,
        )
    values = sorted({p.x for points in lines.values() for p in points}) if numeric else []
    if numeric and curves.log and values[0] > 0:
        axes.set_xscale("log")
    if numeric and len(values) <= MAXIMUM_TICKS and not is_measure(curves.x):
        axes.xaxis.set_major_locator(FixedLocator(values))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel(curves.label(curves.x), parse_math=False)
    axes.grid(axis="y")
