"""One normalised alignment matrix for a pair, whatever the system (Wu et al. §5.2, §7.2).

Systems align in different ways: a multi-vector system chooses document tokens, a generative one
spreads each document token over the query. To compare them, this module gives both kinds in both
directions, as weights that sum to one over the other side.
"""

import torch
from torch import Tensor

from gr_mvdr.alignment import Softmax, other_side, pair_mask
from gr_mvdr.relevance import PairAlignment, divide

# Direction → the side whose tokens choose their partners.
ALIGNING = {"query_to_document": "query", "document_to_query": "document"}
DIRECTIONS = tuple(ALIGNING)

# The direction in which a paradigm's systems align by design.
OWN_DIRECTION = {
    "multi_vector": "query_to_document",
    "lexical": "query_to_document",
    "generative": "document_to_query",
}


def own_direction(paradigm: str) -> str:
    """Returns the direction in which systems of this paradigm align by design (§5.2.3).

    Raises:
        ValueError: an unknown paradigm.
    """
    if paradigm not in OWN_DIRECTION:
        raise ValueError(f"paradigm={paradigm!r}: must be one of {', '.join(OWN_DIRECTION)}")
    return OWN_DIRECTION[paradigm]


def directed_alignment(pairs: PairAlignment, paradigm: str, direction: str) -> Tensor:
    """Normalises the pairs' alignments over the other side and averages them over heads (§7.2).

    The alignment of a multi-vector system is sparse: the softmax of S over the other side replaces
    it. A lexical system has a similarity at equal terms only: there it is the softmax of S ⊙ A. The
    cross-attention of a generative system already is a softmax in the document-to-query direction:
    its heads are averaged, and rows still sum to one over query tokens. For the other direction the
    columns of that average are divided by their sums.

    Args:
        pairs: similarity and alignment (B, H, M, N).
        paradigm: "multi_vector", "generative" or "lexical".
        direction: "query_to_document" (columns sum to 1) or "document_to_query" (rows do).

    Returns:
        (B, M, N) fp32, zero at padding.

    Raises:
        ValueError: an unknown paradigm or direction.
    """
    other_side(direction)  # raises for an unknown direction
    if own_direction(paradigm) == "query_to_document":
        masks = pairs.document_mask[:, None], pairs.query_mask[:, None]
        lexical = pairs.alignment if paradigm == "lexical" else 1
        return Softmax(direction)(pairs.similarity.float() * lexical, *masks).mean(1)
    real = pair_mask(pairs.document_mask, pairs.query_mask)
    attention = pairs.alignment.float().mean(1).masked_fill(~real, 0)
    # The cross-attention of a query generator sums to one over the document's tokens instead.
    sums = attention.sum(-1)[pairs.document_mask]
    is_own = direction == "document_to_query" and torch.allclose(sums, sums.new_ones(()), atol=0.01)
    return attention if is_own else normalised(attention, direction)


def aligning_side(pairs: PairAlignment, direction: str) -> tuple[Tensor, Tensor]:
    """Returns ids and mask of the side that aligns: (B, N) query or (B, M) document tokens."""
    side = ALIGNING[direction]
    return getattr(pairs, f"{side}_ids"), getattr(pairs, f"{side}_mask")


def aligning_words(pairs: PairAlignment, direction: str, special: Tensor) -> Tensor:
    """Marks the real tokens of the side that aligns, except special ones: (B, N) or (B, M) bool.

    Args:
        special: (V,) bool.
    """
    ids, mask = aligning_side(pairs, direction)
    return mask & ~special[ids]


def directed_heads(pairs: PairAlignment, direction: str) -> Tensor:
    """Normalises each head's alignment over the other side, without a softmax.

    For cross-attention the result is the attention itself, or its columns divided by their sums.
    For a sparse alignment it is the share of each chosen token.

    Args:
        pairs: alignment (B, H, M, N).
        direction: "query_to_document" (columns sum to 1) or "document_to_query" (rows do).

    Returns:
        (B, H, M, N) fp32, zero at padding, and for a token that is aligned to nothing.

    Raises:
        ValueError: an unknown direction.
    """
    real = pair_mask(pairs.document_mask, pairs.query_mask)[:, None]
    return normalised(pairs.alignment.float().masked_fill(~real, 0), direction)


def normalised(alignment: Tensor, direction: str) -> Tensor:
    """Divides weights (..., M, N) ≥ 0 by their sums over the other side; zeros stay zeros."""
    return divide(alignment, alignment.sum(other_side(direction), keepdim=True))
