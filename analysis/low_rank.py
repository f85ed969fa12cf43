"""How close is an alignment to rank one? (gr_as_mvdr §5.2.4 and §7.4, Lemma 5.1)

Lemma 5.1 promises a rank-one matrix R near A, and its proof one with equal rows, R = 1rᵀ: every
document token spreads its attention over the query in the same way. Both are measured here, as is
the paper's norm ‖X‖_{1,∞}; its bound is in `analysis.low_rank_bound`.
"""

import torch
from torch import Tensor

from gr_mvdr.alignment import pair_mask

# Eigenvalues of a Gram matrix below this share of the largest are rounding.
ROUNDING = 1e-15


def low_rank(alignment: Tensor, document_mask: Tensor, query_mask: Tensor) -> dict[str, Tensor]:
    """Size and rank of alignments, and how far they are from rank one (gr_as_mvdr Lemma 5.1).

    Args:
        alignment: (B, M, N), any float type; heads and layers may be flattened into B.
        document_mask: (B, M) bool. query_mask: (B, N) bool.

    Returns:
        (B,) float64 each: `frobenius` ‖A‖_F; `equal_rows` ‖A − 1rᵀ‖_F with the best r, the mean
        of the real rows; `best_rank_one` ‖A − R‖_F with the best R of rank one (Eckart and
        Young); `effective_rank` exp of the entropy of the normalised singular values (Roy and
        Vetterli, 2007), 0 of a matrix of zeros.
    """
    masks = document_mask, query_mask
    return rank_measures(singular_values(alignment, *masks), equal_rows_residual(alignment, *masks))


def rank_measures(values: Tensor, residual: Tensor) -> dict[str, Tensor]:
    """`low_rank` from singular values (..., K) and the residual of equal rows (..., M, N)."""
    squares = values.square()
    return {
        "frobenius": squares.sum(-1).sqrt(),
        "equal_rows": residual.square().sum((-2, -1)).sqrt(),
        "best_rank_one": squares[..., 1:].sum(-1).sqrt(),
        "effective_rank": effective_rank(values),
    }


def singular_values(alignment: Tensor, document_mask: Tensor, query_mask: Tensor) -> Tensor:
    """(B, min(M, N)) float64 singular values, falling.

    They are the roots of the smaller Gram matrix's eigenvalues: accurate to 1e-8 of the largest,
    and far faster than a decomposition of the tall matrix.
    """
    matrix = _real(alignment, document_mask, query_mask)
    if matrix.shape[-2] >= matrix.shape[-1]:
        matrix = matrix.transpose(-1, -2)
    squares = torch.linalg.eigvalsh(matrix @ matrix.transpose(-1, -2)).flip(-1)
    smallest = ROUNDING * squares.shape[-1] * squares[..., :1]
    return squares.where(squares > smallest, 0).sqrt()


def effective_rank(values: Tensor) -> Tensor:
    """(...) exp of the entropy of (..., K) singular values; 0 where all are zero."""
    shares = normalised_values(values)
    return torch.special.entr(shares).sum(-1).exp() * (values > 0).any(-1)


def equal_rows_residual(alignment: Tensor, document_mask: Tensor, query_mask: Tensor) -> Tensor:
    """(B, M, N) float64 A − 1rᵀ with r the mean of the real rows, zero at padding."""
    matrix = _real(alignment, document_mask, query_mask)
    tokens = document_mask.sum(-1).clamp(min=1)[..., None, None]
    mean = matrix.sum(-2, keepdim=True) / tokens
    return (matrix - mean) * document_mask.unsqueeze(-1)


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


def _real(alignment: Tensor, document_mask: Tensor, query_mask: Tensor) -> Tensor:
    return alignment.double().masked_fill(~pair_mask(document_mask, query_mask), 0)


def normalised_values(values: Tensor) -> Tensor:
    """(..., K) values divided by their sum; zeros stay zeros."""
    total = values.sum(-1, keepdim=True)
    return torch.where(total > 0, values / total, 0.0)
