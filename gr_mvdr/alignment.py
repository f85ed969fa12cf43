"""Alignment strategies: how A is made from S (gr_as_mvdr §3 and §5.2, facts table of systems).

Each strategy is called as ``alignment(similarity, document_mask, query_mask, document_ids=None,
query_ids=None)`` and answers A: the shape of S (..., M, N), zero at padding. Token ids are part of
the signature because lexical strategies need them.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Direction = Literal["query_to_document", "document_to_query"]

# The axis over which a token of the aligning side chooses: the *other* side's.
_OTHER_SIDE = {"query_to_document": -2, "document_to_query": -1}


def other_side(direction: Direction) -> int:
    """The axis of (..., M, N) that a direction normalises over: -2 (M) or -1 (N)."""
    if direction not in _OTHER_SIDE:
        raise ValueError(f"direction={direction!r}: must be one of {', '.join(_OTHER_SIDE)}")
    return _OTHER_SIDE[direction]


def pair_mask(document_mask: Tensor, query_mask: Tensor) -> Tensor:
    """(..., M, N) bool, True where both tokens are real."""
    return document_mask.unsqueeze(-1) & query_mask.unsqueeze(-2)


@dataclass(frozen=True)
class MaxSim:
    """A_ij = 1 at the most similar token of the other side, else 0 (gr_as_mvdr Eq. 21).

    "query_to_document": every query token chooses one document token (ColBERT).
    "document_to_query": every document token chooses one query token (the paper's MVDR q←d).
    """

    direction: Direction = "query_to_document"

    def __post_init__(self):
        other_side(self.direction)

    def __call__(
        self, similarity, document_mask, query_mask, document_ids=None, query_ids=None
    ) -> Tensor:
        axis = other_side(self.direction)
        real = pair_mask(document_mask, query_mask)
        # −inf, not 0: a pad must lose even against a negative similarity.
        best = similarity.masked_fill(~real, -torch.inf).argmax(axis, keepdim=True)
        return torch.zeros_like(similarity).scatter_(axis, best, 1.0) * real


@dataclass(frozen=True)
class Softmax:
    """A = softmax of S over the other side: rows as in Eq. 16 ("document_to_query"), or columns."""

    direction: Direction = "document_to_query"

    def __post_init__(self):
        other_side(self.direction)

    def __call__(
        self, similarity, document_mask, query_mask, document_ids=None, query_ids=None
    ) -> Tensor:
        real = pair_mask(document_mask, query_mask)
        # A finite fill: a fully padded row of −inf would turn into NaN, also in the gradient.
        lowest = torch.finfo(similarity.dtype).min
        weights = similarity.masked_fill(~real, lowest).softmax(other_side(self.direction))
        return weights * real
