"""Which library multiplies fp32 matrices on a CPU: MKL, or oneDNN where it is faster and as exact.

torch asks MKL, whose kernels for CPUs of AMD's are slower than oneDNN's. It asks oneDNN where bf16
is *permitted* (`torch.backends.mkldnn.matmul.fp32_precision`); oneDNN then multiplies in bf16 on
CPUs with AMX, and in fp32 on others. Nothing of this is assumed: on a CPU of AMD's both are
measured once, in a process of one thread, and the choice is kept next to the cache of datasets.
Other CPUs and other devices are left as they are, and so is a process that has set a precision.

torch's setting is changed only within `fast_products` and `product`: who imports this library finds
it as it was. `GR_MVDR_PRODUCTS=mkl`, or `products=mkl` of a run, turns all of it off.

    python -m gr_mvdr.products     measures again, and says what it found
"""

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from gr_mvdr.files import write_json
from gr_mvdr.ranks import sum_over_ranks, world_size

VARIABLE, CHOICES = "GR_MVDR_PRODUCTS", ("auto", "mkl")

# (m, k, n) of products of documents with queries, with an output table, and of a layer.
_SHAPES = (8192, 128, 32), (160, 128, 8192), (512, 512, 512)
_ROUNDS, _CHECKED_ROWS = 15, 64
# Sums in another order differ by two or three times, products in bf16 by hundreds.
_LARGEST_ERROR, _LEAST_GAIN = 4.0, 1.05
# A product of a new shape costs oneDNN up to a millisecond, and few columns leave its kernels idle.
_MANY, _FEWEST_COLUMNS = 30_000_000, 12

_setting: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
_lock, _wanted, _inside = Lock(), "auto", 0


def _renew_lock() -> None:
    """In a forked child: another thread of the parent may hold the lock, and is not there."""
    global _lock
    _lock = Lock()


os.register_at_fork(after_in_child=_renew_lock)


def use_products(wanted: str) -> None:
    """Sets what this process multiplies with: all ranks of a training do it alike.

    Args:
        wanted: "auto": as `GR_MVDR_PRODUCTS` says, else as measured; "mkl": as torch does.

    Raises:
        ValueError: see `chosen_products`.
    """
    global _wanted
    _wanted = wanted
    ranks = sum_over_ranks(torch.tensor(float(chosen_products() == "onednn")))
    if ranks < world_size():
        _wanted = "mkl"


def chosen_products() -> str:
    """ "onednn" or "mkl": what multiplies fp32 matrices on this CPU.

    Raises:
        ValueError: `GR_MVDR_PRODUCTS` is neither auto nor mkl.
    """
    asked = os.environ.get(VARIABLE, "auto")
    if asked not in CHOICES:
        raise ValueError(f"{VARIABLE}={asked}: must be {' or '.join(CHOICES)}")
    return "mkl" if "mkl" in (asked, _wanted) else _measured_choice()


@contextmanager
def fast_products(device: torch.device | str = "cpu") -> Iterator[None]:
    """Within it fp32 products on a CPU run in the chosen library, those of gradients, too.

    For products whose shapes come again: a new one costs oneDNN up to a millisecond.

    Args:
        device: that computes; nothing changes for one that is no CPU.
    """
    global _inside
    if torch.device(device).type != "cpu" or chosen_products() == "mkl":
        yield
        return
    with _lock:  # threads may overlap: the first one in sets it, the last one out takes it back
        ours = _inside > 0 or _setting.fp32_precision == "none"
        if ours:
            _inside += 1
            _setting.fp32_precision = "bf16"
    try:
        yield
    finally:
        with _lock:
            if ours:
                _inside -= 1
                if not _inside:
                    _setting.fp32_precision = "none"


def product(left: Tensor, right: Tensor) -> Tensor:
    """(m, k) and (k, n) → (m, n), in the library that is faster for such a size."""
    if left.shape[0] * right.numel() < _MANY or right.shape[1] < _FEWEST_COLUMNS:
        return left @ right
    with fast_products(left.device):
        return left @ right


@cache
def _measured_choice() -> str:
    """The choice for this CPU and this torch, which the first process to need it has measured."""
    processor = _amd_processor()
    if processor is None or not torch.backends.mkl.is_available():
        return "mkl"
    made_from = [processor, torch.__version__, _SHAPES, _LARGEST_ERROR, _LEAST_GAIN]
    name = sha256(json.dumps(made_from).encode()).hexdigest()[:32]
    path = _cache_folder() / f"{name}.json"
    try:
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)  # before the seconds that it takes
            found = {"processor": processor, **_measure_apart()}
            if not path.is_file():  # another process may have been faster
                write_json(path, found)
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, subprocess.SubprocessError):
        return "mkl"  # a choice that is not kept would not be the same in the next process
    is_onednn = isinstance(kept, dict) and kept.get("products") == "onednn"
    return "onednn" if is_onednn else "mkl"


def _amd_processor() -> str | None:
    """The name of this CPU if it is one of AMD's, as Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    pairs = (line.partition(":") for line in lines)
    facts = {name.strip(): value.strip() for name, _, value in pairs}
    return facts.get("model name") if facts.get("vendor_id") == "AuthenticAMD" else None


def _cache_folder() -> Path:
    from huggingface_hub.constants import HF_HOME

    return Path(os.environ.get("HF_DATASETS_CACHE", f"{HF_HOME}/datasets")) / "products"


def _measure_apart() -> dict[str, Any]:
    """`measure_products` in a process of one thread, whose number this one keeps as it is."""
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    paths = os.pathsep.join(path or "." for path in sys.path)
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "gr_mvdr.products"],  # -P: nothing of the current folder
        env={**os.environ, **threads, "PYTHONPATH": paths},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        timeout=60,
    )
    return dict(json.loads(ran.stdout))


def measure_products() -> dict[str, Any]:
    """Both libraries on a few products: the choice, and the two numbers that made it.

    Returns:
        `products`; `gain`: how many times as long MKL takes; `error`: the largest of oneDNN's
        errors against fp64, as a multiple of MKL's.
    """
    generator = torch.Generator().manual_seed(0)
    pairs = [
        (torch.randn(m, k, generator=generator), torch.randn(n, k, generator=generator).T)
        for m, k, n in _SHAPES
    ]
    error = max(_error(_permitting, *pair) / _error(torch.mm, *pair) for pair in pairs)
    gain = math.prod(_gain(*pair) for pair in pairs) ** (1 / len(pairs))
    better = error <= _LARGEST_ERROR and gain >= _LEAST_GAIN
    return {"products": "onednn" if better else "mkl", "gain": gain, "error": error}


def _permitting(left: Tensor, right: Tensor) -> Tensor:
    """The product where bf16 is permitted, which is oneDNN's."""
    kept, _setting.fp32_precision = _setting.fp32_precision, "bf16"
    try:
        return left @ right
    finally:
        _setting.fp32_precision = kept


def _error(multiply: Callable[[Tensor, Tensor], Tensor], left: Tensor, right: Tensor) -> float:
    """The largest difference from the product in fp64, in some rows."""
    exact = left[:_CHECKED_ROWS].double() @ right.double()
    return (multiply(left, right)[:_CHECKED_ROWS] - exact).abs().max().item()


def _gain(left: Tensor, right: Tensor) -> float:
    """How many times as long MKL takes: processor time, the best of alternating rounds."""
    times: dict[Any, list[float]] = {torch.mm: [], _permitting: []}
    for _ in range(_ROUNDS):
        for multiply, taken in times.items():
            start = time.process_time()
            multiply(left, right)
            taken.append(time.process_time() - start)
    return min(times[torch.mm]) / min(times[_permitting])


if __name__ == "__main__":
    print(json.dumps(measure_products()))
