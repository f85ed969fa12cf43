"""What each token adds to the relevance: the terms of Eq. 1, summed by token."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gr_mvdr.relevance import PairAlignment, divided


def contributions(pairs: PairAlignment) -> tuple[Tensor, Tensor]:
    """Σ_hj S A / Z of every document token, Σ_hi S A / Z of every query token (gr_as_mvdr Eq. 1).

    Both sum to the relevance. Of a generative system's last layer this is Eq. 14: what its
    cross-attention adds to the logits.

    Args:
        pairs: B pairs.

    Returns:
        (B, M) and (B, N) fp32, zero at padding.
    """
    terms = (pairs.similarity * pairs.alignment).sum(1)
    normaliser = pairs.normaliser.unsqueeze(1)
    return divided(terms.sum(2), normaliser), divided(terms.sum(1), normaliser)


def top_shares(contribution: Tensor, depths: Sequence[int]) -> Tensor:
    """The share of Σ|c| that the k largest |c| carry.

    Args:
        contribution: (..., M) c, zero at padding; depths: values of k.

    Returns:
        (..., K) fp32; NaN where everything is zero.
    """
    ordered = contribution.abs().sort(-1, descending=True).values.cumsum(-1)
    places = torch.tensor([min(k, ordered.shape[-1]) - 1 for k in depths])
    return ordered[..., places] / ordered[..., -1:]


def group_shares(contribution: Tensor, groups: Tensor, count: int) -> Tensor:
    """The share of Σ|c| that each group of tokens carries.

    Args:
        contribution: (B, M) c, zero at padding.
        groups: (B, M) int64, the group of each token, below `count`.

    Returns:
        (B, count) fp32, summing to one; NaN where everything is zero.
    """
    size = contribution.abs()
    sums = size.new_zeros(len(size), count).scatter_add_(1, groups, size)
    return sums / size.sum(1, keepdim=True)
