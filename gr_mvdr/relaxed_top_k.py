"""The relaxed top-k: max sᵀλ + ε H(λ) with Σ λ = k and 0 ≤ λ ≤ 1 (aligner Eq. 4, Appendix A.1).

Its solution is λ_i = min(1, exp((s_i + a) / ε)) with one scalar a.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

Solver = Literal["exact", "iterative"]
# Scores that a CPU solves at once: what is made on the way stays in the cache (half the time).
_BLOCK = 1 << 15
# Its exponential, and the sum of many, are finite in double.
_LARGEST = 600.0


def relaxed_top_k(
    scores: Tensor,
    k: int | Tensor,
    epsilon: float,
    mask: Tensor | None = None,
    solver: Solver = "exact",
    iterations: int = 1000,
) -> Tensor:
    """λ of aligner Eq. 4: close to 1 at the k best scores, close to 0 elsewhere.

    Args:
        scores: (…, m) float.
        k: what λ sums to, one number or (…); of at most k real scores all get 1.
        epsilon: ε > 0, the entropy's weight; towards 0 this is a hard top-k.
        mask: (…, m) bool, True = a real score; None = all.
        solver: "exact" finds a by sorting. "iterative" is Eq. 5, which at a small ε needs
            thousands of iterations; `residual` tells how far it came.
        iterations: of Eq. 5.

    Returns:
        (…, m) of the scores' dtype, 0 at padding. Both solvers pass gradients to the scores.

    Raises:
        ValueError: k, epsilon, solver or iterations are out of range.
    """
    check_solver(epsilon, solver, iterations)
    if isinstance(k, int) and k < 1:
        raise ValueError(f"k={k}: must be ≥ 1")
    if not scores.numel():
        return torch.zeros_like(scores)
    mask = scores.new_ones((), dtype=torch.bool) if mask is None else mask
    k = torch.as_tensor(k, device=scores.device).expand(scores.shape[:-1]).reshape(-1, 1)
    m = scores.shape[-1]
    parts = (scores.reshape(-1, m), k, mask.expand(scores.shape).reshape(-1, m))
    size = max(1, _BLOCK // m) if scores.device.type == "cpu" else len(parts[0])
    blocks = zip(*(part.split(size) for part in parts), strict=True)
    solve = _exact if solver == "exact" else partial(_iterative, iterations=iterations)
    solved = [_solved(*block, epsilon, solve) for block in blocks]
    return torch.cat(solved).view(scores.shape)


def _solved(scores: Tensor, k: Tensor, mask: Tensor, epsilon: float, solve: Callable) -> Tensor:
    """`relaxed_top_k` of (rows, m) scores and (rows, 1) k."""
    real = mask.sum(-1, keepdim=True)
    # In double: of fp32 scores divided by a small ε too few digits are left.
    weights = solve(scores.double() / epsilon, k.minimum(real).double(), mask) * mask
    return torch.where(k >= real, mask.double(), weights).to(scores.dtype)


def residual(weights: Tensor, k: int | Tensor, mask: Tensor | None = None) -> Tensor:
    """|Σ λ − k|, the constraint that an iterative solution misses.

    Args:
        weights: (…, m) what `relaxed_top_k` answered; k and mask: as there.

    Returns:
        (…) fp64.
    """
    mask = torch.ones_like(weights, dtype=torch.bool) if mask is None else mask
    target = torch.as_tensor(k, device=weights.device).minimum(mask.sum(-1))
    return (weights.sum(-1, dtype=torch.float64) - target).abs()


def check_solver(epsilon: float, solver: Solver, iterations: int = 1, prefix: str = "") -> None:
    """Refuses what no solver can do; `prefix` leads to the keys as the user typed them."""
    if not epsilon > 0:
        raise ValueError(f"{prefix}epsilon={epsilon}: must be > 0")
    if solver not in get_args(Solver):
        raise ValueError(f"{prefix}solver={solver}: must be one of {', '.join(get_args(Solver))}")
    if iterations < 1:
        raise ValueError(f"{prefix}iterations={iterations}: must be ≥ 1")


def _exact(scores: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    """λ for (…, m) scores already divided by ε, (…, 1) k.

    Scores above the edge have λ = 1. The others share what is left of k in proportion to exp(s):
    a softmax, whose gradient is also that of λ.
    """
    saturated = scores.detach() > _edge(scores.detach(), k, mask)
    left = k - (saturated & mask).sum(-1, keepdim=True)
    shares = left * _fill(scores, mask & ~saturated).softmax(-1)
    # A share of 1 but for rounding has met the bound: equal scores at the edge have no gradient.
    saturated |= shares.detach() > 1 - 1e-12
    return torch.where(saturated, 1.0, shares)


def _edge(scores: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    """(…, 1) the largest score whose λ is not cut at 1.

    With the t best cut, exp(s_t + a) = (k − t) exp(s_t) / Σ_{i≥t} exp(s_i), and the smallest t for
    which that is ≤ 1 is right. Then s_t is at most ln(m − k + 1) above the k-th best score:
    counted from that, nothing that matters is too large or too small for a plain sum.
    """
    ordered = _ascending(scores.masked_fill(~mask, -torch.inf))
    last = torch.arange(ordered.shape[-1], device=k.device)
    kth = ordered.gather(-1, (last[-1:] + 1 - k.ceil().long()).clamp(max=len(last) - 1))
    sizes = (ordered - kth).clamp(max=_LARGEST).exp()
    left = (k - last.flip(0)).clamp(min=0)
    uncut = left * sizes <= sizes.cumsum(-1)
    return ordered.gather(-1, (uncut * last).amax(-1, keepdim=True))


def _ascending(values: Tensor) -> Tensor:
    """The last axis from low to high; on a CPU numpy sorts tenfold faster than torch."""
    if values.device.type != "cpu":
        return values.sort(dim=-1).values
    return torch.from_numpy(np.sort(values.numpy(), axis=-1))


def _iterative(scores: Tensor, k: Tensor, mask: Tensor, iterations: int) -> Tensor:
    """Eq. 5, with scores, a and b divided by ε."""
    scores, b = _fill(scores, mask), torch.zeros_like(scores)
    for _ in range(iterations):
        a = k.log() - (scores + b).logsumexp(-1, keepdim=True)
        b = (-scores - a).clamp(max=0)
    return (scores + b + a).exp()


def _fill(scores: Tensor, mask: Tensor) -> Tensor:
    """Finite lowest scores at padding: a row of −inf would become NaN, also in the gradient."""
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min / 4)
