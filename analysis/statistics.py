"""Means with intervals, significance, correlations, and samples that are the same every time."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from pandas import DataFrame
from torch import Tensor

from analysis.tables.metric_names import Metric

RESAMPLES = 1000
LEVEL = 0.95
NORMAL = 1.96  # standard errors: 95 % of a normal distribution
CELLS = 2**22  # weights drawn at once: 32 MB as float64
PERMUTATIONS = 10_000
_SIGNS = 2**23  # drawn at once: 64 MB as float64


def long_frame(first: int, values: Mapping[str, Tensor], axis: str = "", **place: Any) -> DataFrame:
    """Measures of a batch of pairs as rows of a table.

    Args:
        first: the number of the batch's first pair.
        values: measure → (B,), or (B, K) where the second axis counts `axis` from 1.
        axis: "head" or another name of the second axis.
        place: columns that are the same in every row, such as layer=1.

    Returns:
        A row for each pair, or each pair and head: `pair`, `axis`, the place, fp64 measures.
    """
    columns = {name: value.double().cpu().numpy() for name, value in values.items()}
    shape = next(iter(columns.values())).shape
    numbers = dict(zip(("pair", axis), np.indices(shape).reshape(len(shape), -1), strict=False))
    numbers = {name: number + (1 if name == axis else first) for name, number in numbers.items()}
    return DataFrame(numbers | place | {name: value.ravel() for name, value in columns.items()})


def mean_table(
    frame: DataFrame, by: Sequence[str], measures: Sequence[str], weight: str
) -> DataFrame:
    """Means of each group with 95 % intervals, which resample pairs as wholes.

    Args:
        frame: `pair`, the columns of `by`, the sums of `measures`, and over how many they are
            summed (`weight`), such as tokens.
        by: the columns that name a group; measures: the columns that are averaged.

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
    """The 95 % percentile bootstrap interval of K ratios Σ_p sums / Σ_p counts (Efron, 1979).

    Units (such as pairs) are drawn as wholes, with replacement, so that tokens of one text stay
    together; the same draws serve all K ratios. A draw that leaves a ratio without any count says
    nothing about it.

    Args:
        sums: (P, K) what each unit adds to the numerators.
        counts: (P, K) what it adds to the denominators, ≥ 0; None = 1 each.

    Returns:
        (low, high), each (K,) float64; NaN where nothing was counted.
    """
    units, ratios = sums.shape
    if not sums.numel():
        return torch.full((2, ratios), torch.nan, dtype=torch.float64).unbind()
    both = torch.cat([sums, torch.ones_like(sums) if counts is None else counts], 1).double()
    generator = torch.Generator().manual_seed(0)
    parts, at_once = [], max(1, CELLS // units)
    for start in range(0, RESAMPLES, at_once):
        draws = min(at_once, RESAMPLES - start)
        chosen = torch.randint(units, (draws, units), generator=generator)
        weights = torch.zeros(draws, units, dtype=torch.float64)
        weights.scatter_add_(1, chosen, torch.ones((), dtype=torch.float64).expand(draws, units))
        parts.append(weights @ both)
    drawn = torch.cat(parts)
    tails = torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2], dtype=torch.float64)
    return (drawn[:, :ratios] / drawn[:, ratios:]).nanquantile(tails, dim=0).unbind()


RANK_CORRELATION = Metric(
    "rank_correlation",
    "Do two scores order the candidates alike? 1: in the same order, 0: without relation.",
)


def spearman(first: Tensor, second: Tensor) -> float:
    """Spearman's ρ of (n,) values, the correlation of their ranks, in [−1, 1].

    Equal values share the mean of their ranks. NaN if a side has fewer than two different values.
    """
    both = DataFrame({"first": first.numpy(), "second": second.numpy()})
    return float(both.corr("spearman").loc["first", "second"])


def spread(table: Any, limit: int) -> Any:
    """At most `limit` rows of a column table, evenly spread from the first to the last."""
    return table if limit >= len(table) else table.select(spread_numbers(len(table), limit))


def spread_numbers(size: int, limit: int) -> list[int]:
    """At most `limit` numbers from 0 to size − 1, evenly spread, both ends included."""
    return np.linspace(0, size - 1, min(limit, size)).round().astype(int).tolist()


def randomisation_test(first: np.ndarray, second: np.ndarray) -> float:
    """The two-sided p-value of Fisher's paired randomisation test (Smucker et al., CIKM 2007).

    If both systems were equal, the two values of a query could be exchanged. The p-value is the
    share of random exchanges after which the means differ at least as much as they do; the given
    pairing counts as one of them, so that no p-value is 0.

    Args:
        first, second: (Q,) values of the same queries under two systems.

    Returns:
        p in [1 / (PERMUTATIONS + 1), 1].
    """
    differences = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    differences = differences[differences != 0]  # exchanging equal values changes nothing
    # Sums that are equal in exact arithmetic differ in their last bits.
    observed = abs(differences.sum()) - 1e-9
    rng, reached = np.random.default_rng(0), 0
    at_once = max(1, _SIGNS // max(1, len(differences)))
    for start in range(0, PERMUTATIONS, at_once):
        shape = min(at_once, PERMUTATIONS - start), len(differences)
        signs = 2.0 * rng.integers(0, 2, shape, dtype=np.int8) - 1.0
        reached += int((np.abs(signs @ differences) >= observed).sum())
    return (reached + 1) / (PERMUTATIONS + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction for several tests (1979): corrected p-values, in the given order.

    The k-th smallest of n is multiplied by n − k + 1, and then raised to the largest before it.
    """
    order, values = np.argsort(p_values), np.sort(p_values)
    raised = np.maximum.accumulate(values * np.arange(len(values), 0, -1)).clip(max=1)
    return raised[np.argsort(order)].tolist()
