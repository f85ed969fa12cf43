"""Alignment strategies: how A is made from S (gr_as_mvdr §3, §5.2; aligner §2.2, §3.1; xtr §3.1).

Each strategy is called as ``alignment(similarity, document_mask, query_mask, document_ids=None,
query_ids=None)`` and returns A: the shape of S (…, M, N), zero at padding (see `Tokens`). Token ids
are part of the signature because lexical strategies need them.
"""

import fractions
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gr_mvdr.options import Positive, Proportion, Size, checked, part

Direction = Literal["query_to_document", "document_to_query"]
Solver = Literal["exact", "iterative"]
# The largest k for which `top_k` repeats argmax; for a larger k, sorting is faster.
_MOST_ROUNDS = 8
# The number of CPU threads at which torch's argmax becomes faster than numpy's.
_MANY_THREADS = 4
# Scores that a CPU solves at once: intermediate results stay in the cache, which halves the time.
_BLOCK = 1 << 15
# Exponentials of scores up to this value, and sums of many of them, are finite in double precision.
_LARGEST = 600.0
# Devices without double precision; what needs it is computed on the CPU.
_NO_FLOAT64 = ("mps",)


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
        solver, iterations: see `relaxed_top_k`.
    """

    k: Size
    epsilon: Positive
    solver: Solver = "exact"
    iterations: Size = 1000

    def align(self, similarity: Tensor, tokens: Tokens) -> Tensor:
        how = self.k, self.epsilon, tokens.real.mT, self.solver, self.iterations
        return relaxed_top_k(similarity.mT, *how).mT


# The k largest, hard and relaxed ------------------------------------------------------------------


def exact_floor(share: float, counts: Any) -> Any:
    """Returns ⌊share · counts⌋, int64 or int, as decimals give it: 0.29 · 100 is 29, not 28."""
    ratio = fractions.Fraction(share).limit_denominator(10**9)
    return counts * ratio.numerator // ratio.denominator


def top_k(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Finds the k largest values along the last axis, largest first; ties go to the lowest place.

    Returns:
        (…, k) int64 the places, and (…, k) the values.
    """
    if k > _MOST_ROUNDS:
        best = values.sort(dim=-1, descending=True, stable=True)
        return best.indices[..., :k], best.values[..., :k]
    places: list[Tensor] = []
    largest: list[Tensor] = []
    for number in range(k):
        if number:
            values = values.scatter(-1, places[-1], -torch.inf)
        places.append(_first_maximum(values))
        largest.append(values.gather(-1, places[-1]))
    return torch.cat(places, -1), torch.cat(largest, -1)


def _first_maximum(values: Tensor) -> Tensor:
    """(…, 1) int64 `argmax` along the last axis; ties go to the lowest place."""
    is_eager = not torch.compiler.is_compiling() and values.device.type == "cpu"
    is_eager &= values.dtype != torch.bfloat16  # which numpy lacks
    if is_eager and torch.get_num_threads() < _MANY_THREADS:
        # numpy uses vector instructions, torch uses threads: on one thread, numpy takes a fifth.
        return torch.from_numpy(values.numpy().argmax(-1, keepdims=True))
    return values.argmax(-1, keepdim=True)


@checked
def relaxed_top_k(
    scores: Tensor,
    k: int | Tensor,
    epsilon: Positive,
    mask: Tensor | None = None,
    solver: Solver = "exact",
    iterations: Size = 1000,
) -> Tensor:
    """Computes the λ that maximises sᵀλ + ε H(λ) with Σ λ = k, 0 ≤ λ ≤ 1 (aligner Eq. 4, App. A.1).

    λ_i = min(1, exp((s_i + a) / ε)) with one scalar a: close to 1 for the k best scores, else close
    to 0.

    Args:
        scores: (…, m) float.
        k: the sum of λ, one number or (…); if at most k scores are real, all of them get λ = 1.
        epsilon: ε, the weight of the entropy; as ε → 0 this becomes a hard top-k.
        mask: (…, m) bool, True = real score; None = all are real.
        solver: "exact" computes a by sorting; "iterative" is Eq. 5.
        iterations: of Eq. 5. A small ε needs thousands; |Σ λ − k| is the remaining error.

    Returns:
        (…, m) of the scores' dtype, 0 at padding. Both solvers pass gradients to the scores.
    """
    if isinstance(k, int):
        if k < 1:
            raise ValueError(f"k={k}: must be ≥ 1")
        k = torch.full((), k, device=scores.device)
    if not scores.numel():
        return torch.zeros_like(scores)
    mask = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask
    k = k.expand(scores.shape[:-1]).reshape(-1, 1)
    m = scores.shape[-1]
    parts = [scores.reshape(-1, m), k, mask.expand(scores.shape).reshape(-1, m)]
    if scores.device.type in _NO_FLOAT64:
        parts = [part.cpu() for part in parts]
    size = max(1, _BLOCK // m) if parts[0].device.type == "cpu" else len(parts[0])
    blocks = zip(*(part.split(size) for part in parts), strict=True)
    solve = _exact if solver == "exact" else partial(_iterative, iterations=iterations)
    weights = []
    for rows, each, real in blocks:
        count = real.sum(-1, keepdim=True)
        # In double precision: fp32 scores divided by a small ε have too few digits.
        solved = solve(rows.double() / epsilon, each.minimum(count).double(), real) * real
        weights.append(torch.where(each >= count, real.double(), solved).to(scores.dtype))
    return torch.cat(weights).view(scores.shape).to(scores.device)


def _exact(scores: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    """Computes λ by sorting; scores (…, m) are already divided by ε, and k is (…, 1).

    Scores above the edge have λ = 1. The rest of k is divided among the other scores in proportion
    to exp(s). This is a softmax, and its gradient is the gradient of λ.
    """
    saturated = scores.detach() > _edge(scores.detach(), k, mask)
    left = k - (saturated & mask).sum(-1, keepdim=True)
    shares = left * _fill(scores, mask & ~saturated).softmax(-1)
    # A share of 1 up to rounding has reached the bound: equal scores at the edge have no gradient.
    saturated |= shares.detach() > 1 - 1e-12
    return torch.where(saturated, 1.0, shares)


def _edge(scores: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    """(…, 1) the edge: the largest score whose λ is not cut off at 1.

    Count the scores from 0, best first. If the t best are cut off, exp(s_t + a) =
    (k − t) exp(s_t) / Σ_{i≥t} exp(s_i); the edge is s_t for the smallest t for which this is ≤ 1.
    It is at most ln(m − k + 1) above the k-th best score. So relative to that score, a plain sum of
    exponentials neither overflows nor loses a relevant term.
    """
    ordered = scores.masked_fill(~mask, -torch.inf)
    if ordered.device.type == "cpu":  # numpy sorts tenfold faster than torch there
        ordered = torch.from_numpy(np.sort(ordered.numpy(), axis=-1))
    else:
        ordered = ordered.sort(dim=-1).values
    last = torch.arange(ordered.shape[-1], device=k.device)
    kth = ordered.gather(-1, (last[-1:] + 1 - k.ceil().long()).clamp(max=len(last) - 1))
    sizes = (ordered - kth).clamp(max=_LARGEST).exp()
    left = (k - last.flip(0)).clamp(min=0)
    uncut = left * sizes <= sizes.cumsum(-1)
    return ordered.gather(-1, (uncut * last).amax(-1, keepdim=True))


def _iterative(scores: Tensor, k: Tensor, mask: Tensor, iterations: int) -> Tensor:
    """Computes λ by Eq. 5; scores, a and b are divided by ε."""
    scores, b = _fill(scores, mask), torch.zeros_like(scores)
    for _ in range(iterations):
        a = k.log() - (scores + b).logsumexp(-1, keepdim=True)
        b = (-scores - a).clamp(max=0)
    return (scores + b + a).exp()


def _fill(scores: Tensor, mask: Tensor) -> Tensor:
    """Fills padding with a very low finite score: a row of −inf would give NaN and NaN gradient."""
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min / 4)
