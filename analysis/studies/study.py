"""A study: what a finished run is asked beyond its own search, as a table and a figure.

A study is built from `conf/study/` and called once the run's index stands. Its table is tidy: a row
a setting; the columns that say what was set, then the measures (a metric such as "mrr@10", or a
cost such as "cost/query_ms").
"""

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Protocol

from matplotlib.figure import Figure
from omegaconf import DictConfig, OmegaConf

from analysis import metric_names
from analysis.figures import Gallery, GalleryEntry
from analysis.metric_names import Statistic
from analysis.tables import Cell, Row, Table, format_markdown, write_rows
from gr_mvdr.files.writing import write_text
from gr_mvdr.parts import admitting, build

NAME = "study"
TABLE = f"{NAME}.csv"
# A column that tells repetitions of one setting apart; the others of its kind are choices.
SEED = "seed"


@dataclass(frozen=True)
class Findings:
    """What a study found.

    Attributes:
        rows: a setting each, settings before measures.
        table: the same for people.
        figure, entry: the picture, and how to read it.
        metrics: flat, for the run's `metrics.json`.
        further: file name without suffix → rows of another CSV.
    """

    rows: list[Row]
    table: Table
    figure: Figure
    entry: GalleryEntry
    metrics: dict[str, float] = field(default_factory=dict)
    further: dict[str, list[Row]] = field(default_factory=dict)


class Study(Protocol):
    """What `conf/study/` names."""

    def check(self, model: Any) -> None:
        """Refuses a model or an option that the study cannot work with (ValueError)."""

    def __call__(self, model: Any, data: Any, run: Path) -> Findings:
        """Asks a model whose index is built."""


def check_study(settings: Mapping[str, Any] | None, model: Any) -> None:
    """Refuses a study that cannot be made with this model, before hours of training.

    Args:
        settings: `_target_` and arguments of a study; nothing = no study.
        model: a `models.base.System`, untrained.

    Raises:
        ValueError: the study's options or the system are at fault.
    """
    if settings:
        _study(settings).check(model)


def run_study(
    settings: Mapping[str, Any] | None, model: Any, data: Any, run: Path
) -> dict[str, float]:
    """Makes the study that the configuration asks for: `study.csv`, `study.md` and a figure.

    Args:
        settings: `_target_` and arguments of a study; nothing = no study.
        model: a `models.base.System` whose index is built; data: a `RetrievalDataModule`.
        run: the run's folder.

    Returns:
        Flat metrics, "analysis/…"; none without a study.

    Raises:
        ValueError: as `check_study`.
    """
    if not settings:
        return {}
    study = _study(settings)
    study.check(model)
    found = study(model, data, Path(run))
    write_study(found.rows, Path(run) / TABLE)
    for name, rows in found.further.items():
        write_study(rows, Path(run) / f"{name}.csv")
    write_study_table(found.table, Path(run))
    Gallery(Path(run) / "figures", keep=True).add(found.figure, found.entry)
    return found.metrics


def _study(settings: Mapping[str, Any]) -> Study:
    if isinstance(settings, DictConfig):
        settings = OmegaConf.to_container(settings, resolve=True)
    with admitting(settings):
        return build("study", settings)


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


def read_rows(path: Path) -> list[Row]:
    """The rows of `write_study`; numbers are numbers again."""
    with path.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    return [{column: _value(text) for column, text in line.items() if text} for line in lines]


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None if text == "null" else text


def average_seeds(rows: Sequence[Row]) -> list[tuple[Row, dict[str, Statistic]]]:
    """Each setting with its measures, mean and sample standard deviation over the seeds."""
    groups: dict[tuple, list[Row]] = defaultdict(list)
    for row in rows:
        settings = [(c, v) for c, v in row.items() if not is_measure(c) and c != SEED]
        groups[tuple(sorted(settings, key=lambda pair: pair[0]))].append(row)
    return [(dict(settings), _statistics(same)) for settings, same in groups.items()]


def _statistics(rows: Sequence[Row]) -> dict[str, Statistic]:
    values = defaultdict(list)
    for row in rows:
        for column, value in row.items():
            if is_measure(column) and value is not None:
                values[column].append(value)
    return {
        column: Statistic(fmean(found), stdev(found) if len(found) > 1 else None)
        for column, found in values.items()
    }


def tabulate_study(rows: Sequence[Row], heading: str) -> Table:
    """The rows for people, seeds averaged: the settings, then the measures."""
    settings = [c for c in order_columns(rows) if not is_measure(c) and c != SEED]
    measures = [column for column in order_columns(rows) if is_measure(column)]
    lines = []
    for setting, statistics in average_seeds(rows):
        texts = [_text(setting, column) for column in settings]
        texts += [metric_names.text(column, statistics.get(column)) for column in measures]
        lines.append((texts[0], list(map(Cell, texts[1:]))))
    names = [*settings, *map(metric_names.column_label, measures)]
    return Table(heading, names[1:], lines, corner=names[0])


def _text(setting: Row, column: str) -> str:
    value = setting.get(column, metric_names.MISSING)
    return "null" if value is None else str(value)


def write_study_table(table: Table, folder: Path) -> None:
    """Writes `study.md` into a folder."""
    write_text(folder / f"{NAME}.md", "\n".join(format_markdown(table)) + "\n")
