"""Relevance of stored documents from all their tokens, under any form of Eq. 1.

A hard alignment that gives a query token one document token at most needs neither padding nor A
written down (Eq. 21): one matrix product over all tokens of some documents, then a maximum over
each document's segment of it. Documents are padded for any other alignment.

All of it is computed where the queries are, and what is found is on the CPU, as the store is.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from gr_mvdr.alignment import Alignment, InBatchTopK, Selection, Tokens
from gr_mvdr.batch import length_mask
from gr_mvdr.products import product
from gr_mvdr.scoring import Scoring
from gr_mvdr.token_index.store import TokenStore
from gr_mvdr.token_vectors import PackedTokens, TokenVectors

# Similarities computed at once: a block's product with the queries stays in a CPU's cache, and
# gives an accelerator something to do.
_BLOCK_SIMILARITIES, _ACCELERATED_SIMILARITIES = 1_000_000, 16_000_000
# Where documents must be padded, the longest of a block has at most so many times the tokens of
# the shortest.
_MOST_PADDING = 1.25
# Up to so many columns numpy's segmented maximum is faster than torch's over equal lengths; for
# many columns torch's is up to 20 times as fast.
_FEW_COLUMNS = 16


def score_all(store: TokenStore, queries: TokenVectors, scoring: Scoring) -> Tensor:
    """Relevance of every document in the store.

    Args:
        queries: (Q, N, …) padded.

    Returns:
        (D, Q) fp32, −inf for deleted documents.

    Raises: as `score_some`.
    """
    queries = store.turn(queries)
    if _is_packed(store, scoring):
        device = queries.mask.device
        blocks = [
            packed_relevance(store.read(documents, turned=True).to(device), queries, scoring)
            for documents in store.blocks(_block_rows(queries.mask.numel(), device))
        ]
        scores = torch.cat(blocks).cpu()
    else:
        one_by_one = [queries.unpad(number) for number in range(len(queries))]
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
    query = store.turn(query)
    if not _is_packed(store, scoring):
        return _padded_relevance(store, documents, [query], scoring)[:, 0]
    device = query.mask.device
    scores = torch.empty(len(documents), dtype=torch.float32, device=device)
    rows = _block_rows(len(query), device)
    for places in _of_similar_length(store, documents, rows, torch.inf):
        packed = store.read(documents[places], turned=True).to(device)
        scores[places] = packed_relevance(packed, query[None], scoring)[:, 0]
    return scores.cpu()


def _is_packed(store: TokenStore, scoring: Scoring) -> bool:
    return selects_one(scoring.alignment, int(store.counts.max()))


def _padded_relevance(
    store: TokenStore, documents: Tensor, queries: Sequence[TokenVectors], scoring: Scoring
) -> Tensor:
    """(C, Q) fp32 relevance of some documents to queries without padding."""
    if isinstance(scoring.alignment, InBatchTopK):
        raise ValueError(
            f"model.alignment={scoring.alignment}: scores depend on the other documents, must be "
            "another in a search (model.training_alignment may be this one)"
        )
    device = queries[0].mask.device if queries else torch.device("cpu")
    scores = torch.empty(len(documents), len(queries), dtype=torch.float32, device=device)
    rows = _block_rows(max(map(len, queries), default=1), device)
    for places in _of_similar_length(store, documents, rows, _MOST_PADDING):
        block = store.read(documents[places], turned=True).to(device).pad()
        for column, query in enumerate(queries):
            scores[places, column] = scoring(block, query)
    return scores.cpu()


def _block_rows(columns: int, device: torch.device) -> int:
    """Document tokens of a block whose similarities to so many query tokens fit."""
    held = _BLOCK_SIMILARITIES if device.type == "cpu" else _ACCELERATED_SIMILARITIES
    return held // max(1, columns)


def _of_similar_length(
    store: TokenStore, documents: Tensor, rows: int, ratio: float
) -> Iterator[Tensor]:
    """Places (c,) int64 in `documents` (C,), shortest first, in blocks of about so many rows
    whose longest has at most `ratio` times the tokens of the shortest."""
    ordered = store.counts[documents].sort(stable=True)
    ends, start = ordered.values.cumsum(0), 0
    while start < len(documents):
        before = int(ends[start - 1]) if start else 0
        full = int(torch.searchsorted(ends, before + rows, right=True))
        longest = min(int(ordered.values[start]) * ratio, torch.iinfo(torch.int64).max)
        similar = int(torch.searchsorted(ordered.values, int(longest), right=True))
        end = max(start + 1, min(full, similar))
        yield ordered.indices[start:end]
        start = end


def selects_one(alignment: Alignment, length: int) -> bool:
    """Whether `packed_relevance` knows the alignment, for documents of up to `length` tokens."""
    return (
        isinstance(alignment, Selection)
        and type(alignment).choose is Selection.choose
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
    alignment = scoring.alignment
    assert isinstance(alignment, Selection)
    kind = type(alignment)
    if (kind.candidates, kind.pairs) != (Selection.candidates, Selection.pairs):  # not every token
        basis = basis.masked_fill(~_allowed(documents, queries, alignment), -torch.inf)
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


def _product(vectors: Tensor, queries: Tensor) -> Tensor:
    """(t, d) and (Q, N, d) → (t, Q·N)."""
    return product(vectors, queries.reshape(-1, vectors.shape[1]).T)


def _allowed(documents: PackedTokens, queries: TokenVectors, alignment: Selection) -> Tensor:
    """(t, Q·N) bool: the pairs that may align."""
    mask = length_mask(documents.counts)  # (D, M)
    ids = documents.ids.new_zeros(mask.shape).masked_scatter(mask, documents.ids)
    tokens = Tokens(mask[:, None], queries.mask[None], ids[:, None], queries.ids[None])
    pairs = alignment.allowed(tokens).expand(len(mask), len(queries), -1, -1)  # (D, Q, M, N)
    return pairs.transpose(1, 2)[mask].flatten(1)


def segment_max(rows: Tensor, counts: Tensor, choice: bool) -> tuple[Tensor, Tensor | None]:
    """The maximum of each segment of packed rows, column by column.

    Args:
        rows: (t, C); counts: (D,) int64 rows of each segment, summing to t.
        choice: whether to return the rows too, which takes several times as long.

    Returns:
        (D, C) maxima, and (D, C) int64 the first rows that hold them, or None.
    """
    if not choice and rows.shape[1] <= _FEW_COLUMNS and rows.device.type == "cpu":
        starts = (counts.cumsum(0) - counts).numpy()
        return torch.from_numpy(np.maximum.reduceat(rows.numpy(), starts, axis=0)), None
    best, chosen, start = [], [], 0
    # Runs of neighbouring documents that have the same length.
    values, repeated = torch.unique_consecutive(counts, return_counts=True)
    for length, repeats in zip(values.tolist(), repeated.tolist(), strict=True):
        run = rows[start : start + length * repeats].view(repeats, length, -1)
        if choice:
            found = run.max(1)
            first = start + length * torch.arange(repeats, device=rows.device)
            chosen.append(found.indices + first.unsqueeze(1))
        best.append(found.values if choice else run.amax(1))
        start += length * repeats
    return torch.cat(best), torch.cat(chosen) if choice else None
