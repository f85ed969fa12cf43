"""Compares systems: which differences in metrics are significant, and on which queries?"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from pandas import DataFrame, concat

from analysis.compare.groups import LEVEL, SEEDS, Section
from analysis.runs.queries import JudgedQueries
from analysis.runs.tables import Table, pivot
from analysis.statistics import estimate_mean, holm, pair_seeds
from gr_mvdr.evaluation.metrics import METRICS, name_metric, ranking_metric
from gr_mvdr.evaluation.ranking import Qrels, Ranking, evaluate_queries, read_qrels
from gr_mvdr.measures import RETRIEVE
from gr_mvdr.progress import track

TESTED = ("mrr@10", "recall@10")
SHOWN_QUERIES = 5  # of each pair of systems, the queries that differ most


@dataclass
class Effectiveness:
    """How systems differ in searching: differences that are paired by query and by seed.

    Attributes:
        values: system → its values, a row for each query, columns (metric, seed).
        differences: a row for every two systems and each tested metric: `metric`, `first` and
            `second`, the `difference` of their means with its interval from `low` to `high`
            (`analysis.statistics.estimate_mean`), in how many queries the first `wins`, `ties` and
            `loses`, its `p`, `corrected` by Holm's method over the pairs, and whether it is
            `significant`: corrected p < LEVEL, and `SEEDS` seeds of every trained system.
        notes: a line for each system that is left out, with the reason.
        baseline: the system with which all others are compared; None = each with each.
    """

    values: dict[str, DataFrame] = field(default_factory=dict)
    differences: DataFrame = field(default_factory=DataFrame)
    notes: list[str] = field(default_factory=list)
    baseline: str | None = None

    @property
    def means(self) -> DataFrame:
        """The mean of each metric (columns) of each system (rows)."""
        tables = {
            n: table.mean().groupby(level=0, sort=False).mean() for n, table in self.values.items()
        }
        return DataFrame(tables).T

    @property
    def winners(self) -> dict[str, str]:
        """Metric → the system that is significantly better than every other, if there is one."""
        if self.baseline is not None or self.differences.empty:
            return {}
        found = self.differences[self.differences["significant"]]
        better = found["first"].where(found["difference"] > 0, found["second"])
        others = len(self.values) + len(self.notes) - 1  # a system without tests has a note
        beaten = Counter(zip(found["metric"], better, strict=True))
        return {metric: label for (metric, label), n in beaten.items() if n == others}

    @property
    def table(self) -> Table | None:
        """A row for every two systems: first minus second, interval and p; None for fewer."""
        if self.differences.empty:
            return None
        cells = {}
        for row in self.differences.itertuples():
            p = "p < 0.001" if row.corrected < 0.001 else f"p = {row.corrected:.3f}"
            text = f"{row.difference:+.3f} [{row.low:.3f}, {row.high:.3f}] ({p})"
            text += " *" * row.significant
            label, pair = ranking_metric(row.metric).label, f"{row.first} − {row.second}"
            cells[pair, f"retrieve {label}"] = text.replace("-", "−")
            cells[pair, f"{label}: wins, ties, losses"] = f"{row.wins}, {row.ties}, {row.losses}"
        pairs = self.differences.groupby("metric").size().max()
        corrected = f", corrected for {pairs} pairs of systems (Holm)" if pairs > 1 else ""
        note = (
            "Paired by query and by seed; in brackets the 95 % interval over queries and seeds. "
            f"p: of the same model{corrected}. *: p < {LEVEL}, and at least {SEEDS} seeds of every "
            "trained system."
        )
        return pivot(cells, "Differences between systems", corner="systems", note=note)

    def differing(self, most: int = SHOWN_QUERIES) -> Table | None:
        """The queries on which every two systems differ most in the first tested metric."""
        if self.differences.empty:
            return None
        metric, cells = self.differences["metric"].iloc[0], {}
        for row in self.differences[self.differences["metric"] == metric].itertuples():
            first, second = (
                self.values[label][metric].mean(axis=1) for label in (row.first, row.second)
            )
            change = (first - second).round(9)
            largest = change[change != 0].abs().nlargest(most).index
            for number, query in enumerate(largest, start=1):
                text = f"{query}: {first[query]:.2f}, {second[query]:.2f}"
                cells[f"{row.first} − {row.second}", str(number)] = text
        label = ranking_metric(metric).label
        heading = f"Queries that differ most in {label}: the first system's value, the second's"
        return pivot(cells, heading, corner="systems") if cells else None

    @property
    def blocks(self) -> list[Table | str]:
        """The table of differences, if there is one, and the notes."""
        return [*([self.table] if self.table else []), *self.notes]


def compare_values(
    values: Mapping[str, DataFrame],
    tested: Sequence[str] = TESTED,
    baseline: str | None = None,
    trained: Sequence[str] = (),
) -> Effectiveness:
    """Tests every two systems, or all against a baseline, over the same queries.

    Args:
        values: system → a row for each query, columns (metric, seed).
        trained: the systems that were trained, whose differences need `SEEDS` seeds.

    Raises:
        ValueError: there is no such baseline or metric.
    """
    if baseline is not None and baseline not in values:
        raise ValueError(f"baseline={baseline}: must be one of {', '.join(values)}")
    pairs = [(a, b) for a, b in combinations(values, 2) if baseline in (None, a, b)]
    pairs = [(b, a) if a == baseline else (a, b) for a, b in pairs]
    rows: list[dict[str, Any]] = []
    for metric in map(name_metric, tested):
        for label, table in values.items():
            if metric not in table:
                known = ", ".join(table.columns.unique(0))
                raise ValueError(f"tested={metric}: must be one of {known} ({label})")
        changes = [pair_seeds(values[a][metric], values[b][metric]) for a, b in pairs]
        estimates = [estimate_mean(change) for change in track(changes, f"testing {metric}")]
        corrected = holm([one.p for one in estimates])
        for pair, change, found, p in zip(pairs, changes, estimates, corrected, strict=True):
            of_query = change.mean(axis=1).round(9)  # means that are equal may differ there
            wins, losses = int((of_query > 0).sum()), int((of_query < 0).sum())
            enough = all(n not in trained or values[n][metric].shape[1] >= SEEDS for n in pair)
            row = dict(zip(("metric", "first", "second"), (metric, *pair), strict=True))
            row |= {"difference": found.mean, "low": found.low, "high": found.high, "wins": wins}
            row |= {"ties": len(change) - wins - losses, "losses": losses, "p": found.p}
            rows.append(row | {"corrected": p, "significant": enough and p < LEVEL})
    return Effectiveness(dict(values), DataFrame(rows), baseline=baseline)


def compare_rankings(
    rankings: Mapping[str, Ranking | Path | str],
    qrels: Qrels | Path | str,
    metrics: Sequence[str] = METRICS,
    tested: Sequence[str] = TESTED,
    baseline: str | None = None,
) -> Effectiveness:
    """Compares rankings on judged queries, as `analysis.compare` compares runs.

        found = compare_rankings({"BM25": "bm25.trec", "mine": "mine.trec"}, "test.qrels")
        found.means, found.differences

    Args:
        rankings: name → ranking, or the path of a TREC run.
        qrels: judgements, or the path of a TREC file of them.
        metrics: what is computed, besides what is tested.
        tested, baseline: see `compare_values`.
    """
    judged = qrels if isinstance(qrels, Mapping) else read_qrels(Path(qrels))
    names = tuple(dict.fromkeys(map(name_metric, (*metrics, *tested))))
    values = {}
    for label, ranking in rankings.items():
        read = ranking if isinstance(ranking, Ranking) else Ranking.read(Path(ranking))
        table = DataFrame.from_dict(evaluate_queries(read, judged, names), orient="index")
        values[label] = concat({0: table}, axis=1).swaplevel(axis=1)
    return compare_values(values, tested, baseline)


def compare_effectiveness(
    section: Section, tested: Sequence[str] = TESTED, baseline: str | None = None
) -> Effectiveness:
    """Estimates and tests the searches of a section.

    The numbers of its groups receive the intervals over queries and seeds.

    Every system with a ranking and judgements takes part, unless its judgements differ from those
    of the first system. Systems that are left out are noted, and so is a section without the
    baseline, which is not tested.
    """
    notes, values, judged = [], {}, None
    names = [*map(name_metric, tested)]
    for group in section.groups:
        queries = JudgedQueries(group.runs)
        if queries.judgements is None:
            reason = queries.missing
        elif judged is not None and queries.judgements != judged:
            reason = "judged on other queries than the first system"
        else:
            judged = queries.judgements
            own = values[group.label] = concat(
                {metric: queries.by_seed(metric) for metric in queries.metrics}, axis=1
            )
            for metric in (name for name in names if name in own):
                place = (group.numbers["key"] == f"{RETRIEVE.name}/{metric}").to_numpy()
                _, low, high, _ = estimate_mean(own[metric])
                group.numbers.loc[place, ["low", "high"]] = low, high
            continue
        notes.append(f"{group.label}: no intervals and tests, {reason}.")
    if baseline is not None and baseline not in values:
        if baseline not in {group.label for group in section.groups}:
            notes.append(f"{section.setting}: no tests, it has no system {baseline}.")
        return Effectiveness(values, notes=notes, baseline=baseline)  # a note says why
    trained = [group.label for group in section.groups if group.is_trained]
    found = compare_values(values, tested, baseline, trained)
    found.notes = notes
    return found
