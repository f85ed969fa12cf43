"""The memory of a process: what each stage of a run takes of it, and what is given back."""

import ctypes
import resource
import sys
from contextlib import suppress
from pathlib import Path

import torch

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class StagePeaks:
    """The most memory that each stage of a run holds, as the kernel counts it.

    Attributes:
        metrics: of the run and, with "/STAGE", of each stage, in bytes: `cost/peak_memory_bytes`,
            resident pages, those of mapped files (libraries, tables, the index) included;
            `cost/own_memory_bytes`, without the file pages that the stage leaves mapped, which
            the system can take back at any time (Linux); `cost/gpu_memory_bytes`, tensors there.
    """

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}
        _begin()

    def end(self, stage: str) -> None:
        """Ends a stage, gives back what it has freed, and begins the next one."""
        for name, value in _peaks().items():
            self.metrics[f"cost/{name}/{stage}"] = value
            self.metrics[f"cost/{name}"] = max(value, self.metrics.get(f"cost/{name}", 0))
        release_memory()
        _begin()


def release_memory() -> None:
    """Gives back freed memory, which glibc keeps where anything after it is still held."""
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _begin() -> None:
    with suppress(OSError):  # without it the peaks are those since the process began
        _CLEAR.write_text("5")
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def _peaks() -> dict[str, int]:
    """Peaks since `_begin` in bytes."""
    try:
        lines = (line.split() for line in _STATUS.read_text().splitlines())
        sizes = {line[0]: 1024 * int(line[1]) for line in lines if line[-1] == "kB"}
        peak = sizes["VmHWM:"]
        found = {"peak_memory_bytes": peak, "own_memory_bytes": peak - sizes["RssFile:"]}
    except (OSError, KeyError):
        unit = 1 if sys.platform == "darwin" else 1024
        found = {"peak_memory_bytes": unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}
    if torch.cuda.is_available():
        found["gpu_memory_bytes"] = torch.cuda.max_memory_allocated()
    return found
