"""A batch's texts encoded in parts: each rank its share, a chunk of it at a time."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gr_mvdr.distributed.ranks import slice_for_rank, world_size

Encoded = TypeVar("Encoded")


def encode_share(
    encode: Callable[[Tensor, Tensor], Encoded], ids: Tensor, mask: Tensor, size: int | None
) -> list[Encoded]:
    """This rank's share of the texts, in chunks, so that training holds one chunk's activations.

    On the way back every chunk is encoded once more, with the same dropout: the gradients are those
    of encoding the same chunks and keeping everything.

    Args:
        encode: ids (b, L) int64 and mask (b, L) bool → what the loss needs of b texts.
        ids, mask: (B, L) of all ranks' texts, B ≥ W; every chunk is cut to its longest text.
        size: texts a chunk at most; None = all at once, and nothing is computed twice.
    """
    if size is not None and torch.is_grad_enabled():
        encode = partial(checkpoint, encode, use_reentrant=False)
    own, largest = slice_for_rank(len(ids)), -(-len(ids) // world_size())
    # As many on every rank: with parameters in shards all encode together (`shard`).
    chunks = 1 if size is None else -(-largest // size)
    found = []
    for texts, real in zip(
        ids[own].tensor_split(chunks), mask[own].tensor_split(chunks), strict=True
    ):
        if len(texts):
            length = int(real.sum(1).max())
            found.append(encode(texts[:, :length], real[:, :length]))
    return found


def check_gradient_cache(size: int | None) -> None:
    """Raises ValueError for chunks without a text."""
    if size is not None and size < 1:
        raise ValueError(f"model.gradient_cache={size}: must be ≥ 1, or null")
