"""Benchmark of the data's scale: a million documents read, tokenised and iterated.


The almanac generates them. A second process then starts from what the first one cached.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from data_modules.sources import AlmanacDataModule

DOCUMENTS = 1_000_000
MOST_BYTES, MOST_SECONDS = 3e9, 20  # of the whole process; of the second start
BATCH = 256
ROOT = Path(__file__).parents[2]


def start(documents: int) -> AlmanacDataModule:
    """The data of a run with its own tokeniser, up to the first batch of training."""
    data = AlmanacDataModule(
        n_documents=documents,
        train_questions=1,
        collection_seed=1,
        test_split="test",
        new_documents=["test_unseen"],
        tokenizer_options=dict(
            backbone=None, path=None, unit="piece", vocab_size=16_384, lowercase=True
        ),
        query_length=40,
        document_length=160,
        batch_size=BATCH,
    )
    next(iter(data.train_dataloader()))
    data.count_cut_texts()
    return data


def measure(documents: int, iterated: bool) -> None:
    """One process: the seconds of its start, its peak memory, and of an epoch's iteration."""
    begun = time.perf_counter()
    data = start(documents)
    print(f"SECONDS {time.perf_counter() - begun:.1f}")
    if iterated:
        begun, pairs = time.perf_counter(), 0
        for batch in data.train_dataloader():
            pairs += len(batch)
        seconds = time.perf_counter() - begun
        print(f"one epoch: {pairs:,} pairs in {seconds:.0f} s, {pairs / seconds:,.0f} a second")
    print(f"BYTES {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}")


def run(cache: Path, documents: int, iterated: bool) -> dict[str, float]:
    """What `measure` prints in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.bench_scale", str(documents)]
    command += ["iterate"] if iterated else []
    environment = {**os.environ, "HF_DATASETS_CACHE": str(cache)}
    lines = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.splitlines()
    print(*[line for line in lines if line.split()[0] not in ("SECONDS", "BYTES")], sep="\n")
    pairs = (line.split() for line in lines)
    return {name: float(value) for name, value, *_ in pairs if name in ("SECONDS", "BYTES")}


def main() -> None:
    """Prints the figures and whether they meet their bars."""
    with tempfile.TemporaryDirectory(prefix="scale-") as folder:
        first = run(Path(folder), DOCUMENTS, iterated=True)
        second = run(Path(folder), DOCUMENTS, iterated=False)
    memory = max(first["BYTES"], second["BYTES"])
    print(f"{DOCUMENTS:,} documents: generated, tokenised, first batch in {first['SECONDS']:.0f} s")
    print(f"peak memory {memory / 1e9:.2f} GB (bar {MOST_BYTES / 1e9:.0f} GB)")
    print(f"second start {second['SECONDS']:.1f} s (bar {MOST_SECONDS} s)")
    if memory > MOST_BYTES or second["SECONDS"] > MOST_SECONDS:
        sys.exit("a bar is missed")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(int(sys.argv[1]), iterated=len(sys.argv) > 2)
    else:
        main()
