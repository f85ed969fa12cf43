"""Alignments against their formulas written as loops, and of texts without tokens."""

import math

import pytest
import torch

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
from gr_mvdr.relevance import relevance
from gr_mvdr.salience import relaxed_top_k

SOFT = [Softmax("query_to_document"), Softmax("document_to_query"), SoftTopK(2, 0.5)]
HARD = [
    MaxSim(),
    MaxSim("document_to_query"),
    FirstToken(),
    FirstK(3),
    LexicalMaxSim(),
    TopK(3),
    TopK(50),
    TopP(0.01),
    TopP(0.4),
    TopP(1.0),
]
POOLED = [InBatchTopK(1), InBatchTopK(4), InBatchTopK(1000)]
LENGTHS = ((9, 5), (1, 4), (6, 1), (3, 3), (8, 2))


def random_pairs(lengths=LENGTHS, grain=None):
    """S of five pairs (5, 10, 6) with masks and token ids, of which some occur on both sides."""
    generator = torch.Generator().manual_seed(2)
    matrix = torch.randn(len(lengths), 10, 6, generator=generator)
    matrix = matrix if grain is None else (matrix / grain).round() * grain
    sides = torch.tensor(lengths).T[..., None]
    masks = [torch.arange(size) < side for size, side in zip((10, 6), sides, strict=True)]
    ids = [torch.randint(4, mask.shape, generator=generator) for mask in masks]
    return matrix, *masks, *ids


def best(column, k):
    """The k rows of the greatest values; ties go to the lowest row."""
    return sorted(range(len(column)), key=lambda i: (-column[i], i))[:k]


def column_of(strategy, column, j, document_ids, query_id):
    """A of query token j, from its similarities to the document's tokens."""
    m = len(column)
    match strategy:
        case Softmax():
            return [math.exp(s) / sum(map(math.exp, column)) for s in column]
        case SoftTopK(k, epsilon):
            return relaxed_top_k(torch.tensor(column), k, epsilon).tolist()
        case FirstK(k):
            rows = best(column[:k], 1) if j == 0 else []
        case LexicalMaxSim():
            equal = [i for i in range(m) if document_ids[i] == query_id]
            rows = [equal[best([column[i] for i in equal], 1)[0]]] if equal else []
        case TopK(k):
            rows = best(column, k)
        case TopP(p):
            rows = best(column, max(math.floor(p * m), 1))
    return [float(i in rows) for i in range(m)]


@pytest.mark.parametrize("grain", [None, 1.0], ids=["distinct", "tied"])
@pytest.mark.parametrize("strategy", [*HARD, *SOFT], ids=str)
def test_alignments_equal_their_formulas(strategy, grain):
    matrix, *masks_and_ids = random_pairs(grain=grain)
    aligned = strategy(matrix, *masks_and_ids)
    expected = torch.zeros_like(matrix)
    for pair, (m, n) in enumerate(LENGTHS):
        own, ids = matrix[pair, :m, :n], [part[pair].tolist() for part in masks_and_ids[2:]]
        if strategy == MaxSim("document_to_query"):
            columns = [column_of(TopK(1), row, 0, None, None) for row in own.tolist()]
            expected[pair, :m, :n] = torch.tensor(columns)
        elif strategy == Softmax("document_to_query"):
            columns = [column_of(strategy, row, 0, None, None) for row in own.tolist()]
            expected[pair, :m, :n] = torch.tensor(columns)
        else:
            columns = [
                column_of(strategy, own[:, j].tolist(), j, ids[0], ids[1][j]) for j in range(n)
            ]
            expected[pair, :m, :n] = torch.tensor(columns).T
    assert torch.allclose(aligned, expected, rtol=0, atol=1e-6 if strategy in SOFT else 0)


@pytest.mark.parametrize("k", [1, 2, 5, 12, 1000])
def test_in_batch_top_k_equals_its_formula(k):
    """All pairs of 4 documents and 3 queries: masks broadcast."""
    lengths, query_lengths = (5, 1, 3, 4), (2, 4, 1)
    matrix = torch.randn(4, 3, 5, 4, generator=torch.Generator().manual_seed(3))
    matrix = (matrix * 2).round()  # ties, also at the threshold
    document_mask = torch.arange(5) < torch.tensor(lengths)[:, None, None]
    query_mask = torch.arange(4) < torch.tensor(query_lengths)[None, :, None]
    aligned = InBatchTopK(k)(matrix, document_mask, query_mask)
    expected = torch.zeros_like(matrix)
    for c, n in enumerate(query_lengths):
        for j in range(n):
            pool = [matrix[b, c, i, j].item() for b, m in enumerate(lengths) for i in range(m)]
            least = sorted(pool, reverse=True)[:k][-1]
            for b, m in enumerate(lengths):
                column = matrix[b, c, :m, j].tolist()
                if max(column) >= least:
                    expected[b, c, best(column, 1)[0], j] = 1
    assert torch.equal(aligned, expected)
    one_query = InBatchTopK(k)(matrix[:, 1], document_mask[:, 0], query_mask[:, 1])
    assert torch.equal(one_query, expected[:, 1])


def test_the_first_token_is_the_first_real_one():
    matrix = torch.tensor([[9.0, 9.0, 9.0], [9.0, 2.0, 9.0], [9.0, 3.0, 9.0], [9.0, 4.0, 9.0]])
    masks = torch.tensor([False, True, True, True]), torch.tensor([False, True, True])
    assert FirstToken()(matrix, *masks).nonzero().tolist() == [[1, 1]]
    assert FirstK(2)(matrix, *masks).nonzero().tolist() == [[2, 1]]


@pytest.mark.parametrize("strategy", [*HARD, *SOFT, *POOLED], ids=str)
def test_texts_without_tokens_have_zero_alignments_and_gradients(strategy):
    matrix, *rest = random_pairs(((0, 3), (2, 0), (0, 0), (3, 2)))
    matrix.requires_grad_()
    aligned = strategy(matrix, *rest)
    assert not aligned[:3].any()
    relevance(matrix, aligned, normalise=True).sum().backward()
    assert matrix.grad.isfinite().all() and not matrix.grad[:3].any()
    for shape in ((2, 4, 0), (2, 0, 3)):
        ids = [torch.zeros(shape[0], length, dtype=torch.int64) for length in shape[1:]]
        assert strategy(torch.zeros(shape), *(x == 0 for x in ids), *ids).shape == shape
