"""rel(d, q) = 1/Z · Σ S ⊙ A: Eq. 1 of both *Generative Retrieval as MVDR* and ALIGNER."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

Normaliser = Literal["none", "alignment", "query_tokens", "non_zero"]


def similarity(documents: Tensor, queries: Tensor) -> Tensor:
    """S = Dᵀ Q, every document token against every query token (gr_as_mvdr Eq. 1).

    Args:
        documents: (..., M, d) token vectors, any float dtype.
        queries: (..., N, d) token vectors of the same dtype; leading axes broadcast.

    Returns:
        (..., M, N) fp32 (fp64 stays fp64).
    """
    return at_least_float32(documents @ queries.transpose(-1, -2))


def relevance(similarity: Tensor, alignment: Tensor, normalise: bool = False) -> Tensor:
    """rel(d, q) = 1/Z · Σ_ij S_ij A_ij (gr_as_mvdr Eq. 1, aligner Eq. 1).

    Padding needs no mask here: every alignment is zero there.

    Args:
        similarity: (..., M, N).
        alignment: (..., M, N).
        normalise: divide by Z = Σ_ij A_ij; a pair with Z = 0 has relevance 0.

    Returns:
        (...) fp32 (fp64 stays fp64), the sum over both token axes.
    """
    total = (similarity * alignment).sum((-2, -1), dtype=accumulator(similarity))
    return divided(total, alignment.sum((-2, -1), dtype=total.dtype)) if normalise else total


def divided(total: Tensor, normaliser: Tensor) -> Tensor:
    """total / Z, and 0 where Z = 0, with finite gradients."""
    # The inner `where` keeps the gradient finite: 0/0 would poison it even if discarded outside.
    some = normaliser > 0
    return torch.where(some, total, 0.0) / torch.where(some, normaliser, 1.0)


def normaliser(
    name: Normaliser, similarity: Tensor, alignment: Tensor, query_mask: Tensor
) -> Tensor:
    """Z of Eq. 1, by name.

    Args:
        name: "none": 1 (ColBERT). "alignment": Σ A (aligner Eq. 1); of a hard alignment with one
            document token at most a query token that is xtr's §3.1, the number of query tokens
            that retrieved a token of the document. "query_tokens": n (mva, xtr Eq. 4).
            "non_zero": the number of query tokens with Σ_i S A ≠ 0 (xtr's Appendix A).
        similarity, alignment: (..., M, N).
        query_mask: (..., N) bool.

    Returns:
        (...) fp32.

    Raises:
        ValueError: an unknown name.
    """
    check_normaliser(name)
    if name == "alignment":
        return alignment.sum((-2, -1), dtype=accumulator(alignment))
    if name == "non_zero":
        return ((similarity * alignment).sum(-2) != 0).sum(-1).to(accumulator(similarity))
    shape, dtype = similarity.shape[:-2], accumulator(similarity)
    if name == "query_tokens":
        return query_mask.sum(-1).to(dtype).expand(shape)
    return similarity.new_ones((), dtype=dtype).expand(shape)


def check_normaliser(name: str) -> None:
    """Refuses a name that `normaliser` does not know."""
    if name not in get_args(Normaliser):
        known = ", ".join(get_args(Normaliser))
        raise ValueError(f"model.normaliser={name}: must be one of {known}")


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


def at_least_float32(tensor: Tensor) -> Tensor:
    """bf16 and fp16 as fp32, in which sums are safe; fp32 and fp64 stay what they are."""
    return tensor.to(accumulator(tensor))


def accumulator(tensor: Tensor) -> torch.dtype:
    """fp64 for fp64, else fp32."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
