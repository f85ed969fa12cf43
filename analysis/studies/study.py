"""A study: one finished model asked over a grid of settings, as a table and a figure.

A study is built from `conf/study/` and called once the run's index is there. Its table is tidy: a
row a setting; the columns that say what was set, then the measures (a metric such as "mrr@10", or
a cost such as "cost/query_ms").
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from omegaconf import DictConfig, OmegaConf

from analysis import metric_names
from analysis.analysis import Findings
from analysis.figures import Gallery
from analysis.metric_names import Statistic
from analysis.tables import Cell, Row, Table, format_markdown, write_rows
from data_modules.module import RetrievalDataModule
from gr_mvdr.files.writing import write_text
from gr_mvdr.parts import admitting, build
from models.base import System

# A column that tells repetitions of one setting apart; the others of its kind are choices.
SEED = "seed"


class Study(Protocol):
    """What `conf/study/` names."""

    def check(self, model: System) -> None:
        """Refuses a model or an option that the study cannot work with (ValueError)."""

    def __call__(
        self, model: System, data: RetrievalDataModule, run: Path
    ) -> tuple[Findings, Table]:
        """Asks a model whose index is built.

        Returns:
            The findings, whose first table is "study", a row a setting, settings before measures;
            and that table for people.
        """


def check_study(settings: Mapping[str, Any] | None, model: System) -> None:
    """Refuses a study that cannot be made with this model, before hours of training.

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
    groups: dict[tuple, dict[str, list]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        settings = [(c, v) for c, v in row.items() if not is_measure(c) and c != SEED]
        values = groups[tuple(sorted(settings, key=lambda pair: pair[0]))]
        for column, value in row.items():
            if is_measure(column) and value is not None:
                values[column].append(value)
    return [
        (dict(settings), {column: Statistic.over(found) for column, found in values.items()})
        for settings, values in groups.items()
    ]


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
    names = [*settings, *map(metric_names.column_label, measures)]
    return Table(heading, names[1:], lines, corner=names[0])


def write_study_table(table: Table, folder: Path) -> None:
    """Writes `study.md` into a folder."""
    write_text(folder / "study.md", "\n".join(format_markdown(table)) + "\n")
