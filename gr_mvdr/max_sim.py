"""MaxSim relevance without writing A down: Σ_j max_i S_ij (gr_as_mvdr Eq. 21), padded and packed.

`gr_mvdr.alignment.MaxSim` gives the alignment matrix itself; the two forms here give only the
relevance that it leads to, for training (all pairs of a batch) and for search (packed documents).
"""

from collections.abc import Iterator

import torch
from torch import Tensor


def all_pairs_relevance(
    documents: Tensor, document_mask: Tensor, queries: Tensor, query_mask: Tensor
) -> Tensor:
    """Relevance of every document of a batch to every query of a batch (gr_as_mvdr Eq. 21).

    Memory grows with B·C·N, not with B·C·M·N: only the chosen tokens are kept for the gradient.

    Args:
        documents: (B, M, d) token vectors; document_mask: (B, M) bool.
        queries: (C, N, d) token vectors; query_mask: (C, N) bool.

    Returns:
        (B documents, C queries) fp32.
    """
    rows = queries.flatten(0, 1)
    best = _BestSimilarity.apply(documents.float(), document_mask, rows.float())
    best = best.masked_fill(~document_mask.any(1, keepdim=True), 0.0)  # no token, no relevance
    return (best.view(len(documents), *query_mask.shape) * query_mask).sum(-1)


class _BestSimilarity(torch.autograd.Function):
    """(B, R): the largest similarity of each of R query tokens to a token of each document."""

    @staticmethod
    def forward(context, documents: Tensor, mask: Tensor, rows: Tensor) -> Tensor:
        # Outside autocast: a product in bf16 would tie many similarities.
        with torch.autocast(rows.device.type, enabled=False):
            best = [
                (rows @ document.T).masked_fill(~real, -torch.inf).max(1)
                for document, real in zip(documents, mask, strict=True)
            ]
        chosen = torch.stack([b.indices for b in best])
        context.save_for_backward(documents, rows, chosen)
        return torch.stack([b.values for b in best])

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, None, Tensor]:
        documents, rows, chosen = context.saved_tensors
        document_gradient, row_gradient = torch.zeros_like(documents), torch.zeros_like(rows)
        for b, document in enumerate(documents):
            weight = gradient[b].unsqueeze(1)
            document_gradient[b].index_add_(0, chosen[b], weight * rows)
            row_gradient += weight * document[chosen[b]]
        return document_gradient, None, row_gradient


def packed_relevance(vectors: Tensor, lengths: Tensor, queries: Tensor) -> Tensor:
    """Relevance of packed documents to packed queries, without padding a document.

    One matrix product over all tokens, then a maximum over each document's segment of it.

    Args:
        vectors: (T, d) the documents' token vectors, one document after the other.
        lengths: (D,) int64 token counts ≥ 1, summing to T. Neighbours of equal length share one
            maximum, so documents sorted by length are fastest.
        queries: (Q, N, d) token vectors, zero at padding (a zero vector adds 0).

    Returns:
        (D, Q) fp32.
    """
    count, tokens, size = queries.shape
    product = vectors.to(queries.dtype) @ queries.reshape(-1, size).T  # (T, Q·N)
    best = [
        segment.view(repeats, length, -1).amax(1)
        for segment, length, repeats in equal_length_segments(product, lengths)
    ]
    return torch.cat(best).view(-1, count, tokens).sum(-1, dtype=torch.float32)


def equal_length_segments(packed: Tensor, lengths: Tensor) -> Iterator[tuple[Tensor, int, int]]:
    """Cuts packed rows into runs of neighbouring documents that have the same length.

    Args:
        packed: (T, …) rows, one document after the other.
        lengths: (D,) int64 token counts summing to T.

    Yields:
        (rows of the run, length of each of its documents, number of its documents).
    """
    start = 0
    values, counts = torch.unique_consecutive(lengths, return_counts=True)
    for length, repeats in zip(values.tolist(), counts.tolist(), strict=True):
        end = start + length * repeats
        yield packed[start:end], length, repeats
        start = end
