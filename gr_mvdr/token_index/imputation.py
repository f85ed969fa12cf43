"""Relevance imputed from retrieved tokens alone: XTR's scoring (xtr Eq. 4)."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gr_mvdr.scoring import Scoring
from gr_mvdr.token_vectors import TokenVectors


@dataclass
class Retrieved:
    """The document tokens that the N tokens of one query retrieved, and the C documents of these.

    Attributes:
        similarities: (N, k') fp32.
        owners: (N, k') int64 the tokens' documents; −1 = no token, as an IVF search found fewer.
        salience: (N, k') fp32 u of the tokens; None = all one.
        n_tokens: the number of retrieved tokens.
        documents: (C,) int64 numbers of the documents that own one, ascending.
        best: (C, N) fp32, each query token's best similarity in each document; −inf = none.
        best_salience: (C, N) fp32 of the document token with the best one; 0 = none.
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
    imputation: str | float,
    counts: Tensor,
    salience: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """u_j max_i [Â_ij S_ij + (1 − Â_ij) m_j] of each query token j, and Z (xtr Eq. 4).

    A document's imputed relevance is the sum over j, divided by Z. m_j enters the maximum if one
    token of the document was not retrieved, and wins over a smaller retrieved similarity. u_j is
    the query token's salience, and Z = Σ_j u_j over all query tokens, n without saliences. Document
    tokens' saliences play no part, since m_j belongs to no particular token.

    Without imputation, missing query tokens add nothing and Z counts the others (xtr Eq. 2).

    Args:
        imputation: what m is, see `missing_similarity`.
        counts: (D,) int64 tokens of all documents, those that pruning left out included.
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
        found = torch.bincount(cell, minlength=seen.numel()).view(seen.shape)
        whole = found >= counts[retrieved.documents].unsqueeze(1)  # all tokens were retrieved
        values = torch.where(whole, values, values.maximum(missing))
    return values * weights, weights.sum(1)


def expected_relevance(retrieved: Retrieved, query: TokenVectors, scoring: Scoring) -> Tensor:
    """Estimates Eq. 1, which ranks candidates before they are scored in full.

    Every query token chooses one document token, with its salience. A missing one is given the
    lowest retrieved similarity and the mean salience of the retrieved tokens.

    Args:
        query: (N, …) that retrieved; scoring: the system's.

    Returns:
        (C,) fp32; only their order matters.
    """
    seen = retrieved.best > -torch.inf
    values = torch.where(seen, retrieved.best, missing_similarity(retrieved, "last"))
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
    """(N,) means over the real entries of each row; 0 for a row without one."""
    return values.masked_fill(~real, 0.0).sum(1) / real.sum(1).clamp(min=1)
