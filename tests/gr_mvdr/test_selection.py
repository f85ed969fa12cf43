"""Hard alignments against their formulas written as loops, and what they choose by hand."""

import math

import pytest
import torch

from gr_mvdr.alignment import (
    FirstK,
    FirstToken,
    InBatchTopK,
    LexicalMaxSim,
    Selection,
    Tokens,
    TopK,
    TopP,
    pair_mask,
)
from gr_mvdr.relevance import relevance
from tests.gr_mvdr.test_alignment import HARD, POOLED, random_ids, random_pairs


def best(column, k):
    """The k rows of the greatest values, of equal ones the first."""
    return sorted(sorted(range(len(column)), key=lambda i: (-column[i], i))[:k])


def rows_of_formula(strategy, column, j, document_ids, query_id):
    """The document tokens that query token j aligns with: facts, "which alignment is which"."""
    m = len(column)
    match strategy:
        case FirstToken():
            return [0] if j == 0 else []
        case FirstK(k):
            return best(column[:k], 1) if j == 0 else []
        case LexicalMaxSim():
            equal = [i for i in range(m) if document_ids[i] == query_id]
            return [equal[best([column[i] for i in equal], 1)[0]]] if equal else []
        case TopK(k):
            return best(column, k)
        case TopP(p):
            return best(column, max(math.floor(p * m), 1))
    return best(column, 1)


@pytest.mark.parametrize("strategy", HARD, ids=str)
@pytest.mark.parametrize("grain", [None, 1.0], ids=["distinct", "tied"])
def test_hard_alignments_equal_their_formulas(strategy, grain):
    lengths = ((9, 5), (1, 4), (6, 1), (3, 3), (8, 2))
    sides = torch.tensor(lengths).T[..., None]
    document_mask, query_mask = (torch.arange(9) < side for side in sides)
    matrix = torch.randn(5, 9, 9, generator=torch.Generator().manual_seed(2))
    matrix = matrix if grain is None else (matrix / grain).round() * grain
    ids = random_ids(document_mask, query_mask)
    aligned = strategy(matrix, document_mask, query_mask, *ids)
    expected = torch.zeros_like(matrix)
    for pair, (m, n) in enumerate(lengths):
        for j in range(n):
            column = matrix[pair, :m, j].tolist()
            of_pair = ids[0][pair].tolist(), ids[1][pair, j].item()
            expected[pair, rows_of_formula(strategy, column, j, *of_pair), j] = 1
    assert torch.equal(aligned, expected)


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


def test_in_batch_top_k_by_hand():
    matrix = torch.tensor([[[5.0, 1.0], [4.0, 0.0]], [[3.0, 2.0], [6.0, -9.0]]])
    masks = torch.tensor([[True, True], [True, False]]), torch.ones(1, 2, dtype=torch.bool)
    # Of query token 0 the two best are 5 and 4, both of document 0; of token 1: 2 and 1.
    assert InBatchTopK(2)(matrix, *masks).tolist() == [[[1, 1], [0, 0]], [[0, 1], [0, 0]]]
    # One document is a pool of its own.
    alone = InBatchTopK(2)(matrix[1], masks[0][1], masks[1][0])
    assert alone.tolist() == [[1, 1], [0, 0]]


def test_in_batch_top_k_depends_on_batch_mates_but_not_on_padding():
    matrix = torch.tensor([[[1.0]], [[2.0]]])
    real = torch.ones(2, 1, dtype=torch.bool), torch.ones(1, 1, dtype=torch.bool)
    assert InBatchTopK(1)(matrix, *real).flatten().tolist() == [0, 1]
    assert InBatchTopK(1)(matrix[:1], real[0][:1], real[1]).flatten().tolist() == [1]
    wider = torch.nn.functional.pad(matrix, (0, 1, 0, 3), value=9.0)
    masks = [torch.nn.functional.pad(mask, (0, n)) for mask, n in zip(real, (3, 1), strict=True)]
    assert InBatchTopK(1)(wider, *masks)[:, 0, 0].tolist() == [0, 1]


# Selections ------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [*HARD, *POOLED], ids=str)
@pytest.mark.parametrize("lengths", [((5, 3), (2, 4), (6, 1)), ((0, 3), (2, 0), (1, 1))])
def test_a_selection_is_the_alignment_without_its_zeros(strategy, lengths):
    matrix, document_mask, query_mask = random_pairs(lengths=lengths)
    rest = document_mask, query_mask, *random_ids(document_mask, query_mask)
    chosen, kept = strategy.select(matrix, Tokens(*rest))
    assert isinstance(strategy, Selection)
    assert chosen.dtype == torch.int64 and kept.dtype == torch.bool
    assert chosen.shape == kept.shape
    assert chosen.min() >= 0 and chosen.max() < matrix.shape[-2]
    assert not kept[~pair_mask(document_mask, query_mask).gather(-2, chosen)].any()
    total = (matrix.gather(-2, chosen) * kept).sum((-2, -1))
    assert torch.allclose(total, relevance(matrix, strategy(matrix, *rest)), atol=1e-6)


@pytest.mark.parametrize("strategy", [TopK(3), TopP(0.5)], ids=str)
@pytest.mark.parametrize(
    ("column", "expected"),
    [([0, 0, 0, 0, 0, 1], [0, 1, 5]), ([0, 0, 0, 0, 2, 1], [0, 4, 5]), ([1] * 6, [0, 1, 2])],
)
def test_of_equal_tokens_the_first_are_chosen_whatever_the_padding(strategy, column, expected):
    real, query_mask = torch.arange(500) < 6, torch.ones(1, dtype=torch.bool)
    matrix = torch.cat([torch.tensor(column).float(), torch.zeros(494)])[:, None]
    for length in (6, 7, 100, 500):
        aligned = strategy(matrix[:length], real[:length], query_mask)
        assert aligned[:, 0].nonzero().flatten().tolist() == expected


def test_first_means_the_first_real_token():
    matrix = torch.tensor([[9.0, 9.0, 9.0], [9.0, 2.0, 9.0], [9.0, 3.0, 9.0], [9.0, 4.0, 9.0]])
    masks = torch.tensor([False, True, True, True]), torch.tensor([False, True, True])
    assert FirstToken()(matrix, *masks).nonzero().tolist() == [[1, 1]]
    assert FirstK(2)(matrix, *masks).nonzero().tolist() == [[2, 1]]


def test_a_word_that_the_document_does_not_hold_adds_nothing():
    matrix = torch.tensor([[1.0, 9.0, 9.0], [-2.0, 9.0, -3.0], [9.0, 9.0, -4.0]])
    masks = torch.tensor([True, True, True]), torch.tensor([True, True, True])
    ids = torch.tensor([7, 7, 8]), torch.tensor([7, 5, 8])
    aligned = LexicalMaxSim()(matrix, *masks, *ids)
    assert aligned.tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 1]]
    assert relevance(matrix, aligned) == 1 - 4


def test_lexical_alignment_needs_the_tokens():
    matrix, *masks = random_pairs()
    with pytest.raises(ValueError, match="LexicalMaxSim: needs document_ids and query_ids"):
        LexicalMaxSim()(matrix, *masks)


@pytest.mark.parametrize(
    ("m", "expected"), [(1, 1), (99, 1), (100, 1), (199, 1), (200, 2), (600, 6)]
)
def test_top_p_never_rounds_down_to_nothing(m, expected):
    matrix = torch.arange(600.0)[:, None]
    aligned = TopP(0.01)(matrix, torch.arange(600) < m, torch.ones(1, dtype=torch.bool))
    assert aligned.sum() == expected
