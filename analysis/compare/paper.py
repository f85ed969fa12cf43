"""Compares a paper's table (conf/papers/) with our runs, row by row.

Our values are mean ± standard deviation over seeds. The comparison itself and `analysis.claims`
test which differences between our systems are significant.
"""

import re
from dataclasses import dataclass
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from pandas import DataFrame, Series, concat, isna, read_csv, to_numeric

from analysis.compare.groups import Comparison, Group, Section
from analysis.runs.numbers import MISSING
from analysis.runs.run_folder import Run, look_up
from analysis.runs.settings import find_setting, read_settings
from analysis.runs.tables import Table, describe_value, pivot, write_csv, write_tables
from gr_mvdr.evaluation.metrics import find_metric, name_metric, ranking_metric
from gr_mvdr.files import read_text, reading

PAPERS = Path(__file__).parents[2] / "conf" / "papers"
COLUMNS = ("table", "row", "collection", "metric", "value", "systems", "place", "where", "study")
AVERAGED = (
    "average of n of N: the paper has values for N collections, and there are runs on n of them; "
    "both averages are over these n."
)


@dataclass(frozen=True)
class Paper:
    """A paper's table.

    Attributes:
        title: its name in the paper.
        collection: the collection of its numbers, or how many there are.
        lines: a line for each row and metric: the `COLUMNS` of its file without `table`. `systems`
            is a list, `where` and `study` are dicts.
        across: the rows cover several collections, so runs on all of them share one table.
    """

    title: str
    collection: str
    lines: DataFrame
    across: bool = False


def read_paper(paper: str | Path) -> Paper:
    """Reads a paper's table from a CSV file with a line for each row and metric; `#` is a comment.

    Its columns::

        table, row: the names of the table and of the row.
        collection: where the paper measured the value.
        metric, value: the value is in percent, or missing.
        systems: the systems of our runs that the row is compared with (`a;b`), or nothing.
        place: which of our metrics it is compared with: "retrieve" (the end-to-end search),
            "rerank" (the main form of reranking), "rerank/FORM", or "analysis/…", whose metrics
            have names of their own.
        where: the configuration that a run must have to belong to the row (`key=value;key=value`);
            a part is written as "FirstTokens(k=28)". If a table covers several collections, only
            runs with the row's `collection=` belong to the row.
        study: the setting of a run's study under which the metric was measured; nothing = the
            metrics of the run itself.

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
    lines = tables[tables["table"] == name].drop(columns="table")
    kind = re.search(r"(table|figure)(\w?\d+)", name)
    title = f"{kind[1].capitalize()} {kind[2]} of {lines['file'].iloc[0]}" if kind else name
    collections, lines["own"] = lines["collection"].unique(), lines["row"]
    if len(collections) == 1:
        return Paper(title, collections[0], lines)
    for line, collection in zip(lines["where"], lines["collection"], strict=True):
        line["collection"] = collection
    lines["row"] = lines["collection"] + ", " + lines["row"]
    return Paper(title, f"{len(collections)} collections", lines, across=True)


def _read_lines(file: Path) -> DataFrame:
    """Reads the lines of a file, with parsed values."""
    text = StringIO(read_text(file))
    with reading(f"{file}: must be a table with the columns {','.join(COLUMNS)}"):
        table = read_csv(text, comment="#", dtype=str, keep_default_na=False)[[*COLUMNS]]
        ranked = ~table["place"].str.startswith("analysis/")
        table.loc[ranked, "metric"] = table.loc[ranked, "metric"].map(name_metric)
        table["value"] = to_numeric(table["value"]).astype(float)
        table["systems"] = table["systems"].str.split(";")
        table["where"] = table["where"].map(_read_pairs)
        studied = table["study"].map(_read_pairs)
        table["study"] = [{key: yaml.safe_load(text) for key, text in s.items()} for s in studied]
    return table.assign(file=file.stem)


def _read_pairs(text: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in text.split(";") if pair)


def match_runs(section: Section, paper: Paper) -> DataFrame:
    """Matches our groups to the paper's lines; a row with several groups becomes several rows.

    Returns:
        A line for each metric of each row, in the paper's order: `setting`; `system` (the row's
        name, with the group's label if there are several); `place`; `metric`; the `paper`'s value,
        `ours` and its `std` over seeds in percent; `few` if these are fewer than the group's;
        `seeds`, the number of runs; and `row`, the name without its collection.
    """
    lines = []
    for line in paper.lines.itertuples():
        groups = [group for group in section.groups if _is_of_row(group, line)]
        groups.sort(key=lambda group: line.systems.index(group.runs[0].system))
        for group in groups or [None]:
            ours = _measure(line, group) if group else (None, None, "")
            label = f": {group.label}" if len(groups) > 1 else ""
            row = section.setting, line.row + label, line.place, line.metric, line.value, *ours
            lines.append((*row, len(group.runs) if group else 0, line.own + label))
    columns = ["setting", "system", "place", "metric", "paper", "ours", "std", "few", "seeds"]
    columns += ["row"]
    return DataFrame(lines, columns=columns).astype({"ours": float, "std": float})


def _is_of_row(group: Group, line: Any) -> bool:
    """Whether a group has the system, place and configuration of a line's row."""
    run = group.runs[0]
    return (
        run.system in line.systems
        and (line.study or f"{line.place}/{line.metric}" in set(group.numbers["key"]))
        and all(str(describe_value(look_up(run.config, k))) == v for k, v in line.where.items())
    )


def _measure(line: Any, group: Group) -> tuple[float, float, str]:
    """Returns a group's value of a line's metric in percent, its deviation, a note on few seeds.

    The value is NaN if no run has one.
    """
    values = Series([100 * v for run in group.runs for v in _find_value(line, run)], dtype=float)
    few = 0 < len(values) < len(group.runs)
    note = f" ({len(values)} seed{'s' * (len(values) > 1)})" if few else ""
    return values.mean(), values.std(), note


def _find_value(line: Any, run: Run) -> list[float]:
    """Returns the one value that a run has for a line, if it has one."""
    numbers = run.numbers
    if not line.study:
        return numbers[numbers["key"] == f"{line.place}/{line.metric}"]["value"].tolist()
    part = find_setting(read_settings(numbers), line.study)
    return numbers[(numbers["part"] == part) & (numbers["metric"] == line.metric)]["value"].tolist()


def average_lines(lines: DataFrame) -> DataFrame:
    """Averages each row of a table over the collections that we have runs on.

    The paper's average is over the same collections; it is missing if one of its values is.
    """
    rows = lines["row"]
    measured = lines["ours"].notna().groupby(lines["system"]).transform("all")
    averages = [lines[:0]]
    for row, made in lines[measured].groupby(rows, sort=False):
        over = [part["system"].nunique() for part in (made, lines[rows == row])]
        values = made.groupby("metric", sort=False)[["paper", "ours"]]
        means = values.agg(lambda column: column.mean(skipna=False)).reset_index()
        name = f"average of {over[0]} of {over[1]}, {row}"
        averages.append(
            means.assign(system=name, setting=made["setting"].iloc[0], seeds=0, few="", row=row)
        )
    return concat(averages)


def tabulate_paper(heading: str, lines: DataFrame) -> Table:
    """Formats the lines as a table for readers."""
    cells = {}
    for kind, sign in (("paper", ""), ("ours", ""), ("difference", "+")):
        for line in lines.to_dict("records"):
            text = MISSING if isna(line[kind]) else f"{line[kind]:{sign}.1f}"
            text += f" ± {line['std']:.1f}" * (kind == "ours" and not isna(line["std"]))
            text += line["few"] * (kind == "ours")
            known = find_metric(line["metric"])
            label = ranking_metric(known).label if known else line["metric"].replace("_", " ")
            cells[line["system"], f"{kind} {label}"] = text
    for system, seeds in zip(lines["system"], lines["seeds"], strict=True):
        cells[system, "seeds"] = str(seeds) if seeds else MISSING
    return pivot(cells, heading, corner="system")


def write_paper_table(comparison: Comparison, paper: Paper, directory: Path) -> list[Table | str]:
    """Writes `paper_table.md` and `paper_table.csv`; earlier ones are replaced.

    Returns:
        A table and its notes for each section, or for all sections together if the paper's table
        covers several collections.
    """
    directory.mkdir(parents=True, exist_ok=True)
    sections, blocks, tables = comparison.sections, [], []
    if paper.across:
        setting = "; ".join(section.setting for section in sections)
        sections = [Section(setting, list(chain(*(section.groups for section in sections))))]
    for section in sections:
        lines = match_runs(section, paper)
        notes = [
            f"Values in percent; the paper's are measured on {paper.collection}. Ours: mean ± "
            "sample standard deviation over seeds. Difference: ours minus the paper's, in points."
        ]
        if missing := list(lines["system"][lines["seeds"] == 0].unique()):
            notes.append(f"{'; '.join(missing)}: no run here.")
        if paper.across and len(averages := average_lines(lines)):
            lines = concat([lines, averages])
            notes.append(AVERAGED)
        tables.append(lines.assign(difference=lines["ours"] - lines["paper"]))
        heading = f"{paper.title} ({paper.collection}) and ours ({section.setting})"
        blocks += [tabulate_paper(heading, tables[-1]), *notes]
    write_tables(directory / "paper_table.md", paper.title, blocks)
    write_csv(concat(tables), directory / "paper_table.csv")
    return blocks
