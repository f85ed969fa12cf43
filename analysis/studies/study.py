"""A study's table: one finished model over a grid of settings, or a sweep's models side by side."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from omegaconf import DictConfig, OmegaConf
from pandas import DataFrame

from analysis.compare.groups import Comparison
from analysis.figures import Gallery, GalleryEntry, draw_lines
from analysis.runs.numbers import MISSING, format_value, make_frame
from analysis.runs.queries import keep_queries
from analysis.runs.run_folder import Run, look_up
from analysis.runs.settings import read_settings, write_setting
from analysis.runs.tables import Cell, Table, describe_value, format_markdown, write_csv
from data_modules.module import RetrievalDataModule
from gr_mvdr.files import write_text
from gr_mvdr.measures import COST, RANKED, RERANK, RETRIEVE, STUDY, Measured
from gr_mvdr.options import admitting, build, check_options, inspect_signature
from models.base import System

# Columns that name a row's collection, or count what it holds.
COLLECTION = ("setting", "collection", "documents", "n_queries")
OWN_COLUMNS = ("model", "seed")  # swept keys that every row of a sweep has anyway
MOST_NAMED = 3  # the most collections that a title names
CAPTION = "One point for each setting; whiskers are the standard deviation over seeds."


@dataclass(frozen=True)
class StudyTable:
    """A row for each setting: what was set, and what was measured.

    Attributes:
        frame: the settings, then the measures. A setting that is null is "null", one that a row
            lacks is "–": these are different settings.
        measures: column of a measure, such as "mrr@10" or "cost/query_ms" → its declaration (the
            columns of `analysis.runs.numbers`).
    """

    frame: DataFrame
    measures: dict[str, Any]

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]], measures: Mapping[str, Any]) -> "StudyTable":
        """Makes the table of rows of settings and measures."""
        frame = DataFrame(rows, dtype=object)
        for column in (column for column in frame if column not in measures):
            null = [row.get(column, MISSING) is None for row in rows]
            frame[column] = frame[column].mask(null, "null").fillna(MISSING)
        measured = [column for column in measures if column in frame]
        frame = frame[[*(c for c in frame if c not in measures), *measured]]
        return cls(frame.astype(dict.fromkeys(measured, float)), dict(measures))

    @property
    def settings(self) -> list[str]:
        """The columns that say what was set, without the seed."""
        return [c for c in self.frame if c not in self.measures and c != "seed"]

    def label(self, column: str) -> str:
        """Returns a column's name for readers."""
        if column not in self.measures:
            return column
        one = self.measures[column]
        group = next((g for g in (COST.name, RERANK.name) if g in (one.group, one.place)), "")
        words = group, one.form, one.label if one.label != one.form else ""
        return " ".join(filter(None, words))


def read_study(numbers: DataFrame) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Returns the rows and the measures of a run's study, as `StudyTable.of` takes them."""
    settings = read_settings(numbers)
    rows = {part: dict(setting) for part, setting in settings.items()}
    measures = {}
    for one in numbers[numbers["group"] == STUDY.name].itertuples():
        column = f"{one.place}/{one.metric}" if one.place else one.metric
        rows[one.part][column], measures[column] = one.value, one
    return list(rows.values()), measures


def study_rows(setting: Mapping[str, Any], rows: Iterable[Measured]) -> list[Measured]:
    """Returns numbers of a run as numbers of a study's setting."""
    part = write_setting(setting)
    about = {"group": STUDY, "part": part}
    return [
        replace(
            one, place=COST.name if one.group == COST else one.place, label=one.metric.form, **about
        )
        for one in rows
    ]


def check_study(settings: Mapping[str, Any] | None, model: System) -> None:
    """Raises ValueError if the study cannot work with a model, before hours of training.

    Args:
        settings: `_target_` and arguments of a study; nothing = no study.
        model: untrained.
    """
    if settings:
        _build_study(settings).check(model)


def run_study(
    settings: Mapping[str, Any] | None, model: System, data: RetrievalDataModule, run: Path
) -> list[Measured]:
    """Makes the configured study; writes `study.csv`, `study.md` and figures to the run's folder.

    Returns:
        What it measured; nothing without a study.
    """
    if not settings:
        return []
    study = _build_study(settings)
    study.check(model)
    found = study(model, data, Path(run))
    table = StudyTable.of(*read_study(make_frame(found.rows)))
    write_study(table, data.collection.name, Path(run), found.figures)
    keep_queries(Path(run), found.queries)
    for name, rows in found.tables.items():
        write_csv(rows, Path(run) / f"{name}.csv")
    return found.rows


def _build_study(settings: Mapping[str, Any]) -> Any:
    if isinstance(settings, DictConfig):
        settings = OmegaConf.to_container(settings, resolve=True)
    with admitting(settings):
        return build("study", settings)


def write_study(
    table: StudyTable,
    title: str,
    folder: Path,
    figures: Sequence[tuple[Figure, GalleryEntry]] = (),
) -> list[Path]:
    """Writes `study.csv`, `study.md` and figures to a folder; returns all of them but the CSV.

    In the CSV, a setting that a row lacks is an empty cell.
    """
    write_csv(table.frame.replace(MISSING, None), folder / "study.csv")
    heading = f"{title}; mean ± standard deviation over seeds"
    text = "\n".join(format_markdown(tabulate_study(table, heading)))
    write_text(folder / "study.md", f"{text}\n")
    gallery = Gallery(folder / "figures", keep=True)
    for figure, entry in figures:
        gallery.add(figure, entry)
    drawn = [folder / "figures" / f"{entry.name}.png" for figure, entry in figures if figure.axes]
    return [folder / "study.md", *drawn]


def tabulate_study(table: StudyTable, heading: str) -> Table:
    """Tabulates the rows for readers, averaged over seeds: the settings, then the measures."""
    groups = table.frame.groupby(table.settings, sort=False)
    means, spread = (getattr(groups[[*table.measures]], how)() for how in ("mean", "std"))
    first, *others = table.settings
    cells = means.index.to_frame(index=False).map(lambda value: Cell(str(value)))
    for column, declared in table.measures.items():
        values = zip(means[column], spread[column], strict=True)
        rows = [
            None
            if pd.isna(mean)
            else SimpleNamespace(value=mean, std=std, unit=declared.unit, low=float("nan"))
            for mean, std in values
        ]
        cells[column] = [Cell(format_value(row)) for row in rows]
    names = [cell.text for cell in cells[first]]
    cells = cells[[*others, *table.measures]].set_axis(names)
    return Table(cells.rename(columns=table.label), heading, first)


def average_collections(table: StudyTable) -> list[dict[str, Any]]:
    """Averages each setting over its collections, seed by seed.

    In the averages, `collection` is "average" and `collections` is the number of collections. A
    measure that one collection lacks is left out.
    """
    frame = table.frame.drop(columns=[*COLLECTION], errors="ignore")
    groups = frame.groupby([c for c in frame if c not in table.measures], sort=False)
    means = groups.agg(lambda values: values.mean(skipna=False))
    means.insert(0, "collection", "average")
    means.insert(1, "collections", groups.size())
    rows = means.reset_index().to_dict("records")
    return [{c: v for c, v in row.items() if v not in (MISSING, None) and v == v} for row in rows]


@dataclass(frozen=True)
class Curves:
    """The columns of a study's table that a figure shows.

    Attributes:
        x: a setting, or a measure such as "cost/index_bytes".
        y: a measure.
        hue: the settings that distinguish the lines.
        column: the setting that distinguishes the panels.
    """

    x: str
    y: str = "mrr@10"
    hue: str | Sequence[str] = ()
    column: str | None = None


def read_curves(curves: Any) -> list[Curves]:
    """Reads the drawings of a configuration: the arguments of one `Curves`, or a list of them.

    Raises:
        ValueError: an unknown key, or a value of another type.
    """
    plain = OmegaConf.to_container(curves) if OmegaConf.is_config(curves) else curves or []
    drawings = [plain] if isinstance(plain, Mapping) else plain
    for one in drawings:
        check_options("curves", inspect_signature(Curves), one, ())
    return [Curves(**one) for one in drawings]


def draw_all(
    drawings: Sequence[Curves], table: StudyTable, title: str, caption: str = CAPTION
) -> list[tuple[Figure, GalleryEntry]]:
    """Draws the figures "study", "study_2", … of a table."""
    figures = []
    for number, curves in enumerate(drawings, start=1):
        name = f"study_{number}" if number > 1 else "study"
        heading = f"{_plain(table.label(curves.y))} by {_plain(table.label(curves.x))}"
        entry = GalleryEntry(name, heading, caption)
        figures.append((draw_curves(curves, table, title), entry))
    return figures


def draw_curves(curves: Curves, table: StudyTable, title: str) -> Figure:
    """Draws a study's table; points are means over seeds, whiskers their standard deviation.

    Raises:
        ValueError: a column is missing, or several settings share a point.
    """
    frame = table.frame
    hues = [curves.hue] if isinstance(curves.hue, str) else [*curves.hue]
    panels = [curves.column] if curves.column else []
    asked = {"x": [curves.x], "y": [curves.y], "hue": hues, "column": panels}
    for key, name in ((key, name) for key, names in asked.items() for name in names):
        if name not in frame:
            raise ValueError(f"curves.{key}={name}: must be one of {', '.join(frame)}")
    frame = frame[frame[curves.y].notna() & ~frame[curves.x].isin([MISSING, "null"])]
    x = frame[curves.x]
    numeric = bool(x.map(is_number).all())
    points = frame.assign(
        x=x.astype(float if numeric else str),
        y=frame[curves.y],
        line=[_name(row) for row in frame[hues].to_dict("records")],
        panel=[_name(row) for row in frame[panels].to_dict("records")],
    )
    # Averaging different settings would draw what nobody measured.
    own = [name for name in ("x", "line", "panel", "seed") if name in points]
    if curves.x not in table.measures and points.duplicated(own).any():
        raise ValueError(
            f"curves: several settings share a point of {curves.x}: name what distinguishes them "
            "in hue or column"
        )
    labels = _plain(table.label(curves.x)), _plain(table.label(curves.y))
    figure = draw_lines(points, title, *labels)
    for axes in figure.axes:
        if numeric and 0 < 10 * points["x"].min() <= points["x"].max():
            axes.set_xscale("log")
    return figure


def is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _name(setting: Mapping[str, Any]) -> str:
    """Names a line or panel: "gather, neighbours = 10"; a setting that a row lacks has no part."""
    shown = {name: value for name, value in setting.items() if value != MISSING}
    words = [v if isinstance(v, str) and v != "null" else f"{n} = {v}" for n, v in shown.items()]
    return _plain(", ".join(words))


def _plain(text: str) -> str:
    """Escapes "$" in a text, which would begin a formula."""
    return text.replace("$", r"\$")


def write_sweep_study(
    comparison: Comparison, folder: Path, swept: Sequence[str], curves: Sequence[Curves] = ()
) -> list[Path]:
    """Writes the studies of a sweep's runs as one table, and draws its curves.

    The table of a sweep over collections ends with the averages over them. For any other sweep
    nothing is written if no run made a study and there are no curves.

    Args:
        comparison: the sweep's runs.
        folder: the comparison's folder.
        swept: keys of the configuration that the sweep varied, groups included.

    Returns: the Markdown table, then the figures.

    Raises:
        ValueError: the table lacks what the curves need.
    """
    across = "collection" in swept
    if not (curves or across or any(read_settings(run.numbers) for run in comparison.runs)):
        return []
    rows, measures = _sweep_rows(comparison, swept)
    if across:
        rows += average_collections(StudyTable.of(rows, measures))
    table = StudyTable.of(rows, measures)
    settings = [section.setting for section in comparison.sections]
    several = len(settings) > MOST_NAMED
    title = f"{len(settings)} collections" if several else "; ".join(settings)
    return write_study(table, title, folder, draw_all(curves, table, title))


def _sweep_rows(
    comparison: Comparison, swept: Sequence[str]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    rows, measures = [], {}
    for section in comparison.sections:
        setting = {"setting": section.setting} if len(comparison.sections) > 1 else {}
        for run in (run for group in section.groups for run in group.runs):
            chosen = {"system": run.system, **find_swept_values(run, swept), "seed": run.seed}
            studied, found = read_study(run.numbers)
            if not studied:
                found = main_numbers(run.numbers)
                studied = [{column: one.value for column, one in found.items()}]
            rows += [setting | chosen | row for row in studied]
            measures |= found
    return rows, measures


def main_numbers(numbers: DataFrame) -> dict[str, Any]:
    """Returns the numbers of a run without a study: of its main split and form, and its costs."""
    shown = (numbers["place"] == "") & (numbers["split"] == "") & numbers["group"].isin(RANKED)
    rows = numbers[shown | (numbers["group"] == COST.name)].itertuples()
    return {one.metric if one.group == RETRIEVE.name else one.key: one for one in rows}


def find_swept_values(run: Run, swept: Sequence[str]) -> dict[str, Any]:
    """Returns swept key → a run's choice: a part's class and arguments, or a group's option.

    Args:
        swept: keys such as "model.dimension", or groups such as "salience".
    """
    values: dict[str, Any] = {}
    for key in (key for key in swept if key not in OWN_COLUMNS):
        value = look_up(run.config, key)
        if value is None or (isinstance(value, dict) and "_target_" not in value):
            value = run.typed.get(key, value)
        values[key] = describe_value(value)
    return values
