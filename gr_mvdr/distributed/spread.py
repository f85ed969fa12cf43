"""Work that all ranks do for rank 0, and what rank 0 tells the others."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as distributed
from torch import Tensor

from gr_mvdr.distributed.ranks import rank, ranks

Item = TypeVar("Item")
# What a tensor's header says of its type, by its place here; −1: no tensor.
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32)
_AXES = 4


def spread(
    items: Sequence[Item], work: Callable[[Item], Sequence[Tensor | None]]
) -> Iterator[Sequence[Tensor | None]]:
    """What the work on every item answers, in the items' order: on rank 0, the others get nothing.

    Every rank works on each W-th item. Rank 0 holds one answer at a time: whoever is ahead waits.

    Args:
        items: the same on every rank.
        work: answers tensors on the CPU, as many for every item; None for one that is not there.
    """
    for start in range(0, len(items), ranks()):
        own = start + rank()
        found = work(items[own]) if own < len(items) else None
        if rank() > 0:
            for part in found or ():
                _send(part)
        else:
            yield found
            for other in range(1, min(ranks(), len(items) - start)):
                yield [_receive(other) for _ in found]


def of_first(tensor: Tensor) -> Tensor:
    """Rank 0's tensor, on every rank, on the CPU."""
    if ranks() == 1:
        return tensor
    header = _header(tensor)
    distributed.broadcast(header, 0)
    found = tensor.cpu().contiguous() if rank() == 0 else _empty(header)
    distributed.broadcast(found, 0)
    return found


def _send(tensor: Tensor | None) -> None:
    distributed.send(_header(tensor), 0)
    if tensor is not None:
        distributed.send(tensor.contiguous(), 0)


def _receive(source: int) -> Tensor | None:
    header = torch.empty(_AXES + 2, dtype=torch.int64)
    distributed.recv(header, source)
    if header[0] < 0:
        return None
    tensor = _empty(header)
    distributed.recv(tensor, source)
    return tensor


def _header(tensor: Tensor | None) -> Tensor:
    """(2 + _AXES,) int64: type, number of axes, their sizes."""
    header = torch.full((_AXES + 2,), -1)
    if tensor is not None:
        header[0], header[1] = _DTYPES.index(tensor.dtype), tensor.dim()
        header[2 : 2 + tensor.dim()] = torch.tensor(tensor.shape)
    return header


def _empty(header: Tensor) -> Any:
    kind, axes, *sizes = header.tolist()
    return torch.empty(sizes[:axes], dtype=_DTYPES[kind])
