"""A system's form of Eq. 1: which alignment, which salience, which Z, over token vectors."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gr_mvdr.alignment import Selection
from gr_mvdr.relevance import (
    Normaliser,
    check_normaliser,
    divided,
    normaliser,
    relevance,
    similarity,
)
from gr_mvdr.token_vectors import TokenVectors


@dataclass(frozen=True)
class Scoring:
    """rel(d, q) = 1/Z · Σ S ⊙ Ã ⊙ (u_d u_qᵀ) (gr_as_mvdr Eq. 1; aligner Eq. 1 and 2).

    Attributes:
        alignment: a strategy of `gr_mvdr.alignment`, which makes Ã.
        normaliser: the name of Z, see `gr_mvdr.relevance.normaliser`.
    """

    alignment: Any
    normaliser: Normaliser = "none"

    def __post_init__(self):
        check_normaliser(self.normaliser)

    def matrices(self, documents: TokenVectors, queries: TokenVectors) -> tuple[Tensor, Tensor]:
        """S and A (…, M, N); the leading axes of the two sides broadcast."""
        matrix, aligned = self.pairwise(documents, queries)
        if documents.salience is not None:
            aligned = aligned * documents.salience.unsqueeze(-1)
        if queries.salience is not None:
            aligned = aligned * queries.salience.unsqueeze(-2)
        return matrix, aligned

    def pairwise(self, documents: TokenVectors, queries: TokenVectors) -> tuple[Tensor, Tensor]:
        """S and Ã (…, M, N), the alignment before salience (aligner Eq. 2)."""
        matrix, basis = self._similarities(documents, queries)
        return matrix, self.alignment(basis, *_masks_and_ids(documents, queries))

    def entries(self, documents: TokenVectors, queries: TokenVectors) -> tuple[Tensor, Tensor]:
        """S and A without the zeros that a hard alignment is sure of: both (…, K, N), K ≤ M.

        Their sums over the last two axes, and over K, are those of `matrices`.
        """
        if not isinstance(self.alignment, Selection):
            return self.matrices(documents, queries)
        matrix, basis = self._similarities(documents, queries)
        chosen, kept = self.alignment.select(basis, *_masks_and_ids(documents, queries))
        return matrix.gather(-2, chosen), chosen_weights(chosen, kept, documents, queries)

    def divide(self, matrix: Tensor, aligned: Tensor, queries: TokenVectors) -> Tensor:
        """(…) relevance from S and A, or from their entries."""
        z = normaliser(self.normaliser, matrix, aligned, queries.mask)
        return divided(relevance(matrix, aligned), z)

    def __call__(self, documents: TokenVectors, queries: TokenVectors) -> Tensor:
        """(…) relevance, fp32 or fp64, of every pair that the leading axes broadcast to."""
        return self.divide(*self.entries(documents, queries), queries)

    def _similarities(
        self, documents: TokenVectors, queries: TokenVectors
    ) -> tuple[Tensor, Tensor]:
        """S, and what the alignment is made from: S itself or the keys' similarity."""
        matrix = similarity(documents.vectors, queries.vectors)
        if documents.keys is None:
            return matrix, matrix
        return matrix, similarity(documents.keys, queries.keys)


def chosen_weights(
    chosen: Tensor, kept: Tensor, documents: TokenVectors, queries: TokenVectors
) -> Tensor:
    """(…, K, N) fp32: A at the chosen document tokens, salience included.

    Args:
        chosen: (…, K, N) int64 document tokens; kept: (…, K, N) bool, whether they count.
    """
    weights = kept.float()
    if documents.salience is not None:
        rows = documents.salience.unsqueeze(-1).expand(*chosen.shape[:-2], -1, chosen.shape[-1])
        weights = weights * rows.gather(-2, chosen)
    if queries.salience is not None:
        weights = weights * queries.salience.unsqueeze(-2)
    return weights


def _masks_and_ids(documents: TokenVectors, queries: TokenVectors) -> tuple[Tensor, ...]:
    return documents.mask, queries.mask, documents.ids, queries.ids
