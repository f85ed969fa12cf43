"""Lemma 5.1's bound on ‖A − R‖, from the attention matrix itself (gr_as_mvdr Appendix B).

Attention is A = softmax(L) over query tokens, with logits L = D W Qᵀ (tokens as rows). Take the
mean out of both sides, D = R_d + 1dᵀ and Q = R_q + 1qᵀ. What then is constant along a row of L
vanishes in the softmax, and what remains is A = softmax(E + 1rᵀ) with E = R_d W R_qᵀ: L without
the means of its rows and columns, and r the column means that were taken out. Since
log A = L − (a constant for each row), E and r can be read from log A.

Let R = 1 softmax(r)ᵀ, a rank-one matrix with equal rows. Then

    A_ij / R_ij = exp(E_ij) / Σ_k softmax(r)_k exp(E_ik),

whose denominator, a mean, lies between the least and the largest exp(E_ik) of the row. With
s_i = max_j E_ij − min_j E_ij the quotient is within [exp(−s_i), exp(s_i)], hence

    |A_ij − R_ij| ≤ R_ij (exp(s_i) − 1).

Rows of R sum to 1 and its columns are constant, so summing this over rows and columns gives

    ‖A − R‖_∞ ≤ max_i (exp(s_i) − 1),    ‖A − R‖₁ ≤ max_j softmax(r)_j · Σ_i (exp(s_i) − 1),

and the root of the product of both bounds ‖A − R‖_{1,∞}. In the lemma's form it is 4γ²‖E‖₁, which
defines γ² by these entries. Because ‖E‖₁ ≤ ‖R_d‖₁ ‖W‖₁ ‖R_qᵀ‖₁, the lemma's right-hand side is
4γ‖W‖₁ with γ = γ² ‖R_d‖₁ ‖R_qᵀ‖₁ "depending on the matrix entries".

Dong et al. (ICML 2021, Lemma A.3) replace exp(s) − 1 by 2s, which holds for s ≤ 1.256 only; the
exponential needs no condition, but makes the bound say nothing where attention is sharp.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gr_mvdr.alignment import pair_mask

SMALL_SPREAD = 1.256  # Dong et al.'s condition on s_i


def composite_norm(matrix: Tensor) -> Tensor:
    """‖X‖_{1,∞} = √(‖X‖₁ ‖X‖_∞), the norm of Lemma 5.1 (Dong et al., ICML 2021).

    ‖X‖₁ is the largest sum of absolute values of a column, ‖X‖_∞ of a row.

    Args:
        matrix: (..., M, N), zero at padding.

    Returns:
        (...) of its type.
    """
    sizes = matrix.abs()
    return (sizes.sum(-2).amax(-1) * sizes.sum(-1).amax(-1)).sqrt()


@dataclass(frozen=True)
class LemmaTerms:
    """The terms of Lemma 5.1 for B attention matrices; float64.

    Attributes:
        residual: (B,) ‖A − R‖_{1,∞} of the lemma's own R.
        logits_norm: (B,) ‖E‖₁.
        bound: (B,) 4γ²‖E‖₁; never below `residual`.
        trivial: (B,) √(2M), what ‖A − R‖_{1,∞} cannot pass whatever A and R: a larger bound is
            vacuous.
        small_spread: (B,) the share of document tokens with s_i ≤ 1.256.
    """

    residual: Tensor
    logits_norm: Tensor
    bound: Tensor
    trivial: Tensor
    small_spread: Tensor

    @property
    def gamma_squared(self) -> Tensor:
        """(B,) γ² = bound / (4 ‖E‖₁); NaN where E = 0, where any would do."""
        return self.bound / (4 * self.logits_norm)


def lemma_terms(
    attention: Tensor,
    document_mask: Tensor,
    query_mask: Tensor,
    smallest: float = torch.finfo(torch.float32).tiny,
) -> LemmaTerms:
    """The terms of Lemma 5.1, derived above.

    Args:
        attention: (B, M, N), real rows sum to 1 over the query; heads may be flattened into B.
        document_mask: (B, M) bool. query_mask: (B, N) bool.
        smallest: weights are clamped to this before their logarithm, the smallest normal number
            of the type they were stored in. So s_i ≤ 2 ln(1 / smallest) = 175, and its
            exponential cannot overflow.
    """
    real = pair_mask(document_mask, query_mask)
    rows, columns = document_mask.unsqueeze(-1), query_mask.unsqueeze(-2)
    logs = attention.double().clamp_min(smallest).log() * real
    logs = (logs - logs.sum(-1, keepdim=True) / columns.sum(-1, keepdim=True).clamp(min=1)) * real
    means = logs.sum(-2, keepdim=True) / rows.sum(-2, keepdim=True).clamp(min=1)
    logits = (logs - means) * real
    shared = means.masked_fill(~columns, -torch.inf).softmax(-1)
    # Zeros at padding are no extreme: centred rows have values on both sides of it.
    spread = logits.amax(-1) - logits.amin(-1)
    growth = spread.expm1()
    bound = (growth.amax(-1) * shared.amax((-2, -1)) * growth.sum(-1)).sqrt()
    tokens = document_mask.sum(-1)
    small = ((spread <= SMALL_SPREAD) & document_mask).sum(-1)
    return LemmaTerms(
        residual=composite_norm((attention.double() - shared) * real),
        logits_norm=logits.abs().sum(-2).amax(-1),
        bound=bound,
        trivial=(2.0 * tokens).sqrt(),
        small_spread=small / tokens.clamp(min=1),
    )
