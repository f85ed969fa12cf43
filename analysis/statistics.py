"""Means with intervals, significance tests, correlations, and deterministic samples."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from pandas import DataFrame
from scipy import stats
from torch import Tensor

from gr_mvdr.measures import Metric

RESAMPLES = 10_000
LEVEL = 0.95
EQUAL = 1e-12  # what floating point may leave of a difference of equal numbers
_TAILS = torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2], dtype=torch.float64)
NORMAL = 1.96  # standard errors: 95 % of a normal distribution
_DRAWS = 2**23  # units drawn at a time: 64 MB as float64


def long_frame(first: int, values: Mapping[str, Tensor], axis: str = "", **place: Any) -> DataFrame:
    """Turns measures of a batch of pairs into rows of a table.

    Args:
        first: the number of the batch's first pair.
        values: measure → (B,) or (B, K).
        axis: the name of the second axis, such as "head"; it is numbered from 1.
        place: columns that are constant over all rows, such as layer=1.

    Returns:
        A row for each pair, or each pair and head: `pair`, `axis`, the place, fp64 measures.
    """
    columns = {name: value.cpu().double().numpy() for name, value in values.items()}
    shape = next(iter(columns.values())).shape
    numbers = dict(zip(("pair", axis), np.indices(shape).reshape(len(shape), -1), strict=False))
    numbers = {name: number + (1 if name == axis else first) for name, number in numbers.items()}
    return DataFrame(numbers | place | {name: value.ravel() for name, value in columns.items()})


def mean_table(
    frame: DataFrame, by: Sequence[str], measures: Sequence[str], weight: str
) -> DataFrame:
    """Averages measures in each group, with 95 % intervals that resample whole pairs.

    Args:
        frame: `pair`, the columns of `by`, the sums of `measures`, and in the column `weight` the
            number of summands, such as tokens.
        by: the columns that identify a group.
        measures: the columns that are averaged.
        weight: the column with the numbers of summands.

    Returns:
        A row for each group: `by`, then each measure with `_low` and `_high`, and the total weight.
    """
    sums = frame.groupby(["pair", *by])[[*measures, weight]].sum().unstack(list(by), fill_value=0)
    table = DataFrame(index=sums[weight].columns)
    for name in measures:
        low, high = interval(*(torch.tensor(sums[key].to_numpy()) for key in (name, weight)))
        table[name] = sums[name].sum() / sums[weight].sum()
        table[f"{name}_low"], table[f"{name}_high"] = low.numpy(), high.numpy()
    return table.assign(**{weight: sums[weight].sum()}).reset_index()


def interval(sums: Tensor, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Computes 95 % percentile bootstrap intervals of K ratios Σ_p sums / Σ_p counts (Efron, 1979).

    Whole units (such as pairs) are drawn with replacement, so that the tokens of a text stay
    together; the same draws are used for all K ratios. A draw in which a ratio has no count is
    ignored for that ratio.

    Args:
        sums: (P, K) each unit's share of the numerators.
        counts: (P, K) each unit's share of the denominators, ≥ 0; None = 1 each.

    Returns:
        (low, high), each (K,) float64; NaN if nothing was counted.
    """
    units, ratios = sums.shape
    if not sums.numel():
        return torch.full((2, ratios), torch.nan, dtype=torch.float64).unbind()
    both = torch.cat([sums, torch.ones_like(sums) if counts is None else counts], 1).double()
    drawn = _draw(units, both)
    return (drawn[:, :ratios] / drawn[:, ratios:]).nanquantile(_TAILS, dim=0).unbind()


class Estimate(NamedTuple):
    """A mean over seeds and queries, its 95 % interval, and the two-sided p against a bound."""

    mean: float
    low: float
    high: float
    p: float


def estimate_mean(values: DataFrame | np.ndarray, bound: float = 0.0) -> Estimate:
    """Estimates a mean over queries and seeds, both drawn at random and crossed.

    The model is y_qs = μ + b_q + a_s + e_qs. With the mean squares MS of its two-way analysis of
    variance, the mean of Q queries and S seeds has the variance (MS_b + max(MS_a − MS_e, 0)) / QS,
    with Satterthwaite's (1946) degrees of freedom for the sum. Interval and p follow Student's t.
    With one seed, only the queries vary. Of 10,000 simulated experiments with three seeds, 94 to
    96 % of the intervals hold the mean (`tests/analysis/test_statistics.py`).

    Args:
        values: (Q, S), a column for each seed; `pair_seeds` makes those of a difference.
        bound: the mean under the null hypothesis.
    """
    y = np.asarray(values, dtype=np.float64)
    (queries, seeds), mean = y.shape, y.mean()
    of_query, of_seed = y.mean(1, keepdims=True), y.mean(0, keepdims=True)
    squares = seeds * ((of_query - mean) ** 2).sum()
    parts = [(squares / max(1, queries - 1), queries - 1)]
    if seeds > 1:
        rest = ((y - of_query - of_seed + mean) ** 2).sum() / max(1, (queries - 1) * (seeds - 1))
        between = queries * ((of_seed - mean) ** 2).sum() / (seeds - 1)
        parts.append((max(between - rest, 0.0), seeds - 1))
    total = sum(part for part, _ in parts)
    error = (total / y.size) ** 0.5
    if error < EQUAL:  # all values are equal
        return Estimate(mean, mean, mean, float(abs(mean - bound) < EQUAL))
    freedom = total**2 / sum(part**2 / degrees for part, degrees in parts)
    reach = error * stats.t.ppf((1 + LEVEL) / 2, freedom)
    p = 2 * stats.t.sf(abs(mean - bound) / error, freedom)
    return Estimate(mean, mean - reach, mean + reach, float(p))


def pair_seeds(first: DataFrame, second: DataFrame) -> DataFrame:
    """Subtracts two systems' values (queries × seeds), query by query and seed by seed.

    Equal seeds are paired, as they draw the same batches and the same first weights. A system of
    one run is subtracted from each run of the other; systems without a common seed are paired in
    the order of their seeds.
    """
    if second.shape[1] == 1:
        return first.sub(second.iloc[:, 0], axis=0)
    if first.shape[1] == 1:
        return -pair_seeds(second, first)
    if common := [seed for seed in first if seed in second]:
        return first[common] - second[common]
    count = min(first.shape[1], second.shape[1])
    return first.iloc[:, :count] - second.iloc[:, :count].to_numpy()


def _draw(units: int, columns: Tensor) -> Tensor:
    """Sums columns (units, C) over units that are drawn with replacement; (RESAMPLES, C)."""
    generator, sums = torch.Generator().manual_seed(0), []
    at_once = max(1, _DRAWS // units)
    for start in range(0, RESAMPLES, at_once):
        count = min(at_once, RESAMPLES - start)
        chosen = torch.randint(units, (count, units), generator=generator)
        times = torch.zeros(chosen.shape, dtype=torch.float64)
        sums.append(times.scatter_add_(1, chosen, torch.ones_like(times)) @ columns)
    return torch.cat(sums)


RANK_CORRELATION = Metric(
    "rank_correlation",
    "Spearman's ρ of two scores: 1 if both give the same order, 0 if their orders are unrelated.",
)


def spearman(first: Tensor, second: Tensor) -> float:
    """Computes Spearman's ρ of (n,) values, the correlation of their ranks, in [−1, 1].

    Equal values share the mean of their ranks. NaN if either side has fewer than two distinct
    values.
    """
    both = DataFrame({"first": first.numpy(), "second": second.numpy()})
    return float(both.corr("spearman").loc["first", "second"])


def spread(table: Any, limit: int) -> Any:
    """Selects at most `limit` rows of a column table, evenly spread from the first to the last."""
    return table if limit >= len(table) else table.select(spread_numbers(len(table), limit))


def spread_numbers(size: int, limit: int) -> list[int]:
    """Returns at most `limit` numbers from 0 to size − 1, evenly spread, both ends included."""
    return np.linspace(0, size - 1, min(limit, size)).round().astype(int).tolist()


def holm(p_values: Sequence[float]) -> list[float]:
    """Applies Holm's correction for multiple tests (1979); returns p-values in the given order.

    The k-th smallest of n is multiplied by n − k + 1, then raised to the largest before it and
    capped at 1.
    """
    order, values = np.argsort(p_values), np.sort(p_values)
    raised = np.maximum.accumulate(values * np.arange(len(values), 0, -1)).clip(max=1)
    return raised[np.argsort(order)].tolist()
