"""Do two quantities rise together? Pearson's correlation, and Spearman's of ranks."""

import torch
from torch import Tensor


def spearman(first: Tensor, second: Tensor) -> float:
    """Spearman's ρ, the correlation of ranks; equal values share the mean of their ranks.

    Args:
        first, second: (n,) of any number type.

    Returns:
        ρ in [−1, 1]; NaN with fewer than two values, or where one side never varies.
    """
    return pearson(_ranks(first), _ranks(second))


def pearson(first: Tensor, second: Tensor) -> float:
    """Pearson's r of (n,) values, in fp64; NaN as `spearman`."""
    if len(first) < 2:
        return float("nan")
    one, other = (values.double() - values.double().mean() for values in (first, second))
    return float(one @ other / (one.norm() * other.norm()))  # 0 / 0 where a side never varies


def _ranks(values: Tensor) -> Tensor:
    """(n,) float64 ranks from 1, ties averaged."""
    _, which, counts = torch.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    return (last - (counts - 1) / 2)[which]
