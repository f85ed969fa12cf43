"""A paper's table next to ours: its rows (conf/papers/), our runs of each, the differences.

Ours are mean ± standard deviation over seeds; each row is tested against the one above.
"""

import csv
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise, starmap
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from analysis.runs.run_folder import STUDY, Run
from analysis.statistics import PERMUTATIONS, randomisation_test
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
from analysis.tables.significance import JUDGEMENTS, JudgedQueries
from gr_mvdr.evaluation.metrics import name_metric
from gr_mvdr.files import read_text, write_text

# Where a row's numbers come from: the search, a form of reranking ("rerank/FORM"), or what was
# measured of the alignments ("analysis/…", whose metrics have names of their own).
PLACES = ("retrieve", "rerank")
PAPERS = Path(__file__).parents[2] / "conf" / "papers"
COLUMNS = ("table", "row", "collection", "metric", "value", "systems", "place", "where", "study")
AVERAGED = "average of n of N: the paper's N collections, runs on n; both over the n."
# A paper's table with ours, and how to read it.
PaperTable = tuple[Table, list[str]]


@dataclass(frozen=True)
class PaperRow:
    """A row: its name in the paper, and our runs of that kind.

    Attributes:
        systems: of our runs; none for a row that we have no system for.
        values: metric → the paper's value in percent; None where it gives none.
        place: which of our metrics it is compared with: "retrieve", the end-to-end search,
            "rerank", the main form of reranking, "rerank/FORM", or "analysis/…".
        where: key of a run's configuration → its value there ("FirstTokens(k=28)" for a part):
            only such runs are of the row.
        study: column → value of the row of a run's `study.csv` that holds the metrics; nothing:
            they are the run's own.
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

    `across`: its rows are of several collections, so that runs over all of them share a table.
    """

    title: str
    collection: str
    metrics: tuple[str, ...]
    rows: tuple[PaperRow, ...]
    across: bool = False


def read_paper(paper: str | Path) -> Paper:
    """Reads a paper's table from a CSV file: a line a row and metric, lines with `#` are comments.

    Columns: the table's name; the row's; collection; metric; value in percent, or nothing; and of
    `PaperRow` systems (`a;b`), place, where and study (`key=value;key=value`). Where a table is of
    several collections, a row is of the runs with that `collection=`.

    Args:
        paper: the name of a table in the files of `conf/papers`, or the path of another file, which
            holds one table.

    Raises:
        FileNotFoundError: no such name or path.
        ValueError: a column is missing, a value is no number, or a metric is not one of ours; names
            the file and the line.
    """
    own = Path(paper).suffix == ".csv"
    if own and not Path(paper).is_file():
        raise FileNotFoundError(f"paper={paper}: no such file")
    tables: dict[str, list[tuple[str, dict[str, str]]]] = {}
    for file in [Path(paper)] if own else sorted(PAPERS.glob("*.csv")):
        for source, line in _read_lines(file):
            tables.setdefault(line["table"], []).append((source, line))
    if own and len(tables) != 1:
        raise ValueError(f"{paper}: must hold one table, not {', '.join(tables) or 'none'}")
    name = next(iter(tables)) if own else str(paper)
    if name not in tables:
        raise FileNotFoundError(f"paper={paper}: must be a CSV file, or one of {', '.join(tables)}")
    return _make_paper(tables[name])


def _read_lines(file: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The lines of a file below its header, each with its place, `file:line`."""
    text = read_text(file).splitlines()
    kept = [(n, line) for n, line in enumerate(text, start=1) if line and line[0] != "#"]
    header, *rows = csv.reader(line for _, line in kept) if kept else [[]]
    if header != list(COLUMNS):
        raise ValueError(f"{file}: the first line must be {','.join(COLUMNS)}")
    for (number, _), row in zip(kept[1:], rows, strict=True):
        if len(row) != len(COLUMNS):
            raise ValueError(f"{file}:{number}: {len(row)} columns, must be {len(COLUMNS)}")
        yield f"{file}:{number}", dict(zip(COLUMNS, row, strict=True))


def _make_paper(lines: Sequence[tuple[str, dict[str, str]]]) -> Paper:
    """The table of its lines, each with its place (`file:line`) for errors."""
    collections = list(dict.fromkeys(line["collection"] for _, line in lines))
    metrics = tuple(dict.fromkeys(starmap(_metric, lines)))
    across = len(collections) > 1
    rows: dict[str, PaperRow] = {}
    for source, line in lines:
        name, metric = line["row"], _metric(source, line)
        where = _pairs(source, line["where"])
        if across:
            name, where = (
                f"{line['collection']}, {name}",
                {"collection": line["collection"]} | where,
            )
        row = rows.setdefault(
            name,
            PaperRow(
                name,
                tuple(filter(None, line["systems"].split(";"))),
                dict.fromkeys(metrics),
                _place(source, line["place"]),
                where,
                {key: read_value(text) for key, text in _pairs(source, line["study"]).items()},
            ),
        )
        row.values[metric] = _number(source, line["value"])
    name, file = lines[0][1]["table"], Path(lines[0][0].rpartition(":")[0]).stem
    kind = re.search(r"(table|figure)(\w?\d+)", name)
    title = f"{kind[1].capitalize()} {kind[2]} of {file}" if kind else name
    named = f"{len(collections)} collections" if across else collections[0]
    return Paper(title, named, metrics, tuple(rows.values()), across)


def _pairs(source: str, text: str) -> dict[str, str]:
    """ "a=1;b=2" as a dict."""
    parts = [part.partition("=") for part in text.split(";") if part]
    if bad := [key for key, sign, _ in parts if not sign]:
        raise ValueError(f"{source}: {bad[0]}: must be key=value")
    return {key: value for key, _, value in parts}


def _number(source: str, value: str) -> float | None:
    if value and not re.fullmatch(r"-?\d+(\.\d+)?", value):
        raise ValueError(f"{source}: value={value} must be a number or empty")
    return float(value) if value else None


def _metric(source: str, line: dict[str, str]) -> str:
    """Our name of a line's metric; an analysis has metrics of its own."""
    if line["place"].startswith("analysis/"):
        return line["metric"]
    try:
        return name_metric(line["metric"])
    except ValueError as error:
        raise ValueError(f"{source}: metric={error}") from None


def _place(source: str, place: str) -> str:
    # A form belongs to reranking: a search has one result.
    if place not in PLACES and not place.startswith(("rerank/", "analysis/")):
        raise ValueError(
            f"{source}: place={place} must be retrieve, rerank, rerank/FORM or analysis/…"
        )
    return place


@dataclass
class Line:
    """A row of the table: the paper's numbers, and the runs that reproduce it, if there are any.

    Attributes:
        name: of the row, with what tells it from other groups of the same row.
        row: the paper's, with its numbers in percent.
        group: our runs, one for each seed; None where the comparison has none, and of an average.
        ours: metric → our value in percent, mean and deviation over seeds; None: not measured.
        p_values: metric → two-sided p of the paired randomisation test against the row above;
            metrics that cannot be tested are missing.
    """

    name: str
    row: PaperRow
    group: Group | None
    ours: dict[str, Statistic | None]
    p_values: dict[str, float] = field(default_factory=dict)

    def difference(self, metric: str) -> float | None:
        """Our value minus the paper's, in points; None where either is missing."""
        ours, paper = self.ours[metric], self.row.values[metric]
        return None if ours is None or paper is None else ours.mean - paper

    @property
    def tested(self) -> bool:
        """Whether its numbers are those of a ranking that the run left, query by query."""
        return not self.row.study and not self.row.place.startswith("analysis/")

    @cached_property
    def queries(self) -> JudgedQueries:
        """The runs query by query."""
        return JudgedQueries(self.group.runs if self.group and self.tested else [], self.row.place)

    @cached_property
    def values(self) -> dict[str, np.ndarray]:
        """Metric → (Q,) of every query, in the order of their ids, averaged over seeds."""
        return self.queries.values(self.row.values)


def _study_rows(run: Run, row: PaperRow) -> list[Row]:
    """The rows of a run's `study.csv` with the settings that the paper's row asks for."""
    table = run.path / STUDY
    rows = read_rows(table) if table.is_file() else []
    return [found for found in rows if row.study.items() <= found.items()]


def _measure(row: PaperRow, group: Group | None, metric: str) -> Statistic | None:
    """Our value of a row's metric in percent."""
    if group is None:
        return None
    found = group.statistics.get(f"{row.place}/{metric}")
    if row.study:
        rows = [found for run in group.runs for found in _study_rows(run, row)]
        values = [found[metric] for found in rows if found.get(metric) is not None]
        found = Statistic.over(values) if values else None
    if found is None:
        return None
    return Statistic(100 * found.mean, None if found.std is None else 100 * found.std)


def match_runs(section: Section, paper: Paper) -> list[Line]:
    """The rows in the paper's order; one that has several groups of ours becomes several lines."""
    lines = []
    for row in paper.rows:
        found = [group for group in section.groups if _is_of_row(group, row)]
        found.sort(key=lambda group: row.systems.index(group.runs[0].system))
        for group in found or [None]:
            name = f"{row.name}: {group.label}" if len(found) > 1 else row.name
            ours = {metric: _measure(row, group, metric) for metric in row.values}
            lines.append(Line(name, row, group, ours))
    for above, line in pairwise(lines):
        judgements = line.queries.judgements
        if judgements is not None and judgements == above.queries.judgements:
            line.p_values = {
                metric: randomisation_test(line.values[metric], above.values[metric])
                for metric in line.row.values
            }
    return lines


def _is_of_row(group: Group, row: PaperRow) -> bool:
    """Whether a group's system, place and configuration are the row's."""
    run = group.runs[0]
    if run.system not in row.systems:
        return False
    if row.place not in {key.rpartition("/")[0] for key in group.statistics}:
        return False
    for key, wanted in row.where.items():
        value: Any = run.config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if str(describe_value(value)) != wanted:
            return False
    return True


def average_lines(lines: Sequence[Line]) -> list[Line]:
    """Below a table of several collections: of each row the mean over those that we have a run on,
    and the paper's over the same ones."""
    rows, averages = defaultdict(list), []
    for line in lines:
        rows[line.name.removeprefix(f"{line.row.where['collection']}, ")].append(line)
    for name, of_row in rows.items():
        if made := [line for line in of_row if None not in line.ours.values()]:
            papers = {m: [line.row.values[m] for line in made] for m in made[0].ours}
            values = {m: None if None in given else fmean(given) for m, given in papers.items()}
            ours = {m: Statistic(fmean(line.ours[m].mean for line in made)) for m in papers}
            name = f"average of {len(made)} of {len(of_row)}, {name}"
            averages.append(Line(name, PaperRow(name, (), values), None, ours))
    return averages


def match_sections(
    comparison: Comparison, paper: Paper
) -> Iterator[tuple[Section, list[Line], list[str]]]:
    """Of each section the lines and how to read them; a table of several collections has one."""
    sections = comparison.sections
    if paper.across:
        setting = "; ".join(section.setting for section in sections)
        sections = [Section(setting, [group for s in sections for group in s.groups])]
    for section in sections:
        lines = match_runs(section, paper)
        notes = explain_table(paper, lines)
        if paper.across and (averages := average_lines(lines)):
            lines += averages
            notes.append(AVERAGED)
        yield section, lines, notes


def tabulate_paper(section: Section, paper: Paper, lines: Sequence[Line]) -> Table:
    """The lines as a table for people."""
    labels = [metric_names.label(metric) for metric in paper.metrics]
    columns = [f"{kind} {label}" for kind in ("paper", "ours", "difference") for label in labels]
    columns += [f"p ({label})" for label in labels] + ["seeds"]
    rows = []
    for line in lines:
        texts = [_format(line.row.values[metric]) for metric in paper.metrics]
        for ours in (line.ours[metric] for metric in paper.metrics):
            spread = "" if ours is None or ours.std is None else f" ± {ours.std:.1f}"
            texts.append(MISSING if ours is None else f"{ours.mean:.1f}{spread}")
        texts += [_format(line.difference(metric), "+") for metric in paper.metrics]
        for p in (line.p_values.get(metric) for metric in paper.metrics):
            texts.append(MISSING if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}")
        texts.append(str(len(line.group.runs)) if line.group else MISSING)
        rows.append((line.name, list(map(Cell, texts))))
    heading = f"{paper.title} ({paper.collection}) and ours ({section.setting})"
    return Table(heading, columns, rows)


def _format(value: float | None, sign: str = "") -> str:
    return MISSING if value is None else f"{value:{sign}.1f}"


def explain_table(paper: Paper, lines: Sequence[Line]) -> list[str]:
    """How to read the table, and what it lacks."""
    texts = [
        f"In percent; the paper's on {paper.collection}. Ours: mean ± sample standard deviation "
        "over seeds; difference: ours minus the paper's, in points.",
        f"p: two-sided paired randomisation test over queries ({PERMUTATIONS:,} permutations) "
        "against the row above, on that metric; a query's values are averaged over seeds first.",
    ]
    missing = [line.name for line in lines if line.group is None]
    if missing:
        texts.append(f"{'; '.join(missing)}: no run here.")
    for above, line in pairwise([None, *lines]):
        if line.group is None or not line.tested:
            continue
        if line.queries.judgements is None:
            texts.append(
                f"{line.name}: not tested, a run has no {line.queries.file} and {JUDGEMENTS}, "
                "or its seeds were judged on different queries."
            )
        elif above and above.queries.judgements is not None and not line.p_values:
            texts.append(f"{line.name}: judged on other queries than the row above, not tested.")
    return texts


def write_paper_table(comparison: Comparison, paper: Paper, directory: Path) -> list[PaperTable]:
    """Writes `paper_table.md` and `paper_table.csv`; earlier ones are replaced.

    Returns:
        Each table and how to read it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    shown, records = [], []
    for section, lines, notes in match_sections(comparison, paper):
        shown.append((tabulate_paper(section, paper, lines), notes))
        records += [_record(section, line) for line in lines]
    texts = [[*format_markdown(t), "", *map(escape_markdown, notes), ""] for t, notes in shown]
    write_text(directory / "paper_table.md", "\n".join(chain(*texts)).rstrip() + "\n")
    write_rows(records, directory / "paper_table.csv")
    return shown


def _record(section: Section, line: Line) -> Row:
    """A line with plain numbers, in percent; a missing number is left out."""
    record = {"setting": section.setting, "system": line.name, "place": line.row.place}
    for metric, value in line.row.values.items():
        ours = line.ours[metric] or Statistic(None)
        record |= {f"paper/{metric}": value, metric: ours.mean, f"{metric}/std": ours.std}
        record[f"difference/{metric}"] = line.difference(metric)
        record[f"p/{metric}"] = line.p_values.get(metric)
    return record | {"seeds": line.group.seeds if line.group else ""}
