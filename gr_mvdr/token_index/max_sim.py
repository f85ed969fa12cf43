"""Relevance of stored documents from all their tokens, under any form of Eq. 1.

An alignment that selects at most one document token for a query token needs no padding and no A
(Eq. 21): one matrix product over the tokens of some documents, then a maximum over each document's
segment of it. For any other alignment documents are padded.

Scores are computed on the queries' device and returned on the CPU.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from gr_mvdr.alignment import Alignment, Selection, Tokens
from gr_mvdr.batch import length_mask
from gr_mvdr.scoring import Scoring
from gr_mvdr.token_index.store import TokenStore
from gr_mvdr.token_vectors import PackedTokens, TokenVectors

# Similarities computed at once: as many as fit into a CPU's cache, or keep an accelerator busy.
_BLOCK_SIMILARITIES, _ACCELERATED_SIMILARITIES = 1_000_000, 16_000_000
# Tokens of the longest document of a padded block, in multiples of the shortest.
_MOST_PADDING = 1.25
_HOST = "cpu"  # numpy reduces segments there; elsewhere torch scatters


def score(
    store: TokenStore, queries: TokenVectors, scoring: Scoring, documents: Tensor | None = None
) -> Tensor:
    """Relevance of stored documents to queries.

    Args:
        queries: (Q, N, …) padded.
        documents: (C,) int64 their numbers; None = all in the store, C = D.

    Returns:
        (C, Q) fp32, in the order given.
    """
    queries, device = store.turn(queries), queries.mask.device
    packed = selects_one(scoring.alignment, int(store.counts.max()))
    columns = queries.mask.numel() if packed else queries.mask.shape[1]
    held = _BLOCK_SIMILARITIES if device.type == _HOST else _ACCELERATED_SIMILARITIES
    rows = held // max(1, columns)  # tokens of a block
    blocks: Iterable[tuple[Any, Any]] = ((part, part) for part in store.blocks(rows))
    if documents is not None or not packed:
        numbers = torch.arange(len(store)) if documents is None else documents
        places = _of_similar_length(store.counts[numbers], numbers, rows, packed)
        blocks = ((part, numbers[part]) for part in places)
    count = len(store) if documents is None else len(documents)
    scores = torch.empty(count, len(queries), dtype=torch.float32, device=device)
    for place, block in blocks:
        tokens = store.read(block, turned=True).to(device)
        if packed:
            scores[place] = packed_relevance(tokens, queries, scoring)
        else:
            padded, every = tokens.pad(), map(queries.unpad, range(len(queries)))
            scores[place] = torch.stack([scoring(padded, query) for query in every], 1).to(scores)
    return scores.cpu()


def _of_similar_length(
    counts: Tensor, documents: Tensor, rows: int, packed: bool
) -> Iterator[Tensor]:
    """Places (c,) int64 of documents (C,) with these counts, in blocks of about `rows` tokens.

    The shortest come first; the documents of a block are in the order of their numbers, as on disk.
    Unless they are packed, the longest of a block has at most `_MOST_PADDING` times the tokens of
    the shortest.
    """
    by_number = documents.argsort()
    lengths, order = counts[by_number].sort(stable=True)
    ends, start = lengths.cumsum(0), 0
    while start < len(documents):
        full = int(torch.searchsorted(ends, ends[start] - lengths[start] + rows, right=True))
        most = lengths[-1] if packed else (_MOST_PADDING * lengths[start]).long()
        similar = int(torch.searchsorted(lengths, most, right=True))
        end = max(start + 1, min(full, similar))
        yield by_number[order[start:end].sort().values]
        start = end


def selects_one(alignment: Alignment, length: int) -> bool:
    """Whether `packed_relevance` computes the alignment; `length`: of the longest document."""
    return (
        isinstance(alignment, Selection)
        and type(alignment).choose is Selection.choose
        and alignment.count(length) == 1
    )


def packed_relevance(documents: PackedTokens, queries: TokenVectors, scoring: Scoring) -> Tensor:
    """Relevance of packed documents to padded queries, under a selection of one token.

    Args:
        documents: D documents in fp32, each with at least one token.
        queries: (Q, N, …) in fp32, zero at padding.
        scoring: of an alignment that `selects_one`.

    Returns:
        (D, Q) fp32.
    """
    basis = matrix = queries.vectors.flatten(0, 1) @ documents.vectors.T  # (Q·N, t)
    if documents.keys is not None:
        basis = queries.keys.flatten(0, 1) @ documents.keys.T
    alignment: Any = scoring.alignment
    kind = type(alignment)
    if kind.candidates is not Selection.candidates or kind.pairs is not Selection.pairs:
        basis = basis.masked_fill(~_allowed(documents, queries, alignment), -torch.inf)
    needs_choice = documents.keys is not None or documents.salience is not None
    best, chosen = segment_max(basis, documents.counts, needs_choice)  # (Q·N, D)
    weights = (best > -torch.inf) * queries.mask.flatten()[:, None].float()
    if documents.salience is not None:
        weights = weights * documents.salience[chosen]
    if queries.salience is not None:
        weights = weights * queries.salience.flatten()[:, None]
    values = best.masked_fill(best == -torch.inf, 0.0)
    if documents.keys is not None:
        values = matrix.gather(1, chosen)
    shape = (best.shape[1], len(queries), 1, -1)
    return scoring.divide(values.T.reshape(shape), weights.T.reshape(shape), queries)


def _allowed(documents: PackedTokens, queries: TokenVectors, alignment: Selection) -> Tensor:
    """(Q·N, t) bool: the pairs that may align."""
    mask = length_mask(documents.counts)  # (D, M)
    ids = documents.ids.new_zeros(mask.shape).masked_scatter(mask, documents.ids)
    tokens = Tokens(mask[:, None], queries.mask[None], ids[:, None], queries.ids[None])
    pairs = alignment.allowed(tokens).expand(len(mask), len(queries), -1, -1)  # (D, Q, M, N)
    return pairs.transpose(1, 2)[mask].flatten(1).T


def segment_max(values: Tensor, counts: Tensor, choice: bool) -> tuple[Tensor, Tensor | None]:
    """The maximum of each segment of adjacent columns, row by row.

    Args:
        values: (C, t); counts: (D,) int64 columns of each segment, ≥ 1, summing to t.
        choice: whether to return the columns, too, in several times the time.

    Returns:
        (C, D) maxima, and (C, D) int64 the first columns that hold them, or None.
    """
    best = _reduce_segments(values, counts, "amax")
    if not choice:
        return best, None
    t, device = values.shape[1], values.device
    is_best = values == best.repeat_interleave(counts, 1, output_size=t)
    # A maximum that no value equals is NaN: any column will do.
    places = torch.arange(t, device=device).where(is_best, t - 1)
    return best, _reduce_segments(places, counts, "amin")


def _reduce_segments(values: Tensor, counts: Tensor, by: Literal["amax", "amin"]) -> Tensor:
    """(C, t) → (C, D), without a loop over the documents."""
    if values.device.type == _HOST:
        starts = (counts.cumsum(0) - counts).numpy()
        reduce = np.maximum if by == "amax" else np.minimum
        return torch.from_numpy(reduce.reduceat(values.numpy(), starts, axis=1))
    owners = torch.arange(len(counts), device=values.device)
    owners = owners.repeat_interleave(counts, output_size=values.shape[1]).expand_as(values)
    reduced = values.new_empty(len(values), len(counts))
    return reduced.scatter_reduce_(1, owners, values, by, include_self=False)
