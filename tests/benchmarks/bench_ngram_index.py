"""Benchmark of the n-gram index: 5 million tokens built, stored, loaded and counted."""

import tempfile
import time
from pathlib import Path

import numpy as np

from gr_mvdr.decoding.ngram_index import NgramIndex

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
        size, start = path.stat().st_size / len(index), time.perf_counter()
        NgramIndex.load(path)
        loaded = time.perf_counter() - start
    print(f"{len(index):,} tokens: built in {built:.2f} s, {size:.2f} bytes a token", end=", ")
    print(f"loaded in {loaded:.3f} s")
    assert built < 10 and size <= 10 and loaded < 1


if __name__ == "__main__":
    main()
