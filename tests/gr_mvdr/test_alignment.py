import pytest
import torch

from gr_mvdr.alignment import MaxSim, Softmax, other_side, pair_mask
from gr_mvdr.relevance import relevance, similarity

DIRECTIONS = ["query_to_document", "document_to_query"]
STRATEGIES = [strategy(direction) for strategy in (MaxSim, Softmax) for direction in DIRECTIONS]


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


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_alignments_are_zero_at_padding_whatever_stands_there(strategy):
    matrix, document_mask, query_mask = random_pairs()
    real = pair_mask(document_mask, query_mask)
    plain = strategy(matrix, document_mask, query_mask)
    assert not plain[~real].any()
    high = strategy(matrix.masked_fill(~real, 1e4), document_mask, query_mask)
    assert torch.equal(plain, high)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_padding_and_batch_mates_change_nothing(strategy):
    matrix, document_mask, query_mask = random_pairs()
    together = strategy(matrix, document_mask, query_mask)
    alone = strategy(matrix[1:2, :2, :4], document_mask[1:2, :2], query_mask[1:2, :4])
    assert torch.allclose(together[1, :2, :4], alone[0], atol=1e-7)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
@pytest.mark.parametrize("lengths", [((0, 3), (2, 0)), ((0, 0), (3, 2))])
def test_fully_padded_texts_give_no_nan_also_in_gradients(strategy, lengths):
    matrix, document_mask, query_mask = random_pairs(lengths=lengths)
    matrix.requires_grad_()
    aligned = strategy(matrix, document_mask, query_mask)
    assert not aligned[0].any()
    relevance(matrix, aligned, normalise=True).sum().backward()
    assert matrix.grad.isfinite().all()
    assert not matrix.grad[0].any()


@pytest.mark.parametrize("strategy", [MaxSim, Softmax])
def test_an_unknown_direction_is_refused(strategy):
    with pytest.raises(ValueError, match="direction='q2d': must be one of query_to_document"):
        strategy("q2d")
