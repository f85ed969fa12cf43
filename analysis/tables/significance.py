"""Compares systems: which differences in metrics are significant?

The values of each test query are read from the runs' `queries.parquet`.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import combinations

from pandas import DataFrame

from analysis.runs.judged_queries import JudgedQueries
from analysis.statistics import PERMUTATIONS, holm, randomisation_test, seed_interval
from analysis.tables.comparison import LEVEL, Section
from analysis.tables.metric_names import read_key
from analysis.tables.rows import Row, Table, pivot
from gr_mvdr.progress import track

METRICS = ("mrr@10", "recall@10")


@dataclass
class Effectiveness:
    """How the systems of a section differ in searching: tests over queries.

    Attributes:
        systems: the labels of the tested systems.
        differences: a row for every two systems and each of `METRICS`: `metric`, `first` and
            `second` (labels), the `difference` of their means, `p` of the two-sided paired
            randomisation test, and `corrected`, p after Holm's correction over pairs of systems.
        notes: a line for each system that is left out, with the reason.
    """

    systems: list[str] = field(default_factory=list)
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
        others = len(self.systems) + len(self.notes) - 1  # a system without tests has a note
        return {f"retrieve/{m}": label for (m, label), n in beaten.items() if n == others}

    @property
    def table(self) -> Table | None:
        """A row for every two systems: first minus second, with p; None for fewer than two."""
        if not self.differences:
            return None
        cells = {
            (
                f"{row['first']} − {row['second']}",
                f"retrieve {read_key(row['metric']).label}",
            ): _show(row)
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

    The `statistics` of its groups receive the intervals over queries and seeds.

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
            for metric in METRICS:
                if found := group.statistics.get(key := f"retrieve/{metric}"):
                    low, high = seed_interval(queries.by_seed(metric))
                    group.statistics[key] = replace(found, low=low, high=high)
            continue
        tested.notes.append(f"{group.label}: no intervals and tests, {reason}.")
    tested.systems = list(values)
    pairs = list(combinations(values, 2))
    for metric in METRICS:
        both = [(values[a][metric], values[b][metric]) for a, b in pairs]
        p_values = [randomisation_test(*one) for one in track(both, f"testing {metric}")]
        table = DataFrame(pairs, columns=["first", "second"])
        table.insert(0, "metric", metric)
        table["difference"] = [first.mean() - second.mean() for first, second in both]
        table = table.assign(p=p_values, corrected=holm(p_values))
        tested.differences += table.to_dict("records")
    return tested
