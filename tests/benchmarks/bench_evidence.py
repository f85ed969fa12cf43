"""Benchmark of the intersective scorer: 300 keys a query over 5 million tokens (`make bench`)."""

import statistics
import time

import numpy as np

from gr_mvdr.decoding.evidence import score_documents
from gr_mvdr.decoding.ngram_index import NgramIndex
from tests.benchmarks.bench_ngram_index import zipf_corpus

QUERIES, KEYS, LONGEST_KEY, VOCABULARY = 20, 300, 10, 32_128
MAX_MILLISECONDS = 30


def random_keys(documents: list, rng: np.random.Generator) -> list[tuple[list[int], float]]:
    """n-grams of random documents with random log-probabilities."""
    keys = []
    for number in rng.integers(len(documents), size=KEYS):
        start = int(rng.integers(len(documents[number]) - LONGEST_KEY))
        length = int(rng.integers(1, LONGEST_KEY + 1))
        log_prob = -float(rng.exponential(3)) - 0.1
        keys.append((documents[number][start : start + length].tolist(), log_prob))
    return keys


def main() -> None:
    documents = zipf_corpus()
    index = NgramIndex.build(documents)
    rng = np.random.default_rng(0)
    times = []
    for _ in range(QUERIES):
        keys = random_keys(documents, rng)
        unigrams = np.log(rng.dirichlet(np.full(VOCABULARY, 0.05)) + 1e-12)
        start = time.process_time()  # one thread does all the work
        assert score_documents(index, keys, unigrams)
        times.append(1000 * (time.process_time() - start))
    milliseconds = statistics.median(times)
    print(f"evidence, {KEYS} keys over {len(index):,} tokens: {milliseconds:.1f} ms a query")
    assert milliseconds < MAX_MILLISECONDS


if __name__ == "__main__":
    main()
