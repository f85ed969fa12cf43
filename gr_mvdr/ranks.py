"""Processes that train together: which one this is, what they tell each other, and their batch."""

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

# How long the others wait while rank 0 reads and caches a collection. A rank that dies is noticed
# at once, by torchrun.
_PATIENCE = timedelta(days=1)


def rank() -> int:
    """This process's number, 0 to ranks() − 1."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    return int(os.environ.get("RANK", 0))


def world_size() -> int:
    """How many processes train together; 1 without others."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size()
    return int(os.environ.get("WORLD_SIZE", 1))


def join() -> None:
    """Connects the processes that torchrun started; Lightning keeps the connection.

    Tensors on the CPU travel by gloo, those on a GPU by NCCL.
    """
    if world_size() > 1 and not distributed.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        distributed.init_process_group(backend, timeout=_PATIENCE)


def leave() -> None:
    """Ends what `join` began, on every rank: from here on each of them is alone."""
    if world_size() > 1:
        wait()
        distributed.destroy_process_group()
        for name in ("RANK", "WORLD_SIZE"):
            os.environ.pop(name, None)


def wait() -> None:
    """Returns when every rank has come here; ends this one if another has ended."""
    if world_size() > 1:
        try:
            distributed.all_reduce(torch.zeros(()))
        except RuntimeError as error:  # a lost connection; the rank that failed has said why
            raise SystemExit(1) from error


@contextmanager
def rank_zero_first() -> Iterator[None]:
    """Rank 0 does this alone, then the others do: what it has cached, they find.

    They must not talk to each other in it.
    """
    if rank() > 0:
        wait()
    yield
    if rank() == 0:
        wait()


def slice_for_rank(items: int) -> slice:
    """This rank's neighbours among so many items; of fewer items than ranks, maybe none."""
    return slice(items * rank() // world_size(), items * (rank() + 1) // world_size())


def gather(tensor: Tensor) -> list[Tensor]:
    """The tensors of all ranks, with gradients.

    Args:
        tensor: (b_r, …); sizes may differ between ranks, the number of axes may not.

    Returns:
        Of each rank (b_r, …), the other axes filled up with zeros to the largest of all ranks.
    """
    if world_size() == 1:
        return [tensor]
    shape = torch.tensor(tensor.shape, device=tensor.device)
    shapes = torch.stack(_all(shape)).tolist()
    widths = [max(sizes) for sizes in zip(*shapes, strict=True)]
    room = [n for wide, own in zip(widths, tensor.shape, strict=True) for n in (wide - own, 0)]
    found = _Gather.apply(F.pad(tensor, room[::-1]))  # F.pad counts from the last axis
    return [part[: size[0]] for part, size in zip(found, shapes, strict=True)]


def gather_rows(tensor: Tensor) -> Tensor:
    """(Σ b_r, …) the tensors of all ranks, one after the other; see `gather`."""
    return torch.cat(gather(tensor))


class _Gather(torch.autograd.Function):
    """(W, …) the tensors of one shape of all ranks; on the way back the sum over ranks."""

    @staticmethod
    def forward(context, tensor: Tensor) -> Tensor:
        return torch.stack(_all(tensor))

    @staticmethod
    def backward(context, gradient: Tensor) -> Tensor:
        return _sum(gradient)[rank()]


def _all(tensor: Tensor) -> list[Tensor]:
    is_bool = tensor.dtype == torch.bool  # not every backend sends truth values
    sent = tensor.contiguous().to(torch.uint8) if is_bool else tensor.contiguous()
    parts = [torch.empty_like(sent) for _ in range(world_size())]
    distributed.all_gather(parts, sent)
    return [part.bool() for part in parts] if is_bool else parts


def _sum(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().clone(memory_format=torch.contiguous_format)
    distributed.all_reduce(tensor)
    return tensor


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """The sum of all ranks' tensors of one shape, without a gradient."""
    return tensor.detach() if world_size() == 1 else _sum(tensor)


def mean_over_ranks(total: Tensor, count: int | Tensor) -> Tensor:
    """() a loss whose mean over ranks, gradients included, is the mean over all ranks' items.

    Args:
        total: () the sum over this rank's items; count: () how many they are, also 0.
    """
    if isinstance(count, int):
        count = torch.full((), count, device=total.device)
    everywhere = sum_over_ranks(count).clamp(min=1)
    return total * world_size() / everywhere


def broadcast(tensor: Tensor) -> Tensor:
    """Rank 0's tensor, on every rank, on the CPU."""
    if world_size() == 1:
        return tensor
    sent = [tensor.cpu() if rank() == 0 else None]
    distributed.broadcast_object_list(sent, 0, device=torch.device("cpu"))
    return sent[0]


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
        ids, mask: (B, L) of all ranks' texts, B ≥ W; a chunk of them is cut to its longest text.
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
        if 0 < len(texts) < len(ids):  # else they are cut already, and an accelerator need not wait
            length = int(real.sum(1).max())
            texts, real = texts[:, :length], real[:, :length]
        if len(texts):
            found.append(encode(texts, real))
    return found
