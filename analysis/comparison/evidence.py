"""What finished runs say of a claim: an effect, its 95 % interval and its p-value.

A claim compares two sides query by query (rankings, searches of a study, stored alignments), or
asks for the sign of a trend over token types. Seeds of one system are averaged first.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch.linalg import matrix_norm

from analysis import metric_names
from analysis.comparison.comparison import Group
from analysis.comparison.significance import JudgedQueries
from analysis.low_rank import equal_rows_residual, real_entries
from analysis.low_rank_bound import composite_norm
from analysis.run_folder import STUDY, Run
from analysis.statistics import NORMAL, interval
from analysis.store.alignment_store import MANIFEST, AlignmentStore
from analysis.tables import read_rows
from gr_mvdr.evaluation.metrics import randomisation_test

STUDIED, ALIGNED, MEASURED = "study=", "alignments", "analysis/"
QUERIES = "study_queries.csv"
TABLES, KEPT = (STUDY, QUERIES), (f"{ALIGNED}/{MANIFEST}",)  # of a study, of alignments
RATES = "exact_match.csv"
WHOLE = {"definition": "all", "tokens": "all", "idf_bin": "all"}  # a row of it
VALUES = 2**23  # of similarities in a batch of stored pairs
Values = dict[str, float]  # query → value


class Missing(Exception):
    """What a claim needs and the runs did not leave."""


@dataclass(frozen=True)
class Side:
    """What a claim looks at.

    Attributes:
        system: as runs name it.
        place: a ranking ("retrieve", "rerank", "rerank/FORM"), a study ("study=pruning"),
            `ALIGNED`, or, of a trend, where the run's metrics have it
            ("analysis/exact_match/query_to_document").
        setting: of a study: column → value; of several rows the one with most neighbours counts.
    """

    system: str
    place: str = "retrieve"
    setting: Mapping[str, str | float] = field(default_factory=dict)

    def __str__(self) -> str:
        how = [f"{key}={value}" for key, value in self.setting.items()]
        return f"{self.system} {', '.join(how) or self.place.removeprefix(MEASURED)}"


@dataclass(frozen=True)
class Claim:
    """What a paper says: that the first side minus the second is above a bound, or below it.

    Attributes:
        name: in a few words. source: paper and place.
        second: None: the first side's own value.
        metric: of a query; of `ALIGNED` as `_measure_pairs` has it; of a trend the metric's name.
        sign: 1 = above, −1 = below. note: how the claim is put in numbers.
    """

    name: str
    source: str
    first: Side
    second: Side | None = None
    metric: str = "mrr@10"
    sign: int = 1
    bound: float = 0.0
    note: str = ""

    @property
    def sides(self) -> list[Side]:
        return [side for side in (self.first, self.second) if side]

    def __str__(self) -> str:
        """What is compared, as a formula."""
        sides = " − ".join(map(str, self.sides))
        return f"{sides}, {metric_names.label(self.metric)} {'<>'[self.sign > 0]} {self.bound:g}"


@dataclass(frozen=True)
class Estimate:
    """An effect, its 95 % interval, the p-value that it equals the bound, of so many units."""

    effect: float
    low: float
    high: float
    p: float
    units: int


def estimate(claim: Claim, groups: Sequence[Group], split: str = "") -> Estimate:
    """The effect that a claim is about: first side minus second.

    Args:
        groups: the runs of each side, one for each seed. split: a further test split.

    Raises:
        Missing: a file or a row is not there, or the sides were measured on different queries.
    """
    if claim.first.place.startswith(MEASURED):
        return estimate_trend(claim, groups[0].runs)
    sides = [
        _read_values(side, group.runs, claim.metric, split)
        for side, group in zip(claim.sides, groups, strict=True)
    ]
    if any(side.keys() != sides[0].keys() for side in sides):
        raise Missing("its sides were measured on different queries")
    columns = [np.array([side[query] for query in sorted(side)]) for side in sides]
    differences = columns[0] - (columns[1] if len(columns) > 1 else 0)
    found = torch.from_numpy(differences)[:, None]
    low, high = map(float, interval(found, torch.ones_like(found)))
    p = randomisation_test(differences, np.full_like(differences, claim.bound))
    return Estimate(float(differences.mean()), low, high, p, len(differences))


def estimate_trend(claim: Claim, runs: Sequence[Run]) -> Estimate:
    """Spearman's ρ over token types, its mean over analysed seeds, Bonett and Wright's interval.

    Seeds see the same tokens: their number does not add to the units (2000, Psychometrika 65).
    """
    key, counts = f"{claim.first.place}/{claim.metric}", []
    wanted = (WHOLE | {"direction": claim.first.place.rpartition("/")[2]}).items()
    runs = [run for run in runs if key in run.metrics and (run.path / RATES).is_file()]
    if not runs:
        raise Missing(f"{claim.first.system}: no {key} or no {RATES}")
    for run in runs:
        rows = read_rows(run.path / RATES, run.path)
        counts += [row["token_types"] for row in rows if wanted <= row.items()][:1]
    rho, units = fmean(run.metrics[key] for run in runs), min(counts, default=0)
    if units <= 3:
        raise Missing(f"{claim.first.system}: {units} token types say nothing of a trend")
    z = math.atanh(min(max(rho, -1 + 1e-9), 1 - 1e-9))
    error = math.sqrt((1 + rho**2 / 2) / (units - 3))
    low, high = (math.tanh(z + sign * NORMAL * error) for sign in (-1, 1))
    return Estimate(rho, low, high, math.erfc(abs(z) / error / math.sqrt(2)), units)


def _read_values(side: Side, runs: Sequence[Run], metric: str, split: str) -> Values:
    """A side's value of every query, the mean over seeds (that were studied or analysed)."""
    if side.place != ALIGNED and not side.place.startswith(STUDIED):
        queries = JudgedQueries(runs, side.place, split)
        if queries.judgements is None:
            raise Missing(f"{side.system}: no {queries.file} with its qrels, or seeds judged apart")
        values = queries.values([metric])[metric].tolist()
        return dict(zip(sorted(queries.judgements), values, strict=True))
    files, read = (KEPT, _read_alignments) if side.place == ALIGNED else (TABLES, _read_study)
    runs = [run for run in runs if all((run.path / file).is_file() for file in files)]
    if not runs:
        raise Missing(f"{side.system}: no {' with '.join(files)} ({side.place})")
    found = [read(side, run, metric) for run in runs]
    if any(one.keys() != found[0].keys() for one in found):
        raise Missing(f"{side.system}: its seeds were measured on different queries")
    return {query: fmean(one[query] for one in found) for query in found[0]}


def _read_study(side: Side, run: Run, metric: str) -> Values:
    """The values under a side's setting, of a study that kept those of every query."""
    fitting = [
        (_count(row.get("neighbours")), number)
        for number, row in enumerate(read_rows(run.path / STUDY, run.path))
        if side.setting.items() <= row.items()
    ]
    if not fitting:
        raise Missing(f"{side}: no such row in {STUDY}")
    column, found = f"{max(fitting)[1]}/{metric}", read_rows(run.path / QUERIES, run.path)
    if not all(column in row for row in found):
        raise Missing(f"{side.system}: no column {column} in {QUERIES}")
    return {str(row["query"]): row[column] for row in found}


def _count(neighbours: Any) -> float:
    """A number of neighbours; one that the search chose itself ("auto") is below all."""
    return neighbours if isinstance(neighbours, int | float) else 0


def _read_alignments(side: Side, run: Run, metric: str) -> Values:
    """A measure of the stored pairs' last layer: mean over heads, and over a query's pairs."""
    store, values = AlignmentStore(run.path / ALIGNED), defaultdict(list)
    for (query, _), value in zip(store.pairs, _measure_pairs(store, metric), strict=True):
        values[query].append(value)
    return {query: fmean(found) for query, found in values.items()}


def _measure_pairs(store: AlignmentStore, metric: str) -> Iterator[float]:
    """Of every pair, the mean over the last layer's heads.

    `relative_error`: ‖A − R‖_F / ‖A‖_F; `norm_ratio`: ‖A − R‖ / ‖W‖ in the lemma's norm (gr_as_mvdr
    Lemma 5.1). R is the best matrix of equal rows.
    """
    for batch in store.explanations(store.batch_size(VALUES, 64)):
        last, heads = batch.layers[-1], batch.layers[-1].alignment.shape[1]
        sides = last.document_mask, last.query_mask
        masks = [mask.repeat_interleave(heads, 0) for mask in sides]
        matrices = real_entries(last.alignment.flatten(0, 1), *masks)
        residuals = equal_rows_residual(matrices, *masks)
        if metric == "norm_ratio":
            norms = composite_norm(residuals).view(-1, heads)
            found = norms / batch.decoder.projection_norms[-1].double()
        else:
            found = torch.div(*map(matrix_norm, (residuals, matrices))).view(-1, heads)
        yield from found.mean(1).tolist()
