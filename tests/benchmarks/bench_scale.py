"""Benchmark of the data's scale: documents read from files and tokenised; generated and iterated.

The almanac generates them, 100,000 or as many as an argument says. A second process then starts
from what the first one cached.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from data_modules.collection import collect
from data_modules.formats.catalogue import FORMATS
from data_modules.sources import AlmanacDataModule
from data_modules.tokenisation import add_tokens, clean_table, join_fields

DOCUMENTS = 100_000
MOST_BYTES, MOST_SECONDS = 3e9, 20  # of the whole process; of the second start
MOST_READING = 60e-5  # seconds a document: read, cleaned, joined, tokenised, kept
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


def read_files(data: AlmanacDataModule, folder: Path) -> float:
    """The seconds from a folder in BEIR layout to a table of tokens."""
    tables = data.collection.documents, data.collection.queries.select(range(1000))
    for name, table in zip(("corpus", "queries"), tables, strict=True):
        with (folder / f"{name}.jsonl").open("w") as file:
            for row in table:
                file.write(json.dumps({"_id": row["id"], **row}) + "\n")
    (folder / "qrels").mkdir()
    judged = f"query-id\tcorpus-id\tscore\n{tables[1][0]['id']}\t{tables[0][0]['id']}\t1\n"
    (folder / "qrels" / "train.tsv").write_text(judged)
    begun = time.perf_counter()
    documents = collect(FORMATS["beir"].read(folder), folder / "store").documents
    cleaned = clean_table(documents, ["unicode", "html", "punctuation"])
    add_tokens(join_fields(cleaned, ["title", "text"]), data.tokenizer)
    return time.perf_counter() - begun


def measure(documents: int, iterated: bool) -> None:
    """One process: the seconds of its start, its peak memory, and of an epoch's iteration."""
    begun = time.perf_counter()
    data = start(documents)
    print(f"SECONDS {time.perf_counter() - begun:.1f}")
    if iterated:
        with tempfile.TemporaryDirectory(prefix="scale-") as folder:
            print(f"READING {read_files(data, Path(folder)):.1f}")
        begun, pairs = time.perf_counter(), 0
        for batch in data.train_dataloader():
            pairs += len(batch)
        seconds = time.perf_counter() - begun
        print(f"one epoch: {pairs:,} pairs in {seconds:.0f} s, {pairs / seconds:,.0f} a second")
    print(f"BYTES {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}")


def run(cache: Path, documents: int, iterated: bool) -> dict[str, float]:
    """What `measure` prints in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.bench_scale", str(documents), "alone"]
    command += ["iterate"] if iterated else []
    environment = {**os.environ, "HF_DATASETS_CACHE": str(cache)}
    lines = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.splitlines()
    names = ("SECONDS", "BYTES", "READING")
    print(*[line for line in lines if line.split()[0] not in names], sep="\n")
    pairs = (line.split() for line in lines)
    return {name: float(value) for name, value, *_ in pairs if name in names}


def main(documents: int) -> None:
    """Prints the figures and whether they meet their bars."""
    with tempfile.TemporaryDirectory(prefix="scale-") as folder:
        first = run(Path(folder), documents, iterated=True)
        second = run(Path(folder), documents, iterated=False)
    memory, reading = max(first["BYTES"], second["BYTES"]), first["READING"]
    most = MOST_READING * documents
    print(f"{documents:,} documents: generated, tokenised, first batch in {first['SECONDS']:.0f} s")
    print(f"files read, cleaned, joined, tokenised in {reading:.1f} s (bar {most:.0f} s)")
    print(f"peak memory {memory / 1e9:.2f} GB (bar {MOST_BYTES / 1e9:.0f} GB)")
    print(f"second start {second['SECONDS']:.1f} s (bar {MOST_SECONDS} s)")
    if memory > MOST_BYTES or second["SECONDS"] > MOST_SECONDS or reading > most:
        sys.exit("a bar is missed")


if __name__ == "__main__":
    size = int(sys.argv[1]) if len(sys.argv) > 1 else DOCUMENTS
    if len(sys.argv) > 2:
        measure(size, iterated=sys.argv[-1] == "iterate")
    else:
        main(size)
