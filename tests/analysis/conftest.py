"""Synthetic alignments for the analysis tests."""

import pytest
import torch

from gr_mvdr.batch import pad
from gr_mvdr.relevance import PairAlignment


def make_pairs(n_pairs=5, heads=1, seed=0, paradigm="multi_vector", vocabulary=30, longest=9):
    """Random pairs of different lengths; generative ones have cross-attention as alignment."""
    generator = torch.Generator().manual_seed(seed)

    def texts():
        lengths = torch.randint(2, longest + 1, (n_pairs,), generator=generator).tolist()
        draw = lambda n: torch.randint(2, vocabulary, (n,), generator=generator).tolist()  # noqa: E731
        return pad([draw(length) for length in lengths])

    document_ids, document_mask = texts()
    query_ids, query_mask = texts()
    shape = n_pairs, heads, document_ids.shape[1], query_ids.shape[1]
    similarity = torch.randn(shape, generator=generator)
    real = (document_mask[:, :, None] & query_mask[:, None, :])[:, None]
    weights = torch.randn(shape, generator=generator).masked_fill(~real, -1e9).softmax(-1)
    if paradigm != "generative":
        weights = (similarity == similarity.masked_fill(~real, -1e9).amax(2, keepdim=True)).float()
    alignment, similarity = weights * real, similarity * real
    relevance = (similarity * alignment).sum((1, 2, 3))
    return PairAlignment(
        similarity=similarity,
        alignment=alignment,
        normaliser=torch.ones(n_pairs),
        relevance=relevance,
        score=relevance + 0.5,
        document_ids=document_ids,
        document_mask=document_mask,
        query_ids=query_ids,
        query_mask=query_mask,
    )


@pytest.fixture(name="make_pairs")
def _make_pairs():
    return make_pairs
