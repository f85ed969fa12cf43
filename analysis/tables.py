"""Tables: rows of plain values in CSV files, and metrics laid out for people."""

import csv
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from analysis import metric_names
from analysis.comparison.comparison import Group, Section
from analysis.metric_names import Statistic
from gr_mvdr.files.writing import new_file

Row = dict[str, Any]
MANY_COLUMNS = 8  # more than these do not stand side by side on a page


class Cell(NamedTuple):
    """A value for people, and whether it is the best of its column."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Table:
    """Named rows of cells under a heading; `corner` says what the names are.

    `chapter` is what a page shows it under.
    """

    heading: str
    columns: list[str]
    rows: list[tuple[str, list[Cell]]]
    corner: str = "system"
    chapter: str = ""


def format_markdown(table: Table) -> list[str]:
    """The lines of a table under its heading; the best are bold."""
    lines = [f"## {table.heading}", "", _markdown_row(table.corner, map(Cell, table.columns))]
    lines += ["|---|" + "---:|" * len(table.columns)]
    return lines + [_markdown_row(*row) for row in table.rows]


def _markdown_row(name: str, cells: Iterable[Cell]) -> str:
    texts = [name, *(f"**{cell.text}**" if cell.best else cell.text for cell in cells)]
    return f"| {' | '.join(text.replace('|', chr(92) + '|') for text in texts)} |"


def summarise_section(section: Section, keys: Sequence[str] | None = None) -> Table:
    """The metrics that matter, one row for each system, one column for each metric.

    Args:
        keys: which; by default the section's headlines.
    """
    keys = section.headlines if keys is None else keys
    rows = [(group.label, [_cell(section, key, group) for key in keys]) for group in section.groups]
    return Table(section.setting, [metric_names.full_label(key) for key in keys], rows)


def _cell(section: Section, key: str, group: Group) -> Cell:
    statistic = group.statistics.get(key)
    best = statistic is not None and statistic.mean == section.best(key)
    return Cell(metric_names.text(key, statistic), best)


def tabulate_section(section: Section) -> list[Table]:
    """Every metric of a comparison: rows are systems, and where they rerank in several forms,
    one for each form, since all of them order the same candidates."""
    keys = defaultdict(lambda: defaultdict(dict))
    for key in section.keys:
        heading, form = metric_names.heading(key, section.splits)
        keys[metric_names.chapter(key), heading][form][metric_names.label(key)] = key
    return [_comparison_table(section, *place, forms) for place, forms in keys.items()]


def _comparison_table(
    section: Section, chapter: str, heading: str, forms: dict[str, dict[str, str]]
) -> Table:
    columns = list(dict.fromkeys(label for labels in forms.values() for label in labels))
    rows = {
        f"{group.label}, {form}" if form else group.label: [
            (labels.get(column, ""), group.statistics.get(labels.get(column, "")))
            for column in columns
        ]
        for group in section.groups
        for form, labels in forms.items()
    }
    rows = {name: row for name, row in rows.items() if any(value for _, value in row)}
    best = [_best(column) for column in zip(*rows.values(), strict=True)]
    cells = {
        name: [
            Cell(metric_names.text(key, value), value is not None and value.mean == winner)
            for (key, value), winner in zip(row, best, strict=True)
        ]
        for name, row in rows.items()
    }
    return Table(heading, columns, list(cells.items()), chapter=chapter)


def _best(column: tuple[tuple[str, Statistic | None], ...]) -> float | None:
    present = [(key, value.mean) for key, value in column if value]
    return metric_names.best(present[0][0], [mean for _, mean in present]) if present else None


def tabulate_run(metrics: dict[str, float]) -> dict[str, list[Table]]:
    """The metrics of one run, chapter by chapter; IDF bins have a table of their own."""
    statistics = metric_names.join_intervals(metrics)
    keys = sorted(statistics, key=metric_names.order)
    tables = defaultdict(list)
    for (chapter, _), inside in groupby(keys, _chapter_and_table):
        tables[chapter].append(_readable(_run_table(chapter, statistics, list(inside))))
    return tables


def _chapter_and_table(key: str) -> tuple[str, str]:
    return metric_names.chapter(key), metric_names.table(key)


def _run_table(chapter: str, statistics: dict[str, Statistic], keys: list[str]) -> Table:
    """Sections as rows, labels as columns, both in their first order."""
    columns = list(dict.fromkeys(map(metric_names.label, keys)))
    rows = {section: [Cell(metric_names.MISSING)] * len(columns) for section in _sections(keys)}
    for key in keys:
        value = metric_names.text(key, statistics[key])
        rows[metric_names.section(key)][columns.index(metric_names.label(key))] = Cell(value)
    return Table(chapter, columns, list(rows.items()))


def _readable(table: Table) -> Table:
    """A table that is much wider than high, turned."""
    if len(table.columns) <= max(MANY_COLUMNS, len(table.rows)):
        return table
    names = [name for name, _ in table.rows]
    turned = zip(*(cells for _, cells in table.rows), strict=True)
    rows = [(column, list(cells)) for column, cells in zip(table.columns, turned, strict=True)]
    return Table(table.heading, names, rows, table.corner)


def _sections(keys: list[str]) -> dict[str, None]:
    return dict.fromkeys(map(metric_names.section, keys))


def list_headlines(metrics: dict[str, float], splits: set[str]) -> list[tuple[str, str]]:
    """The metrics of one run that matter: name and value."""
    statistics = metric_names.join_intervals(metrics)
    keys = metric_names.headlines(sorted(statistics, key=metric_names.order), splits)
    return [(metric_names.full_label(k), metric_names.text(k, statistics[k])) for k in keys]


def write_rows(
    rows: Sequence[Row], path: Path, columns: Sequence[str] | None = None, none: str = ""
) -> None:
    """Writes rows as CSV (temporary name, then renamed); an empty cell where a value is NaN.

    Args:
        columns: in which order; by default as they first appear in the rows.
        none: what stands for None.
    """
    columns = columns or list(dict.fromkeys(name for row in rows for name in row))
    with new_file(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        for row in rows:
            writer.writerow({name: _csv_cell(value, none) for name, value in row.items()})


def _csv_cell(value: Any, none: str) -> Any:
    if value is None:
        return none
    return "" if value != value else value


def describe_value(value: Any) -> Any:
    """A value for a cell: a part by its class and arguments, "FirstTokens(k=28)"."""
    if isinstance(value, dict) and "_target_" in value:
        arguments = (f"{k}={describe_value(part)}" for k, part in value.items() if k != "_target_")
        return f"{value['_target_'].rpartition('.')[2]}({', '.join(arguments)})"
    return str(value) if isinstance(value, dict | list) else value
