"""Benchmark of the n-gram index: 5 million tokens built, stored, loaded and counted."""

import tempfile
import time
from pathlib import Path

import numpy as np

from gr_mvdr.decoding.ngram_index import NgramIndex
from tests.benchmarks.rows import print_row, show

N_TOKENS, DOCUMENT_LENGTH, VOCABULARY = 5_000_000, 250, 32_000


def zipf_corpus() -> list[list[int]]:
    """Documents of tokens 3 … VOCABULARY + 2 whose frequencies follow Zipf's law, closed by 1."""
    rng = np.random.default_rng(0)
    frequency = 1 / np.arange(1, VOCABULARY + 1)
    tokens = rng.choice(VOCABULARY, N_TOKENS, p=frequency / frequency.sum()) + 3
    tokens[DOCUMENT_LENGTH - 1 :: DOCUMENT_LENGTH] = 1
    return tokens.reshape(-1, DOCUMENT_LENGTH).tolist()


def main() -> None:
    documents, start = zipf_corpus(), time.process_time()
    index = NgramIndex.build(documents)
    built = time.process_time() - start
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        index.save(path)
        size, start = path.stat().st_size / len(index), time.process_time()
        NgramIndex.load(path)
        loaded = time.process_time() - start
    work = f"n-gram index of {len(index):,} tokens, {size:.1f} bytes a token"
    print_row(f"{work}: built; loaded", f"{show(built)}; {show(loaded)}")
    assert built < 10 and size <= 10 and loaded < 1


if __name__ == "__main__":
    main()
