"""Measures of single heads look at a bounded number of matrices, however large the store."""

from dataclasses import fields

import torch
from torch import Tensor

from gr_mvdr.relevance import PairAlignment

MATRICES = 100_000  # (pair, layer, head) at most; 2,000 pairs of 6 layers of 8 heads


class HeadSample:
    """An even sample of a store's pairs.

    Args:
        pairs: how many the store holds.
        heads: matrices of each, layers × heads.
        matrices: how many to look at, at most.
    """

    def __init__(self, pairs: int, heads: int, matrices: int = MATRICES):
        self.stride = max(1, -(-pairs * heads // matrices))

    def rows(self, first: int, size: int) -> Tensor:
        """(n,) int64, the sampled ones among the pairs first … first + size − 1, counted from 0."""
        return torch.arange(min(-first % self.stride, size), size, self.stride)


def select(pairs: PairAlignment, rows: Tensor) -> PairAlignment:
    """These rows of a batch; the batch itself, without a copy, where they are all."""
    if len(rows) == len(pairs.score):
        return pairs
    return PairAlignment(**{part.name: getattr(pairs, part.name)[rows] for part in fields(pairs)})
