"""Systems compared: which differences of their metrics are real, and do they align pairs alike?

The values of every test query come from the rankings and judgements that the runs left, the
alignments from their stores.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import combinations, product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from analysis.alignment_store import AlignmentStore
from analysis.exact_match import DIRECTIONS
from analysis.runs.run_folder import Run
from analysis.shape import agreement
from analysis.statistics import PERMUTATIONS, holm, interval, randomisation_test
from analysis.tables import metric_names
from analysis.tables.comparison import LEVEL, MARKS, Section
from analysis.tables.metric_names import DIRECTIONS as DIRECTION_LABELS
from analysis.tables.metric_names import MISSING, Statistic, text
from analysis.tables.rows import Cell, Row, Table
from analysis.viewer.cases import AlignedRun
from analysis.viewer.directed_alignment import directed_alignment
from gr_mvdr.evaluation.ranking import Qrels, Ranking, evaluate_queries, read_qrels
from gr_mvdr.progress import track
from gr_mvdr.relevance import PairAlignment

# Of all test queries, and of those that were reranked.
JUDGEMENTS, RERANKED = "retrieve.qrels", "rerank.qrels"
METRICS = ("mrr@10", "recall@10")
PAIRS_AT_MOST = 15  # of systems in a short table; of more, those with the best system


@dataclass
class JudgedQueries:
    """Runs of one group, query by query.

    Attributes:
        runs: one for each seed.
        place: which of their rankings: "retrieve", "rerank", "rerank/document_to_query".
        split: a further test split; "" is the first one.
    """

    runs: Sequence[Run]
    place: str = "retrieve"
    split: str = ""

    @property
    def file(self) -> str:
        """The file of a run's ranking: "rerank-document_to_query.trec"."""
        return self._of_split(f"{self.place.replace('/', '-', 1)}.trec")

    def _of_split(self, file: str) -> str:
        """A first split's file, of this one: "retrieve.qrels", "retrieve-test_unseen.qrels"."""
        return f"-{self.split}.".join(file.rsplit(".", 1)) if self.split else file

    @cached_property
    def judgements(self) -> Qrels | None:
        """What the runs were judged by; None where a run lacks its files or seeds differ."""
        folders = [run.path for run in self.runs]
        names = self.file, self._of_split(JUDGEMENTS)
        files = [folder / name for folder in folders for name in names]
        if not files or not all(file.exists() for file in files):
            return None
        first, *others = map(self._judged, folders)
        return first if all(other == first for other in others) else None

    def _judged(self, folder: Path) -> Qrels:
        own = folder / self._of_split(RERANKED)
        if self.place != "retrieve" and own.exists():
            return read_qrels(own, folder)
        qrels = read_qrels(folder / self._of_split(JUDGEMENTS), folder)
        if self.place == "retrieve":  # a query that found nothing counts, too
            return qrels
        # An older run has no file of them.
        reranked = set(Ranking.read(folder / self.file, folder).query_ids)
        return {query: grades for query, grades in qrels.items() if query in reranked}

    def values(self, metrics: Sequence[str]) -> dict[str, np.ndarray]:
        """Metric → (Q,) of every query, averaged over seeds, in the order of sorted query ids."""
        qrels = {query: self.judgements[query] for query in sorted(self.judgements)}
        rankings = (Ranking.read(run.path / self.file, run.path) for run in self.runs)
        seeds = [evaluate_queries(ranking, qrels, metrics).values() for ranking in rankings]
        return {
            name: np.mean([[query[name] for query in seed] for seed in seeds], 0)
            for name in metrics
        }


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

    statistics: dict[str, dict[str, Statistic]] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def rows(self) -> list[Row]:
        """The differences, for a CSV."""
        return list(map(asdict, self.differences))

    @property
    def best(self) -> str:
        """The label of the system with the highest mean of the first metric."""
        return max(self.statistics, key=lambda label: self.statistics[label][METRICS[0]].mean)

    @property
    def winners(self) -> dict[str, str]:
        """Metric ("retrieve/mrr@10") → the system that is better in it than every other one, each
        difference being significant; a metric without such a system is missing."""
        beaten = Counter(
            (d.metric, d.first if d.difference > 0 else d.second)
            for d in self.differences
            if d.corrected < LEVEL
        )
        others = len(self.statistics) + len(self.notes) - 1  # a note: a system without tests
        return {f"retrieve/{m}": label for (m, label), n in beaten.items() if n == others}


def compare_effectiveness(section: Section) -> Effectiveness:
    """Bootstraps and tests the searches of a section (Smucker et al., 2007).

    Every system that left its ranking and judgements takes part; judgements that differ from the
    first system's are left out and noted.
    """
    found, values, judged = Effectiveness(), {}, None
    for group in section.groups:
        queries = JudgedQueries(group.runs)
        if queries.judgements is None:
            reason = f"a run has no {queries.file} and {JUDGEMENTS}, or seeds were judged apart"
        elif judged is not None and queries.judgements != judged:
            reason = "judged on other queries than the first system"
        else:
            judged = queries.judgements
            values[group.label] = queries.values(METRICS)
            found.statistics[group.label] = _bootstrap(values[group.label])
            continue
        found.notes.append(f"{group.label}: no intervals and tests, {reason}.")
    for metric in METRICS:
        found.differences += _test_pairs(metric, {a: v[metric] for a, v in values.items()})
    return found


def _bootstrap(values: dict[str, np.ndarray]) -> dict[str, Statistic]:
    columns = torch.tensor(np.stack(list(values.values()), 1))
    bounds = interval(columns, torch.ones_like(columns))
    return {
        metric: Statistic(float(mean), low=float(low), high=float(high))
        for metric, mean, low, high in zip(values, columns.mean(0), *bounds, strict=True)
    }


def _test_pairs(metric: str, values: dict[str, np.ndarray]) -> list[Difference]:
    """The differences of every two systems; values: label → (Q,)."""
    pairs = list(combinations(values, 2))
    tested = track(pairs, f"testing {metric_names.label(metric)}", len(pairs))
    p_values = [randomisation_test(values[a], values[b]) for a, b in tested]
    return [
        Difference(metric, a, b, float(values[a].mean() - values[b].mean()), p, corrected)
        for (a, b), p, corrected in zip(pairs, p_values, holm(p_values), strict=True)
    ]


def tabulate_intervals(found: Effectiveness) -> Table:
    """Rows are systems, columns metrics: "0.600 [0.571, 0.628]", the best in bold."""
    best = {m: max(values[m].mean for values in found.statistics.values()) for m in METRICS}
    winners, rows = found.winners, []
    for label, values in found.statistics.items():
        cells = []
        for metric in METRICS:
            star = " *" if winners.get(f"retrieve/{metric}") == label else ""
            text = metric_names.text("retrieve", values[metric]) + star
            cells.append(Cell(text, values[metric].mean == best[metric]))
        rows.append((label, cells))
    heading = "Search, with 95 % intervals over queries"
    columns = [metric_names.label(metric) for metric in METRICS]
    return Table(heading, columns, rows, note=MARKS)


def tabulate_differences(found: Effectiveness) -> list[Table]:
    """For each metric a matrix: row minus column, with p; a star where it is below `LEVEL`."""
    labels, tables = list(found.statistics), []
    for metric in METRICS:
        cells = {(label, label): Cell("") for label in labels}
        for d in (d for d in found.differences if d.metric == metric):
            cells[d.first, d.second] = _format_difference(d.difference, d.corrected)
            cells[d.second, d.first] = _format_difference(-d.difference, d.corrected)
        rows = [(a, [cells[a, b] for b in labels]) for a in labels]
        tables.append(Table(f"{metric_names.label(metric)}, row minus column", labels, rows))
    return tables


def tabulate_pairs(found: Effectiveness, at_most: float = math.inf) -> Table:
    """A row for every two systems: first minus second, with p; a star where it is below `LEVEL`.

    Args:
        at_most: of more pairs only those of the best system are shown.
    """
    every = len(found.differences) <= at_most * len(METRICS)
    cells: dict[tuple[str, str], list[Cell]] = {}
    for d in found.differences:
        if not every and found.best not in (d.first, d.second):
            continue
        cell = _format_difference(d.difference, d.corrected)
        cells.setdefault((d.first, d.second), []).append(cell)
    rows = [(f"{first} − {second}", row) for (first, second), row in cells.items()]
    columns = [f"retrieve {metric_names.label(metric)}" for metric in METRICS]
    systems = "systems" if every else f"{found.best}, the best, and other systems"
    return Table(f"Differences between {systems}", columns, rows, corner="systems")


def explain_tests(found: Effectiveness) -> str:
    """Which test the p-values are of, how they are corrected, and what the star says."""
    pairs = len(found.differences) // len(METRICS)
    corrected = f", corrected for {pairs} pairs of systems (Holm)" if pairs > 1 else ""
    return (
        f"p: two-sided paired randomisation test over queries ({PERMUTATIONS:,} permutations)"
        f"{corrected}; *: p < {LEVEL}."
    )


def _format_difference(difference: float, p: float) -> Cell:
    shown = f"{difference:+.3f}" if abs(difference) >= 0.0005 else "0.000"
    said = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
    star = " *" if p < LEVEL else ""
    return Cell(f"{shown.replace('-', '−')} ({said}){star}")


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
    labels = [f"{DIRECTION_LABELS[direction]}, {MEASURES[measure]}" for direction, measure in kinds]
    shown = []
    for row in rows:
        values = [row.get(f"{direction}/{measure}") for direction, measure in kinds]
        texts = [MISSING if v is None else text("analysis", Statistic(v)) for v in values]
        cells = [Cell(cell) for cell in (str(row["pairs"]), *texts)]
        shown.append((f"{row['first']}, {row['second']}", cells))
    return Table("Agreement of systems", ["pairs", *labels], shown)
