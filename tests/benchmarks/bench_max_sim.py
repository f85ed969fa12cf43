"""Benchmark of exact MaxSim: packed product and segmented maximum, or the padded einsum."""

import statistics
import time

import torch
from torch import Tensor

from gr_mvdr.alignment import MaxSim
from gr_mvdr.scoring import Scoring
from gr_mvdr.token_index.scorers import packed_relevance
from gr_mvdr.token_vectors import PackedTokens, TokenVectors

DOCUMENTS, TOKENS, QUERY_TOKENS, DIMENSION, LONGEST = 1_000, 70_000, 32, 128, 256
ROUNDS, MIN_SPEED_UP = 15, 3


def document_lengths() -> Tensor:
    """(D,) ascending token counts of a text collection: log-normal, 69 on average, at most 256."""
    draws = torch.randn(DOCUMENTS, generator=torch.Generator().manual_seed(0)).mul(0.55).exp()
    lengths = (draws * TOKENS / draws.sum()).round().long().clamp(8, LONGEST).sort().values
    lengths[-1] = LONGEST
    return lengths


def padded_relevance(documents: Tensor, mask: Tensor, query: Tensor) -> Tensor:
    """(D,) relevance from padded documents (D, M, d): the form most code has."""
    similarity = torch.einsum("dmk,nk->dmn", documents, query)
    return similarity.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(1).sum(-1)


def milliseconds(function, *arguments) -> float:
    start = time.perf_counter()
    function(*arguments)
    return 1000 * (time.perf_counter() - start)


def main() -> None:
    lengths = document_lengths()
    vectors = torch.randn(int(lengths.sum()), DIMENSION)
    query = torch.randn(QUERY_TOKENS, DIMENSION)
    mask = torch.arange(LONGEST) < lengths[:, None]
    padded = torch.zeros(DOCUMENTS, LONGEST, DIMENSION)
    padded[mask] = vectors
    documents = PackedTokens(vectors, lengths, torch.ones(len(vectors), dtype=torch.int64))
    real = torch.ones(1, QUERY_TOKENS, dtype=torch.bool)
    queries, colbert = TokenVectors(query[None], real, real.long()), Scoring(MaxSim())
    found = packed_relevance(documents, queries, colbert)[:, 0]
    assert torch.allclose(found, padded_relevance(padded, mask, query), atol=1e-3)
    times = [
        (
            milliseconds(padded_relevance, padded, mask, query),
            milliseconds(packed_relevance, documents, queries, colbert),
        )
        for _ in range(ROUNDS)
    ]
    slow, fast = (statistics.median(column) for column in zip(*times, strict=True))
    print(
        f"exact MaxSim, {QUERY_TOKENS} query vectors, {DOCUMENTS:,} documents, "
        f"{len(vectors):,} vectors: padded {slow:.1f} ms, packed {fast:.1f} ms, {slow / fast:.1f}x"
    )
    assert slow >= MIN_SPEED_UP * fast


if __name__ == "__main__":
    main()
