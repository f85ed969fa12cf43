"""Do the systems of a comparison align the same pairs alike? Every two of them, by their stores."""

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import torch
from torch import Tensor

from analysis import metric_names
from analysis.directed_alignment import directed_alignment
from analysis.exact_match import DIRECTIONS
from analysis.metric_names import MISSING, Statistic
from analysis.report.cases import AlignedRun
from analysis.shape import agreement
from analysis.tables import Cell, Row, Table
from gr_mvdr.progress import track
from gr_mvdr.relevance import PairAlignment

MEASURES = ("equal_partner", "overlap")
SIDES = ("document_ids", "query_ids")
PAIRS = 200  # of texts for each pair of systems: there are many pairs of systems
COLUMNS = {"equal_partner": "same strongest partner", "overlap": "overlap of weights"}


def measure_agreement(
    first: Any, second: Any, limit: int = PAIRS, special: Tensor | None = None
) -> dict[str, float]:
    """How alike two systems' directed alignments are, means over pairs.

    Compared are pairs in both stores whose token ids are equal on both sides: other tokens cannot
    be the same partners. Systems that cut texts differently thus share few pairs or none.

    Args:
        first, second: alignment stores.
        limit: pairs at most, evenly spread over the first store.
        special: (V,) bool, ids that do not count as aligning tokens.

    Returns:
        `pairs` compared; with any, "<direction>/equal_partner", the share of tokens with the same
        strongest partner, and "<direction>/overlap", Σ min of both tokens' weights.
    """
    found = []
    for one, other in track(_shared(first, second, limit), "comparing alignments"):
        pairs = first[one], second[other]
        if all(torch.equal(*(getattr(p, side) for p in pairs)) for side in SIDES):
            paradigms = first.description.paradigm, second.description.paradigm
            found.append([_agree(pairs, paradigms, d, special) for d in DIRECTIONS])
    if not found:
        return {"pairs": 0}
    means = torch.tensor(found, dtype=torch.float64).nanmean(0).flatten().tolist()
    names = [f"{direction}/{measure}" for direction, measure in product(DIRECTIONS, MEASURES)]
    return {"pairs": len(found)} | dict(zip(names, means, strict=True))


def _shared(first: Any, second: Any, limit: int) -> list[tuple[int, int]]:
    """The numbers of pairs in both stores, in the order of the first."""
    numbers = {pair: number for number, pair in enumerate(map(tuple, second.pairs))}
    shared = [
        (number, numbers[pair])
        for number, pair in enumerate(map(tuple, first.pairs))
        if pair in numbers
    ]
    stride = max(1, -(-len(shared) // limit))
    return shared[::stride]


def _agree(
    pairs: tuple[PairAlignment, PairAlignment],
    paradigms: tuple[str, str],
    direction: str,
    special: Tensor | None,
) -> tuple[float, float]:
    masks = pairs[0].document_mask, pairs[0].query_mask
    alignments = [
        directed_alignment(pair, paradigm, direction)
        for pair, paradigm in zip(pairs, paradigms, strict=True)
    ]
    equal, overlap = agreement(*alignments, *masks, direction)
    side = int(direction == "query_to_document")  # 1: the query aligns
    counted = masks[side]
    if special is not None:
        counted = counted & ~special[(pairs[0].document_ids, pairs[0].query_ids)[side]]
    return float(equal[counted].float().mean()), float(overlap[counted].mean())


def compare_alignments(runs: Sequence[AlignedRun]) -> list[Row]:
    """For every two systems the measures of `measure_agreement`; special tokens align nothing."""
    rows = []
    for first, second in combinations(runs, 2):
        special = _special(first, second)
        found = measure_agreement(first.store, second.store, PAIRS, special)
        rows.append({"first": first.label, "second": second.label} | found)
    return rows


def _special(*runs: AlignedRun) -> Tensor:
    """(V,) bool over all ids that either system knows."""
    known = {number for run in runs for number in run.vocabulary.strings}
    special = torch.zeros(max(known, default=0) + 1, dtype=torch.bool)
    special[sorted(known & {number for run in runs for number in run.vocabulary.special})] = True
    return special


def tabulate_agreement(rows: Sequence[Row]) -> Table:
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
