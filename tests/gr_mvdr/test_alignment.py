"""Alignments against their formulas written as loops, against padding, and worked by hand."""

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
    other_side,
    pair_mask,
)
from gr_mvdr.relevance import relevance

DIRECTIONS = ["query_to_document", "document_to_query"]
HARD = [
    MaxSim(),
    FirstToken(),
    FirstK(3),
    LexicalMaxSim(),
    TopK(3),
    TopK(50),
    TopP(0.01),
    TopP(0.4),
    TopP(1.0),
]
SOFT = [MaxSim("document_to_query"), *map(Softmax, DIRECTIONS), SoftTopK(2, 0.5)]
STRATEGIES = [*HARD, *SOFT]
POOLED = [InBatchTopK(1), InBatchTopK(4), InBatchTopK(1000)]


def random_ids(document_mask, query_mask, seed=1):
    """Tokens 0 to 3, so that some occur on both sides, some on one; also at padding."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(4, mask.shape, generator=generator) for mask in (document_mask, query_mask)
    ]


def random_pairs(seed=0, lengths=((5, 3), (2, 4), (6, 1))):
    """S of unit vectors (3, 7, 5) with masks; more padding than any pair needs."""
    generator = torch.Generator().manual_seed(seed)
    document_mask = torch.arange(7) < torch.tensor([m for m, _ in lengths])[:, None]
    query_mask = torch.arange(5) < torch.tensor([n for _, n in lengths])[:, None]
    return torch.randn(len(lengths), 7, 5, generator=generator), document_mask, query_mask


def test_every_token_chooses_its_best_of_the_other_side():
    matrix = torch.tensor([[1.0, 2.0], [4.0, 3.0], [-2.0, -1.0]])
    real = torch.ones(3, dtype=torch.bool), torch.ones(2, dtype=torch.bool)
    assert MaxSim("query_to_document")(matrix, *real).tolist() == [[0, 0], [1, 1], [0, 0]]
    aligned = MaxSim("document_to_query")(matrix, *real)
    assert aligned.tolist() == [[0, 1], [1, 0], [0, 1]]
    assert relevance(matrix, aligned) == 2 + 4 - 1


@pytest.mark.parametrize(("direction", "axis"), [(DIRECTIONS[0], 0), (DIRECTIONS[1], 1)])
def test_the_alignment_of_maxsim_turns_eq_1_into_eq_21(direction, axis):
    matrix, document_mask, query_mask = random_pairs()
    result = relevance(matrix, MaxSim(direction)(matrix, document_mask, query_mask))
    for pair, value in enumerate(result):
        real = matrix[pair][document_mask[pair]][:, query_mask[pair]]
        assert torch.isclose(value, real.amax(axis).sum(), atol=1e-6)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_pad_never_beats_a_negative_similarity(direction):
    matrix, document_mask, query_mask = random_pairs()
    matrix = -matrix.abs() - 0.5
    matrix = matrix * pair_mask(document_mask, query_mask)  # zero, the better value, at padding
    aligned = MaxSim(direction)(matrix, document_mask, query_mask)
    chosen = aligned.sum(other_side(direction))
    mask = query_mask if direction == "query_to_document" else document_mask
    assert torch.equal(chosen, mask.float())
    assert (relevance(matrix, aligned) <= -0.5).all()


@pytest.mark.parametrize("strategy", [*STRATEGIES, *POOLED], ids=str)
def test_alignments_are_zero_at_padding_whatever_stands_there(strategy):
    matrix, document_mask, query_mask = random_pairs()
    real = pair_mask(document_mask, query_mask)
    rest = document_mask, query_mask, *random_ids(document_mask, query_mask)
    plain = strategy(matrix, *rest)
    assert plain.any()
    assert not plain[~real].any()
    assert torch.equal(plain, strategy(matrix.masked_fill(~real, 1e4), *rest))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_padding_and_batch_mates_change_nothing(strategy):
    matrix, document_mask, query_mask = random_pairs()
    ids = random_ids(document_mask, query_mask)
    together = strategy(matrix, document_mask, query_mask, *ids)
    cut = [part[1:2, :length] for part, length in [(document_mask, 2), (query_mask, 4)]]
    alone = strategy(matrix[1:2, :2, :4], *cut, ids[0][1:2, :2], ids[1][1:2, :4])
    assert torch.allclose(together[1, :2, :4], alone[0], atol=1e-7)


@pytest.mark.parametrize("strategy", [*STRATEGIES, *POOLED], ids=str)
@pytest.mark.parametrize("lengths", [((0, 3), (2, 0)), ((0, 0), (3, 2))])
def test_fully_padded_texts_give_no_nan_also_in_gradients(strategy, lengths):
    matrix, document_mask, query_mask = random_pairs(lengths=lengths)
    matrix.requires_grad_()
    ids = random_ids(document_mask, query_mask)
    aligned = strategy(matrix, document_mask, query_mask, *ids)
    assert not aligned[0].any()
    relevance(matrix, aligned, normalise=True).sum().backward()
    assert matrix.grad.isfinite().all()
    assert not matrix.grad[0].any()


# Against the formulas --------------------------------------------------------------------------


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("strategy", [MaxSim, Softmax])
def test_alignments_of_either_direction_equal_their_formulas(strategy, direction):
    lengths = ((5, 3), (2, 4), (6, 1))
    matrix, document_mask, query_mask = random_pairs(lengths=lengths)
    expected = torch.zeros_like(matrix)
    for pair, (m, n) in enumerate(lengths):
        for i in range(m):
            for j in range(n):
                other = matrix[pair, :m, j] if direction == DIRECTIONS[0] else matrix[pair, i, :n]
                s, values = matrix[pair, i, j].item(), other.tolist()
                if strategy == MaxSim:
                    expected[pair, i, j] = s == max(values)
                else:
                    expected[pair, i, j] = math.exp(s) / sum(map(math.exp, values))
    aligned = strategy(direction)(matrix, document_mask, query_mask)
    assert torch.allclose(aligned, expected, rtol=0, atol=1e-6)


def solved_by_bisection(column, k, epsilon):
    """min(1, exp((s + a) / ε)) whose sum is k."""
    if k >= len(column):
        return [1.0] * len(column)
    low, high = -max(column) - 50 * epsilon, -min(column)
    for _ in range(200):
        a = (low + high) / 2
        weights = [math.exp(min((s + a) / epsilon, 0)) for s in column]
        low, high = (a, high) if sum(weights) < k else (low, a)
    return weights


@pytest.mark.parametrize(("k", "epsilon"), [(1, 0.1), (2, 0.5), (3, 0.002), (50, 1.0)])
def test_soft_top_k_equals_its_formula(k, epsilon):
    matrix, document_mask, query_mask = random_pairs(lengths=((7, 5), (1, 3), (4, 2)))
    matrix = matrix.double()
    aligned = SoftTopK(k, epsilon)(matrix, document_mask, query_mask)
    expected = torch.zeros_like(matrix)
    for pair, (m, n) in enumerate(((7, 5), (1, 3), (4, 2))):
        for j in range(n):
            weights = solved_by_bisection(matrix[pair, :m, j].tolist(), k, epsilon)
            expected[pair, :m, j] = torch.tensor(weights)
            assert sum(weights) == pytest.approx(min(k, m))
    assert torch.allclose(aligned, expected, rtol=0, atol=1e-6)
    slow = SoftTopK(k, epsilon, "iterative", 5000)(matrix, document_mask, query_mask)
    assert torch.allclose(slow, expected, rtol=0, atol=1e-6)


# Hard alignments -----------------------------------------------------------------------------


def best(column, k):
    """The k rows of the greatest values, ties go to the first."""
    return sorted(sorted(range(len(column)), key=lambda i: (-column[i], i))[:k])


def rows_of_formula(strategy, column, j, document_ids, query_id):
    """The document tokens that query token j aligns with."""
    m = len(column)
    match strategy:
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


@pytest.mark.parametrize("strategy", [TopK(3), TopP(0.5)], ids=str)
@pytest.mark.parametrize(
    ("column", "expected"),
    [([0, 0, 0, 0, 0, 1], [0, 1, 5]), ([0, 0, 0, 0, 2, 1], [0, 4, 5]), ([1] * 6, [0, 1, 2])],
)
def test_ties_go_to_the_first_token_whatever_the_padding(strategy, column, expected):
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


# The rest --------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [*STRATEGIES, *POOLED], ids=str)
@pytest.mark.parametrize("shape", [(2, 4, 0), (2, 0, 3)], ids=["query", "document"])
def test_a_text_without_tokens_is_no_error(strategy, shape):
    ids = [torch.zeros(shape[0], length, dtype=torch.int64) for length in shape[1:]]
    masks = [part == 0 for part in ids]
    assert strategy(torch.zeros(shape), *masks, *ids).shape == shape
