"""Benchmark of training memory: MaxSim over all pairs of a batch, forwards and backwards."""

import resource
import subprocess
import sys
import time

import torch
import torch.nn.functional as F

from gr_mvdr.alignment import MaxSim
from gr_mvdr.scoring import Scoring, all_pairs_relevance
from gr_mvdr.token_vectors import TokenVectors

BATCH, DOCUMENT_TOKENS, QUERY_TOKENS, DIMENSION = 256, 256, 64, 128
MOST_BYTES = 0.5e9


def peak() -> int:
    """Bytes of the largest resident size of this process so far."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def texts(length: int) -> TokenVectors:
    vectors = F.normalize(torch.randn(BATCH, length, DIMENSION), dim=-1).requires_grad_()
    shape = BATCH, length
    return TokenVectors(vectors, torch.ones(shape).bool(), torch.zeros(shape, dtype=torch.int64))


def measure() -> None:
    documents, queries = texts(DOCUMENT_TOKENS), texts(QUERY_TOKENS)
    before, start = peak(), time.perf_counter()
    scores = all_pairs_relevance(documents, queries, Scoring(MaxSim()))
    F.cross_entropy(scores.T, torch.arange(BATCH)).backward()
    used, seconds = peak() - before, time.perf_counter() - start
    full = 4 * BATCH**2 * DOCUMENT_TOKENS * QUERY_TOKENS
    print(
        f"all-pairs MaxSim, {BATCH} documents of {DOCUMENT_TOKENS} tokens × {BATCH} queries of "
        f"{QUERY_TOKENS}, d = {DIMENSION}: {used / 1e9:.2f} GB above the inputs in {seconds:.1f} s "
        f"(S alone would take {full / 1e9:.1f} GB)"
    )
    assert used < MOST_BYTES


def main() -> None:
    # A process of its own: the peak of this one may lie behind.
    subprocess.run([sys.executable, "-m", __spec__.name, "measure"], check=True)


if __name__ == "__main__":
    measure() if sys.argv[1:] == ["measure"] else main()
