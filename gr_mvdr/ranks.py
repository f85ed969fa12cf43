"""Processes (ranks) that train together: their collectives and their common batch."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import TypeVar

import torch
import torch.distributed as distributed
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gr_mvdr.batch import PairBatch, append_documents

# The other ranks wait while rank 0 reads and caches a collection. torchrun notices a dead rank
# immediately.
_PATIENCE = timedelta(days=1)


def rank() -> int:
    """The number of this process, 0 to world_size() − 1."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    return int(os.environ.get("RANK", 0))


def world_size() -> int:
    """The number of processes that train together; 1 if training is not distributed."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size()
    return int(os.environ.get("WORLD_SIZE", 1))


def join() -> None:
    """Connects the processes that torchrun started; Lightning keeps the connection.

    Tensors on the CPU are sent by gloo, tensors on a GPU by NCCL.
    """
    if world_size() > 1 and not distributed.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        distributed.init_process_group(backend, timeout=_PATIENCE)


def leave() -> None:
    """Ends the connection of `join` on every rank; from then on, each process works alone."""
    if world_size() > 1:
        wait()
        disconnect()
        for name in ("RANK", "WORLD_SIZE"):
            os.environ.pop(name, None)


def disconnect() -> None:
    """Closes this process's connection, without waiting for other ranks.

    A process that exits with an open connection may be aborted by a thread of gloo.
    """
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def wait() -> None:
    """Waits for all ranks (a barrier); exits if another rank has ended."""
    if world_size() > 1:
        try:
            distributed.all_reduce(torch.zeros(()))
        except RuntimeError as error:  # the connection is lost; the failed rank has reported why
            raise SystemExit(1) from error


@contextmanager
def rank_zero_first() -> Iterator[None]:
    """Runs the block on rank 0 first, then on the other ranks, which can use its caches.

    The block must not call a collective.
    """
    if rank() > 0:
        wait()
    yield
    if rank() == 0:
        wait()


def slice_for_rank(items: int) -> slice:
    """Returns this rank's contiguous share of the items; it may be empty."""
    return slice(items * rank() // world_size(), items * (rank() + 1) // world_size())


def gather(tensor: Tensor) -> list[Tensor]:
    """Gathers the tensors of all ranks, with gradients.

    Args:
        tensor: (b_r, …); ranks may differ in all sizes, but not in the number of axes.

    Returns:
        The tensor (b_r, …) of each rank. All axes but the first are zero-padded to the largest size
        of any rank.
    """
    if world_size() == 1:
        return [tensor]
    shape = torch.tensor(tensor.shape, device=tensor.device)
    shapes = _Gather.apply(shape).tolist()
    widths = [max(sizes) for sizes in zip(*shapes, strict=True)]
    room = [n for wide, own in zip(widths, tensor.shape, strict=True) for n in (wide - own, 0)]
    gathered = _Gather.apply(F.pad(tensor, room[::-1]))  # F.pad counts from the last axis
    return [part[: size[0]] for part, size in zip(gathered, shapes, strict=True)]


def gather_rows(tensor: Tensor) -> Tensor:
    """(Σ b_r, …) the concatenated tensors of all ranks; see `gather`."""
    return torch.cat(gather(tensor))


class _Gather(torch.autograd.Function):
    """Stacks equally shaped tensors of all W ranks to (W, …); gradients are summed over ranks."""

    @staticmethod
    def forward(context, tensor: Tensor) -> Tensor:
        sent = tensor.contiguous()
        parts = [torch.empty_like(sent) for _ in range(world_size())]
        distributed.all_gather(parts, sent)
        return torch.stack(parts)

    @staticmethod
    def backward(context, gradient: Tensor) -> Tensor:
        return sum_over_ranks(gradient)[rank()]


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """Returns the sum of equally shaped tensors over all ranks, without a gradient."""
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    if world_size() > 1:
        distributed.all_reduce(total)
    return total


def mean_over_ranks(total: Tensor, count: int | Tensor) -> Tensor:
    """() a loss whose mean over ranks equals the mean over the items of all ranks.

    The same holds for its gradients, which training averages over ranks.

    Args:
        total: () the sum over this rank's items.
        count: () the number of this rank's items, ≥ 0.
    """
    if isinstance(count, int):
        count = torch.full((), count, device=total.device)
    everywhere = sum_over_ranks(count).clamp(min=1)
    return total * world_size() / everywhere


def broadcast(tensor: Tensor) -> Tensor:
    """Returns rank 0's tensor on every rank; with several ranks, on the CPU."""
    if world_size() == 1:
        return tensor
    sent = [tensor.cpu() if rank() == 0 else None]
    distributed.broadcast_object_list(sent, 0, device=torch.device("cpu"))
    return sent[0]


Encoded = TypeVar("Encoded")


def gather_batch(batch: PairBatch) -> PairBatch:
    """Joins the parts of all ranks into one batch, the same on every rank.

    Only token ids are sent, no vectors. Afterwards the ranks divide the encoding among themselves
    (`encode_share`), so that a document that occurs in several parts is encoded once, and in-batch
    losses see the whole batch.

    Args:
        batch: this rank's part, at least one pair.
    """
    if world_size() == 1:
        return batch
    gathered = {name: gather(value) for name, value in batch.tensors.items()}
    parts = zip(*gathered.values(), strict=True)
    return assemble_batch([PairBatch(**dict(zip(gathered, part, strict=True))) for part in parts])


def assemble_batch(parts: Sequence[PairBatch]) -> PairBatch:
    """Joins consecutive parts of a batch into the batch that the data module would have made.

    The positives of all parts come first, then the hard negatives, each document once.

    Args:
        parts: padded to the same lengths.
    """
    joined = {name: torch.cat([part.tensors[name] for part in parts]) for name in parts[0].tensors}
    sizes = torch.tensor([len(part.document_ids) for part in parts])
    starts = (sizes.cumsum(0) - sizes).tolist()
    numbered = list(zip(starts, parts, strict=True))
    places = [start + row for start, part in numbered for row in range(len(part))]
    if "negatives" in joined:
        hard = torch.cat([start + part.negatives for start, part in numbered])
        further, index = hard.flatten().tolist(), joined["document_index"].tolist()
        new, rows = append_documents([index[i] for i in places], [index[i] for i in further])
        places += [further[i] for i in new]
        joined["negatives"] = torch.tensor(rows, device=hard.device).view_as(hard)
    chosen = torch.tensor(places, device=joined["document_ids"].device)
    documents = {name: joined[name][chosen] for name in joined if name.startswith("document")}
    return PairBatch(**joined | documents)


def encode_share(
    encode: Callable[[Tensor, Tensor], Encoded],
    ids: Tensor,
    mask: Tensor,
    size: int | None,
    device: torch.device,
) -> list[Encoded]:
    """Encodes this rank's share of the texts in chunks (a gradient cache).

    Training holds the activations of one chunk at a time. The backward pass encodes each chunk
    again with the same dropout, so that the gradients equal those without a cache.

    Args:
        encode: ids (b, L) int64 and mask (b, L) bool → an encoding of b texts.
        ids, mask: (B, L) the texts of all ranks, B ≥ W, on the CPU, which then need not wait for
            their lengths: a chunk is cut to its longest text.
        size: largest number of texts in a chunk; None = one chunk, which is encoded only once.
        device: where the texts are encoded.
    """
    if size is not None and torch.is_grad_enabled():
        encode = partial(checkpoint, encode, use_reentrant=False)
    share, largest = slice_for_rank(len(ids)), -(-len(ids) // world_size())
    # Every rank has the same number of chunks: with sharded parameters, all ranks encode together.
    chunks = 1 if size is None else -(-largest // size)
    encoded = []
    for texts, real in zip(
        ids[share].tensor_split(chunks), mask[share].tensor_split(chunks), strict=True
    ):
        if 0 < len(texts) < len(ids):  # the whole batch is already cut to its longest text
            length = int(real.sum(1).max())
            texts, real = texts[:, :length], real[:, :length]
        if len(texts):
            encoded.append(encode(*(x.to(device, non_blocking=True) for x in (texts, real))))
    return encoded
