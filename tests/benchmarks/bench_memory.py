"""Benchmark of the memory of whole runs: `bench_memory [SYSTEM …] [KEY=VALUE …]`.

Each system (T5-ColBERT if none is named) trains 40 steps of its default batches on an almanac,
indexes, searches and reranks, in a process of its own. Further keys are the run's:
`data=files data.path=…` takes another collection, `analysis=full` asks all analyses.
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from analysis.runs.run_folder import read_run
from analysis.tables.report import summarise_run

ROOT = Path(__file__).parents[2]
MOST_BYTES = 1.5e9  # of a run, and twice its parameters; 1.2e9 is aimed at (docs/results.md)
SHORT = ["analysis=none", "logger=none", "trainer.max_steps=40", "data.max_test_queries=64"]
SHORT += ["data.max_rerank_queries=10"]
ALMANAC = ["data=almanac", "data.n_documents=2000"]


def main(arguments: list[str]) -> None:
    """Prints each run's stages and whether its own memory meets the bar."""
    systems = [one for one in arguments if "=" not in one] or ["t5_colbert"]
    keys, missed = [one for one in arguments if "=" in one], []
    data = [] if any(key.startswith("data=") for key in keys) else ALMANAC
    with TemporaryDirectory(prefix="memory-") as folder:
        for system in systems:
            command = [sys.executable, "train.py", f"model={system}", *SHORT, *data, *keys]
            command += [f"output={folder}", f"name={system}"]
            subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
            run = read_run(Path(folder) / system)
            held = run.metrics["cost/own_memory_bytes"]
            bar = MOST_BYTES + 2 * 4 * run.provenance["parameters"]
            text = f"own memory {held / 1e9:.2f} GB (bar {bar / 1e9:.2f} GB)"
            print(summarise_run(run), text, "", sep="\n")
            missed += [system] if held > bar else []
    if missed:
        sys.exit(f"over the bar: {', '.join(missed)}")


if __name__ == "__main__":
    main(sys.argv[1:])
