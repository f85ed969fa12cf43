"""The peak memory of each stage of a run."""

import ctypes
import resource
import sys
from contextlib import suppress
from pathlib import Path

import torch

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class StagePeaks:
    """Measures the peak memory of each stage, as the kernel counts it.

    Attributes:
        metrics: bytes of the run and, with "/STAGE", of each stage: `cost/peak_memory_bytes`,
            resident pages, also of mapped files (libraries, tables, the index);
            `cost/own_memory_bytes`, without the file pages that are still mapped at the end of the
            stage (Linux); `cost/gpu_memory_bytes`, tensors on the GPU.
    """

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}
        _begin()

    def end(self, stage: str) -> None:
        """Ends a stage, returns its freed memory to the system, and begins the next stage."""
        for name, value in _peaks().items():
            self.metrics[f"cost/{name}/{stage}"] = value
            self.metrics[f"cost/{name}"] = max(value, self.metrics.get(f"cost/{name}", 0))
        release_memory()
        _begin()


def release_memory() -> None:
    """Returns freed memory to the system, which glibc keeps below memory that is in use."""
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _begin() -> None:
    with suppress(OSError):  # without it the peaks are those since the process began
        _CLEAR.write_text("5")
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def _peaks() -> dict[str, int]:
    """Peaks in bytes since `_begin`."""
    try:
        lines = (line.split() for line in _STATUS.read_text().splitlines())
        sizes = {line[0]: 1024 * int(line[1]) for line in lines if line[-1] == "kB"}
        peak = sizes["VmHWM:"]
        peaks = {"peak_memory_bytes": peak, "own_memory_bytes": peak - sizes["RssFile:"]}
    except (OSError, KeyError):
        unit = 1 if sys.platform == "darwin" else 1024
        peaks = {"peak_memory_bytes": unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}
    if torch.cuda.is_available():
        peaks["gpu_memory_bytes"] = torch.cuda.max_memory_allocated()
    return peaks
