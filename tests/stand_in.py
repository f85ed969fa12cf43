"""An accelerator that is not there, so that a tensor left on the CPU fails on any machine.

`with stand_in():` tensors can be on `DEVICE`: `.to(DEVICE)` and `device=DEVICE` put them there,
`.cpu()` takes them back, and they hold real values, so that indexing and search run as they are.
What CUDA refuses is refused: an operation on tensors of both devices, a CPU generator, `.numpy()`;
what MPS refuses too with `stand_in(float64=False)`: double precision.
What CUDA allows is allowed: a CPU scalar (0 dimensions) among numbers of the device, an index that
is on the CPU, a copy.

The device is torch's "lazy", a name that every build knows, with no kernels; autograd runs its
backward passes like the CPU's. A tensor there is a wrapper of a CPU tensor.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("lazy", 0)
_refused: set[torch.dtype] = set()  # types that the device lacks

_ops = torch.ops.aten
# Their second argument, a list of indices, may be on the CPU.
_INDEXING = {_ops.index, _ops.index_put, _ops.index_put_, _ops._index_put_impl_}
# Pointwise but for their tags: they take a CPU scalar for a value.
_TAKE_SCALARS = {_ops.masked_fill, _ops.masked_fill_, _ops.fill_, _ops.fill, *_INDEXING}


class OnDevice(Tensor):
    """A tensor of the stand-in; `held` has its values."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "OnDevice":
        options = dict(strides=held.stride(), storage_offset=held.storage_offset())
        with torch.inference_mode(False):  # where torch does not track a parameter's alias
            found = Tensor._make_wrapper_subclass(
                cls, held.shape, **options, dtype=held.dtype, device=DEVICE
            )
        found.held = held
        return found

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    def tolist(self) -> Any:  # torch refuses it for any subclass
        return self.held.tolist()

    # torch moves a list of indices where no mode sees it.
    def __getitem__(self, key: Any) -> Tensor:
        return super().__getitem__(_without_lists(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(_without_lists(key), value)

    def new_tensor(self, data: Any, **kwargs: Any) -> Tensor:
        return self.held.new_tensor(data, **kwargs).to(DEVICE)

    def __repr__(self, **_: Any) -> str:
        return f"OnDevice({self.held!r})"

    # With these two `module.to(DEVICE)` keeps a parameter the object that it is.
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["held"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], *_: Any) -> "OnDevice":
        return OnDevice(inner["held"])


class _EveryOperation(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.is_inference_mode_enabled():  # it comes before torch has taken it apart
            with self:
                found = func.decompose(*args, **kwargs or {})
            if found is not NotImplemented:
                return found
        return _run(func, args, kwargs or {})


def _lifted(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`torch.tensor` and its like fill a CPU tensor and move it where no mode sees it."""

    def call(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        if not _is_ours(device):
            return make(data, *args, device=device, **kwargs)
        return make(data, *args, **kwargs).to(DEVICE)

    return call


class _Autocast(torch.autocast):
    """It knows no lazy device; the stand-in has no mixed precision."""

    def __init__(self, device_type: str, *args: Any, **kwargs: Any):
        super().__init__("cpu" if device_type == DEVICE.type else device_type, *args, **kwargs)


class _Event:
    """What is queued on the stand-in is done at once."""

    def __init__(self, device_type: str):
        assert device_type == DEVICE.type

    def record(self) -> None:
        pass

    synchronize = record


@contextmanager
def stand_in(float64: bool = True) -> Iterator[torch.device]:
    """Within it tensors can be on the stand-in, and none of its operations mixes devices."""
    made = {name: _lifted(getattr(torch, name)) for name in ("tensor", "as_tensor")}
    _refused.update(() if float64 else (torch.float64,))
    try:
        with patch.multiple(torch, autocast=_Autocast, Event=_Event, **made), _EveryOperation():
            yield DEVICE
    finally:
        _refused.clear()


def _without_lists(key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(map(_without_lists, key))
    return torch.tensor(key) if isinstance(key, list) else key


def _is_ours(device: Any) -> bool:
    return device is not None and torch.device(device).type == DEVICE.type


def _run(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The operation on what the tensors hold; its results are where CUDA would have them."""
    tensors = list(_tensors([*args, *kwargs.values()]))
    mine = [x for x in tensors if type(x) is OnDevice]
    target = kwargs.get("device")
    there = bool(mine) if target is None else _is_ours(target)
    if func.overloadpacket is _ops.copy_:
        there = isinstance(args[0], OnDevice)
    elif mine or there:
        _check(func, args, kwargs, tensors)
    if target is not None and there:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    known = {id(x.held): x for x in mine}  # what is changed in place stays the object that it is
    args, kwargs = _each(args, _held), {name: _each(x, _held) for name, x in kwargs.items()}
    found = func(*args, **kwargs)
    if not there:
        return found
    if any(x.dtype in _refused for x in _tensors([found])):
        raise TypeError(f"{func}: the device has no float64")
    return _each(found, lambda x: known[id(x)] if id(x) in known else OnDevice(x))


def _held(tensor: Tensor) -> Tensor:
    return tensor.held if type(tensor) is OnDevice else tensor


def _tensors(found: Any) -> Iterator[Tensor]:
    """The tensors of arguments, as torch's own pytree finds them in ten times the time."""
    if isinstance(found, Tensor):
        yield found
    elif isinstance(found, list | tuple):
        for part in found:
            yield from _tensors(part)


def _each(found: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(found, Tensor):
        return change(found)
    if isinstance(found, list | tuple):
        return type(found)([_each(part, change) for part in found])
    return found


def _check(func: Any, args: tuple, kwargs: dict[str, Any], tensors: list[Tensor]) -> None:
    """Raises where CUDA raises."""
    if kwargs.get("generator") is not None:
        raise RuntimeError(f"{func}: draws on the device with a generator of the CPU")
    left = [x for x in tensors if type(x) is not OnDevice]
    if not left or len(left) == len(tensors):
        return
    packet = func.overloadpacket
    if packet in _INDEXING and isinstance(args[0], OnDevice):
        left = [x for x in left if not any(x is index for index in args[1])]
    scalars = torch.Tag.pointwise in func.tags or packet in _TAKE_SCALARS
    for tensor in left:
        if tensor.dim() or not scalars or tensor is args[0]:
            shapes = [(tuple(x.shape), x.device.type) for x in tensors]
            raise RuntimeError(f"{func}: mixes devices: {shapes}")
