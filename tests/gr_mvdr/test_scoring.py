"""All pairs of a batch in little memory: the same numbers and gradients as Eq. 1 written down."""

from typing import get_args

import pytest
import torch
import torch.nn.functional as F

from gr_mvdr import relevance as module
from gr_mvdr.alignment import (
    FirstK,
    FirstToken,
    InBatchTopK,
    LexicalMaxSim,
    MaxSim,
    Softmax,
    SoftTopK,
    TopK,
    TopP,
)
from gr_mvdr.batch import PairBatch
from gr_mvdr.losses import InBatchCrossEntropy
from gr_mvdr.relevance import Normaliser, Scoring, all_pairs_relevance
from gr_mvdr.token_vectors import TokenVectors
from tests.pairwise import pairwise

STRATEGIES = [
    MaxSim(),
    MaxSim("document_to_query"),
    FirstToken(),
    FirstK(2),
    LexicalMaxSim(),
    TopK(3),
    TopP(0.4),
    InBatchTopK(7),
    Softmax("query_to_document"),
    Softmax("document_to_query"),
    SoftTopK(2, 0.1),
]


def texts(lengths, seed, salience=False, keys=False, dtype=torch.float64):
    """Unit vectors of texts of these lengths, zero at padding, that ask for gradients."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    real = mask.unsqueeze(-1)

    def draw(size):
        drawn = torch.randn(*mask.shape, size, generator=generator, dtype=dtype)
        return (F.normalize(drawn, dim=-1) * real).requires_grad_()

    weights = (torch.rand(mask.shape, generator=generator, dtype=dtype) * mask).requires_grad_()
    ids = torch.randint(4, 7, mask.shape, generator=generator)
    return TokenVectors(
        draw(6), mask, ids, weights if salience else None, draw(4) if keys else None
    )


def by_pairs(documents, queries, scoring):
    """Every pair on its own through A; XTR's pool is written out by the whole tensor."""
    if isinstance(scoring.alignment, InBatchTopK):
        return scoring(documents[:, None], queries[None])
    texts = [[side.unpad(n) for n in range(len(side))] for side in (documents, queries)]
    return torch.stack([torch.stack([scoring(d, q) for q in texts[1]]) for d in texts[0]])


def gradients(scores, *sides):
    weights = torch.linspace(-1, 2, scores.numel(), dtype=scores.dtype).view(scores.shape)
    parts = [p for s in sides for p in (s.vectors, s.salience, s.keys) if p is not None]
    computed = torch.autograd.grad((scores * weights).sum(), parts, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parts, computed, strict=True)]


@pytest.mark.parametrize(
    ("strategy", "normaliser", "salience", "keys"),
    pairwise(STRATEGIES, get_args(Normaliser), [False, True], [False, True]),
    ids=str,
)
def test_scores_and_gradients_are_those_of_single_pairs(
    strategy, normaliser, salience, keys, monkeypatch
):
    monkeypatch.setattr(module, "_BLOCK_SIMILARITIES", 2 * 4 * 7 * 5)  # two queries a block
    documents, queries = texts((7, 1, 0, 5), 0, salience, keys), texts((3, 5, 1), 1, salience, keys)
    scoring = Scoring(strategy, normaliser)
    computed = all_pairs_relevance(documents, queries, scoring)
    expected = by_pairs(documents, queries, scoring)
    assert computed.shape == (4, 3)
    assert torch.allclose(computed, expected, atol=1e-9)
    both = (gradients(scores, documents, queries) for scores in (computed, expected))
    for one, other in zip(*both, strict=True):
        assert torch.allclose(one, other, atol=1e-9)


def test_xtrs_loss_whole():
    """xtr Eq. 2, its Z and its cross entropy in loops, as `InBatchTopK` states them."""
    documents, queries = texts((4, 1, 3), 0), texts((3, 1, 2), 1)
    k_train, temperature, losses = 4, 0.5, []
    for q in range(3):
        query, f = queries.unpad(q).vectors, []
        similarities = [documents.unpad(d).vectors @ query.T for d in range(3)]  # (M, N) each
        least = torch.cat(similarities).topk(k_train, 0).values[-1]  # (N,) over the whole batch
        for matrix in similarities:
            retrieved = matrix >= least  # Â
            best = matrix.masked_fill(~retrieved, -torch.inf).amax(0)
            z = retrieved.any(0).sum()
            f.append(best[retrieved.any(0)].sum() / z.clamp(min=1))
        losses.append(-(torch.stack(f) / temperature).log_softmax(0)[q])
    relevance = all_pairs_relevance(documents, queries, Scoring(InBatchTopK(k_train), "alignment"))
    ids, mask = queries.ids, queries.mask
    batch = PairBatch(ids, mask, documents.ids, documents.mask, torch.arange(3))
    computed = InBatchCrossEntropy(temperature)(relevance, batch)
    assert torch.isclose(computed, torch.stack(losses).mean(), atol=1e-9)


def test_similarities_do_not_tie_under_autocast():
    documents, queries = (texts(n, s, dtype=torch.float32) for n, s in (((7, 4), 0), ((3, 2), 1)))
    plain = all_pairs_relevance(documents, queries, Scoring(MaxSim()))
    with torch.autocast("cpu", torch.bfloat16):
        mixed = all_pairs_relevance(documents, queries, Scoring(MaxSim()))
    assert torch.equal(plain, mixed)
