"""Alignment strategies: how A is made from S (gr_as_mvdr §3 and §5.2; aligner §3.1; xtr Eq. 2).

Each strategy is called as ``alignment(similarity, document_mask, query_mask, document_ids=None,
query_ids=None)`` and answers A: the shape of S (…, M, N), zero at padding. The leading axes of the
masks and ids broadcast to those of S. Token ids are part of the signature because lexical
strategies need them.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gr_mvdr.parts import part
from gr_mvdr.relaxed_top_k import Solver, check_solver, relaxed_top_k
from gr_mvdr.selection import (
    FirstK,
    FirstToken,
    InBatchTopK,
    LexicalMaxSim,
    MaxOverDocument,
    Selection,
    TopK,
    TopP,
    check_k,
    pair_mask,
)

__all__ = [
    "Direction",
    "FirstK",
    "FirstToken",
    "InBatchTopK",
    "LexicalMaxSim",
    "MaxSim",
    "Selection",
    "SoftTopK",
    "Softmax",
    "TopK",
    "TopP",
    "other_side",
    "pair_mask",
]

Direction = Literal["query_to_document", "document_to_query"]

# The axis over which a token of the aligning side chooses: the *other* side's.
_OTHER_SIDE = {"query_to_document": -2, "document_to_query": -1}


def other_side(direction: Direction) -> int:
    """The axis of (..., M, N) that a direction normalises over: -2 (M) or -1 (N)."""
    if direction not in _OTHER_SIDE:
        raise ValueError(f"direction={direction!r}: must be one of {', '.join(_OTHER_SIDE)}")
    return _OTHER_SIDE[direction]


@part("alignment")
def MaxSim(direction: Direction = "query_to_document") -> "MaxOverDocument | MaxOverQuery":
    """A_ij = 1 at the most similar token of the other side, else 0 (gr_as_mvdr Eq. 21).

    "query_to_document": every query token chooses one document token (ColBERT): a `Selection`.
    "document_to_query": every document token chooses one query token (the paper's MVDR q←d).
    """
    return MaxOverDocument() if other_side(direction) == -2 else MaxOverQuery()


@dataclass(frozen=True, repr=False)
class MaxOverQuery:
    """`MaxSim("document_to_query")`."""

    def __call__(
        self, similarity, document_mask, query_mask, document_ids=None, query_ids=None
    ) -> Tensor:
        if not similarity.numel():  # of no tokens there is no best one
            return torch.zeros_like(similarity)
        real = pair_mask(document_mask, query_mask)
        best = similarity.masked_fill(~real, -torch.inf).argmax(-1, keepdim=True)
        return torch.zeros_like(similarity).scatter_(-1, best, 1.0) * real

    def __repr__(self) -> str:
        return "MaxSim(direction='document_to_query')"


@part("alignment")
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


@part("alignment")
@dataclass(frozen=True)
class SoftTopK:
    """Differentiable alignment: every query token's weights sum to min(k, m) (aligner Eq. 9).

    Attributes:
        k: how many document tokens a query token aligns with.
        epsilon: ε > 0, the entropy's weight; towards 0 this is `TopK`.
        solver, iterations: see `gr_mvdr.relaxed_top_k.relaxed_top_k`.
    """

    k: int
    epsilon: float
    solver: Solver = "exact"
    iterations: int = 1000

    def __post_init__(self):
        check_k(self.k)
        check_solver(self.epsilon, self.solver, self.iterations, "alignment.")

    def __call__(
        self, similarity, document_mask, query_mask, document_ids=None, query_ids=None
    ) -> Tensor:
        real = pair_mask(document_mask, query_mask).expand(similarity.shape)
        columns, mask = similarity.transpose(-1, -2), real.transpose(-1, -2)
        how = self.k, self.epsilon, mask, self.solver, self.iterations
        return relaxed_top_k(columns, *how).transpose(-1, -2)
