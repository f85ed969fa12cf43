"""rel(d, q) = 1/Z · Σ S ⊙ A: Eq. 1 of both *Generative Retrieval as MVDR* and ALIGNER."""

from dataclasses import dataclass

import torch
from torch import Tensor


def similarity(documents: Tensor, queries: Tensor) -> Tensor:
    """S = Dᵀ Q, every document token against every query token (gr_as_mvdr Eq. 1).

    Args:
        documents: (..., M, d) token vectors, any float dtype.
        queries: (..., N, d) token vectors of the same dtype; leading axes broadcast.

    Returns:
        (..., M, N) fp32 (fp64 stays fp64).
    """
    product = documents @ queries.transpose(-1, -2)
    return product if product.dtype == torch.float64 else product.float()


def relevance(similarity: Tensor, alignment: Tensor, normalise: bool = False) -> Tensor:
    """rel(d, q) = 1/Z · Σ_ij S_ij A_ij (gr_as_mvdr Eq. 1, aligner Eq. 1).

    Padding needs no mask here: every alignment is zero there.

    Args:
        similarity: (..., M, N).
        alignment: (..., M, N).
        normalise: divide by Z = Σ_ij A_ij; a pair with Z = 0 has relevance 0.

    Returns:
        (...) fp32, the sum over both token axes.
    """
    total = (similarity * alignment).sum((-2, -1), dtype=_accumulator(similarity))
    if not normalise:
        return total
    normaliser = alignment.sum((-2, -1), dtype=total.dtype)
    # The inner `where` keeps the gradient finite: 0/0 would poison it even if discarded outside.
    return torch.where(normaliser > 0, total, 0.0) / torch.where(normaliser > 0, normaliser, 1.0)


def _accumulator(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


@dataclass
class PairAlignment:
    """The tensors of Eq. 1 for B pairs: what `model.align(batch)` answers and all analysis reads.

    Attributes:
        similarity, alignment: (B, H, M, N) fp32; H = 1 for multi-vector and lexical systems, the
            heads of one decoder layer for generative ones. Both are zero at padding.
        normaliser: (B,) Z.
        relevance: (B,) Σ_hij S A / Z.
        score: (B,) what the system itself ranks by.
        document_ids, document_mask: (B, M); query_ids, query_mask: (B, N).
    """

    similarity: Tensor
    alignment: Tensor
    normaliser: Tensor
    relevance: Tensor
    score: Tensor
    document_ids: Tensor
    document_mask: Tensor
    query_ids: Tensor
    query_mask: Tensor
