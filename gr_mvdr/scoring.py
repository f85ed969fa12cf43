"""A system's form of Eq. 1 over token vectors: of given pairs, and of all pairs of a batch."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gr_mvdr.alignment import Alignment, Selection, Tokens
from gr_mvdr.relevance import (
    Normaliser,
    check_normaliser,
    divide,
    normaliser,
    relevance,
    similarity,
)
from gr_mvdr.token_vectors import TokenVectors

# Similarities that exist at once: 64 MB in fp32.
_BLOCK_SIMILARITIES = 1 << 24


@dataclass(frozen=True)
class Scoring:
    """rel(d, q) = 1/Z · Σ S ⊙ Ã ⊙ (u_d u_qᵀ) (gr_as_mvdr Eq. 1; aligner Eq. 1 and 2).

    Attributes:
        alignment: a strategy of `gr_mvdr.alignment`, which makes Ã.
        normaliser: the name of Z, see `gr_mvdr.relevance.normaliser`.
    """

    alignment: Alignment
    normaliser: Normaliser = "none"

    def __post_init__(self):
        check_normaliser(self.normaliser)

    def __call__(self, documents: TokenVectors, queries: TokenVectors) -> Tensor:
        """(…) relevance, fp32 or fp64, of every pair that the leading axes broadcast to."""
        return self.divide(*self.entries(documents, queries), queries)

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
        matrix, basis = _similarities(documents, queries)
        return matrix, self.alignment(basis, *_tokens(documents, queries))

    def entries(self, documents: TokenVectors, queries: TokenVectors) -> tuple[Tensor, Tensor]:
        """S and A without the zeros that a hard alignment is sure of: both (…, K, N), K ≤ M.

        Their sums over the last two axes, and over K, are those of `matrices`.
        """
        if not isinstance(self.alignment, Selection):
            return self.matrices(documents, queries)
        matrix, basis = _similarities(documents, queries)
        chosen, kept = self.alignment.select(basis, _tokens(documents, queries))
        return matrix.gather(-2, chosen), _chosen_weights(chosen, kept, documents, queries)

    def divide(self, matrix: Tensor, aligned: Tensor, queries: TokenVectors) -> Tensor:
        """(…) relevance from S and A, or from their entries."""
        z = normaliser(self.normaliser, matrix, aligned, queries.mask)
        return divide(relevance(matrix, aligned), z)


def _similarities(documents: TokenVectors, queries: TokenVectors) -> tuple[Tensor, Tensor]:
    """S, and what the alignment is made from: S itself or the keys' similarity."""
    matrix = similarity(documents.vectors, queries.vectors)
    return matrix, matrix if documents.keys is None else similarity(documents.keys, queries.keys)


def _tokens(documents: TokenVectors, queries: TokenVectors) -> Tokens:
    return Tokens(documents.mask, queries.mask, documents.ids, queries.ids)


def _chosen_weights(
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


def all_pairs_relevance(documents: TokenVectors, queries: TokenVectors, scoring: Scoring) -> Tensor:
    """Relevance of every document to every query under any alignment, which training contrasts
    (gr_as_mvdr Eq. 1 and 2).

    Written down, S and A would take B·C·M·N numbers; here no more than one block of queries exists
    at a time, forwards and backwards. Blocks are of queries, never of documents, so that an
    alignment may look at all documents of the batch (xtr Eq. 2). A hard alignment keeps K·B·C·N
    indices for the gradient; any other is computed again on the way back.

    Args:
        documents: (B, M, …); queries: (C, N, …).

    Returns:
        (B documents, C queries) fp32.
    """
    a_query = documents.mask.numel() * queries.mask.shape[1]
    size = max(1, _BLOCK_SIMILARITIES // max(1, a_query))
    blocks = [slice(start, start + size) for start in range(0, len(queries), size)]
    # Outside autocast: a product in bf16 would tie many similarities.
    with torch.autocast(documents.vectors.device.type, enabled=False):
        if isinstance(scoring.alignment, Selection) and documents.keys is None:
            return _selected_relevance(documents, queries, scoring, scoring.alignment, blocks)
        found = [
            checkpoint(scoring, documents[:, None], queries[rows][None], use_reentrant=False)
            for rows in blocks
        ]
        return torch.cat(found, dim=1)


def _selected_relevance(
    documents: TokenVectors,
    queries: TokenVectors,
    scoring: Scoring,
    alignment: Selection,
    blocks: list[slice],
) -> Tensor:
    """`all_pairs_relevance` of a hard alignment: only the chosen document tokens matter."""
    found = []
    with torch.no_grad():
        for rows in blocks:
            block = queries[rows]
            product = documents.vectors.flatten(0, 1) @ block.vectors.flatten(0, 1).T  # (B·M, C·N)
            matrix = product.view(*documents.mask.shape, *block.mask.shape).permute(0, 2, 1, 3)
            tokens = _tokens(documents[:, None], block[None])
            found.append(alignment.select(matrix, tokens))
    chosen, kept = (torch.cat(parts, dim=1) for parts in zip(*found, strict=True))
    matrix = _ChosenSimilarity.apply(documents.vectors, queries.vectors, chosen)
    weights = _chosen_weights(chosen, kept, documents[:, None], queries[None])
    return scoring.divide(matrix, weights, queries[None])


class _ChosenSimilarity(torch.autograd.Function):
    """(B, C, K, N): the similarity of each query token to the document tokens that it chose."""

    @staticmethod
    def forward(context, documents: Tensor, queries: Tensor, chosen: Tensor) -> Tensor:
        context.save_for_backward(documents, queries, chosen)
        return torch.stack(
            [
                torch.einsum("cknd,cnd->ckn", document[rows], queries)
                for document, rows in zip(documents, chosen, strict=True)
            ]
        )

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        documents, queries, chosen = context.saved_tensors
        document_gradient, query_gradient = torch.zeros_like(documents), torch.zeros_like(queries)
        for b, (document, rows) in enumerate(zip(documents, chosen, strict=True)):
            weighted = gradient[b].unsqueeze(-1) * queries.unsqueeze(1)  # (C, K, N, d)
            document_gradient[b].index_add_(0, rows.flatten(), weighted.flatten(0, 2))
            query_gradient += torch.einsum("ckn,cknd->cnd", gradient[b], document[rows])
        return document_gradient, query_gradient, None
