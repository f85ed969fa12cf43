"""Counts what would make the CPU wait for an accelerator, with the place in our code that asked.

    with stand_in(), synchronisations() as found:
        system.training_step(batch.to(DEVICE)).backward()
    assert not found, found

An accelerator works through a queue while the CPU fills it. To know a number (`.item()`,
`if x > 0`) or the size of a result (`nonzero`, `x[mask]`, `unique`) the CPU waits until the queue
is empty, and so it does for a copy between the two that is not `non_blocking`: what
`torch.cuda.set_sync_debug_mode` warns of, without a GPU. Tensors that are on the CPU cost nothing.
"""

import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from tests import stand_in
from tests.stand_in import DEVICE, OnDevice

ROOT = Path(__file__).parents[1]
_ops = torch.ops.aten
# Their result is a number of the CPU, or as long as the values on the device say.
_WAITS = {
    *(_ops._local_scalar_dense, _ops.item, _ops.is_nonzero, _ops.equal, _ops.allclose),
    *(_ops.nonzero, _ops.masked_select, _ops.bincount, _ops.repeat_interleave),
    *(_ops._unique, _ops._unique2, _ops.unique_dim, _ops.unique_consecutive),
    *(_ops.unique_dim_consecutive, _ops._linalg_check_errors),
}
_MASKS = (torch.bool, torch.uint8)
_COPIES = {_ops._to_copy, _ops.copy_, _ops.to}
_INDEXING = {_ops.index, _ops.index_put, _ops.index_put_, _ops._index_put_impl_}


@contextmanager
def synchronisations() -> Iterator[Counter[str]]:
    """Within `stand_in()`: how often each "file:line operation" waits, ours or a library's for us.

    The line is the innermost one of this repository but its tests.
    """
    found: Counter[str] = Counter()
    run, to_list = stand_in._run, OnDevice.tolist

    def counted(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        if waits(func.overloadpacket, args, kwargs):
            found[f"{_place()} {func}"] += 1
        return run(func, args, kwargs)

    def counted_list(tensor: OnDevice) -> Any:
        found[f"{_place()} tolist"] += 1
        return to_list(tensor)

    with patch.object(stand_in, "_run", counted), patch.object(OnDevice, "tolist", counted_list):
        yield found


def waits(operation: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether CUDA's form of the operation waits for the device.

    A copy between the two that is not `non_blocking` does: that has its values after an event only.
    """
    if operation is _ops.copy_:
        late = kwargs.get("non_blocking", len(args) > 2 and args[2])
        return _is_there(args[0]) != _is_there(args[1]) and not late
    if operation in _COPIES:
        target = kwargs.get("device")
        there = _is_there(args[0]) if target is None else torch.device(target).type == DEVICE.type
        return there != _is_there(args[0]) and not kwargs.get("non_blocking", False)
    if not any(map(_is_there, [*args, *kwargs.values()])):
        return False
    if operation in _INDEXING:  # one value at a mask is `masked_fill`
        fills = len(args) > 2 and not args[2].dim()
        return any(
            not _is_there(x) or (not fills and x.dtype in _MASKS) for x in args[1] if x is not None
        )
    return operation in _WAITS and kwargs.get("output_size") is None


def _is_there(value: Any) -> bool:
    return isinstance(value, OnDevice)


def _place() -> str:
    """The innermost line of the repository's code that is running."""
    for frame in reversed(traceback.extract_stack()):
        path = Path(frame.filename)
        if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] not in ("tests", ".venv"):
            return f"{path.relative_to(ROOT)}:{frame.lineno}"
    return "a test"
