"""The scorers of a search: full relevance and imputed relevance.

Full relevance is computed from all tokens of a document, by any form of Eq. 1. An alignment that
selects at most one document token for a query token needs neither padding nor A (Eq. 21): one
matrix product over the tokens of some documents, then a maximum over the segment of each document.
For any other alignment, documents are padded. Full scores are computed on the queries' device and
returned on the CPU. Imputed relevance uses only a document's retrieved tokens (xtr Eq. 4).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from gr_mvdr.alignment import Alignment, Selection, Tokens
from gr_mvdr.batch import length_mask
from gr_mvdr.relevance import Scoring
from gr_mvdr.token_index.store import TokenStore
from gr_mvdr.token_vectors import TokenVectors

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
        if packed:
            scores[place] = _packed_relevance(store, block, queries, scoring)
        else:
            padded = store.read(block, turned=True).to(device).pad()
            every = map(queries.unpad, range(len(queries)))
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
    """Whether one token is selected, in documents of up to this length: no padding is needed."""
    return (
        isinstance(alignment, Selection)
        and type(alignment).choose is Selection.choose
        and alignment.count(length) == 1
    )


def _packed_relevance(
    store: TokenStore, documents: slice | Tensor, queries: TokenVectors, scoring: Scoring
) -> Tensor:
    """(D, Q) fp32 the relevance of D documents to padded queries, if one token is selected."""
    counts, device = store.counts[documents].to(queries.mask.device), queries.mask.device
    basis = store.similarities(store.searched, documents, getattr(queries, store.searched))
    alignment: Any = scoring.alignment
    kind = type(alignment)
    if kind.candidates is not Selection.candidates or kind.pairs is not Selection.pairs:
        ids = store.ids(store.rows(documents)).to(device)
        allowed = _allowed(ids, counts, queries, alignment)
        basis = basis.masked_fill(~allowed, -torch.inf)
    needs_choice = queries.keys is not None or store.has_salience
    best, chosen = segment_max(basis, counts, needs_choice)  # (Q·N, D)
    weights = (best > -torch.inf) * queries.mask.flatten()[:, None].float()
    if store.has_salience:
        weights = weights * store.salience(store.rows(documents)).to(device)[chosen]
    if queries.salience is not None:
        weights = weights * queries.salience.flatten()[:, None]
    values = best.masked_fill(best == -torch.inf, 0.0)
    if queries.keys is not None:
        values = store.similarities("vectors", documents, queries.vectors).gather(1, chosen)
    shape = (best.shape[1], len(queries), 1, -1)
    return scoring.divide(values.T.reshape(shape), weights.T.reshape(shape), queries)


def _allowed(ids: Tensor, counts: Tensor, queries: TokenVectors, alignment: Selection) -> Tensor:
    """(Q·N, t) bool: the pairs that may align, of documents with these token ids (t,)."""
    mask = length_mask(counts)  # (D, M)
    ids = ids.new_zeros(mask.shape).masked_scatter(mask, ids)
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
    """What the N tokens of one query retrieved: R tokens of documents, or clusters of such tokens.

    Attributes:
        n: N.
        query_tokens: (R,) int64 the query token, 0 to N − 1, that retrieved each.
        owners: (R,) int64 the documents of the tokens.
        similarities: (R,) fp32.
        salience: (R,) fp32 u of the tokens; None = all one.
        clusters: int64 the clusters that were reached; None = tokens were compared.
        documents: (C,) int64 the numbers of the documents with a retrieved token, ascending.
        best: (C, N) fp32, the best similarity of each query token in each document; −inf = none.
        best_salience: (C, N) fp32, the salience of the document token with the best similarity; 0
            = none. None without saliences.
    """

    n: int
    query_tokens: Tensor
    owners: Tensor
    similarities: Tensor
    salience: Tensor | None = None
    clusters: Tensor | None = None

    def __post_init__(self) -> None:
        self.documents, place = _distinct(self.owners)
        self.cells = place * self.n + self.query_tokens
        best = self.similarities.new_full((len(self.documents) * self.n,), -torch.inf)
        best.scatter_reduce_(0, self.cells, self.similarities, "amax")
        self.best, self.best_salience = best.view(-1, self.n), None
        if self.salience is not None:
            is_best = self.similarities == best[self.cells]
            of_best = torch.zeros_like(best)
            of_best.scatter_reduce_(0, self.cells[is_best], self.salience[is_best], "amax")
            self.best_salience = of_best.view(-1, self.n)

    def lowest(self) -> Tensor:
        """(N,) the lowest similarity that each query token retrieved; 0 = it retrieved nothing."""
        none = self.similarities.new_zeros(self.n)
        args = self.query_tokens, self.similarities, "amin"
        return none.scatter_reduce_(0, *args, include_self=False)

    @cached_property
    def missed(self) -> Tensor:
        """(N,) the expected similarity of what each query token did not retrieve.

        It is as far below the lowest that was retrieved as their mean is above it. (In an
        exponential tail, the mean excess over a threshold is the same for all thresholds.)
        """
        return 2 * self.lowest() - self.mean(self.similarities)

    def mean(self, values: Tensor) -> Tensor:
        """(N,) the mean of values (R,) of what each query token retrieved; 0 = nothing."""
        none = values.new_zeros(self.n)
        return none.scatter_reduce_(0, self.query_tokens, values, "mean", include_self=False)


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
    if imputation == "last":
        return retrieved.lowest()
    if imputation == "mean":
        return retrieved.mean(retrieved.similarities)
    value = 0.0 if imputation == "zero" else float(imputation)
    return retrieved.similarities.new_full((retrieved.n,), value)


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
    if (retrieved.similarities < missing[retrieved.query_tokens]).any():  # never under "last"
        counted = torch.bincount(retrieved.cells, minlength=seen.numel()).view(seen.shape)
        whole = counted >= counts[retrieved.documents].unsqueeze(1)  # all tokens were retrieved
        values = torch.where(whole, values, values.maximum(missing))
    return values * weights, weights.sum(1)


def expected_relevance(retrieved: Retrieved, query: TokenVectors, scoring: Scoring) -> Tensor:
    """Estimates Eq. 1, to rank candidates before they are scored in full.

    Every query token chooses one document token and its salience. If it retrieved none in a
    document, it gets the mean salience of its retrieved tokens, and the similarity `missed`.

    Args:
        query: (N, …) the query that retrieved the tokens.
        scoring: the system's form of Eq. 1.

    Returns:
        (C,) fp32; only their order matters.
    """
    seen = retrieved.best > -torch.inf
    values = torch.where(seen, retrieved.best, retrieved.missed)
    if retrieved.salience is None and query.salience is None:
        return values.sum(1)  # Z is the same for all
    weights = torch.ones_like(values)
    if retrieved.salience is not None:
        expected = retrieved.mean(retrieved.salience)
        weights = torch.where(seen, retrieved.best_salience, expected)
    if query.salience is not None:
        weights = weights * query.salience
    return scoring.divide(values.unsqueeze(1), weights.unsqueeze(1), query)
