"""What a system costs: latency, index size, memory."""

import resource
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

# Queries whose latency is measured, one at a time.
LATENCY_QUERIES = 50


def query_milliseconds(model: Any, data: Any, depth: int) -> dict[str, float]:
    """Latency of single queries, encoding included: median and 95th percentile in ms."""
    queries = data.test_queries(data.test_splits[0])
    times = []
    for row in range(min(LATENCY_QUERIES, len(queries))):
        query = queries.select([row])
        start = time.perf_counter()
        model.retrieve(query, depth)
        times.append(1000 * (time.perf_counter() - start))
    return {
        "cost/query_ms_p50": float(np.percentile(times, 50)),
        "cost/query_ms_p95": float(np.percentile(times, 95)),
    }


def index_bytes(folder: Path) -> int:
    """Bytes of all files of an index folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def reset_peak_memory() -> None:
    """Starts a new peak for this run: a sweep's runs share one process (Linux only)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory_bytes() -> int:
    """The largest resident size of this process since `reset_peak_memory`."""
    try:
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.split("VmHWM:")[1].split()[0])
    except (OSError, IndexError):
        unit = 1 if sys.platform == "darwin" else 1024
        return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
