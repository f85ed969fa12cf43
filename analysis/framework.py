"""Does the framework hold? What each path of the decoder adds to a logit (gr_as_mvdr §8).

The paper reads rel(d, q) off the last layer's cross-attention alone (Eq. 5, 11–14) and drops the
rest. With the final layer norm's scale held at its value the logit is an exact sum over paths, so
that what was dropped can be weighed. A path's share is its direct one: what self-attention and
feed-forward layers pass on of an earlier cross-attention counts as theirs.
"""

import re

import torch
from torch import Tensor

from gr_mvdr.relevance import PairAlignment

# Totals whose variance is this small against their size do not vary, but for rounding.
_CONSTANT = 1e-12


def path_sum_error(contributions: Tensor, logits: Tensor) -> Tensor:
    """(B,) greatest |Σ_p c_p − logit| / max(1, |logit|) over the tokens of each pair.

    Args:
        contributions: (B, P, M), zero at padding; logits: (B, M), zero at padding.
    """
    difference = (contributions.double().sum(1) - logits.double()).abs()
    return (difference / logits.double().abs().clamp(min=1)).amax(1)


def head_contributions(pairs: PairAlignment) -> Tensor:
    """(B, H, M) Σ_j S^h_ij A^h_ij, what each head of a layer adds to the logit of token i."""
    return (pairs.similarity * pairs.alignment).sum(-1)


def path_kind(name: str) -> str:
    """The kind of a path without its layer: "cross_attention_2" is a "cross_attention"."""
    return re.sub(r"_\d+$", "", name)


class PathShares:
    """How much of a total comes through each of the P parts that it is the sum of.

    Takes in n totals at a time and keeps sums only, in fp64.
    """

    def __init__(self, parts: int):
        self._count, self._totals, self._squares = 0, 0.0, 0.0
        self._parts, self._products, self._absolute = (
            torch.zeros(parts, dtype=torch.float64) for _ in range(3)
        )

    def update(self, parts: Tensor, totals: Tensor) -> None:
        """Takes in parts (n, P) and their totals (n,), any float dtype."""
        parts, totals = parts.double().cpu(), totals.double().cpu()
        self._count += len(totals)
        self._totals += float(totals.sum())
        self._squares += float(totals @ totals)
        self._parts += parts.sum(0)
        self._products += parts.T @ totals
        size = parts.abs()
        # A total of which every part is zero has no shares: it counts as zero for each.
        self._absolute += (size / size.sum(1, keepdim=True).clamp(min=1e-300)).sum(0)

    @property
    def mean(self) -> Tensor:
        """(P,) mean of each part; NaN without totals."""
        return self._parts / (self._count or torch.nan)

    @property
    def covariance(self) -> Tensor:
        """(P,) cov(part, total) / var(total); they sum to 1.

        How much of what tells totals apart comes through the part. It is negative where a part
        works against the others, and above 1 where these work against it. NaN where totals do
        not vary.
        """
        count = self._count or torch.nan
        variance = self._squares - self._totals**2 / count
        if not variance > _CONSTANT * self._squares:
            return torch.full_like(self._parts, torch.nan)
        return (self._products - self._parts * (self._totals / count)) / variance

    @property
    def absolute(self) -> Tensor:
        """(P,) mean of |part| / Σ_p |part|; they sum to 1; NaN without totals."""
        return self._absolute / (self._count or torch.nan)
