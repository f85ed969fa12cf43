"""Benchmark of the data's scale: documents read from files and tokenised; generated and iterated.

The almanac generates them, 30,000 or as many as an argument says. A second process then starts
from what the first one cached.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from data_modules.collection import collect
from data_modules.formats.catalogue import FORMATS
from data_modules.sources import AlmanacDataModule
from data_modules.tokenisation import add_tokens, clean_table, join_fields
from tests.benchmarks.rows import ROOT, cpu_seconds, print_row, show

DOCUMENTS, BATCH = 30_000, 256
MOST_BYTES, MOST_SECONDS = 3e9, 20  # of the whole process; of the second start
MOST_READING = 60e-5  # seconds a document: read, cleaned, joined, tokenised, kept


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
    data.evaluation.count_cut_texts()
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
    begun = cpu_seconds()
    documents = collect(FORMATS["beir"].read(folder), folder / "store").documents
    cleaned = clean_table(documents, ["unicode", "html", "punctuation"])
    add_tokens(join_fields(cleaned, ["title", "text"]), data.tokenizer)
    return cpu_seconds() - begun


def measure(documents: int, iterated: bool) -> None:
    """One process: prints its CPU seconds by step, its pairs of an epoch and its peak memory."""
    begun = cpu_seconds()
    data = start(documents)
    measured = {"start": cpu_seconds() - begun}
    if iterated:
        with tempfile.TemporaryDirectory(prefix="scale-") as folder:
            measured["reading"] = read_files(data, Path(folder))
        begun = cpu_seconds()
        measured["pairs"] = sum(map(len, data.train_dataloader()))
        measured["epoch"] = cpu_seconds() - begun
    measured["bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(measured))


def run(cache: Path, documents: int, *iterated: str) -> dict[str, float]:
    """What `measure` prints in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.bench_scale", str(documents), "alone"]
    environment = {**os.environ, "HF_DATASETS_CACHE": str(cache)}
    pipe: Any = dict(stdout=subprocess.PIPE, text=True, check=True)
    printed = subprocess.run([*command, *iterated], cwd=ROOT, env=environment, **pipe).stdout
    return json.loads(printed.splitlines()[-1])


def main(documents: int) -> None:
    """Prints the rows, and exits if a bar is missed."""
    with tempfile.TemporaryDirectory(prefix="scale-") as folder:
        first = run(Path(folder), documents, "iterate")
        second = run(Path(folder), documents)
    memory, reading = max(first["bytes"], second["bytes"]), first["reading"]
    work = f"{documents:,} documents"
    print_row(f"{work}: generated, tokenised, a first batch", show(first["start"]))
    print_row(f"{work}: the same from the cache", show(second["start"]))
    print_row(f"{work}: files read, cleaned, joined, tokenised", show(reading))
    print_row(
        f"{work}: an epoch's batches", f"{first['pairs'] / first['epoch']:,.0f} pairs a second"
    )
    print_row(f"{work}: peak memory", f"{memory / 1e9:.2f} GB")
    if memory > MOST_BYTES or second["start"] > MOST_SECONDS or reading > MOST_READING * documents:
        sys.exit("a bar is missed")


if __name__ == "__main__":
    size = int(sys.argv[1]) if len(sys.argv) > 1 else DOCUMENTS
    if len(sys.argv) > 2:
        measure(size, iterated=sys.argv[-1] == "iterate")
    else:
        main(size)
