"""Relevance of every document of a batch to every query of a batch, in little memory.

Training contrasts all pairs (gr_as_mvdr Eq. 2). Written down, S and A would take B·C·M·N numbers;
here no more than one block of queries exists at a time, forwards and backwards.
"""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gr_mvdr.alignment import Selection
from gr_mvdr.scoring import Scoring, chosen_weights
from gr_mvdr.token_vectors import TokenVectors

# Similarities that exist at once: 64 MB in fp32.
_BLOCK_SIMILARITIES = 1 << 24


def all_pairs_relevance(documents: TokenVectors, queries: TokenVectors, scoring: Scoring) -> Tensor:
    """Relevance of every document to every query under any alignment (gr_as_mvdr Eq. 1).

    Blocks are of queries, never of documents, so that an alignment may look at all documents of
    the batch (xtr Eq. 2). A hard alignment keeps K·B·C·N indices for the gradient; any other is
    computed again on the way back.

    Args:
        documents: (B, M, …); queries: (C, N, …).

    Returns:
        (B documents, C queries) fp32.
    """
    # Outside autocast: a product in bf16 would tie many similarities.
    with torch.autocast(documents.vectors.device.type, enabled=False):
        if isinstance(scoring.alignment, Selection) and documents.keys is None:
            return _selected(documents, queries, scoring)
        blocks = [
            checkpoint(_block, documents, queries[rows], scoring, use_reentrant=False)
            for rows in _blocks(documents, queries)
        ]
        return torch.cat(blocks, dim=1)


def _block(documents: TokenVectors, queries: TokenVectors, scoring: Scoring) -> Tensor:
    return scoring(documents[:, None], queries[None])


def _blocks(documents: TokenVectors, queries: TokenVectors) -> list[slice]:
    """Slices of the queries, each of about `_BLOCK_SIMILARITIES` pairs of tokens."""
    a_query = documents.mask.numel() * queries.mask.shape[1]
    size = max(1, _BLOCK_SIMILARITIES // max(1, a_query))
    return [slice(start, start + size) for start in range(0, len(queries), size)]


def _selected(documents: TokenVectors, queries: TokenVectors, scoring: Scoring) -> Tensor:
    """`all_pairs_relevance` of a hard alignment: only the chosen document tokens matter."""
    found = []
    with torch.no_grad():
        for rows in _blocks(documents, queries):
            block = queries[rows][None]
            similarity = _block_similarity(documents.vectors, queries.vectors[rows])
            masks = documents.mask[:, None], block.mask, documents.ids[:, None], block.ids
            found.append(scoring.alignment.select(similarity, *masks))
    chosen, kept = (torch.cat(parts, dim=1) for parts in zip(*found, strict=True))
    similarity = _ChosenSimilarity.apply(documents.vectors, queries.vectors, chosen)
    weights = chosen_weights(chosen, kept, documents[:, None], queries[None])
    return scoring.divide(similarity, weights, queries[None])


def _block_similarity(documents: Tensor, queries: Tensor) -> Tensor:
    """(B, C, M, N) similarity by one matrix product (a view of it, documents' rows together)."""
    product = documents.flatten(0, 1) @ queries.flatten(0, 1).T  # (B·M, C·N)
    shape = *documents.shape[:2], *queries.shape[:2]
    return product.view(shape).permute(0, 2, 1, 3)


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
