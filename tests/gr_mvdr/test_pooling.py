import pytest
import torch

from gr_mvdr.pooling import AllTokens, FirstTokens, LearnedTokens, Temporal

MASK = torch.tensor([[True] * 5, [True] * 3 + [False] * 2, [True] + [False] * 4])
IDS = torch.arange(10, 25).view(3, 5)
STATES = torch.arange(30.0).view(3, 5, 2)


def test_all_tokens_change_nothing():
    states, mask, ids = AllTokens().leave(STATES, MASK, IDS)
    assert states is STATES and mask is MASK and ids is IDS
    assert AllTokens.width == 1


def test_first_tokens_drop_the_rest_after_the_encoder():
    pooling = FirstTokens(2, 60, k=3)
    assert pooling.enter(STATES, MASK) == (STATES, MASK), "the text is read whole"
    states, mask, ids = pooling.leave(STATES, MASK, IDS)
    assert torch.equal(states, STATES[:, :3]) and torch.equal(ids, IDS[:, :3])
    assert mask.sum(1).tolist() == [3, 3, 1]


def test_learned_tokens_are_read_first_and_alone_remain():
    pooling = LearnedTokens(2, 60, k=2)
    read, mask = pooling.enter(STATES, MASK)
    assert torch.equal(read[:, :2], pooling.embeddings.expand(3, 2, 2))
    assert torch.equal(read[:, 2:], STATES) and mask.sum(1).tolist() == [7, 5, 3]
    states, kept, ids = pooling.leave(read, mask, IDS)
    assert torch.equal(states, read[:, :2]) and kept.all()
    assert ids.tolist() == [[60, 61]] * 3, "ids beyond the vocabulary"
    states.sum().backward()
    assert pooling.embeddings.grad.tolist() == [[3, 3], [3, 3]]


def test_temporal_pooling_joins_neighbours():
    states, mask, ids = Temporal(2, 60, factor=2).leave(STATES, MASK, IDS)
    assert Temporal(2, 60, factor=2).width == 2
    assert states.shape == (3, 3, 4)
    assert states[0].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 0]]
    assert states[1].tolist() == [[10, 11, 12, 13], [14, 15, 0, 0], [0, 0, 0, 0]]
    assert mask.tolist() == [[True] * 3, [True, True, False], [True, False, False]]
    assert ids.tolist() == [[10, 12, 14], [15, 17, 19], [20, 22, 24]]


@pytest.mark.parametrize("factor", [1, 3, 5, 8])
def test_temporal_pooling_knows_no_padding(factor):
    pooling = Temporal(2, 60, factor)
    wide = torch.nn.functional.pad(STATES, (0, 0, 0, 4), value=9.0)
    padded = pooling.leave(wide, torch.nn.functional.pad(MASK, (0, 4)), IDS.repeat(1, 2)[:, :9])
    states, mask, _ = pooling.leave(STATES, MASK, IDS)
    groups = mask.shape[1]
    assert torch.equal(padded[0][:, :groups], states) and not padded[0][:, groups:].any()
    assert torch.equal(padded[1][:, :groups], mask) and not padded[1][:, groups:].any()


@pytest.mark.parametrize(
    "pooling",
    [AllTokens(), FirstTokens(2, 60, 3), LearnedTokens(2, 60, 2), Temporal(2, 60, 2)],
    ids=lambda pooling: type(pooling).__name__,
)
def test_counts_are_the_numbers_of_states(pooling):
    _, mask, _ = pooling.leave(*pooling.enter(STATES, MASK), IDS)
    assert [pooling.count(tokens) for tokens in (5, 3, 1)] == mask.sum(1).tolist()


def test_bad_sizes_are_refused():
    for make in (FirstTokens, LearnedTokens):
        with pytest.raises(ValueError, match="pooling.k=0: must be ≥ 1"):
            make(2, 60, k=0)
    with pytest.raises(ValueError, match="pooling.factor=0: must be ≥ 1"):
        Temporal(2, 60, factor=0)
