"""Benchmark of the n-gram index: 5 million tokens built, stored, loaded and counted (`make bench`).

With sizes as arguments: time, memory and bytes of each, of a trie of as many docids' tokens, too.
"""

import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from gr_mvdr.decoding.ngram_index import NgramIndex
from gr_mvdr.decoding.trie import Trie

N_TOKENS = 5_000_000
DOCUMENT_LENGTH = 250
VOCABULARY = 32_000
MAX_BUILD_SECONDS = 10
MAX_BYTES_A_TOKEN = 10
MAX_LOAD_SECONDS = 1
MAX_COUNT_MS = 0.05  # of one n-gram
TOKENS_A_DOCID = 7


def zipf_corpus(n_tokens: int = N_TOKENS, seed: int = 0) -> list[list[int]]:
    """Documents of tokens 3 … VOCABULARY + 2 whose frequencies follow Zipf's law, closed by 1."""
    rng = np.random.default_rng(seed)
    frequency = 1 / np.arange(1, VOCABULARY + 1)
    tokens = rng.choice(VOCABULARY, n_tokens, p=frequency / frequency.sum()) + 3
    tokens[DOCUMENT_LENGTH - 1 :: DOCUMENT_LENGTH] = 1
    return np.split(tokens, range(DOCUMENT_LENGTH, n_tokens, DOCUMENT_LENGTH))


def count_ms(index: NgramIndex, documents: list[list[int]], n_ngrams: int = 2000) -> float:
    """Milliseconds of CPU of a single count; n-grams of one to six tokens."""
    draw, ngrams = random.Random(0), []
    for _ in range(n_ngrams):
        document, length = draw.choice(documents), draw.randint(1, 6)
        start = draw.randrange(len(document) - length)
        ngrams.append(document[start : start + length])
    begun = time.process_time()
    counts = [index.count(ngram) for ngram in ngrams]
    seconds = time.process_time() - begun
    low, high = index.intervals(ngrams)
    assert counts == (high - low).tolist()
    return seconds / n_ngrams * 1e3


def main() -> None:
    documents = [document.tolist() for document in zipf_corpus()]
    start = time.process_time()
    index = NgramIndex.build(documents)
    build_seconds = time.process_time() - start
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        index.save(path)
        bytes_a_token = sum(file.stat().st_size for file in path.iterdir()) / len(index)
        start = time.perf_counter()
        loaded = NgramIndex.load(path)
        load_seconds = time.perf_counter() - start
        one_count = count_ms(loaded, documents)
    print(f"n-gram index, {len(index):,} tokens: built in {build_seconds:.2f} s")
    print(f"n-gram index, {len(index):,} tokens: {bytes_a_token:.2f} bytes a token")
    print(f"n-gram index, {len(index):,} tokens: loaded in {load_seconds:.3f} s")
    print(f"n-gram index, {len(index):,} tokens: an n-gram counted in {one_count:.3f} ms")
    assert build_seconds < MAX_BUILD_SECONDS
    assert bytes_a_token <= MAX_BYTES_A_TOKEN
    assert load_seconds < MAX_LOAD_SECONDS
    assert one_count < MAX_COUNT_MS


def measure(kind: str, tokens: int) -> None:
    """One process: the cost of building an index of this many tokens."""
    is_trie = kind == "trie"
    made_from = semantic_docids(tokens // TOKENS_A_DOCID) if is_trie else zipf_corpus(tokens)
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    begun = time.process_time()
    index = (Trie if is_trie else NgramIndex).build(made_from)
    seconds = time.process_time() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    print(
        f"{kind} of {tokens:,} tokens, {len(index):,} entries: {seconds:.1f} s of CPU, peak memory "
        f"{peak / 1e9:.2f} GB above the input, {peak / tokens:.0f} bytes a token"
    )


def semantic_docids(count: int) -> list[list[int]]:
    """Docids of 10 clusters a level."""
    levels = np.arange(TOKENS_A_DOCID)
    digits = np.arange(count)[:, None] // 10 ** levels[::-1] % 10
    return (32_128 + 10 * levels + digits).tolist()


if __name__ == "__main__":
    if len(sys.argv) == 3 and not sys.argv[1].isdecimal():
        measure(sys.argv[1], int(sys.argv[2]))
    elif len(sys.argv) > 1:
        for case in ((kind, size) for kind in ("ngrams", "trie") for size in sys.argv[1:]):
            subprocess.run([sys.executable, "-m", "tests.benchmarks.bench_ngram_index", *case])
    else:
        main()
