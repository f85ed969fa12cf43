"""A study: one finished model asked over a grid of settings, as a table and a figure.

A study is built from `conf/study/` and called once the run's index is there. Its table is tidy: a
row a setting; the columns that say what was set, then the measures (a metric such as "mrr@10", or
a cost such as "cost/query_ms").
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from numbers import Real
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator
from omegaconf import DictConfig, OmegaConf

from analysis.analysis import Findings
from analysis.figures import (
    COLOURS,
    COLUMN_WIDTH,
    MARKERS,
    PANEL_HEIGHT,
    Gallery,
    page_panels,
    styled,
)
from analysis.tables import metric_names
from analysis.tables.metric_names import Statistic
from analysis.tables.rows import Cell, Row, Table, format_markdown, write_rows
from data_modules.module import RetrievalDataModule
from gr_mvdr.files import write_text
from gr_mvdr.options import admitting, build
from models.base import System

# A column that tells repetitions of one setting apart; the others of its kind are choices.
SEED = "seed"
# Columns that tell the collections of a sweep apart.
COLLECTION = ("setting", "collection")


class Study(Protocol):
    """What `conf/study/` names."""

    def check(self, model: System) -> None:
        """Raises ValueError for a model or an option that the study cannot work with."""

    def __call__(
        self, model: System, data: RetrievalDataModule, run: Path
    ) -> tuple[Findings, Table]:
        """Asks a model whose index is built.

        Returns:
            The findings, whose first table is "study", a row a setting, settings before measures;
            and that table for people.
        """


def check_study(settings: Mapping[str, Any] | None, model: System) -> None:
    """Raises ValueError for a study that this model cannot answer, before hours of training.

    Args:
        settings: `_target_` and arguments of a study; nothing = no study.
        model: untrained.

    Raises:
        ValueError: the study's options or the system are at fault.
    """
    if settings:
        _build_study(settings).check(model)


def run_study(
    settings: Mapping[str, Any] | None, model: System, data: RetrievalDataModule, run: Path
) -> dict[str, float]:
    """Makes the study that the configuration asks for: `study.csv`, `study.md` and a figure.

    Args:
        settings: `_target_` and arguments of a study; nothing = no study.
        model: its index is built. run: the run's folder.

    Returns:
        Flat metrics, "analysis/…"; none without a study.

    Raises:
        ValueError: as `check_study`.
    """
    if not settings:
        return {}
    study = _build_study(settings)
    study.check(model)
    found, table = study(model, data, Path(run))
    for name, rows in found.tables.items():
        write_study(rows, Path(run) / f"{name}.csv")
    write_study_table(table, Path(run))
    for figure, entry in found.figures:
        Gallery(Path(run) / "figures", keep=True).add(figure, entry)
    return found.metrics


def _build_study(settings: Mapping[str, Any]) -> Study:
    if isinstance(settings, DictConfig):
        settings = OmegaConf.to_container(settings, resolve=True)
    with admitting(settings):
        return build("study", settings)


def expand_grids(
    settings: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Sequence[Any]]],
) -> list[Row]:
    """Every combination of the values of a grid; of several grids in order.

    Raises:
        ValueError: an option without a list of values.
    """
    grids = [settings] if isinstance(settings, Mapping) else settings
    for key, values in (option for grid in grids for option in grid.items()):
        if not isinstance(values, list | tuple) or not values:
            raise ValueError(f"study.settings.{key}={values}: must be a list of values")
    return [dict(zip(grid, row, strict=True)) for grid in grids for row in product(*grid.values())]


def check_searchable(model: System, settings: Sequence[Row]) -> None:
    """Raises ValueError for a model without a token index, or for unknown settings."""
    if not hasattr(model, "retrieve_encoded"):
        raise ValueError(
            f"study: {type(model).__name__} has no index of token vectors that could be searched "
            "in other ways; choose a multi-vector model, or ~study"
        )
    for setting in settings:
        model.search.changed(**setting)


def is_measure(column: str) -> bool:
    """Is this column something that was measured? The others say what was set."""
    return "@" in column or column.startswith("cost/")


def order_columns(rows: Sequence[Row]) -> list[str]:
    """All columns in their first order, settings before measures."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    return sorted(columns, key=is_measure)


def write_study(rows: Sequence[Row], path: Path) -> None:
    """Writes a study's CSV; None is "null", what a row lacks is empty."""
    write_rows(rows, path, order_columns(rows), none="null")


def average_seeds(rows: Sequence[Row]) -> list[tuple[Row, dict[str, Statistic]]]:
    """Each setting with its measures, mean and sample standard deviation over the seeds."""
    averages = []
    for settings, found in _group(rows, [SEED]):
        values: dict[str, list[float]] = defaultdict(list)
        for column, value in (cell for row in found for cell in row.items()):
            if is_measure(column) and value is not None:
                values[column].append(value)
        averages.append((settings, {column: Statistic.over(v) for column, v in values.items()}))
    return averages


def average_collections(rows: Sequence[Row]) -> list[Row]:
    """Of each setting the means over its collections, seed by seed: `collection` is "average",
    `collections` their number. A measure that one of them lacks has no mean."""
    averages = []
    for settings, found in _group(rows, COLLECTION):
        measures = [
            c for c in found[0] if all(is_measure(c) and r.get(c) is not None for r in found)
        ]
        means = {column: fmean(row[column] for row in found) for column in measures}
        own = {"collection": "average", "collections": len(found)}
        averages.append(settings | own | means)
    return averages


def _group(rows: Sequence[Row], without: Collection[str]) -> list[tuple[Row, list[Row]]]:
    """Rows of the same settings, some columns aside."""
    groups: dict[tuple, list[Row]] = defaultdict(list)
    for row in rows:
        settings = {c: v for c, v in row.items() if not is_measure(c) and c not in without}
        groups[tuple(sorted(settings.items(), key=itemgetter(0)))].append(row)
    return [(dict(settings), found) for settings, found in groups.items()]


def tabulate_study(rows: Sequence[Row], heading: str) -> Table:
    """The rows for people, seeds averaged: the settings, then the measures."""
    settings = [c for c in order_columns(rows) if not is_measure(c) and c != SEED]
    measures = [column for column in order_columns(rows) if is_measure(column)]
    lines = []
    for setting, statistics in average_seeds(rows):
        values = [setting.get(column, metric_names.MISSING) for column in settings]
        texts = ["null" if value is None else str(value) for value in values]
        texts += [metric_names.text(column, statistics.get(column)) for column in measures]
        lines.append((texts[0], list(map(Cell, texts[1:]))))
    names = [*settings, *map(metric_names.full_label, measures)]
    return Table(heading, names[1:], lines, corner=names[0])


def write_study_table(table: Table, folder: Path) -> None:
    """Writes `study.md` into a folder."""
    write_text(folder / "study.md", "\n".join(format_markdown(table)) + "\n")


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
        known = metric_names.full_label(column) if is_measure(column) else column
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
    figure, axes = page_panels(title, len(panels), height, sharey=True)
    if not wide:
        figure.set_figwidth(COLUMN_WIDTH)
    for place, (panel, lines) in zip(axes, panels.items(), strict=True):
        _draw_panel(place, curves, lines, names)
        place.set_title(panel, parse_math=False)
    axes[0].set_ylabel(curves.label(curves.y), parse_math=False)
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
        if is_measure(curves.x):  # a narrow axis has no room for the label of every digit
            axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if numeric and len(values) <= MAXIMUM_TICKS and not is_measure(curves.x):
        axes.xaxis.set_major_locator(FixedLocator(values))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel(curves.label(curves.x), parse_math=False)
    axes.grid(axis="y")
