"""Relevance of packed documents, without padding them and without writing A down (Eq. 21).

One matrix product over all tokens of some documents, then a maximum over each document's segment of
it. This serves every hard alignment that gives a query token one document token at most.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gr_mvdr.batch import length_mask
from gr_mvdr.scoring import Scoring
from gr_mvdr.selection import Selection
from gr_mvdr.token_index.store import PackedTokens
from gr_mvdr.token_vectors import TokenVectors

# Up to so many columns numpy's segmented maximum is faster than torch's over equal lengths; for
# many columns torch's is up to 20 times as fast.
_FEW_COLUMNS = 16


def selects_one(alignment: Any, length: int) -> bool:
    """Whether `packed_relevance` knows the alignment, for documents of up to `length` tokens."""
    return (
        isinstance(alignment, Selection)
        and type(alignment).select is Selection.select
        and alignment.count(length) == 1
    )


def packed_relevance(documents: PackedTokens, queries: TokenVectors, scoring: Scoring) -> Tensor:
    """Relevance of packed documents to padded queries, under a selection of one token.

    Args:
        documents: D documents in fp32, each with at least one token. Neighbours of equal length
            share one maximum, so documents sorted by length are fastest.
        queries: (Q, N, …) in fp32, zero at padding.
        scoring: its alignment is one that `selects_one`.

    Returns:
        (D, Q) fp32.
    """
    basis = matrix = _product(documents.vectors, queries.vectors)  # (t, Q·N)
    if documents.keys is not None:
        basis = _product(documents.keys, queries.keys)
    if type(scoring.alignment).allowed is not Selection.allowed:  # not just every real token
        basis = basis.masked_fill(~_allowed(documents, queries, scoring.alignment), -torch.inf)
    needs_choice = documents.keys is not None or documents.salience is not None
    best, chosen = segment_max(basis, documents.counts, needs_choice)  # (D, Q·N)
    weights = (best > -torch.inf) * queries.mask.flatten().float()
    if documents.salience is not None:
        weights = weights * documents.salience[chosen]
    if queries.salience is not None:
        weights = weights * queries.salience.flatten()
    values = best.masked_fill(best == -torch.inf, 0.0)
    if documents.keys is not None:
        values = matrix.gather(0, chosen)
    shape = (len(best), len(queries), 1, -1)
    return scoring.divide(values.view(shape), weights.view(shape), queries)


def segment_max(rows: Tensor, counts: Tensor, choice: bool) -> tuple[Tensor, Tensor | None]:
    """The maximum of each segment of packed rows, column by column.

    Args:
        rows: (t, C); counts: (D,) int64 rows of each segment, summing to t.
        choice: whether to answer the rows too, which takes several times as long.

    Returns:
        (D, C) maxima, and (D, C) int64 the first rows that hold them, or None.
    """
    if not choice and rows.shape[1] <= _FEW_COLUMNS:
        starts = (counts.cumsum(0) - counts).numpy()
        return torch.from_numpy(np.maximum.reduceat(rows.numpy(), starts, axis=0)), None
    best, chosen, start = [], [], 0
    for segment, length, repeats in equal_length_segments(rows, counts):
        if choice:
            found = segment.view(repeats, length, -1).max(1)
            begins = start + length * torch.arange(repeats).unsqueeze(1)
            chosen.append(found.indices + begins)
        best.append(found.values if choice else segment.view(repeats, length, -1).amax(1))
        start += length * repeats
    return torch.cat(best), torch.cat(chosen) if choice else None


def equal_length_segments(packed: Tensor, lengths: Tensor) -> Iterator[tuple[Tensor, int, int]]:
    """Cuts packed rows into runs of neighbouring documents that have the same length.

    Args:
        packed: (t, …) rows, one document after the other.
        lengths: (D,) int64 token counts summing to t.

    Yields:
        (rows of the run, length of each of its documents, number of its documents).
    """
    start = 0
    values, counts = torch.unique_consecutive(lengths, return_counts=True)
    for length, repeats in zip(values.tolist(), counts.tolist(), strict=True):
        end = start + length * repeats
        yield packed[start:end], length, repeats
        start = end


def _product(vectors: Tensor, queries: Tensor) -> Tensor:
    """(t, d) and (Q, N, d) → (t, Q·N)."""
    return vectors @ queries.reshape(-1, vectors.shape[1]).T


def _allowed(documents: PackedTokens, queries: TokenVectors, alignment: Selection) -> Tensor:
    """(t, Q·N) bool: the pairs that may align."""
    counts = documents.counts
    mask = length_mask(counts)  # (D, M)
    ids = torch.zeros(mask.shape, dtype=torch.int64).masked_scatter(mask, documents.ids)
    pairs = alignment.allowed(mask[:, None], queries.mask[None], ids[:, None], queries.ids[None])
    pairs = pairs.expand(len(counts), len(queries), -1, -1)  # (D, Q, M, N)
    return pairs.transpose(1, 2)[mask].flatten(1)
