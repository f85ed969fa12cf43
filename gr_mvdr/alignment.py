"""Alignment strategies: how A is made from S (gr_as_mvdr §3, §5.2; aligner §2.2, §3.1; xtr §3.1).

Each strategy is called as ``alignment(similarity, document_mask, query_mask, document_ids=None,
query_ids=None)`` and returns A: the shape of S (…, M, N), zero at padding (see `Tokens`). Token ids
are part of the signature because lexical strategies need them.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gr_mvdr.options import Positive, Proportion, Size, part
from gr_mvdr.salience import Solver, exact_floor, relaxed_top_k, top_k

Direction = Literal["query_to_document", "document_to_query"]


def other_side(direction: Direction) -> int:
    """Returns the axis of (…, M, N) along which a token chooses: −2 (M) or −1 (N).

    Under "query_to_document", a query token chooses among document tokens: −2.
    """
    return {"query_to_document": -2, "document_to_query": -1}[direction]


def pair_mask(document_mask: Tensor, query_mask: Tensor) -> Tensor:
    """(..., M, N) bool, True where both tokens are real."""
    return document_mask.unsqueeze(-1) & query_mask.unsqueeze(-2)


class Tokens(NamedTuple):
    """Masks (bool) and ids (int64), (…, M) and (…, N); leading axes broadcast to those of S."""

    document_mask: Tensor
    query_mask: Tensor
    document_ids: Tensor | None = None
    query_ids: Tensor | None = None

    @property
    def real(self) -> Tensor:
        """(…, M, N) bool, True where both tokens are real."""
        return pair_mask(self.document_mask, self.query_mask)


class Alignment:
    """An alignment strategy; a subclass defines `align`."""

    def __call__(
        self,
        similarity: Tensor,
        document_mask: Tensor,
        query_mask: Tensor,
        document_ids: Tensor | None = None,
        query_ids: Tensor | None = None,
    ) -> Tensor:
        return self.align(similarity, Tokens(document_mask, query_mask, document_ids, query_ids))

    def align(self, similarity: Tensor, tokens: Tokens) -> Tensor:
        """A of the shape of S (…, M, N), zero at padding."""
        raise NotImplementedError


class Selection(Alignment):
    """A hard query-to-document alignment: each query token takes its K best allowed tokens.

    A subclass defines which tokens and pairs are allowed, and K.
    """

    def candidates(self, tokens: Tokens) -> Tokens:
        """Returns the tokens; those that may not align are masked out."""
        return tokens

    def pairs(self, tokens: Tokens) -> Tensor | None:
        """(…, M, N) bool: the pairs of candidates that may align; None = all."""
        return None

    def count(self, length: int) -> int:
        """K for documents padded to `length` = M tokens; at most M tokens are taken."""
        return 1

    def allowed(self, tokens: Tokens) -> Tensor:
        """(…, M, N) bool: the pairs that may align, padding excluded."""
        pairs, real = self.pairs(tokens), self.candidates(tokens).real
        return real if pairs is None else real & pairs

    def choose(self, masked: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Returns the non-zero entries of A: their rows and their similarities.

        Args:
            masked: (…, M, N) S without gradient, −inf at document tokens that are not candidates;
                fastest if M is the contiguous axis.
            tokens: the candidates.

        Returns:
            chosen: (…, K, N) int64 rows of S, the best first; ties go to the lowest row. Every
                entry is a valid row, even where A is zero.
            best: (…, K, N) the similarities at these rows; −inf where A is 0 rather than 1.
        """
        if (pairs := self.pairs(tokens)) is not None:
            masked = masked.masked_fill(~pairs, -torch.inf)
        chosen, best = top_k(masked.mT, min(self.count(masked.shape[-2]), masked.shape[-2]))
        return chosen.mT, best.mT.masked_fill(~tokens.query_mask.unsqueeze(-2), -torch.inf)

    def align(self, similarity: Tensor, tokens: Tokens) -> Tensor:
        tokens, aligned = self.candidates(tokens), torch.zeros_like(similarity)
        if not similarity.numel():  # an empty side has no maximum
            return aligned
        # −inf, not 0: padding must lose even against a negative similarity.
        masked = similarity.detach().masked_fill(~tokens.document_mask.unsqueeze(-1), -torch.inf)
        chosen, best = self.choose(masked, tokens)
        # Adds rather than assigns: an entry with A = 0 may repeat a chosen row.
        return aligned.scatter_add_(-2, chosen, (best > -torch.inf).to(similarity.dtype))


@part("alignment")
@dataclass(frozen=True)
class TopK(Selection):
    """Every query token takes its k most similar document tokens (aligner §3.1)."""

    k: Size

    def count(self, length: int) -> int:
        return self.k


@part("alignment")
def MaxSim(direction: Direction = "query_to_document") -> "TopK | MaxOverQuery":
    """A_ij = 1 at the most similar token of the other side, else 0 (gr_as_mvdr Eq. 21, xtr Eq. 1).

    "query_to_document": every query token chooses one document token (ColBERT), which is `TopK(1)`.
    "document_to_query": every document token chooses one query token, MVDR (q←d) of gr_as_mvdr
    §7.1.
    """
    return TopK(1) if direction == "query_to_document" else MaxOverQuery()


@dataclass(frozen=True)
class MaxOverQuery(Alignment):
    """`MaxSim("document_to_query")`: `TopK(1)` with the two sides exchanged."""

    def align(self, similarity: Tensor, tokens: Tokens) -> Tensor:
        return TopK(1)(similarity.mT, tokens.query_mask, tokens.document_mask).mT


@part("alignment")
@dataclass(frozen=True)
class FirstK(Selection):
    """The first query token chooses among the first k document tokens (ME-BERT; aligner §2.2)."""

    k: Size

    def candidates(self, tokens: Tokens) -> Tokens:
        document_mask, query_mask, *ids = tokens
        document_mask = document_mask & (document_mask.cumsum(-1) <= self.k)
        return Tokens(document_mask, query_mask & (query_mask.cumsum(-1) == 1), *ids)


@part("alignment")
def FirstToken() -> FirstK:
    """A_11 = 1, else 0: a dual encoder with one vector a text (DPR; aligner §2.2)."""
    return FirstK(1)


@part("alignment")
@dataclass(frozen=True)
class LexicalMaxSim(Selection):
    """MaxSim over the document tokens with the query token's id (COIL; aligner §2.2).

    A query token that does not occur in the document contributes nothing.
    """

    def pairs(self, tokens: Tokens) -> Tensor:
        if tokens.document_ids is None or tokens.query_ids is None:
            raise ValueError("LexicalMaxSim: needs document_ids and query_ids")
        return tokens.document_ids.unsqueeze(-1) == tokens.query_ids.unsqueeze(-2)


@part("alignment")
@dataclass(frozen=True)
class TopP(Selection):
    """`TopK` with k = max(⌊p·m⌋, 1) for a document of m real tokens (aligner §3.1)."""

    p: Proportion

    def count(self, length: int) -> int:
        return max(exact_floor(self.p, length), 1)

    def choose(self, masked: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
        chosen, best = super().choose(masked, tokens)
        k = exact_floor(self.p, tokens.document_mask.sum(-1)).clamp(min=1)
        rank = torch.arange(chosen.shape[-2], device=chosen.device)
        return chosen, best.masked_fill((rank >= k.unsqueeze(-1)).unsqueeze(-1), -torch.inf)


@part("alignment")
@dataclass(frozen=True)
class InBatchTopK(Selection):
    """MaxSim restricted to the entries that a token search would retrieve (xtr §3.1, Eq. 2).

    XTR's complete training loss for a query q and the B documents of its batch;
    `conf/model/xtr.yaml` names its three parts:

        Â_ij = 1 if S_ij is among the k_train best of query token j over all tokens of the batch
        f(q, d) = 1/Z Σ_j max {S_ij : i in d, Â_ij = 1}, 0 if Z = 0       (Eq. 2) this alignment
        Z = |{j : Â_ij = 1 for some i in d}|                    (§3.1) `normaliser("alignment")`
        L = −log (exp(f(q, d⁺)/τ) / Σ_b exp(f(q, d_b)/τ))  (§2.1, Eq. 5) `InBatchCrossEntropy(τ)`

    The paper has no temperature: τ = 1. Ties with the k-th best similarity are retrieved, too;
    copies of a document may miss a tie by rounding.
    If S has axes before (M, N), the first is the batch: S is (D, …, M, N) for all pairs of D
    documents and the queries, or (D, M, N) for D documents and one query. This is the only
    alignment that depends on the other documents of the batch.
    """

    k: Size

    def choose(self, masked: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
        chosen, best = super().choose(masked, tokens)
        pool = masked.masked_fill(~tokens.query_mask.unsqueeze(-2), -torch.inf).mT
        if pool.dim() > 2:
            pool = pool.movedim(0, -2).flatten(-2)  # (…, N, D·M)
        # A pool of fewer than k tokens is retrieved completely.
        least = pool.topk(min(self.k, pool.shape[-1])).values[..., -1].unsqueeze(-2)
        return chosen, best.masked_fill(best < least, -torch.inf)


@part("alignment")
@dataclass(frozen=True)
class Softmax(Alignment):
    """A = softmax of S over the other side's tokens ("document_to_query": gr_as_mvdr Eq. 16)."""

    direction: Direction = "document_to_query"

    def align(self, similarity: Tensor, tokens: Tokens) -> Tensor:
        # A finite fill: a fully padded row of −inf would turn into NaN, also in the gradient.
        filled = similarity.masked_fill(~tokens.real, torch.finfo(similarity.dtype).min)
        return filled.softmax(other_side(self.direction)) * tokens.real


@part("alignment")
@dataclass(frozen=True)
class SoftTopK(Alignment):
    """Differentiable alignment: a query token's weights sum to min(k, m) (aligner §A.2, Eq. 9).

    Attributes:
        k: number of document tokens that a query token aligns with.
        epsilon: ε, the weight of the entropy; as ε → 0 this becomes `TopK`.
        solver, iterations: see `gr_mvdr.salience.relaxed_top_k`.
    """

    k: Size
    epsilon: Positive
    solver: Solver = "exact"
    iterations: Size = 1000

    def align(self, similarity: Tensor, tokens: Tokens) -> Tensor:
        how = self.k, self.epsilon, tokens.real.mT, self.solver, self.iterations
        return relaxed_top_k(similarity.mT, *how).mT
