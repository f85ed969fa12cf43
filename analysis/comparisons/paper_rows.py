"""Which of our runs are those of a paper's row, and what they measured there."""

from statistics import fmean, stdev
from typing import Any

from analysis.comparisons.comparison import Group
from analysis.comparisons.paper import PaperRow
from analysis.metric_names import Statistic
from analysis.run_folder import Run
from analysis.studies.study import TABLE, read_rows
from analysis.studies.sweep_study import described


def is_of(group: Group, row: PaperRow) -> bool:
    """Whether a group's system, place and configuration are the row's."""
    run = group.runs[0]
    places = {key.rpartition("/")[0] for key in group.statistics}
    return (
        run.system in row.systems
        and row.place in places
        and all(_has(run, key, wanted) for key, wanted in row.where.items())
    )


def _has(run: Run, key: str, wanted: Any) -> bool:
    value: Any = run.config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    options = wanted if isinstance(wanted, list) else [wanted]
    return str(described(value)) in map(str, options)


def measured(group: Group, row: PaperRow, metric: str) -> Statistic | None:
    """What the group's runs measured of a metric, in percent, mean and deviation over seeds."""
    if row.study:
        found = _of_study(group, row, metric)
    else:
        found = group.statistics.get(f"{row.place}/{metric}")
    if found is None:
        return None
    return Statistic(100 * found.mean, None if found.std is None else 100 * found.std)


def _of_study(group: Group, row: PaperRow, metric: str) -> Statistic | None:
    values = []
    for run in group.runs:
        table = run.path / TABLE
        for found in read_rows(table) if table.is_file() else []:
            if all(str(found.get(key)) == str(value) for key, value in row.study.items()):
                values.append(found.get(metric))
    values = [value for value in values if value is not None]
    if not values:
        return None
    return Statistic(fmean(values), stdev(values) if len(values) > 1 else None)
