"""The long table: each number of some systems in a row of its own; other tables are parts of it."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict

from pandas import DataFrame, Series

from analysis.tables.metric_names import Key, Statistic, order, read_key, text
from analysis.tables.rows import Cell, Table, pivot

MANY_COLUMNS = 8  # more than these do not fit on a page
COLUMNS = ("system", "key", *Key._fields, "name", "mean", "std", "low", "high", "cell")
NO_WINNERS: Mapping[str, str] = {}


def tabulate(
    systems: Mapping[str, Mapping[str, Statistic]], winners: Mapping[str, str] = NO_WINNERS
) -> DataFrame:
    """The metrics of systems in reading order.

    Args:
        systems: label → metric → its value.
        winners: metric → the system that is significantly better than every other: gets a star.

    Returns:
        `COLUMNS`: what the key says (`Key`), the numbers, and their cell: the best of several is
        the highest for effectiveness, the lowest for costs and errors.
    """
    rows = []
    for key in sorted({key: None for metrics in systems.values() for key in metrics}, key=order):
        read, measured = read_key(key), {s: m[key] for s, m in systems.items() if key in m}
        better = "low" if read.group == "cost" else read.metric.better
        means = [statistic.mean for statistic in measured.values()]
        best = {"high": max, "low": min}[better](means) if better and len(means) > 1 else None
        for system, statistic in measured.items():
            star = " *" if winners.get(key) == system else ""
            cell = Cell(text(key, statistic) + star, statistic.mean == best)
            place = {"system": system, "key": key, "name": read.name, "cell": cell}
            rows.append(place | read._asdict() | asdict(statistic))
    return DataFrame(rows, columns=COLUMNS).astype({"headline": bool, "whole": bool})


def select(table: DataFrame, rows: str | Series, columns: str, **about: str) -> Table:
    """A part of the long table for people: its cells by two of its columns."""
    names = table[rows] if isinstance(rows, str) else rows
    cells = zip(names, table[columns], table["cell"], strict=True)
    return pivot({(row, column): cell for row, column, cell in cells}, **about)


def tabulate_chapters(table: DataFrame) -> dict[str, list[Table]]:
    """All metrics, chapter by chapter: rows say where they were measured, and on which system.

    Metrics by parts (ranges of IDF, stages of a run) have a table of their own for each unit.
    """
    chapters = defaultdict(list)
    units = [metric.unit for metric in table["metric"]]
    kinds = [unit * (not whole) for unit, whole in zip(units, table["whole"], strict=True)]
    for (chapter, *_), part in table.groupby(["chapter", "whole", kinds], sort=False):
        rows, corner = part["section"], ""
        if table["system"].nunique() > 1:
            rows = part["system"] if rows.nunique() == 1 else rows + ", " + part["system"]
            corner = "system"
        found = select(part, rows, "label", heading=chapter, corner=corner)
        wide = len(found.columns) > max(MANY_COLUMNS, len(found.rows))
        chapters[chapter].append(found.turned() if wide else found)
    return chapters
