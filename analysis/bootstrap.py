"""How sure is a rate? Percentile bootstrap over the units it is an average of (Efron, 1979)."""

import torch
from torch import Tensor

RESAMPLES = 1000
LEVEL = 0.95
CELLS = 2**22  # weights drawn at once: 32 MB as float64


def interval(
    sums: Tensor,
    counts: Tensor,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """The interval of K ratios Σ_p sums / Σ_p counts when the P units are drawn anew.

    Units (such as pairs) are drawn as wholes, with replacement, so that tokens of one text stay
    together; the same draw serves all K ratios. A draw that leaves a ratio without any count says
    nothing about it.

    Args:
        sums: (P, K) what each unit adds to the numerators.
        counts: (P, K) what it adds to the denominators, ≥ 0.
        resamples: draws. level: the share of draws within the interval. seed: of the draws.

    Returns:
        (low, high), each (K,) float64; NaN where nothing was counted.

    Raises:
        ValueError: unequal shapes, a level not within (0, 1), or resamples below 1.
    """
    if sums.shape != counts.shape or sums.dim() != 2:
        raise ValueError(f"sums {tuple(sums.shape)}, counts {tuple(counts.shape)}: must be (P, K)")
    if not 0 < level < 1:
        raise ValueError(f"level={level}: must be between 0 and 1")
    if resamples < 1:
        raise ValueError(f"resamples={resamples}: must be ≥ 1")
    units, ratios = sums.shape
    if not units or not ratios:
        nothing = torch.full((ratios,), torch.nan, dtype=torch.float64)
        return nothing, nothing.clone()
    drawn = _drawn_ratios(sums.double(), counts.double(), resamples, seed)
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = drawn.nanquantile(tails, dim=0)
    return low, high


def _drawn_ratios(sums: Tensor, counts: Tensor, resamples: int, seed: int) -> Tensor:
    """(resamples, K), NaN where a draw has no count."""
    units, ratios = sums.shape
    both = torch.cat([sums, counts], 1)
    generator = torch.Generator().manual_seed(seed)
    parts, at_once = [], max(1, CELLS // units)
    for start in range(0, resamples, at_once):
        draws = min(at_once, resamples - start)
        chosen = torch.randint(units, (draws, units), generator=generator)
        weights = torch.zeros(draws, units, dtype=torch.float64)
        weights.scatter_add_(1, chosen, torch.ones((), dtype=torch.float64).expand(draws, units))
        parts.append(weights @ both)
    drawn = torch.cat(parts)
    return drawn[:, :ratios] / drawn[:, ratios:]
