"""Do the systems of a comparison align alike? Every pair of them, on the pairs that they share."""

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from analysis import metric_names
from analysis.comparisons.system_agreement import MEASURES, system_agreement
from analysis.exact_match import DIRECTIONS
from analysis.metric_names import MISSING, Statistic
from analysis.pages.cases import AlignedRun
from analysis.rows import Row
from analysis.tables import Cell, Table

PAIRS = 200  # of texts for each pair of systems: there are many pairs of systems
COLUMNS = {"equal_partner": "same strongest partner", "overlap": "overlap of weights"}


def agreement_rows(runs: Sequence[AlignedRun]) -> list[Row]:
    """For every two systems the measures of `system_agreement`; special tokens align nothing."""
    rows = []
    for first, second in combinations(runs, 2):
        special = _special(first, second)
        found = system_agreement(first.store, second.store, PAIRS, special)
        rows.append({"first": first.label, "second": second.label} | found)
    return rows


def _special(*runs: AlignedRun) -> Tensor:
    """(V,) bool over all ids that either system knows."""
    known = {number for run in runs for number in run.vocabulary.strings}
    special = torch.zeros(max(known, default=0) + 1, dtype=torch.bool)
    special[sorted(known & {number for run in runs for number in run.vocabulary.special})] = True
    return special


def agreement_table(rows: Sequence[Row]) -> Table:
    """Rows are pairs of systems; systems that cut texts differently have nothing to compare."""
    keys = [f"{direction}/{measure}" for direction in DIRECTIONS for measure in MEASURES]
    labels = [
        f"{metric_names.LABELS[direction]}, {COLUMNS[measure]}"
        for direction in DIRECTIONS
        for measure in MEASURES
    ]
    shown = [
        (f"{row['first']}, {row['second']}", [Cell(str(row["pairs"])), *_cells(row, keys)])
        for row in rows
    ]
    return Table("Agreement of systems", ["pairs", *labels], shown)


def _cells(row: Row, keys: Sequence[str]) -> list[Cell]:
    return [
        Cell(metric_names.text("analysis", Statistic(row[key])) if key in row else MISSING)
        for key in keys
    ]
