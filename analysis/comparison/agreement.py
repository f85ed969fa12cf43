"""Do the systems of a comparison align the same pairs alike? Every two of them, by their stores."""

from collections.abc import Sequence
from itertools import combinations, product

import torch
from torch import Tensor

from analysis.directed_alignment import directed_alignment
from analysis.exact_match import DIRECTIONS
from analysis.metric_names import LABELS, MISSING, Statistic, text
from analysis.report.cases import AlignedRun
from analysis.shape import agreement
from analysis.store.alignment_store import AlignmentStore
from analysis.tables import Cell, Row, Table
from gr_mvdr.progress import track
from gr_mvdr.relevance import PairAlignment

MEASURES = {"equal_partner": "same strongest partner", "overlap": "overlap of weights"}
PAIRS = 200  # of texts for each pair of systems: there are many pairs of systems


def compare_alignments(runs: Sequence[AlignedRun]) -> list[Row]:
    """For every two systems the measures of `measure_agreement`; special tokens align nothing."""
    rows = []
    for first, second in combinations(runs, 2):
        known = {**first.vocabulary.strings, **second.vocabulary.strings}
        special = torch.zeros(max(known, default=0) + 1, dtype=torch.bool)
        either = first.vocabulary.special | second.vocabulary.special
        special[sorted(either & known.keys())] = True
        found = measure_agreement(first.store, second.store, PAIRS, special)
        rows.append({"first": first.label, "second": second.label} | found)
    return rows


def measure_agreement(
    first: AlignmentStore, second: AlignmentStore, limit: int = PAIRS, special: Tensor | None = None
) -> dict[str, float]:
    """How alike two systems' directed alignments are, means over pairs.

    Compared are pairs in both stores whose token ids are equal on both sides: other tokens cannot
    be the same partners. Systems that cut texts differently thus share few pairs or none.

    Args:
        limit: pairs at most, evenly spread over the first store.
        special: (V,) bool, ids that do not count as aligning tokens.

    Returns:
        `pairs` compared; with any, "<direction>/equal_partner", the share of tokens with the same
        strongest partner, and "<direction>/overlap", Σ min of both tokens' weights.
    """
    numbers = {tuple(pair): number for number, pair in enumerate(second.pairs)}
    shared = [(n, numbers[tuple(p)]) for n, p in enumerate(first.pairs) if tuple(p) in numbers]
    paradigms = first.description.paradigm, second.description.paradigm
    found = []
    for one, other in track(shared[:: max(1, -(-len(shared) // limit))], "comparing alignments"):
        pairs = first[one], second[other]
        ids = [(pair.document_ids, pair.query_ids) for pair in pairs]
        if all(map(torch.equal, *ids)):
            found.append([_agree(pairs, paradigms, way, special) for way in DIRECTIONS])
    if not found:
        return {"pairs": 0}
    means = torch.tensor(found, dtype=torch.float64).nanmean(0).flatten().tolist()
    names = [f"{direction}/{measure}" for direction, measure in product(DIRECTIONS, MEASURES)]
    return {"pairs": len(found)} | dict(zip(names, means, strict=True))


def _agree(
    pairs: tuple[PairAlignment, PairAlignment],
    paradigms: tuple[str, str],
    direction: str,
    special: Tensor | None,
) -> tuple[float, float]:
    """Means over the aligning tokens of one pair: equal strongest partners, overlap of weights."""
    masks = pairs[0].document_mask, pairs[0].query_mask
    ways = [directed_alignment(*both, direction) for both in zip(pairs, paradigms, strict=True)]
    equal, overlap = agreement(*ways, *masks, direction)
    side = int(direction == "query_to_document")  # 1: the query aligns
    counted = masks[side]
    if special is not None:
        counted = counted & ~special[(pairs[0].document_ids, pairs[0].query_ids)[side]]
    return float(equal[counted].float().mean()), float(overlap[counted].mean())


def tabulate_agreement(rows: Sequence[Row]) -> Table:
    """Rows are pairs of systems; systems that cut texts differently have nothing to compare."""
    kinds = list(product(DIRECTIONS, MEASURES))
    labels = [f"{LABELS[direction]}, {MEASURES[measure]}" for direction, measure in kinds]
    shown = []
    for row in rows:
        values = [row.get(f"{direction}/{measure}") for direction, measure in kinds]
        texts = [MISSING if v is None else text("analysis", Statistic(v)) for v in values]
        cells = [Cell(cell) for cell in (str(row["pairs"]), *texts)]
        shown.append((f"{row['first']}, {row['second']}", cells))
    return Table("Agreement of systems", ["pairs", *labels], shown)
