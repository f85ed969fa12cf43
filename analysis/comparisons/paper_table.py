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
from analysis.metric_names import MISSING, Statistic
from analysis.rows import write_rows
from analysis.tables import Cell, Table, markdown
from gr_mvdr.significance import PERMUTATIONS, randomisation_test


@dataclass
class Line:
    """A row of the table: the paper's numbers, and the runs that reproduce it, if there are any.

    Attributes:
        name: of the row, with what tells it from other groups of the same row.
        paper: metric → the paper's value, in percent; None where it gives none.
        group: our runs, one for each seed; None where the comparison has none.
        place: which of their metrics and rankings, see `PaperRow`.
        p_values: metric → two-sided p of the paired randomisation test against the row above;
            metrics that cannot be tested are missing.
    """

    name: str
    paper: dict[str, float | None]
    group: Group | None
    place: str = "retrieve"
    p_values: dict[str, float] = field(default_factory=dict)

    def ours(self, metric: str) -> Statistic | None:
        """Our value, in percent."""
        statistic = self.group.statistics.get(f"{self.place}/{metric}") if self.group else None
        if statistic is None:
            return None
        std = None if statistic.std is None else 100 * statistic.std
        return Statistic(100 * statistic.mean, std)

    @cached_property
    def queries(self) -> JudgedQueries:
        """The runs query by query."""
        return JudgedQueries(self.group.runs if self.group else [], self.place)

    @cached_property
    def values(self) -> dict[str, np.ndarray]:
        """Metric → (Q,) of every query, in the order of their ids, averaged over seeds."""
        return self.queries.values(self.paper)


def paper_lines(section: Section, paper: Paper) -> list[Line]:
    """The rows in the paper's order; one that has several groups of ours becomes several lines."""
    lines = []
    for row in paper.rows:
        found = [g for system in row.systems for g in section.groups if _measured(g, system, row)]
        for group in found or [None]:
            name = f"{row.name}: {group.label}" if len(found) > 1 else row.name
            lines.append(Line(name, row.values, group, row.place))
    for above, line in pairwise(lines):
        line.p_values = _p_values(above, line)
    return lines


def _measured(group: Group, system: str, row: PaperRow) -> bool:
    """Is this a group of the system that was measured where the row looks?"""
    places = {key.rpartition("/")[0] for key in group.statistics}
    return group.runs[0].system == system and row.place in places


def _p_values(above: Line, line: Line) -> dict[str, float]:
    judgements = line.queries.judgements
    if judgements is None or judgements != above.queries.judgements:
        return {}
    return {
        metric: randomisation_test(line.values[metric], above.values[metric])
        for metric in line.paper
    }


def paper_table(section: Section, paper: Paper, lines: Sequence[Line]) -> Table:
    """The lines as a table for people."""
    labels = [metric_names.label(metric) for metric in paper.metrics]
    columns = [f"{kind} {label}" for kind in ("paper", "ours") for label in labels]
    columns += [f"p ({label})" for label in labels] + ["seeds"]
    rows = []
    for line in lines:
        cells = [_paper_text(line.paper[metric]) for metric in paper.metrics]
        cells += [_percent(line.ours(metric)) for metric in paper.metrics]
        cells += [_p_text(line.p_values.get(metric)) for metric in paper.metrics]
        cells += [str(len(line.group.runs)) if line.group else MISSING]
        rows.append((line.name, list(map(Cell, cells))))
    heading = f"{paper.title} ({paper.collection}) beside ours ({section.setting})"
    return Table(heading, columns, rows)


def _paper_text(value: float | None) -> str:
    return MISSING if value is None else f"{value:.1f}"


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
        "over seeds.",
        f"p: two-sided paired randomisation test over queries ({PERMUTATIONS:,} permutations) "
        "against the row above, on that metric; a query's values are averaged over seeds first.",
    ]
    for above, line in pairwise([None, *lines]):
        if line.group is None:
            texts.append(f"{line.name}: no run here.")
        elif line.queries.judgements is None:
            texts.append(
                f"{line.name}: not tested, a run has no {line.queries.file} and {JUDGEMENTS}, "
                "or its seeds were judged on different queries."
            )
        elif above and above.queries.judgements is not None and not line.p_values:
            texts.append(f"{line.name}: judged on other queries than the row above, not tested.")
    return texts


def write_paper_table(
    comparison: Comparison, paper: Paper, directory: Path
) -> list[tuple[Table, list[str]]]:
    """Writes `paper_table.md` and `paper_table.csv`; earlier ones are replaced.

    Returns:
        Of each section of the comparison the table and how to read it.
    """
    directory = Path(directory)
    shown, records = [], []
    for section in comparison.sections:
        lines = paper_lines(section, paper)
        shown.append((paper_table(section, paper, lines), explanation(paper, lines)))
        records += [_record(section, line) for line in lines]
    texts = [text for table, notes in shown for text in (*markdown(table), "", *notes, "")]
    partial = directory / "paper_table.md.partial"
    partial.write_text("\n".join(texts).rstrip() + "\n", encoding="utf-8")
    partial.rename(directory / "paper_table.md")
    write_rows(records, directory / "paper_table.csv")
    return shown


def _record(section: Section, line: Line) -> Mapping[str, object]:
    """A line with plain numbers, in percent; nothing where there is none."""
    record: dict[str, object] = {"setting": section.setting, "system": line.name}
    record["place"] = line.place
    for metric, value in line.paper.items():
        ours = line.ours(metric) or Statistic(None)
        record |= {f"paper/{metric}": value, metric: ours.mean, f"{metric}/std": ours.std}
        record[f"p/{metric}"] = line.p_values.get(metric)
    return record | {"seeds": line.group.seeds if line.group else ""}
