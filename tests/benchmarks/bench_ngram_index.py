"""Benchmark of the n-gram index: 5 million tokens built, stored, loaded and counted."""

import tempfile
import time
from pathlib import Path

import numpy as np

from gr_mvdr.decoding.ngram_index import NgramIndex

N_TOKENS = 5_000_000
DOCUMENT_LENGTH = 250
VOCABULARY = 32_000
MAX_BUILD_SECONDS = 10
MAX_BYTES_A_TOKEN = 10
MAX_LOAD_SECONDS = 1


def zipf_corpus(n_tokens: int = N_TOKENS, seed: int = 0) -> list[list[int]]:
    """Documents of tokens 3 … VOCABULARY + 2 whose frequencies follow Zipf's law, closed by 1."""
    rng = np.random.default_rng(seed)
    frequency = 1 / np.arange(1, VOCABULARY + 1)
    tokens = rng.choice(VOCABULARY, n_tokens, p=frequency / frequency.sum()) + 3
    tokens[DOCUMENT_LENGTH - 1 :: DOCUMENT_LENGTH] = 1
    return np.split(tokens, range(DOCUMENT_LENGTH, n_tokens, DOCUMENT_LENGTH))


def main() -> None:
    documents = [document.tolist() for document in zipf_corpus()]
    start = time.process_time()
    index = NgramIndex.build(documents)
    build_seconds = time.process_time() - start
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        index.save(path)
        bytes_a_token = path.stat().st_size / len(index)
        start = time.perf_counter()
        NgramIndex.load(path)
        load_seconds = time.perf_counter() - start
    print(f"n-gram index, {len(index):,} tokens: built in {build_seconds:.2f} s")
    print(f"n-gram index, {len(index):,} tokens: {bytes_a_token:.2f} bytes a token")
    print(f"n-gram index, {len(index):,} tokens: loaded in {load_seconds:.3f} s")
    assert build_seconds < MAX_BUILD_SECONDS
    assert bytes_a_token <= MAX_BYTES_A_TOKEN
    assert load_seconds < MAX_LOAD_SECONDS


if __name__ == "__main__":
    main()
