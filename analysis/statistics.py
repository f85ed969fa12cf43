"""Means with intervals, significance tests, correlations, and deterministic samples."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from pandas import DataFrame
from torch import Tensor

from gr_mvdr.measures import Metric

RESAMPLES = 1000
LEVEL = 0.95
_TAILS = torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2], dtype=torch.float64)
NORMAL = 1.96  # standard errors: 95 % of a normal distribution
PERMUTATIONS = 10_000
_SIGNS = 2**23  # signs drawn at a time: 64 MB as float64


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
    drawn = _draw(units, torch.Generator().manual_seed(0)) @ both
    return (drawn[:, :ratios] / drawn[:, ratios:]).nanquantile(_TAILS, dim=0).unbind()


def seed_interval(*systems: np.ndarray) -> tuple[float, float]:
    """Computes the 95 % interval of a system's mean over seeds and queries, or of a difference.

    A hierarchical bootstrap: queries are drawn with replacement, the same ones for both systems,
    and so are the seeds, separately for each system. With a single seed, only the queries vary.
    Two settings of the same trained models are one system: pass their difference.
    Drawing from few seeds underestimates their variance: with three seeds, by a third.

    Args:
        systems: one or two arrays (seeds, Q); the second system is subtracted from the first.
    """
    generator = torch.Generator().manual_seed(0)
    queries = _draw(systems[0].shape[1], generator)
    means = []
    for values in systems:
        seeds = _draw(len(values), generator) @ torch.tensor(values).double() / len(values)
        means.append((queries * seeds).sum(1) / queries.sum(1))
    low, high = (means[0] - sum(means[1:])).quantile(_TAILS).tolist()
    return low, high


def _draw(units: int, generator: torch.Generator) -> Tensor:
    """Draws units with replacement; (RESAMPLES, units) float64, how often each was drawn."""
    chosen = torch.randint(units, (RESAMPLES, units), generator=generator)
    counts = torch.zeros(chosen.shape, dtype=torch.float64)
    return counts.scatter_add_(1, chosen, torch.ones_like(counts))


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


def randomisation_test(first: np.ndarray, second: np.ndarray) -> float:
    """Computes the two-sided p of Fisher's paired randomisation test (Smucker et al., CIKM 2007).

    Under the null hypothesis, the two values of a query can be exchanged. The p-value is the share
    of random exchanges after which the means differ at least as much as observed; the observed
    assignment counts as one of them, so that no p-value is 0.

    Args:
        first, second: (Q,) values of the same queries under two systems.

    Returns:
        p in [1 / (PERMUTATIONS + 1), 1].
    """
    differences = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    differences = differences[differences != 0]  # exchanging equal values changes nothing
    # Sums that are equal in exact arithmetic may differ in their last bits.
    observed = abs(differences.sum()) - 1e-9
    rng, reached = np.random.default_rng(0), 0
    at_once = max(1, _SIGNS // max(1, len(differences)))
    for start in range(0, PERMUTATIONS, at_once):
        shape = min(at_once, PERMUTATIONS - start), len(differences)
        signs = 2.0 * rng.integers(0, 2, shape, dtype=np.int8) - 1.0
        reached += int((np.abs(signs @ differences) >= observed).sum())
    return (reached + 1) / (PERMUTATIONS + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Applies Holm's correction for multiple tests (1979); returns p-values in the given order.

    The k-th smallest of n is multiplied by n − k + 1, then raised to the largest before it and
    capped at 1.
    """
    order, values = np.argsort(p_values), np.sort(p_values)
    raised = np.maximum.accumulate(values * np.arange(len(values), 0, -1)).clip(max=1)
    return raised[np.argsort(order)].tolist()
