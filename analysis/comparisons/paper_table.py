"""Our runs beside a paper's table: mean ± std over seeds, each row tested against the one above."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np

from analysis import metric_names
from analysis.comparisons.comparison import Comparison, Group, Section
from analysis.comparisons.judged_queries import JUDGEMENTS, JudgedQueries
from analysis.comparisons.paper import Paper, PaperRow
from analysis.comparisons.paper_rows import is_of, measured
from analysis.metric_names import MISSING, Statistic
from analysis.rows import write_rows
from analysis.tables import Cell, Table, markdown
from gr_mvdr.evaluation.significance import PERMUTATIONS, randomisation_test
from gr_mvdr.files.writing import write_text

# A paper's table beside ours, and how to read it.
PaperTable = tuple[Table, list[str]]


@dataclass
class Line:
    """A row of the table: the paper's numbers, and the runs that reproduce it, if there are any.

    Attributes:
        name: of the row, with what tells it from other groups of the same row.
        row: the paper's, with its numbers in percent.
        group: our runs, one for each seed; None where the comparison has none.
        p_values: metric → two-sided p of the paired randomisation test against the row above;
            metrics that cannot be tested are missing.
    """

    name: str
    row: PaperRow
    group: Group | None
    p_values: dict[str, float] = field(default_factory=dict)

    def ours(self, metric: str) -> Statistic | None:
        """Our value, in percent."""
        return measured(self.group, self.row, metric) if self.group else None

    def difference(self, metric: str) -> float | None:
        """Our value minus the paper's, in points; None where either is missing."""
        ours, paper = self.ours(metric), self.row.values[metric]
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


def paper_lines(section: Section, paper: Paper) -> list[Line]:
    """The rows in the paper's order; one that has several groups of ours becomes several lines."""
    lines = []
    for row in paper.rows:
        found = [group for group in section.groups if is_of(group, row)]
        found.sort(key=lambda group: row.systems.index(group.runs[0].system))
        for group in found or [None]:
            name = f"{row.name}: {group.label}" if len(found) > 1 else row.name
            lines.append(Line(name, row, group))
    for above, line in pairwise(lines):
        line.p_values = _p_values(above, line)
    return lines


def _p_values(above: Line, line: Line) -> dict[str, float]:
    judgements = line.queries.judgements
    if judgements is None or judgements != above.queries.judgements:
        return {}
    return {
        metric: randomisation_test(line.values[metric], above.values[metric])
        for metric in line.row.values
    }


def paper_table(section: Section, paper: Paper, lines: Sequence[Line]) -> Table:
    """The lines as a table for people."""
    labels = [metric_names.label(metric) for metric in paper.metrics]
    kinds = ("paper", "ours", "difference")
    columns = [f"{kind} {label}" for kind in kinds for label in labels]
    columns += [f"p ({label})" for label in labels] + ["seeds"]
    rows = []
    for line in lines:
        cells = [_number_text(line.row.values[metric]) for metric in paper.metrics]
        cells += [_percent(line.ours(metric)) for metric in paper.metrics]
        cells += [_number_text(line.difference(metric), "+") for metric in paper.metrics]
        cells += [_p_text(line.p_values.get(metric)) for metric in paper.metrics]
        cells += [str(len(line.group.runs)) if line.group else MISSING]
        rows.append((line.name, list(map(Cell, cells))))
    heading = f"{paper.title} ({paper.collection}) beside ours ({section.setting})"
    return Table(heading, columns, rows)


def _number_text(value: float | None, sign: str = "") -> str:
    return MISSING if value is None else f"{value:{sign}.1f}"


def _percent(statistic: Statistic | None) -> str:
    if statistic is None:
        return MISSING
    spread = "" if statistic.std is None else f" ± {statistic.std:.1f}"
    return f"{statistic.mean:.1f}{spread}"


def _p_text(p: float | None) -> str:
    return MISSING if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def explanation(paper: Paper, lines: Sequence[Line]) -> list[str]:
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
        Of each section of the comparison the table and how to read it.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    shown, records = [], []
    for section in _sections(comparison, paper):
        lines = paper_lines(section, paper)
        shown.append((paper_table(section, paper, lines), explanation(paper, lines)))
        records += [_record(section, line) for line in lines]
    texts = [text for table, notes in shown for text in (*markdown(table), "", *notes, "")]
    write_text(directory / "paper_table.md", "\n".join(texts).rstrip() + "\n")
    write_rows(records, directory / "paper_table.csv")
    return shown


def _sections(comparison: Comparison, paper: Paper) -> list[Section]:
    """The comparison's; one of all collections where the paper's rows are of several."""
    if not paper.across:
        return comparison.sections
    setting = "; ".join(section.setting for section in comparison.sections)
    return [Section(setting, [group for s in comparison.sections for group in s.groups])]


def _record(section: Section, line: Line) -> Mapping[str, object]:
    """A line with plain numbers, in percent; nothing where there is none."""
    record: dict[str, object] = {"setting": section.setting, "system": line.name}
    record["place"] = line.row.place
    for metric, value in line.row.values.items():
        ours = line.ours(metric) or Statistic(None)
        record |= {f"paper/{metric}": value, metric: ours.mean, f"{metric}/std": ours.std}
        record[f"difference/{metric}"] = line.difference(metric)
        record[f"p/{metric}"] = line.p_values.get(metric)
    return record | {"seeds": line.group.seeds if line.group else ""}
