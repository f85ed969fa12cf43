"""Alignments against their formulas written as loops, against padding, and worked by hand."""

import math
import pickle

import pytest
import torch

from gr_mvdr.alignment import (
    FirstK,
    FirstToken,
    InBatchTopK,
    LexicalMaxSim,
    MaxSim,
    Selection,
    Softmax,
    SoftTopK,
    TopK,
    TopP,
    other_side,
    pair_mask,
)
from gr_mvdr.relevance import relevance, similarity
from gr_mvdr.scoring import Scoring
from gr_mvdr.token_vectors import TokenVectors

DIRECTIONS = ["query_to_document", "document_to_query"]
HARD = [
    MaxSim(),
    FirstToken(),
    FirstK(1),
    FirstK(3),
    LexicalMaxSim(),
    TopK(1),
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


def test_every_query_token_chooses_its_best_document_token():
    axes = torch.eye(3)
    matrix = similarity(axes[[0, 1, 2]], axes[[2, 0]])[None]
    real = torch.ones(1, 3, dtype=torch.bool), torch.ones(1, 2, dtype=torch.bool)
    aligned = MaxSim("query_to_document")(matrix, *real)
    assert aligned.tolist() == [[[0, 1], [0, 0], [1, 0]]]
    assert relevance(matrix, aligned).tolist() == [2]


def test_every_document_token_chooses_its_best_query_token():
    matrix = torch.tensor([[[1.0, 2.0], [4.0, 3.0], [-2.0, -1.0]]])
    real = torch.ones(1, 3, dtype=torch.bool), torch.ones(1, 2, dtype=torch.bool)
    aligned = MaxSim("document_to_query")(matrix, *real)
    assert aligned.tolist() == [[[0, 1], [1, 0], [0, 1]]]
    assert relevance(matrix, aligned).tolist() == [2 + 4 - 1]


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


@pytest.mark.parametrize(("direction", "axis"), [(DIRECTIONS[0], -2), (DIRECTIONS[1], -1)])
def test_softmax_sums_to_one_for_every_real_token_of_the_aligning_side(direction, axis):
    matrix, document_mask, query_mask = random_pairs()
    aligned = Softmax(direction)(matrix, document_mask, query_mask)
    mask = query_mask if direction == "query_to_document" else document_mask
    assert torch.allclose(aligned.sum(axis), mask.float(), atol=1e-6)
    real = matrix[0][document_mask[0]][:, query_mask[0]]
    expected = real.softmax(axis)
    assert torch.allclose(aligned[0, : expected.shape[0], : expected.shape[1]], expected)


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


@pytest.mark.parametrize("strategy", [MaxSim, Softmax])
def test_an_unknown_direction_is_refused(strategy):
    with pytest.raises(ValueError, match="direction='q2d': must be one of query_to_document"):
        strategy("q2d")


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


@pytest.mark.parametrize("strategy", SOFT, ids=str)
def test_the_others_are_no_selections(strategy):
    assert not isinstance(strategy, Selection)


# The rest --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TopK(0), "alignment.k=0: must be ≥ 1"),
        (lambda: FirstK(-1), "alignment.k=-1: must be ≥ 1"),
        (lambda: InBatchTopK(0), "alignment.k=0: must be ≥ 1"),
        (lambda: TopK(1.5), "alignment.k=1.5: must be ≥ 1 and whole"),
        (lambda: SoftTopK(0, 0.1), "alignment.k=0: must be ≥ 1"),
        (lambda: SoftTopK(1, 0), "alignment.epsilon=0: must be > 0"),
        (lambda: SoftTopK(1, 0.1, "newton"), "alignment.solver=newton: must be one of exact"),
        (lambda: TopP(0), "alignment.p=0: must be > 0 and ≤ 1"),
        (lambda: TopP(1.01), "alignment.p=1.01: must be > 0 and ≤ 1"),
    ],
)
def test_bad_values_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_alignments_compare_print_and_pickle_by_value():
    assert MaxSim() == MaxSim("query_to_document") != MaxSim("document_to_query")
    assert str(MaxSim()) == "MaxSim(direction='query_to_document')"
    assert str(MaxSim("document_to_query")) == "MaxSim(direction='document_to_query')"
    assert TopK(2) != TopK(3) and FirstToken() != MaxSim()
    for strategy in [*STRATEGIES, *POOLED]:
        assert pickle.loads(pickle.dumps(strategy)) == strategy


@pytest.mark.parametrize("strategy", [*STRATEGIES, *POOLED], ids=str)
@pytest.mark.parametrize("shape", [(2, 4, 0), (2, 0, 3)], ids=["query", "document"])
def test_a_text_without_tokens_is_no_error(strategy, shape):
    ids = [torch.zeros(shape[0], length, dtype=torch.int64) for length in shape[1:]]
    masks = [part == 0 for part in ids]
    assert strategy(torch.zeros(shape), *masks, *ids).shape == shape


def vectors_of(lengths, seed):
    generator = torch.Generator().manual_seed(seed)
    size = len(lengths), max(lengths)
    mask = torch.arange(size[1]) < torch.tensor(lengths)[:, None]
    vectors = torch.randn(*size, 3, dtype=torch.double, generator=generator)
    return vectors, mask, torch.randint(3, size, generator=generator)


@pytest.mark.parametrize("alignment", [SoftTopK(2, 0.3), InBatchTopK(4), TopK(2)], ids=str)
@pytest.mark.parametrize("normaliser", ["alignment", "non_zero", "none"])
def test_gradients_of_all_pairs_scores(alignment, normaliser):
    """Both solvers' gradients are exact; of a hard choice those of the chosen similarities."""
    documents, mask, ids = vectors_of((4, 1, 3), seed=4)
    queries, query_mask, query_ids = vectors_of((2, 3), seed=5)

    def scores(documents, queries):
        sides = TokenVectors(documents, mask, ids), TokenVectors(queries, query_mask, query_ids)
        return Scoring(alignment, normaliser)(sides[0][:, None], sides[1][None])

    inputs = documents.requires_grad_(), queries.requires_grad_()
    assert torch.autograd.gradcheck(scores, inputs)
