"""A study's table: one finished model over a grid of settings, or a sweep's models side by side.

The table is tidy, with one row for each setting. Its columns are first the settings, then the
measures (a metric such as "mrr@10", or a cost such as "cost/query_ms").
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from omegaconf import DictConfig, OmegaConf

from analysis.figures import Gallery, GalleryEntry, draw_lines
from analysis.runs.run_folder import STUDY, Run, look_up
from analysis.tables.comparison import Comparison
from analysis.tables.metric_names import MISSING, Statistic, format_value, read_key
from analysis.tables.rows import (
    Cell,
    Row,
    Table,
    describe_value,
    format_markdown,
    read_rows,
    write_rows,
)
from data_modules.module import RetrievalDataModule
from gr_mvdr.files import write_text
from gr_mvdr.options import admitting, build, check_options, inspect_signature
from models.base import System

# Columns that name a row's collection, or count what it holds.
COLLECTION = ("setting", "collection", "documents", "n_queries")
OWN_COLUMNS = ("model", "seed")  # swept keys that every row of a sweep has anyway
MOST_NAMED = 3  # the most collections that a title names
CAPTION = "One point for each setting; whiskers are the standard deviation over seeds."


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
) -> dict[str, float]:
    """Makes the configured study; writes `study.csv`, `study.md` and figures to the run's folder.

    Returns:
        Flat metrics, "analysis/…"; {} without a study.
    """
    if not settings:
        return {}
    study = _build_study(settings)
    study.check(model)
    found = study(model, data, Path(run))
    write_study(found.tables.pop("study"), data.collection.name, Path(run), found.figures)
    for name, rows in found.tables.items():
        write_rows(rows, Path(run) / f"{name}.csv")
    return found.metrics


def _build_study(settings: Mapping[str, Any]) -> Any:
    if isinstance(settings, DictConfig):
        settings = OmegaConf.to_container(settings, resolve=True)
    with admitting(settings):
        return build("study", settings)


def write_study(
    rows: Sequence[Row],
    title: str,
    folder: Path,
    figures: Sequence[tuple[Figure, GalleryEntry]] = (),
) -> list[Path]:
    """Writes `study.csv`, `study.md` and figures to a folder; returns all of them but the CSV.

    In the CSV, a setting that a row lacks is an empty cell.
    """
    columns = sorted(dict.fromkeys(column for row in rows for column in row), key=is_measure)
    write_rows(rows, folder / STUDY, columns)
    heading = f"{title}; mean ± standard deviation over seeds"
    table = "\n".join(format_markdown(tabulate_study(rows, heading)))
    write_text(folder / "study.md", f"{table}\n")
    gallery = Gallery(folder / "figures", keep=True)
    for figure, entry in figures:
        gallery.add(figure, entry)
    drawn = [folder / "figures" / f"{entry.name}.png" for figure, entry in figures if figure.axes]
    return [folder / "study.md", *drawn]


def is_measure(column: str) -> bool:
    """Whether a column was measured; the others say what was set."""
    return "@" in column or column.startswith("cost/")


def make_frame(rows: Sequence[Row]) -> pd.DataFrame:
    """Returns the rows as a frame, settings before measures.

    A setting that is null is "null", one that a row lacks is "–": these are different settings.
    """
    frame = pd.DataFrame(rows, dtype=object)
    columns = sorted(frame, key=is_measure)
    missing = {column: MISSING for column in columns if not is_measure(column)}
    numbers = {column: float for column in columns if is_measure(column)}
    return frame[columns].fillna(missing).astype(numbers)


def tabulate_study(rows: Sequence[Row], heading: str) -> Table:
    """Tabulates the rows for readers, averaged over seeds: the settings, then the measures."""
    frame = make_frame(rows)
    settings = [column for column in frame if not is_measure(column) and column != "seed"]
    measures = [column for column in frame if is_measure(column)]
    lines = []
    for _, found in frame.groupby(settings, sort=False):
        texts = [str(found[column].iloc[0]) for column in settings]
        for column in measures:
            values = found[column].dropna().tolist()
            statistic = Statistic.over(values) if values else None
            texts.append(format_value(column, statistic))
        lines.append((texts[0], list(map(Cell, texts[1:]))))
    names = [*settings, *(read_key(column).name for column in measures)]
    return Table(heading, names[1:], lines, corner=names[0])


def average_collections(rows: Sequence[Row]) -> list[Row]:
    """Averages each setting over its collections, seed by seed.

    In the averages, `collection` is "average" and `collections` is the number of collections. A
    measure that one collection lacks is left out.
    """
    frame = make_frame(rows).drop(columns=[*COLLECTION], errors="ignore")
    settings = [column for column in frame if not is_measure(column)]
    groups = frame.groupby(settings, sort=False)
    means = groups.agg(lambda values: values.mean(skipna=False))
    means.insert(0, "collection", "average")
    means.insert(1, "collections", groups.size())
    found = means.reset_index().to_dict("records")
    return [{c: v for c, v in row.items() if v not in (MISSING, None) and v == v} for row in found]


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
    drawings: Sequence[Curves], rows: Sequence[Row], title: str, caption: str = CAPTION
) -> list[tuple[Figure, GalleryEntry]]:
    """Draws the figures "study", "study_2", … of a table."""
    figures = []
    for number, curves in enumerate(drawings, start=1):
        name = f"study_{number}" if number > 1 else "study"
        entry = GalleryEntry(name, f"{_label(curves.y)} by {_label(curves.x)}", caption)
        figures.append((draw_curves(curves, rows, title), entry))
    return figures


def draw_curves(curves: Curves, rows: Sequence[Row], title: str) -> Figure:
    """Draws a study's table; points are means over seeds, whiskers their standard deviation.

    Raises:
        ValueError: a column is missing, or several settings share a point.
    """
    frame = make_frame(rows)
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
    if not is_measure(curves.x) and points.duplicated(own).any():
        raise ValueError(
            f"curves: several settings share a point of {curves.x}: name what distinguishes them "
            "in hue or column"
        )
    figure = draw_lines(points, title, _label(curves.x), _label(curves.y))
    for axes in figure.axes:
        if numeric and 0 < 10 * points["x"].min() <= points["x"].max():
            axes.set_xscale("log")
    return figure


def is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _name(setting: Row) -> str:
    """Names a line or panel: "gather, neighbours = 10"; a setting that a row lacks has no part."""
    shown = {name: value for name, value in setting.items() if value != MISSING}
    words = [v if isinstance(v, str) and v != "null" else f"{n} = {v}" for n, v in shown.items()]
    return _plain(", ".join(words))


def _label(column: str) -> str:
    """Returns a column's name on an axis."""
    return _plain(read_key(column).name if is_measure(column) else column)


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
    rows, across = list(_sweep_rows(comparison, swept)), "collection" in swept
    if not (curves or across or any((run.path / STUDY).is_file() for run in comparison.runs)):
        return []
    rows += average_collections(rows) if across else []
    settings = [section.setting for section in comparison.sections]
    several = len(settings) > MOST_NAMED
    title = f"{len(settings)} collections" if several else "; ".join(settings)
    return write_study(rows, title, folder, draw_all(curves, rows, title))


def _sweep_rows(comparison: Comparison, swept: Sequence[str]) -> Iterator[Row]:
    for section in comparison.sections:
        setting = {"setting": section.setting} if len(comparison.sections) > 1 else {}
        for run in (run for group in section.groups for run in group.runs):
            chosen = {"system": run.system, **find_swept_values(run, swept), "seed": run.seed}
            study = run.path / STUDY
            rows = read_rows(study, run.path) if study.is_file() else [main_metrics(run.metrics)]
            yield from (setting | chosen | row for row in rows)


def main_metrics(metrics: Mapping[str, float]) -> Row:
    """Returns the row of a run without a study: metrics of its main split and form, and costs."""
    named = {key.removeprefix("retrieve/"): key for key in metrics}
    return {
        name: metrics[key]
        for name, key in named.items()
        if name.startswith("cost/")
        or ("@" in name and key.count("/") == 1 and key.startswith(("retrieve/", "rerank/")))
    }


def find_swept_values(run: Run, swept: Sequence[str]) -> Row:
    """Returns swept key → a run's choice: a part's class and arguments, or a group's option.

    Args:
        swept: keys such as "model.dimension", or groups such as "salience".
    """
    typed = run.provenance.get("overrides") or []
    options = dict(line.lstrip("+").split("=", 1) for line in typed if "=" in line)
    values: Row = {}
    for key in (key for key in swept if key not in OWN_COLUMNS):
        value = look_up(run.config, key)
        if value is None or (isinstance(value, dict) and "_target_" not in value):
            value = options.get(key, value)
        values[key] = describe_value(value)
    return values
