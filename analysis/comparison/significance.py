"""Systems compared query by query: intervals of their metrics, and which differences are real.

The values of every test query come from the rankings and judgements that the runs left.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from pathlib import Path

import numpy as np
import torch

from analysis import metric_names
from analysis.comparison.comparison import Group, Section
from analysis.metric_names import Statistic
from analysis.run_folder import Run
from analysis.statistics import interval
from analysis.tables import Cell, Row, Table
from gr_mvdr.evaluation.ranking import Qrels, Ranking, read_qrels
from gr_mvdr.evaluation.significance import holm, randomisation_test, values_by_query
from gr_mvdr.progress import track

# Of all test queries, and of those that were reranked.
JUDGEMENTS, RERANKED = "retrieve.qrels", "rerank.qrels"
METRICS = ("mrr@10", "recall@10")
LEVEL = 0.05  # a corrected p-value below it is marked


@dataclass
class JudgedQueries:
    """Runs that differ in their seed only, query by query.

    Attributes:
        runs: one for each seed.
        place: which of their rankings: "retrieve", "rerank", "rerank/document_to_query".
    """

    runs: Sequence[Run]
    place: str = "retrieve"

    @property
    def file(self) -> str:
        """The file of a run's ranking: "rerank-document_to_query.trec"."""
        return f"{self.place.replace('/', '-', 1)}.trec"

    @cached_property
    def judgements(self) -> Qrels | None:
        """What the runs were judged by; None where a run lacks its files or seeds differ."""
        folders = [run.path for run in self.runs]
        files = [folder / name for folder in folders for name in (self.file, JUDGEMENTS)]
        if not files or not all(file.is_file() for file in files):
            return None
        first, *others = map(self._judged, folders)
        return first if all(other == first for other in others) else None

    def _judged(self, folder: Path) -> Qrels:
        own = folder / RERANKED
        if self.place != "retrieve" and own.is_file():
            return read_qrels(own)
        qrels = read_qrels(folder / JUDGEMENTS)
        if self.place == "retrieve":  # a query that found nothing counts, too
            return qrels
        # An older run has no file of them.
        reranked = set(Ranking.read(folder / self.file).query_ids)
        return {query: grades for query, grades in qrels.items() if query in reranked}

    def values(self, metrics: Iterable[str]) -> dict[str, np.ndarray]:
        """Metric → (Q,) of every query, averaged over seeds, in the order of sorted query ids."""
        qrels = {query: self.judgements[query] for query in sorted(self.judgements)}
        rankings = [Ranking.read(run.path / self.file) for run in self.runs]
        return {name: values_by_query(rankings, qrels, name) for name in metrics}


@dataclass(frozen=True)
class Difference:
    """Two systems on the same queries.

    Attributes:
        metric: one of `METRICS`.
        first, second: the systems' labels.
        difference: mean of the first minus mean of the second.
        p: two-sided, of the paired randomisation test.
        corrected: p after Holm's correction over all pairs of systems.
    """

    metric: str
    first: str
    second: str
    difference: float
    p: float
    corrected: float


@dataclass
class Effectiveness:
    """What the searches of a section's systems are worth, query by query.

    Attributes:
        statistics: label → metric → mean over queries (and seeds) with its 95 % interval.
        differences: of every pair of systems.
        notes: why a system is missing.
    """

    statistics: dict[str, dict[str, Statistic]]
    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def rows(self) -> list[Row]:
        """The differences, for a CSV."""
        return [dict(vars(difference)) for difference in self.differences]


def compare_effectiveness(section: Section) -> Effectiveness:
    """Bootstraps and tests the searches of a section (Smucker et al., 2007).

    Every system that left its ranking and judgements takes part; judgements that differ from the
    first system's are left out and noted.
    """
    values, notes = _values_by_query(section.groups)
    statistics = {label: _statistics(found) for label, found in values.items()}
    return Effectiveness(statistics, list(_differences(values)), notes)


def _values_by_query(groups: Sequence[Group]) -> tuple[dict[str, dict[str, np.ndarray]], list[str]]:
    found, notes, judged = {}, [], None
    for group in groups:
        queries = JudgedQueries(group.runs)
        if queries.judgements is None:
            reason = f"a run has no {queries.file} and {JUDGEMENTS}, or seeds were judged apart"
        elif judged is not None and queries.judgements != judged:
            reason = "judged on other queries than the first system"
        else:
            judged = queries.judgements
            found[group.label] = queries.values(METRICS)
            continue
        notes.append(f"{group.label}: no intervals and tests, {reason}.")
    return found, notes


def _statistics(values: dict[str, np.ndarray]) -> dict[str, Statistic]:
    columns = torch.tensor(np.stack(list(values.values()), 1))
    bounds = interval(columns, torch.ones_like(columns))
    return {
        metric: Statistic(float(mean), low=float(low), high=float(high))
        for metric, mean, low, high in zip(values, columns.mean(0), *bounds, strict=True)
    }


def _differences(values: dict[str, dict[str, np.ndarray]]) -> Iterator[Difference]:
    pairs = list(combinations(values, 2))
    for metric in METRICS:
        tested = track(pairs, f"testing {metric_names.label(metric)}", len(pairs))
        p_values = [randomisation_test(values[a][metric], values[b][metric]) for a, b in tested]
        for (a, b), p, corrected in zip(pairs, p_values, holm(p_values), strict=True):
            difference = float(values[a][metric].mean() - values[b][metric].mean())
            yield Difference(metric, a, b, difference, p, corrected)


def tabulate_intervals(found: Effectiveness) -> Table:
    """Rows are systems, columns metrics: "0.600 [0.571, 0.628]", the best in bold."""
    best = {m: max(values[m].mean for values in found.statistics.values()) for m in METRICS}
    rows = [
        (label, [_cell(values[m], values[m].mean == best[m]) for m in METRICS])
        for label, values in found.statistics.items()
    ]
    heading = "Search, with 95 % intervals over queries"
    return Table(heading, [metric_names.label(metric) for metric in METRICS], rows)


def _cell(statistic: Statistic, best: bool) -> Cell:
    return Cell(metric_names.text("retrieve", statistic), best)


def tabulate_differences(found: Effectiveness) -> list[Table]:
    """For each metric a matrix: row minus column, with p; bold where it is below `LEVEL`."""
    labels = list(found.statistics)
    tables = []
    for metric in METRICS:
        known = {(d.first, d.second): d for d in found.differences if d.metric == metric}
        rows = [(a, [_difference_cell(known, a, b) for b in labels]) for a in labels]
        heading = f"{metric_names.label(metric)}, row minus column"
        tables.append(Table(heading, labels, rows))
    return tables


def _difference_cell(known: dict[tuple[str, str], Difference], row: str, column: str) -> Cell:
    if row == column:
        return Cell("")
    known_first = (row, column) in known
    found = known[(row, column) if known_first else (column, row)]
    p = "p < 0.001" if found.corrected < 0.001 else f"p = {found.corrected:.3f}"
    difference = found.difference if known_first else -found.difference
    text = f"{difference:+.3f}" if abs(difference) >= 0.0005 else "0.000"
    return Cell(f"{text.replace('-', '−')} ({p})", found.corrected < LEVEL)
