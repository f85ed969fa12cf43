"""Compares a paper's table (conf/papers/) with our runs, row by row.

Our values are mean ± standard deviation over seeds. The comparison itself and `analysis.claims`
test which differences between our systems are significant.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import StringIO
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from pandas import DataFrame, concat, isna, read_csv, to_numeric

from analysis.runs.run_folder import STUDY, look_up
from analysis.tables import metric_names
from analysis.tables.comparison import Comparison, Group, Section
from analysis.tables.metric_names import MISSING, Statistic
from analysis.tables.rows import (
    Cell,
    Row,
    Table,
    describe_value,
    escape_markdown,
    format_markdown,
    read_rows,
    read_value,
    write_rows,
)
from gr_mvdr.evaluation.metrics import name_metric
from gr_mvdr.files import read_text, reading, write_text

PAPERS = Path(__file__).parents[2] / "conf" / "papers"
COLUMNS = ("table", "row", "collection", "metric", "value", "systems", "place", "where", "study")
AVERAGED = "average of n of N: the paper's N collections, runs on n; both over the n."
# A paper's values beside ours, and notes on how to read them.
PaperTable = tuple[Table, list[str]]


@dataclass(frozen=True)
class PaperRow:
    """A row: its name in the paper, and which of our runs it is compared with.

    Attributes:
        systems: the systems of our runs; empty if we have no system for the row.
        values: metric → the paper's value in percent; None if the paper gives none.
        place: which of our metrics it is compared with: "retrieve" (the end-to-end search),
            "rerank" (the main form of reranking), "rerank/FORM", or "analysis/…", whose metrics
            have names of their own.
        where: key of the configuration → the value that a run must have to belong to the row;
            a part is written as "FirstTokens(k=28)".
        study: column → value, which select the row of a run's `study.csv` that holds the metrics;
            empty = the metrics of the run itself.
    """

    name: str
    systems: tuple[str, ...]
    values: dict[str, float | None]
    place: str = "retrieve"
    where: dict[str, str] = field(default_factory=dict)
    study: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Paper:
    """A table: its title, the collection of its numbers, its metrics (columns) and rows.

    `across`: the rows cover several collections, so runs on all of them share one table.
    """

    title: str
    collection: str
    metrics: tuple[str, ...]
    rows: tuple[PaperRow, ...]
    across: bool = False


def read_paper(paper: str | Path) -> Paper:
    """Reads a paper's table from a CSV file with a line for each row and metric; `#` is a comment.

    Columns: the table's name; the row's name; the collection; the metric; its value in percent, or
    nothing; then these fields of `PaperRow`: systems (`a;b`), place, where and study
    (`key=value;key=value`). If a table covers several collections, only runs with the row's
    `collection=` belong to the row.

    Args:
        paper: the name of a table in `conf/papers`, or the path of a CSV file with one table.

    Raises:
        FileNotFoundError: no such name or path.
        ValueError: a column is missing, a value is not a number, or a metric is not one of ours;
            the message names the file.
    """
    is_file = Path(paper).suffix == ".csv"
    files = [Path(paper)] if is_file else sorted(PAPERS.glob("*.csv"))
    tables = concat(map(_read_lines, files))
    names = list(tables["table"].unique())
    if is_file and len(names) != 1:
        raise ValueError(f"{paper}: must hold one table, not {', '.join(names) or 'none'}")
    name = names[0] if is_file else str(paper)
    if name not in names:
        raise FileNotFoundError(f"paper={paper}: must be a CSV file, or one of {', '.join(names)}")
    lines = tables[tables["table"] == name]
    collections, metrics = lines["collection"].unique(), tuple(lines["metric"].unique())
    across, rows = len(collections) > 1, {}
    for line in lines.to_dict("records"):
        key, where = line["row"], line["where"]
        if across:
            key = f"{line['collection']}, {key}"
            where = {"collection": line["collection"]} | where
        values, systems = dict.fromkeys(metrics), tuple(filter(None, line["systems"].split(";")))
        row = PaperRow(key, systems, values, line["place"], where, line["study"])
        value = None if isna(line["value"]) else line["value"]
        rows.setdefault(key, row).values[line["metric"]] = value
    kind = re.search(r"(table|figure)(\w?\d+)", name)
    title = f"{kind[1].capitalize()} {kind[2]} of {lines['file'].iloc[0]}" if kind else name
    collection = f"{len(collections)} collections" if across else collections[0]
    return Paper(title, collection, metrics, tuple(rows.values()), across)


def _read_lines(file: Path) -> DataFrame:
    """Reads the lines of a file, with parsed values."""
    text = StringIO(read_text(file))
    with reading(f"{file}: must be a table with the columns {','.join(COLUMNS)}"):
        table = read_csv(text, comment="#", dtype=str, keep_default_na=False)[[*COLUMNS]]
        ranked = ~table["place"].str.startswith("analysis/")
        table.loc[ranked, "metric"] = table.loc[ranked, "metric"].map(name_metric)
        table["value"] = to_numeric(table["value"])
        table["where"] = table["where"].map(_read_pairs)
        studied = table["study"].map(_read_pairs)
        table["study"] = [{key: read_value(text) for key, text in s.items()} for s in studied]
    return table.assign(file=file.stem)


def _read_pairs(text: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in text.split(";") if pair)


def match_runs(section: Section, paper: Paper) -> list[Row]:
    """Matches our groups to the paper's rows; a row with several groups becomes several lines.

    Returns:
        Lines in the paper's order: `setting`, `system` (the row's name, with the group's label if
        there are several), `place`, the result of `_compare` for each metric, and `seeds`, which
        is "" if we have no run.
    """
    lines = []
    for row in paper.rows:
        groups = [group for group in section.groups if _is_of_row(group, row)]
        groups.sort(key=lambda group: row.systems.index(group.runs[0].system))
        for group in groups or [None]:
            name = f"{row.name}: {group.label}" if len(groups) > 1 else row.name
            line = {"setting": section.setting, "system": name, "place": row.place}
            for metric, value in row.values.items():
                line |= _compare(metric, value, _measure(row, group, metric))
            lines.append(line | {"seeds": group.seeds if group else ""})
    return lines


def _compare(metric: str, paper: float | None, ours: Statistic | None) -> Row:
    """Returns the paper's and our value of a metric in percent, and their difference in points.

    What is missing is None.
    """
    difference = None if ours is None or paper is None else ours.mean - paper
    mean, std = (ours.mean, ours.std) if ours else (None, None)
    values = {f"paper/{metric}": paper, metric: mean, f"{metric}/std": std}
    return values | {f"difference/{metric}": difference}


def _is_of_row(group: Group, row: PaperRow) -> bool:
    """Whether a group has the system, place and configuration of a row."""
    run = group.runs[0]
    return (
        run.system in row.systems
        and row.place in {key.rpartition("/")[0] for key in group.statistics}
        and all(str(describe_value(look_up(run.config, k))) == v for k, v in row.where.items())
    )


def _measure(row: PaperRow, group: Group | None, metric: str) -> Statistic | None:
    """Returns our value of a row's metric in percent."""
    if group is None:
        return None
    if not row.study:
        key = f"{row.place}/{metric}"
        values = [100 * run.metrics[key] for run in group.runs if key in run.metrics]
        return Statistic.over(values) if values else None
    tables = [run.path / STUDY for run in group.runs if (run.path / STUDY).is_file()]
    rows = chain(*(read_rows(table, table.parent) for table in tables))
    asked = [found.get(metric) for found in rows if row.study.items() <= found.items()]
    values = [100 * value for value in asked if value is not None]
    return Statistic.over(values) if values else None


def average_lines(lines: Sequence[Row], metrics: Sequence[str]) -> list[Row]:
    """Averages each row of a table over the collections that we have runs on.

    The paper's average is over the same collections. The lines go below the table.
    """
    rows: dict[str, list[Row]] = {}
    for line in lines:
        rows.setdefault(line["system"].partition(", ")[2], []).append(line)
    averages = []
    for name, of_row in rows.items():
        if made := [line for line in of_row if None not in map(line.get, metrics)]:
            average = made[0] | {"system": f"average of {len(made)} of {len(of_row)}, {name}"}
            for metric in metrics:
                given = [line[f"paper/{metric}"] for line in made]
                paper = None if None in given else fmean(given)
                ours = Statistic(fmean(line[metric] for line in made))
                average |= _compare(metric, paper, ours)
            averages.append(average | {"seeds": ""})
    return averages


def tabulate_paper(section: Section, paper: Paper, lines: Sequence[Row]) -> Table:
    """Formats the lines as a table for readers."""
    labels = [metric_names.label(metric) for metric in paper.metrics]
    columns = [f"{kind} {label}" for kind in ("paper", "ours", "difference") for label in labels]
    rows = []
    for line in lines:
        texts = [_format(line[f"paper/{metric}"]) for metric in paper.metrics]
        for metric in paper.metrics:
            std = line[f"{metric}/std"]
            texts.append(_format(line[metric]) + ("" if std is None else f" ± {std:.1f}"))
        texts += [_format(line[f"difference/{metric}"], "+") for metric in paper.metrics]
        texts.append(str(len(line["seeds"].split(", "))) if line["seeds"] else MISSING)
        rows.append((line["system"], list(map(Cell, texts))))
    heading = f"{paper.title} ({paper.collection}) and ours ({section.setting})"
    return Table(heading, [*columns, "seeds"], rows)


def _format(value: float | None, sign: str = "") -> str:
    return MISSING if value is None else f"{value:{sign}.1f}"


def write_paper_table(comparison: Comparison, paper: Paper, directory: Path) -> list[PaperTable]:
    """Writes `paper_table.md` and `paper_table.csv`; earlier ones are replaced.

    Returns:
        The tables with their notes: one for each section, or a single one for all sections if the
        paper's table covers several collections.
    """
    directory.mkdir(parents=True, exist_ok=True)
    sections, shown, records = comparison.sections, [], []
    if paper.across:
        setting = "; ".join(section.setting for section in sections)
        sections = [Section(setting, [group for s in sections for group in s.groups])]
    for section in sections:
        lines = match_runs(section, paper)
        notes = [
            f"In percent; the paper's on {paper.collection}. Ours: mean ± sample standard "
            "deviation over seeds; difference: ours minus the paper's, in points."
        ]
        if missing := [line["system"] for line in lines if not line["seeds"]]:
            notes.append(f"{'; '.join(missing)}: no run here.")
        if paper.across and (averages := average_lines(lines, paper.metrics)):
            lines += averages
            notes.append(AVERAGED)
        shown.append((tabulate_paper(section, paper, lines), notes))
        records += lines
    texts = [[*format_markdown(t), "", *map(escape_markdown, notes), ""] for t, notes in shown]
    write_text(directory / "paper_table.md", "\n".join(chain(*texts)).rstrip() + "\n")
    write_rows(records, directory / "paper_table.csv")
    return shown
