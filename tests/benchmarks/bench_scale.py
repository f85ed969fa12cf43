"""Benchmark of the data's scale: documents read from files and tokenised; generated and iterated.

The almanac generates them, 30,000 or as many as an argument says. A second start then reads what
the first one cached.
"""

import json
import resource
import sys
import tempfile
from pathlib import Path

import datasets

from data_modules.collection import collect
from data_modules.formats.catalogue import FORMATS
from data_modules.sources import AlmanacDataModule
from data_modules.tokenisation import add_tokens, clean_table, join_fields
from tests.benchmarks.rows import cpu_seconds, print_row, show

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


def main(documents: int) -> None:
    """Prints the rows, and exits if a bar is missed."""
    with tempfile.TemporaryDirectory(prefix="scale-") as folder:
        datasets.config.HF_DATASETS_CACHE = Path(folder)
        begun = cpu_seconds()
        data = start(documents)
        first, begun = cpu_seconds() - begun, cpu_seconds()
        pairs = sum(map(len, data.train_dataloader()))
        epoch, begun = cpu_seconds() - begun, cpu_seconds()
        start(documents)
        second = cpu_seconds() - begun
        reading = read_files(data, Path(folder))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    work = f"{documents:,} documents"
    print_row(f"{work}: generated, tokenised, a first batch", show(first))
    print_row(f"{work}: the same from the cache", show(second))
    print_row(f"{work}: files read, cleaned, joined, tokenised", show(reading))
    print_row(f"{work}: an epoch's batches", f"{pairs / epoch:,.0f} pairs a second")
    print_row(f"{work}: peak memory", f"{memory / 1e9:.2f} GB")
    if memory > MOST_BYTES or second > MOST_SECONDS or reading > MOST_READING * documents:
        sys.exit("a bar is missed")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else DOCUMENTS)
