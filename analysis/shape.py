"""How sharp is an alignment, and do two agree? (gr_as_mvdr §5.2.2 sparsity, §5.2.3 direction)

All functions read alignments (..., M, N) that are normalised over the other side and zero at
padding (`analysis.directed_alignment`), and answer one value for each token of the aligning side,
(..., N) of "query_to_document" and (..., M) of "document_to_query".
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gr_mvdr.alignment import other_side, pair_mask

SUPPORT = 1e-6  # weights above this count as support


def entropy(alignment: Tensor, direction: str) -> Tensor:
    """The entropy of each token's weights in nats: 0 of one partner, ln n of n equal ones."""
    return torch.special.entr(alignment).sum(other_side(direction))


def largest_entropy(document_mask: Tensor, query_mask: Tensor, direction: str) -> Tensor:
    """(..., 1) fp32, the entropy of weights spread evenly: ln of the other side's real length."""
    other = (document_mask, query_mask)[other_side(direction) + 2]
    return other.sum(-1, keepdim=True).float().clamp(min=1).log()


def top_mass(alignment: Tensor, depths: Sequence[int], direction: str) -> Tensor:
    """The share of each token's weight that its k strongest partners hold.

    Args:
        alignment: (..., M, N). depths: D values of k ≥ 1. direction: which side aligns.

    Returns:
        (..., T, D); 1 where the other side has at most k tokens.
    """
    rows = alignment.movedim(other_side(direction), -1)
    strongest = rows.topk(min(max(depths), rows.shape[-1]), -1).values.cumsum(-1)
    return torch.stack([strongest[..., min(k, strongest.shape[-1]) - 1] for k in depths], -1)


def support(alignment: Tensor, direction: str, threshold: float = SUPPORT) -> Tensor:
    """How many partners of each token weigh more than `threshold`, int64."""
    return (alignment > threshold).sum(other_side(direction))


def links_returned(
    query_to_document: Tensor,
    document_to_query: Tensor,
    document_mask: Tensor,
    query_mask: Tensor,
) -> Tensor:
    """Do both directions agree? Is query token j the strongest of j's own strongest partner?

    Args:
        query_to_document, document_to_query: (..., M, N) the same pair in both directions.
        document_mask: (..., M) bool. query_mask: (..., N) bool.

    Returns:
        (..., N) bool, False at padding and where a token on the way is aligned to nothing.
    """
    masks = document_mask, query_mask
    partner, linked = _strongest(query_to_document, *masks, "query_to_document")
    back, returned = _strongest(document_to_query, *masks, "document_to_query")
    own = torch.arange(query_mask.shape[-1], device=back.device)
    found = (back.gather(-1, partner) == own) & returned.gather(-1, partner)
    return found & linked


def agreement(
    first: Tensor, second: Tensor, document_mask: Tensor, query_mask: Tensor, direction: str
) -> tuple[Tensor, Tensor]:
    """How alike do two systems align the same tokens?

    Args:
        first, second: (..., M, N) the systems' alignments of the same pair.
        document_mask: (..., M) bool. query_mask: (..., N) bool. direction: which side aligns.

    Returns:
        equal: (..., T) bool, both choose the same strongest partner.
        overlap: (..., T) Σ min(first, second), 1 of equal weights, 0 of disjoint ones.
        Both are False / 0 at padding.
    """
    masks = document_mask, query_mask
    one, first_linked = _strongest(first, *masks, direction)
    other, second_linked = _strongest(second, *masks, direction)
    real = pair_mask(*masks)
    overlap = torch.minimum(first, second).masked_fill(~real, 0).sum(other_side(direction))
    return (one == other) & first_linked & second_linked, overlap


def _strongest(
    alignment: Tensor, document_mask: Tensor, query_mask: Tensor, direction: str
) -> tuple[Tensor, Tensor]:
    """Each token's strongest partner (..., T) int64, and whether it has one at all."""
    hidden = alignment.masked_fill(~pair_mask(document_mask, query_mask), -torch.inf)
    strength, partner = hidden.max(other_side(direction))
    return partner, strength > 0
