"""Relevance of stored documents from all their tokens, under any form of Eq. 1."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gr_mvdr.alignment import InBatchTopK
from gr_mvdr.batch import length_mask
from gr_mvdr.scoring import Scoring
from gr_mvdr.token_index.max_sim import packed_relevance, selects_one
from gr_mvdr.token_index.store import PackedTokens, TokenStore
from gr_mvdr.token_vectors import TokenVectors

# Similarities computed at once: a block's product with the queries stays in the cache.
_BLOCK_SIMILARITIES = 1_000_000
# Where documents must be padded, the longest of a block has at most so many times the tokens of
# the shortest.
_MOST_PADDING = 1.25


def score_all(store: TokenStore, queries: TokenVectors, scoring: Scoring) -> Tensor:
    """Relevance of every document in the store.

    Args:
        queries: (Q, N, …) padded.

    Returns:
        (D, Q) fp32, −inf for deleted documents.

    Raises: as `score_some`.
    """
    if _is_packed(store, scoring):
        tokens = _BLOCK_SIMILARITIES // max(1, queries.mask.numel())
        blocks = [
            packed_relevance(store.packed(documents), queries, scoring)
            for documents in store.blocks(tokens)
        ]
        scores = torch.cat(blocks)
    else:
        one_by_one = [queries.unpadded(number) for number in range(len(queries))]
        scores = _padded_relevance(store, torch.arange(len(store)), one_by_one, scoring)
    scores[~store.live] = -torch.inf
    return scores


def score_some(
    store: TokenStore, query: TokenVectors, documents: Tensor, scoring: Scoring
) -> Tensor:
    """Relevance of the documents with these numbers.

    Args:
        query: (N, …) without padding; documents: (C,) int64.

    Returns:
        (C,) fp32, in the order given.

    Raises:
        ValueError: the alignment depends on the other documents (`InBatchTopK`).
    """
    if not _is_packed(store, scoring):
        return _padded_relevance(store, documents, [query], scoring)[:, 0]
    scores = torch.empty(len(documents), dtype=torch.float32)
    for places in _of_similar_length(store, documents, len(query), torch.inf):
        packed = store.packed(documents[places])
        scores[places] = packed_relevance(packed, query[None], scoring)[:, 0]
    return scores


def _is_packed(store: TokenStore, scoring: Scoring) -> bool:
    return selects_one(scoring.alignment, int(store.counts.max()))


def _padded_relevance(
    store: TokenStore, documents: Tensor, queries: Sequence[TokenVectors], scoring: Scoring
) -> Tensor:
    """(C, Q) fp32 relevance of some documents to queries without padding."""
    if isinstance(scoring.alignment, InBatchTopK):
        raise ValueError(
            f"model.alignment={scoring.alignment}: scores depend on what is scored beside, must be "
            "another in a search (model.training_alignment may be this one)"
        )
    scores = torch.empty(len(documents), len(queries), dtype=torch.float32)
    longest = max(map(len, queries), default=1)
    for places in _of_similar_length(store, documents, longest, _MOST_PADDING):
        block = _padded(store.packed(documents[places]))
        for column, query in enumerate(queries):
            scores[places, column] = scoring(block, query)
    return scores


def _of_similar_length(
    store: TokenStore, documents: Tensor, query_length: int, ratio: float
) -> Iterator[Tensor]:
    """Places (c,) int64 in `documents` (C,), shortest first, in blocks of about
    `_BLOCK_SIMILARITIES` whose longest has at most `ratio` times the tokens of the shortest."""
    ordered = store.counts[documents].sort(stable=True)
    ends, start = ordered.values.cumsum(0), 0
    while start < len(documents):
        before = int(ends[start - 1]) if start else 0
        target = before + _BLOCK_SIMILARITIES // max(1, query_length)
        full = int(torch.searchsorted(ends, target, right=True))
        longest = min(int(ordered.values[start]) * ratio, torch.iinfo(torch.int64).max)
        similar = int(torch.searchsorted(ordered.values, int(longest), right=True))
        end = max(start + 1, min(full, similar))
        yield ordered.indices[start:end]
        start = end


def _padded(documents: PackedTokens) -> TokenVectors:
    """(D, M, …) of packed documents."""
    counts = documents.counts
    mask = length_mask(counts)  # (D, M)

    def spread(part: Tensor | None) -> Tensor | None:
        if part is None:
            return None
        padded = part.new_zeros(*mask.shape, *part.shape[1:])
        padded[mask] = part
        return padded

    vectors, _, ids, salience, keys = documents
    return TokenVectors(spread(vectors), mask, spread(ids), spread(salience), spread(keys))
