"""Benchmark of runs at the papers' size: the peak memory of each run's own process.

    python -m tests.benchmarks.bench_training t5_colbert t5_seal dsi_semantic genre

Two steps and all that a run does after them, on 50 generated documents, with a T5 of v1.1 base's
shape and random weights.
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.benchmarks.rows import ROOT, print_row

SHAPE = dict(d_model=768, d_kv=64, d_ff=2048, num_layers=12, num_heads=12, vocab_size=32128)
BASE = [f"backbone.shape.{key}={value}" for key, value in SHAPE.items()]
BASE += ["+backbone.shape.feed_forward_proj=gated-gelu", "backbone.initialisation=random"]
FEW = ["experiment=smoke", "data.n_documents=50", "data.batch_size=16", "analysis=none"]
FEW += ["data.max_test_queries=4", "data.max_rerank_queries=1", "logger=none"]
MOST_BYTES = 12 * 2**30


def main(systems: list[str]) -> None:
    """Prints a row for the run of every system, and exits if one takes more than its bar."""
    missed = []
    with TemporaryDirectory(prefix="base-") as place:
        for system in systems:
            named = [f"model={system}", f"output={place}", f"name={system}"]
            command = [sys.executable, "train.py", *FEW, *BASE, *named]
            subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
            found = json.loads((Path(place) / system / "metrics.json").read_text())
            peak = found["cost/peak_memory_bytes"]
            missed += [system] if peak > MOST_BYTES else []
            print_row(f"peak memory of {system} in T5 base's shape", f"{peak / 2**30:.1f} GiB")
    if missed:
        sys.exit(f"more than {MOST_BYTES / 2**30:.0f} GiB: {', '.join(missed)}")


if __name__ == "__main__":
    main(sys.argv[1:] or ["t5_colbert", "t5_seal", "dsi_semantic", "genre"])
