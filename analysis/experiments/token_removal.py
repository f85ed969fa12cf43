"""Texts without some of their tokens: what the deletion test scores anew."""

import torch
from torch import Tensor

from gr_mvdr.batch import PairBatch, length_mask
from gr_mvdr.relevance import PairAlignment

SIDES = ("document", "query")


def without_tokens(ids: Tensor, mask: Tensor, removed: Tensor) -> tuple[Tensor, Tensor]:
    """Texts without some of their tokens, padded anew.

    Args:
        ids: (B, L) int64; mask, removed: (B, L) bool.

    Returns:
        ids and mask (B, L'), L' ≤ L the longest that is left.
    """
    kept = mask & ~removed
    order = (~kept).long().argsort(dim=1, stable=True)
    left = length_mask(kept.sum(1).cpu()).to(ids.device)
    return ids.gather(1, order)[:, : left.shape[1]] * left, left


def strongest(values: Tensor, candidates: Tensor, k: int) -> Tensor:
    """(B, L) bool: the k candidates with the largest values; of equal ones the first.

    Args:
        values: (B, L); candidates: (B, L) bool.
    """
    order = values.masked_fill(~candidates, -torch.inf).argsort(dim=1, descending=True, stable=True)
    chosen = torch.zeros_like(candidates).scatter_(1, order[:, :k], True)
    return chosen & candidates


def removable(batch: PairBatch, pairs: PairAlignment, side: str, special: Tensor) -> Tensor | None:
    """(B, L) bool: the tokens that may go, all but the special ones.

    None where the system does not read this side token by token, so that no vector stands for a
    token: pooled texts, and identifiers in the place of documents.

    Args:
        batch: pairs; pairs: their alignment; side: "document" or "query".
        special: ids of special tokens.
    """
    ids, mask = getattr(batch, f"{side}_ids"), getattr(batch, f"{side}_mask")
    # Sentinels and marks may follow the text's own tokens.
    length = ids.shape[1]
    read, real = (getattr(pairs, f"{side}_{part}")[:, :length] for part in ("ids", "mask"))
    words = mask & ~torch.isin(ids, special)
    if read.shape != ids.shape or bool((words & ~(real & (read == ids))).any()):
        return None
    return words
