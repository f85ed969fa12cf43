"""Hard query-to-document alignments: which document tokens each query token takes.

All of them are called as `gr_mvdr.alignment` says, which is where to import them from.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gr_mvdr.parts import part


def pair_mask(document_mask: Tensor, query_mask: Tensor) -> Tensor:
    """(..., M, N) bool, True where both tokens are real."""
    return document_mask.unsqueeze(-1) & query_mask.unsqueeze(-2)


class Selection:
    """A hard query-to-document alignment: each query token takes its K best allowed tokens.

    Subclasses say which pairs are allowed and how large K is.
    """

    def allowed(self, document_mask, query_mask, document_ids=None, query_ids=None) -> Tensor:
        """(…, M, N) bool: the pairs that may align at all; never a pad."""
        return pair_mask(document_mask, query_mask)

    def count(self, length: int) -> int:
        """K for documents padded to `length` = M tokens; what exceeds M is cut."""
        return 1

    def select(
        self, similarity, document_mask, query_mask, document_ids=None, query_ids=None
    ) -> tuple[Tensor, Tensor]:
        """The non-zero entries of A, without the rest of it.

        Args:
            similarity: (…, M, N) float.
            document_mask, document_ids: (…, M) bool and int64; query_mask, query_ids: (…, N).

        Returns:
            chosen: (…, K, N) int64 rows of S, the best first, of equal ones the first. A valid row
                also where nothing is kept.
            kept: (…, K, N) bool, whether A is 1 there.
        """
        allowed = self.allowed(document_mask, query_mask, document_ids, query_ids)
        # −inf, not 0: a pad must lose even against a negative similarity.
        masked = similarity.masked_fill(~allowed, -torch.inf)
        length = similarity.shape[-2]
        chosen = _best_rows(masked, min(self.count(length), length))
        return chosen, allowed.expand(similarity.shape).gather(-2, chosen)

    def __call__(
        self, similarity, document_mask, query_mask, document_ids=None, query_ids=None
    ) -> Tensor:
        chosen, kept = self.select(similarity, document_mask, query_mask, document_ids, query_ids)
        return torch.zeros_like(similarity).scatter_(-2, chosen, kept.to(similarity.dtype))


def _best_rows(masked: Tensor, count: int) -> Tensor:
    """(…, count, N) the rows of the largest values of every column, of equal ones the first."""
    if count == 1:
        return masked.argmax(-2, keepdim=True)
    best = masked.topk(min(count + 1, masked.shape[-2]), -2)
    above, below = best.values[..., :-1, :], best.values[..., 1:, :]
    if ((above == below) & (below > -torch.inf)).any():
        # topk takes any of several equal ones, padding may change which; sorting costs tenfold.
        return masked.sort(dim=-2, descending=True, stable=True).indices[..., :count, :]
    return best.indices[..., :count, :]


@dataclass(frozen=True, repr=False)
class MaxOverDocument(Selection):
    """`MaxSim("query_to_document")`."""

    def __repr__(self) -> str:
        return "MaxSim(direction='query_to_document')"


@part("alignment")
@dataclass(frozen=True)
class FirstToken(Selection):
    """A = 1 at the first token of either side: a dual encoder such as DPR (gr_as_mvdr §3)."""

    def allowed(self, document_mask, query_mask, document_ids=None, query_ids=None) -> Tensor:
        return pair_mask(_first(document_mask, 1), _first(query_mask, 1))


@part("alignment")
@dataclass(frozen=True)
class FirstK(Selection):
    """The first query token chooses among the first k document tokens: ME-BERT (aligner §2)."""

    k: int

    def __post_init__(self):
        check_k(self.k)

    def allowed(self, document_mask, query_mask, document_ids=None, query_ids=None) -> Tensor:
        return pair_mask(_first(document_mask, self.k), _first(query_mask, 1))


@part("alignment")
@dataclass(frozen=True)
class LexicalMaxSim(Selection):
    """MaxSim among document tokens of the query token's own id: COIL (aligner §2).

    A query token that the document does not hold adds nothing.
    """

    def allowed(self, document_mask, query_mask, document_ids=None, query_ids=None) -> Tensor:
        if document_ids is None or query_ids is None:
            raise ValueError("LexicalMaxSim: needs document_ids and query_ids")
        equal = document_ids.unsqueeze(-1) == query_ids.unsqueeze(-2)
        return pair_mask(document_mask, query_mask) & equal


@part("alignment")
@dataclass(frozen=True)
class TopK(Selection):
    """Every query token takes its k most similar document tokens (aligner §3.1)."""

    k: int

    def __post_init__(self):
        check_k(self.k)

    def count(self, length: int) -> int:
        return self.k


@part("alignment")
@dataclass(frozen=True)
class TopP(Selection):
    """`TopK` with k = max(⌊p·m⌋, 1), m the document's real tokens (aligner §3.1)."""

    p: float

    def __post_init__(self):
        if not 0 < self.p <= 1:
            raise ValueError(f"alignment.p={self.p}: must be > 0 and ≤ 1")

    def count(self, length: int) -> int:
        return max(int(self.p * length), 1)

    def select(
        self, similarity, document_mask, query_mask, document_ids=None, query_ids=None
    ) -> tuple[Tensor, Tensor]:
        chosen, kept = super().select(similarity, document_mask, query_mask)
        k = (self.p * document_mask.sum(-1).double()).floor().clamp(min=1)
        rank = torch.arange(chosen.shape[-2], device=chosen.device)
        return chosen, kept & (rank < k.unsqueeze(-1)).unsqueeze(-1)


@part("alignment")
@dataclass(frozen=True)
class InBatchTopK(Selection):
    """MaxSim of which only entries count that a token search would retrieve (xtr Eq. 2).

    An entry counts if it is among the k best of its query token over all document tokens of the
    pool; those equal to the k-th all count (copies of a document are equal up to rounding only).
    The pool is the first axis of S, if there is one before (M, N): S (D, …, M, N) of all pairs
    (documents, queries), or (D, M, N) of D documents and one query. So this alignment, and no
    other, depends on batch mates.
    """

    k: int

    def __post_init__(self):
        check_k(self.k)

    def select(
        self, similarity, document_mask, query_mask, document_ids=None, query_ids=None
    ) -> tuple[Tensor, Tensor]:
        chosen, kept = super().select(similarity, document_mask, query_mask)
        real = pair_mask(document_mask, query_mask)
        pool = similarity.masked_fill(~real, -torch.inf)
        if pool.dim() > 2:
            pool = pool.movedim(0, -3).flatten(-3, -2)  # (…, D·M, N)
        # A pool of fewer than k tokens is retrieved whole.
        least = pool.topk(min(self.k, pool.shape[-2]), -2).values[..., -1:, :]
        return chosen, kept & (similarity.gather(-2, chosen) >= least)


def _first(mask: Tensor, k: int) -> Tensor:
    """(…, L) bool: the first k real tokens."""
    return mask & (mask.cumsum(-1) <= k)


def check_k(k: int) -> None:
    if not isinstance(k, int) or k < 1:
        raise ValueError(f"alignment.k={k}: must be ≥ 1 and whole")
