"""One normalised alignment matrix for a pair, whatever the system (Wu et al. §5.2, §7.2).

Systems align in different ways: a multi-vector system chooses document tokens, a generative one
spreads each document token over the query. To compare them both are read in both directions, as
weights that sum to one over the other side.
"""

import torch
from torch import Tensor

from gr_mvdr.alignment import Softmax, other_side, pair_mask
from gr_mvdr.relevance import PairAlignment

TINY = 1e-30  # the least divisor: a column of padding sums to zero
# Direction → the side whose tokens choose their partners.
ALIGNING = {"query_to_document": "query", "document_to_query": "document"}
DIRECTIONS = tuple(ALIGNING)

# The direction in which a paradigm aligns of its own accord.
OWN_DIRECTION = {
    "multi_vector": "query_to_document",
    "lexical": "query_to_document",
    "generative": "document_to_query",
}


def own_direction(paradigm: str) -> str:
    """The direction in which systems of this paradigm align of their own accord (§5.2.3).

    Raises:
        ValueError: an unknown paradigm.
    """
    if paradigm not in OWN_DIRECTION:
        raise ValueError(f"paradigm={paradigm!r}: must be one of {', '.join(OWN_DIRECTION)}")
    return OWN_DIRECTION[paradigm]


def directed_alignment(pairs: PairAlignment, paradigm: str, direction: str) -> Tensor:
    """The pair's alignment, normalised over the other side and averaged over heads (§7.2).

    A multi-vector system's alignment is sparse, so the softmax of its similarity over the other
    side is taken; a lexical system has a similarity at equal terms only (S ⊙ A), so the softmax of
    that. A generative system's cross-attention already is such a softmax in the document-to-query
    direction: its heads are averaged (rows still sum to one over query tokens); for the other
    direction the columns of that average are divided by their sums.

    Args:
        pairs: similarity and alignment (B, H, M, N).
        paradigm: "multi_vector", "generative" or "lexical".
        direction: "query_to_document" (columns sum to 1) or "document_to_query" (rows do).

    Returns:
        (B, M, N) fp32, zero at padding.

    Raises:
        ValueError: an unknown paradigm or direction.
    """
    other_side(direction)  # refuses an unknown one
    if own_direction(paradigm) == "query_to_document":
        masks = pairs.document_mask[:, None], pairs.query_mask[:, None]
        lexical = pairs.alignment if paradigm == "lexical" else 1
        return Softmax(direction)(pairs.similarity.float() * lexical, *masks).mean(1)
    real = pair_mask(pairs.document_mask, pairs.query_mask)
    attention = pairs.alignment.float().mean(1).masked_fill(~real, 0)
    # A query generator's sums to one over the document's tokens instead.
    sums = attention.sum(-1)[pairs.document_mask]
    is_own = direction == "document_to_query" and torch.allclose(sums, sums.new_ones(()), atol=0.01)
    return attention if is_own else normalised(attention, direction)


def softmax_of_alignment(pairs: PairAlignment, direction: str) -> Tensor:
    """The softmax over the other side of a sparse A itself, with its ones and zeros (§7.2).

    Args:
        pairs, direction: as of `directed_alignment`.

    Returns:
        (B, M, N) fp32, the mean over heads, zero at padding.
    """
    masks = pairs.document_mask[:, None], pairs.query_mask[:, None]
    return Softmax(direction)(pairs.alignment.float(), *masks).mean(1)


def aligning_side(pairs: PairAlignment, direction: str) -> tuple[Tensor, Tensor]:
    """Token ids and mask of the side that aligns: (B, N) of the query or (B, M) of the document."""
    side = ALIGNING[direction]
    return getattr(pairs, f"{side}_ids"), getattr(pairs, f"{side}_mask")


def aligning_words(pairs: PairAlignment, direction: str, special: Tensor) -> Tensor:
    """(B, N) or (B, M) bool: the real tokens of the side that aligns, without special ones.

    Args:
        special: (V,) bool.
    """
    ids, mask = aligning_side(pairs, direction)
    return mask & ~special[ids]


def directed_heads(pairs: PairAlignment, direction: str) -> Tensor:
    """Every head's own alignment, normalised over the other side.

    No softmax is taken: of cross-attention these are the attention itself, or its columns divided
    by their sums; of a sparse alignment the chosen tokens' shares.

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
    """Weights (..., M, N) ≥ 0 divided by their sums over the other side; zeros stay zeros."""
    return alignment / alignment.sum(other_side(direction), keepdim=True).clamp_min(TINY)
