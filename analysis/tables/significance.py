"""Compares systems: which differences in metrics are significant, and how alike are alignments?

The values of each test query are read from the runs' `queries.parquet`, alignments from their
stores.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations, product

import numpy as np
import torch
from pandas import DataFrame

from analysis.alignment_store import AlignmentStore
from analysis.runs.judged_queries import JudgedQueries
from analysis.shape import agreement
from analysis.statistics import PERMUTATIONS, holm, interval, randomisation_test
from analysis.tables.comparison import LEVEL, Section
from analysis.tables.metric_names import DIRECTIONS, MISSING, Statistic, label
from analysis.tables.rows import Row, Table, pivot
from analysis.viewer.cases import AlignedRun
from analysis.viewer.directed_alignment import directed_alignment
from gr_mvdr.progress import track

METRICS = ("mrr@10", "recall@10")


@dataclass
class Effectiveness:
    """How well the systems of a section search: intervals and tests over queries.

    Attributes:
        statistics: label → "retrieve/METRIC" → mean over queries (and seeds) with its interval.
        differences: a row for every two systems and each of `METRICS`: `metric`, `first` and
            `second` (labels), the `difference` of their means, `p` of the two-sided paired
            randomisation test, and `corrected`, p after Holm's correction over pairs of systems.
        notes: a line for each system that is left out, with the reason.
    """

    statistics: dict[str, dict[str, Statistic]] = field(default_factory=dict)
    differences: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def winners(self) -> dict[str, str]:
        """Metric ("retrieve/mrr@10") → the system that is significantly better than every other.

        A metric without such a system is missing, and so is every metric if a system is untested.
        """
        beaten = Counter(
            (row["metric"], row["first"] if row["difference"] > 0 else row["second"])
            for row in self.differences
            if row["corrected"] < LEVEL
        )
        others = len(self.statistics) + len(self.notes) - 1  # a system without tests has a note
        return {f"retrieve/{m}": label for (m, label), n in beaten.items() if n == others}

    @property
    def table(self) -> Table | None:
        """A row for every two systems: first minus second, with p; None for fewer than two."""
        if not self.differences:
            return None
        cells = {
            (f"{row['first']} − {row['second']}", f"retrieve {label(row['metric'])}"): _show(row)
            for row in self.differences
        }
        pairs = len(self.differences) // len(METRICS)
        corrected = f", corrected for {pairs} pairs of systems (Holm)" if pairs > 1 else ""
        note = (
            "p: two-sided paired randomisation test over queries "
            f"({PERMUTATIONS:,} permutations){corrected}; *: p < {LEVEL}."
        )
        return pivot(cells, "Differences between systems", corner="systems", note=note)

    @property
    def blocks(self) -> list[Table | str]:
        """The table of differences, if there is one, and the notes."""
        return [*([self.table] if self.table else []), *self.notes]


def _show(row: Row) -> str:
    """Formats a difference: "+0.012 (p = 0.031) *"."""
    p = "p < 0.001" if row["corrected"] < 0.001 else f"p = {row['corrected']:.3f}"
    text = f"{row['difference']:+.3f} ({p})".replace("-", "−")
    return text + " *" * (row["corrected"] < LEVEL)


def compare_effectiveness(section: Section) -> Effectiveness:
    """Bootstraps and tests the searches of a section (Smucker et al., 2007).

    Every system with a ranking and judgements takes part, unless its judgements differ from those
    of the first system. Systems that are left out are noted.
    """
    tested, values, judged = Effectiveness(), {}, None
    for group in section.groups:
        queries = JudgedQueries(group.runs)
        if queries.judgements is None:
            reason = queries.missing
        elif judged is not None and queries.judgements != judged:
            reason = "judged on other queries than the first system"
        else:
            judged = queries.judgements
            values[group.label] = queries.values(METRICS)
            tested.statistics[group.label] = _bootstrap(values[group.label])
            continue
        tested.notes.append(f"{group.label}: no intervals and tests, {reason}.")
    pairs = list(combinations(values, 2))
    for metric in METRICS:
        both = [(values[a][metric], values[b][metric]) for a, b in pairs]
        p_values = [randomisation_test(*one) for one in track(both, f"testing {label(metric)}")]
        table = DataFrame(pairs, columns=["first", "second"])
        table.insert(0, "metric", metric)
        table["difference"] = [first.mean() - second.mean() for first, second in both]
        table = table.assign(p=p_values, corrected=holm(p_values))
        tested.differences += table.to_dict("records")
    return tested


def _bootstrap(values: dict[str, np.ndarray]) -> dict[str, Statistic]:
    columns = torch.tensor(np.stack(list(values.values()), 1))
    numbers = torch.stack([columns.mean(0), *interval(columns)], 1).tolist()
    return {
        f"retrieve/{metric}": Statistic(mean, None, low, high)
        for metric, (mean, low, high) in zip(values, numbers, strict=True)
    }


MEASURES = {"equal_partner": "same strongest partner", "overlap": "overlap of weights"}
PAIRS = 200  # text pairs for each pair of systems; few, as there are many pairs of systems


def compare_alignments(runs: Sequence[AlignedRun]) -> list[Row]:
    """Applies `measure_agreement` to every two systems; special tokens do not count."""
    rows = []
    for first, second in combinations(runs, 2):
        special = sorted(first.store.special | second.store.special)
        found = measure_agreement(first.store, second.store, PAIRS, special)
        rows.append({"first": first.label, "second": second.label} | found)
    return rows


def measure_agreement(
    first: AlignmentStore, second: AlignmentStore, limit: int = PAIRS, special: Sequence[int] = ()
) -> dict[str, float]:
    """Measures how alike two systems' directed alignments are, as means over pairs.

    A pair is compared if both stores hold it with equal token ids on both sides; otherwise partners
    cannot be matched. Systems that tokenise texts differently thus share few pairs or none.

    Args:
        limit: the most pairs compared, evenly spread over those in both stores.
        special: ids that do not count as aligning tokens.

    Returns:
        `pairs`, the number compared; if there are any, "<direction>/equal_partner", the share of
        tokens with the same strongest partner, and "<direction>/overlap", the mean over tokens of
        Σ min of both systems' weights.
    """
    numbers = {tuple(pair): number for number, pair in enumerate(second.pairs)}
    shared = [(n, numbers[tuple(p)]) for n, p in enumerate(first.pairs) if tuple(p) in numbers]
    rows, ignored = [], torch.tensor(special)
    for one, other in track(shared[:: max(1, -(-len(shared) // limit))], "comparing alignments"):
        pair, twin = first[one], second[other]
        same_documents = torch.equal(pair.document_ids, twin.document_ids)
        if not (same_documents and torch.equal(pair.query_ids, twin.query_ids)):
            continue
        aligning = {
            "query_to_document": pair.query_mask & ~torch.isin(pair.query_ids, ignored),
            "document_to_query": pair.document_mask & ~torch.isin(pair.document_ids, ignored),
        }
        row = {}
        for direction, tokens in aligning.items():
            ways = [
                directed_alignment(aligned, store.description.paradigm, direction)
                for aligned, store in ((pair, first), (twin, second))
            ]
            found = agreement(*ways, pair.document_mask, pair.query_mask, direction)
            for name, measure in zip(MEASURES, found, strict=True):
                row[f"{direction}/{name}"] = float(measure[tokens].float().mean())
        rows.append(row)
    return {"pairs": len(rows)} | DataFrame(rows).mean().to_dict()


def tabulate_agreement(rows: Sequence[Row]) -> Table:
    """Makes a row for each two systems; cells are "–" for systems that share no pair."""
    cells = {}
    for row in rows:
        pair = f"{row['first']}, {row['second']}"
        cells[pair, "pairs"] = str(row["pairs"])
        for direction, measure in product(DIRECTIONS, MEASURES):
            value = row.get(f"{direction}/{measure}")
            column = f"{DIRECTIONS[direction]}, {MEASURES[measure]}"
            cells[pair, column] = MISSING if value is None else f"{value:.3f}"
    return pivot(cells, "Agreement of systems", corner="systems")
