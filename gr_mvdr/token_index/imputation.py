"""Relevance imputed from retrieved tokens alone: XTR's scoring (xtr Eq. 4)."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gr_mvdr.scoring import Scoring
from gr_mvdr.token_vectors import TokenVectors


class Retrieved(NamedTuple):
    """The document tokens that the N tokens of one query retrieved.

    Attributes:
        similarities: (N, k') fp32.
        owners: (N, k') int64 the tokens' documents; −1 = no token, as an IVF search found fewer.
        salience: (N, k') fp32 u of the tokens; None = all one.
    """

    similarities: Tensor
    owners: Tensor
    salience: Tensor | None = None

    @property
    def n_tokens(self) -> int:
        """The number of retrieved tokens."""
        return int((self.owners >= 0).sum())


class RetrievedDocuments(NamedTuple):
    """The documents that own a retrieved token, with their best retrieved similarities.

    Attributes:
        documents: (C,) int64 document numbers, ascending.
        similarity: (C, N) fp32, each query token's best retrieved one; −inf = none.
        salience: (C, N) fp32 of the document token with the best one; 0 = none. None without
            saliences.
    """

    documents: Tensor
    similarity: Tensor
    salience: Tensor | None


def group_by_document(retrieved: Retrieved) -> RetrievedDocuments:
    """Groups the retrieved tokens by document."""
    n, neighbours = retrieved.owners.shape
    owners, similarity = retrieved.owners.flatten(), retrieved.similarities.flatten()
    salience = None if retrieved.salience is None else retrieved.salience.flatten()
    column = torch.arange(n).repeat_interleave(neighbours)
    if retrieved.n_tokens < len(owners):
        real = owners >= 0
        owners, similarity, column = owners[real], similarity[real], column[real]
        salience = None if salience is None else salience[real]
    documents, place = _distinct(owners)
    cell, cells = place * n + column, len(documents) * n
    best = similarity.new_full((cells,), -torch.inf).scatter_reduce_(0, cell, similarity, "amax")
    if salience is not None:
        is_best = similarity == best[cell]
        of_best = salience.new_zeros(cells)
        of_best.scatter_reduce_(0, cell[is_best], salience[is_best], "amax")
        salience = of_best.view(-1, n)
    return RetrievedDocuments(documents, best.view(-1, n), salience)


def _distinct(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct numbers ≥ 0, ascending, and the place of each number among them."""
    # In a tenth of torch.unique's time.
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
            missing ones. "mean": of its retrieved ones. "zero"; a number. "none": nothing is
            imputed.

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
    candidates: RetrievedDocuments,
    missing: Tensor | None,
    lengths: Tensor,
    salience: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """u_j max_i [Â_ij S_ij + (1 − Â_ij) m_j] of each query token j, and Z (xtr Eq. 4).

    A candidate's imputed relevance is the sum over j, divided by Z. m_j enters the maximum if one
    token of the document was not retrieved, and wins over a smaller retrieved similarity. u_j is
    the query token's salience, and Z = Σ_j u_j over all query tokens, n without saliences. Document
    tokens' saliences play no part, since m_j belongs to no particular token.

    Without imputation, missing query tokens add nothing and Z counts the others (xtr Eq. 2).

    Args:
        candidates: C documents, those of `retrieved`; missing: (N,) m, or None.
        lengths: (C,) int64, the documents' tokens, those that pruning left out included.
        salience: (N,) u of the query tokens; None = all one.

    Returns:
        (C, N) and (C,) fp32.
    """
    seen = candidates.similarity > -torch.inf
    weights = torch.ones(seen.shape) if salience is None else salience.expand(seen.shape)
    if missing is None:
        values, weights = candidates.similarity.masked_fill(~seen, 0.0), weights * seen
    else:
        values = torch.where(seen, candidates.similarity, missing)
        is_below = retrieved.similarities < missing.unsqueeze(1)
        if (is_below & (retrieved.owners >= 0)).any():  # impossible under "last"
            whole = _retrieved_whole(retrieved, candidates, lengths)
            values = torch.where(whole, values, values.maximum(missing))
    return values * weights, weights.sum(1)


def _retrieved_whole(
    retrieved: Retrieved, candidates: RetrievedDocuments, lengths: Tensor
) -> Tensor:
    """(C, N) bool: whether a query token retrieved all of the document's tokens."""
    query_token, place = (retrieved.owners >= 0).nonzero(as_tuple=True)
    row = torch.searchsorted(candidates.documents, retrieved.owners[query_token, place])
    cell = row * len(retrieved.owners) + query_token
    counts = torch.bincount(cell, minlength=candidates.similarity.numel())
    return counts.view(candidates.similarity.shape) >= lengths.unsqueeze(1)


def expected_relevance(
    retrieved: Retrieved, candidates: RetrievedDocuments, query: TokenVectors, scoring: Scoring
) -> Tensor:
    """Estimates Eq. 1, which ranks candidates before they are scored in full.

    Every query token chooses one document token, with its salience. A missing one is given the
    lowest retrieved similarity and the mean salience of the retrieved tokens.

    Args:
        candidates: of `retrieved`; query: (N, …) that retrieved; scoring: the system's.

    Returns:
        (C,) fp32; only their order matters.
    """
    seen = candidates.similarity > -torch.inf
    values = torch.where(seen, candidates.similarity, missing_similarity(retrieved, "last"))
    if candidates.salience is None and query.salience is None:
        return values.sum(1)  # Z is the same for all
    weights = torch.ones_like(values)
    if candidates.salience is not None:
        expected = _mean(retrieved.salience, retrieved.owners >= 0)
        weights = torch.where(seen, candidates.salience, expected)
    if query.salience is not None:
        weights = weights * query.salience
    return scoring.divide(values.unsqueeze(1), weights.unsqueeze(1), query)


def _mean(values: Tensor, real: Tensor) -> Tensor:
    """(N,) means over the real entries of each row; 0 for a row without one."""
    return values.masked_fill(~real, 0.0).sum(1) / real.sum(1).clamp(min=1)
