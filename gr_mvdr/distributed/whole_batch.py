"""The batch of all ranks: what one process would have read at once, and who encodes what of it."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gr_mvdr.batch import PairBatch, append_documents
from gr_mvdr.distributed.ranks import gather, slice_for_rank, world_size

Encoded = TypeVar("Encoded")


def gather_batch(batch: PairBatch) -> PairBatch:
    """The parts of all ranks as one batch, the same on every rank.

    Token ids alone are sent. The expensive part, the encoding, can be shared out again afterwards
    (`encode_share`): a document that is in several parts is encoded once, and every loss and
    alignment that looks at its batch mates sees all of them.

    Args:
        batch: this rank's part, at least one pair.
    """
    if world_size() == 1:
        return batch
    found = {name: gather(value) for name, value in vars(batch).items() if value is not None}
    parts = zip(*found.values(), strict=True)
    return assemble_batch([PairBatch(**dict(zip(found, part, strict=True))) for part in parts])


def assemble_batch(parts: Sequence[PairBatch]) -> PairBatch:
    """Neighbouring parts of a batch, put together as the data would have made the batch.

    The positives of all parts come first, then the hard negatives, each document once.

    Args:
        parts: all padded to the same lengths.
    """
    every = {
        name: torch.cat([vars(part)[name] for part in parts])
        for name, value in vars(parts[0]).items()
        if value is not None
    }
    sizes = torch.tensor([len(part.document_ids) for part in parts])
    starts = (sizes.cumsum(0) - sizes).tolist()
    numbered = list(zip(starts, parts, strict=True))
    places = [start + row for start, part in numbered for row in range(len(part))]
    if "negatives" in every:
        hard = torch.cat([start + part.negatives for start, part in numbered])
        further, index = hard.flatten().tolist(), every["document_index"].tolist()
        new, rows = append_documents([index[i] for i in places], [index[i] for i in further])
        places += [further[i] for i in new]
        every["negatives"] = torch.tensor(rows, device=hard.device).view_as(hard)
    chosen = torch.tensor(places, device=every["document_ids"].device)
    documents = {name: every[name][chosen] for name in every if name.startswith("document")}
    return PairBatch(**every | documents)


def encode_share(
    encode: Callable[[Tensor, Tensor], Encoded], ids: Tensor, mask: Tensor, size: int | None
) -> list[Encoded]:
    """This rank's share of the texts, in chunks, so that training holds one chunk's activations
    (a gradient cache).

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
