"""Exact term match in an alignment (Wu et al. §7.2, Figures 2 and 3).

An alignment that is normalised over the other side says, for every token of the aligning side,
how its attention is spread. The hard rate asks whether the strongest partner is the same token,
the soft rate how much of the whole spread falls on partners that are the same token.
"""

import torch
from torch import Tensor

from gr_mvdr.alignment import other_side, pair_mask

DIRECTIONS = ("query_to_document", "document_to_query")
MEASURES = ("hard", "soft")


def exact_match(
    alignment: Tensor,
    document_ids: Tensor,
    query_ids: Tensor,
    document_mask: Tensor,
    query_mask: Tensor,
    direction: str,
) -> tuple[Tensor, Tensor]:
    """Hard and soft exact match of every token of the aligning side (Wu et al. §7.2).

    Leading axes broadcast, so that one set of ids may serve many heads: give ids and masks an
    axis of size 1 there. A token that is aligned to nothing (a row of zeros) matches nothing.

    Args:
        alignment: (..., M, N), any float type, already normalised over the other side.
        document_ids: (..., M) int64.
        query_ids: (..., N) int64.
        document_mask: (..., M) bool, True = real token.
        query_mask: (..., N) bool, True = real token.
        direction: "query_to_document" gives one value for each query token,
            "document_to_query" one for each document token.

    Returns:
        hard: (..., N) or (..., M) bool, the aligned token (argmax) has the same id.
        soft: the same shape, fp32, the sum of the alignment at equal ids, between 0 and 1.
        Both are False / 0 at padding.

    Raises:
        ValueError: an unknown direction.
    """
    axis = other_side(direction)
    real = pair_mask(document_mask, query_mask)
    same = (document_ids[..., :, None] == query_ids[..., None, :]) & real
    alignment, same, real = torch.broadcast_tensors(alignment.float(), same, real)
    soft = alignment.masked_fill(~same, 0).sum(axis)
    strength, partner = alignment.masked_fill(~real, -torch.inf).max(axis)
    hard = same.gather(axis, partner.unsqueeze(axis)).squeeze(axis) & (strength > 0)
    return hard, soft
