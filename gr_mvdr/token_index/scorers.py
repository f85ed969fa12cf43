"""The scorers of a search: full relevance and imputed relevance.

Full relevance is computed from all tokens of a document, by any form of Eq. 1. An alignment that
selects at most one document token for a query token needs neither padding nor A (Eq. 21): one
matrix product over the tokens of some documents, then a maximum over the segment of each document.
For any other alignment, documents are padded. Full scores are computed on the queries' device and
returned on the CPU. Imputed relevance uses only a document's retrieved tokens (xtr Eq. 4).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from gr_mvdr.alignment import Alignment, Selection, Tokens
from gr_mvdr.batch import length_mask
from gr_mvdr.relevance import Scoring
from gr_mvdr.token_index.store import TokenStore
from gr_mvdr.token_vectors import PackedTokens, TokenVectors

# Similarities computed at once: they fit into a CPU's cache, or keep an accelerator busy.
_BLOCK_SIMILARITIES, _ACCELERATED_SIMILARITIES = 1_000_000, 16_000_000
# Largest ratio of the lengths of the longest and the shortest document of a padded block.
_MOST_PADDING = 1.25
_HOST = "cpu"  # here numpy reduces segments; on other devices torch scatters


def score(
    store: TokenStore, queries: TokenVectors, scoring: Scoring, documents: Tensor | None = None
) -> Tensor:
    """Computes the relevance of stored documents to queries.

    Args:
        queries: (Q, N, …) padded.
        documents: (C,) int64 document numbers; None = all documents of the store, C = D.

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
    """Yields the places (c,) int64 of documents (C,) in blocks of at most `rows` tokens.

    Each block has at least one document. Short documents come first. Within a block, documents are
    in the order of their numbers, as on disk. Unless documents are packed, the longest of a block
    has at most `_MOST_PADDING` times the tokens of the shortest.

    Args:
        counts: (C,) the number of tokens of each document.
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
    """Whether `packed_relevance` can compute the alignment for documents of up to this length."""
    return (
        isinstance(alignment, Selection)
        and type(alignment).choose is Selection.choose
        and alignment.count(length) == 1
    )


def packed_relevance(documents: PackedTokens, queries: TokenVectors, scoring: Scoring) -> Tensor:
    """Computes the relevance of packed documents to padded queries, if one token is selected.

    Args:
        documents: D documents in fp32, each with at least one token.
        queries: (Q, N, …) in fp32, zero at padding.
        scoring: has an alignment that `selects_one`.

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
    """Finds the maximum of each segment of adjacent columns, in each row.

    Args:
        values: (C, t).
        counts: (D,) int64 number of columns of each segment, ≥ 1; they sum to t.
        choice: whether to return the columns, too, which takes several times as long.

    Returns:
        (C, D) the maxima, and (C, D) int64 the first columns that hold them, or None.
    """
    best = _reduce_segments(values, counts, "amax")
    if not choice:
        return best, None
    t, device = values.shape[1], values.device
    is_best = values == best.repeat_interleave(counts, 1, output_size=t)
    # If no value equals the maximum, it is NaN, and any column will do.
    places = torch.arange(t, device=device).where(is_best, t - 1)
    return best, _reduce_segments(places, counts, "amin")


def _reduce_segments(values: Tensor, counts: Tensor, by: Literal["amax", "amin"]) -> Tensor:
    """Reduces the segments, (C, t) → (C, D), without a loop over the documents."""
    if values.device.type == _HOST:
        starts = (counts.cumsum(0) - counts).numpy()
        reduce = np.maximum if by == "amax" else np.minimum
        return torch.from_numpy(reduce.reduceat(values.numpy(), starts, axis=1))
    owners = torch.arange(len(counts), device=values.device)
    owners = owners.repeat_interleave(counts, output_size=values.shape[1]).expand_as(values)
    reduced = values.new_empty(len(values), len(counts))
    return reduced.scatter_reduce_(1, owners, values, by, include_self=False)


# Imputed relevance ---------------------------------------------------------------------------


@dataclass
class Retrieved:
    """The document tokens that the N tokens of one query retrieved, and their C documents.

    Attributes:
        similarities: (N, k') fp32.
        owners: (N, k') int64 the tokens' documents; −1 = no token, as a search of an inverted file
            may return fewer than k'.
        salience: (N, k') fp32 u of the tokens; None = all one.
        n_tokens: the number of retrieved tokens.
        documents: (C,) int64 the numbers of the documents with a retrieved token, ascending.
        best: (C, N) fp32, the best similarity of each query token in each document; −inf = none.
        best_salience: (C, N) fp32, the salience of the document token with the best similarity; 0
            = none. None without saliences.
    """

    similarities: Tensor
    owners: Tensor
    salience: Tensor | None = None

    def __post_init__(self) -> None:
        n, neighbours = self.owners.shape
        real = self.owners.flatten() >= 0
        self.n_tokens = int(real.sum())
        if self.n_tokens == len(real):
            real = slice(None)
        self.documents, place = _distinct(self.owners.flatten()[real])
        cell = place * n + torch.arange(n).repeat_interleave(neighbours)[real]
        similarity = self.similarities.flatten()[real]
        best = similarity.new_full((len(self.documents) * n,), -torch.inf)
        best.scatter_reduce_(0, cell, similarity, "amax")
        self.best, self.best_salience = best.view(-1, n), None
        if self.salience is not None:
            is_best = similarity == best[cell]
            salience = self.salience.flatten()[real][is_best]
            of_best = torch.zeros_like(best, dtype=salience.dtype)
            of_best.scatter_reduce_(0, cell[is_best], salience, "amax")
            self.best_salience = of_best.view(-1, n)


def _distinct(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the distinct numbers ≥ 0, ascending, and the place of each number among them."""
    # This takes a tenth of torch.unique's time.
    ordered = np.sort(numbers.numpy().astype(np.int32))
    is_new = np.diff(ordered, prepend=np.int32(-1)) > 0
    distinct = torch.from_numpy(ordered[is_new].astype(np.int64))
    place = torch.empty(int(ordered[-1]) + 1 if len(ordered) else 0, dtype=torch.int64)
    place[distinct] = torch.arange(len(distinct))  # other entries are never read
    return distinct, place[numbers]


def missing_similarity(retrieved: Retrieved, imputation: str | float) -> Tensor | None:
    """m_j of each query token: the similarity imputed to tokens it did not retrieve (xtr §3.2).

    For a query token that retrieved nothing, m_j = 0 under "last" and "mean".

    Args:
        imputation: "last": the query token's lowest retrieved similarity, an upper bound of the
            missing ones. "mean": the mean of its retrieved similarities. "zero": 0. A number: the
            number itself. "none": nothing is imputed.

    Returns:
        (N,) fp32; None for "none".
    """
    if imputation == "none":
        return None
    if imputation not in ("last", "mean"):
        value = 0.0 if imputation == "zero" else float(imputation)
        return retrieved.similarities.new_full((len(retrieved.owners),), value)
    real = retrieved.owners >= 0
    if imputation == "mean":
        return _mean(retrieved.similarities, real)
    lowest = retrieved.similarities.masked_fill(~real, torch.inf).amin(1)
    return torch.where(real.any(1), lowest, 0.0)


def imputed_terms(
    retrieved: Retrieved,
    imputation: str | float,
    counts: Tensor,
    salience: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns u_j max_i [Â_ij S_ij + (1 − Â_ij) m_j] for each query token j, and Z (xtr Eq. 4).

    A document's imputed relevance is the sum over j, divided by Z. m_j enters the maximum if a
    token of the document was not retrieved; it then replaces a smaller retrieved similarity. u_j is
    the query token's salience, and Z = Σ_j u_j over all query tokens (n without saliences). The
    saliences of document tokens are not used, since m_j belongs to no particular token.

    Without imputation, a query token that retrieved nothing in a document contributes nothing, and
    Z counts only the other query tokens (xtr Eq. 2).

    Args:
        imputation: the choice of m, see `missing_similarity`.
        counts: (D,) int64 the number of tokens of each document, pruned tokens included.
        salience: (N,) u of the query tokens; None = all one.

    Returns:
        (C, N) and (C,) fp32.
    """
    seen, missing = retrieved.best > -torch.inf, missing_similarity(retrieved, imputation)
    weights = torch.ones(seen.shape) if salience is None else salience.expand(seen.shape)
    if missing is None:
        return retrieved.best.masked_fill(~seen, 0.0) * weights, (weights * seen).sum(1)
    values = torch.where(seen, retrieved.best, missing)
    real = retrieved.owners >= 0
    if (real & (retrieved.similarities < missing.unsqueeze(1))).any():  # impossible under "last"
        query_token, place = real.nonzero(as_tuple=True)
        row = torch.searchsorted(retrieved.documents, retrieved.owners[query_token, place])
        cell = row * len(real) + query_token
        counted = torch.bincount(cell, minlength=seen.numel()).view(seen.shape)
        whole = counted >= counts[retrieved.documents].unsqueeze(1)  # all tokens were retrieved
        values = torch.where(whole, values, values.maximum(missing))
    return values * weights, weights.sum(1)


def expected_relevance(retrieved: Retrieved, query: TokenVectors, scoring: Scoring) -> Tensor:
    """Estimates Eq. 1, to rank candidates before they are scored in full.

    Every query token chooses one document token and its salience. If it retrieved none in a
    document, it gets the mean salience of its retrieved tokens, and a similarity that is as far
    below the lowest of them as their mean is above it. (In an exponential tail, the mean excess
    over a threshold is the same for all thresholds.)

    Args:
        query: (N, …) the query that retrieved the tokens.
        scoring: the system's form of Eq. 1.

    Returns:
        (C,) fp32; only their order matters.
    """
    seen = retrieved.best > -torch.inf
    lowest, mean = (missing_similarity(retrieved, how) for how in ("last", "mean"))
    values = torch.where(seen, retrieved.best, 2 * lowest - mean)
    if retrieved.salience is None and query.salience is None:
        return values.sum(1)  # Z is the same for all
    weights = torch.ones_like(values)
    if retrieved.salience is not None:
        expected = _mean(retrieved.salience, retrieved.owners >= 0)
        weights = torch.where(seen, retrieved.best_salience, expected)
    if query.salience is not None:
        weights = weights * query.salience
    return scoring.divide(values.unsqueeze(1), weights.unsqueeze(1), query)


def _mean(values: Tensor, real: Tensor) -> Tensor:
    """(N,) the mean of the real entries of each row; 0 for a row without real entries."""
    return values.masked_fill(~real, 0.0).sum(1) / real.sum(1).clamp(min=1)
