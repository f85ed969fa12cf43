import pytest
import torch
from torch.nn.functional import normalize

from gr_mvdr.alignment import MaxSim
from gr_mvdr.pooling import (
    LearnedTokens,
    Temporal,
    group_tokens,
    merge_tokens,
)
from gr_mvdr.relevance import Scoring, similarity
from gr_mvdr.token_vectors import TokenVectors

MASK = torch.tensor([[True] * 5, [True] * 3 + [False] * 2, [True] + [False] * 4])
IDS = torch.arange(10, 25).view(3, 5)
STATES = torch.arange(30.0).view(3, 5, 2)


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


# Token vectors that become one ------------------------------------------------------------------


def token_vectors(lengths=(9, 4, 1, 0, 14), salience=True, keys=False):
    """Clustered vectors of length 1: close ones are at known places."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    mask[-1, 1] = False  # a token that the template skips
    vectors = normalize(torch.randn(*mask.shape, 6, generator=generator).double(), dim=-1)
    vectors *= mask.unsqueeze(-1)
    weights = torch.rand(mask.shape, generator=generator).double() * mask if salience else None
    ids = torch.arange(mask.numel()).view(mask.shape)
    return TokenVectors(vectors, mask, ids, weights, 2 * vectors if keys else None)


def test_clusters_and_means_by_hand():
    # Two directions: tokens 0 and 2 are near to each other, and so are 1 and 3.
    angles = torch.tensor([[0.0, 1.5, 0.1, 1.6]]).double()
    vectors, mask = torch.stack([angles.cos(), angles.sin()], -1), torch.ones(1, 4).bool()
    weights = torch.tensor([[2.0, 3.0, 4.0, 5.0]]).double()
    tokens = TokenVectors(vectors, mask, torch.arange(11, 15)[None], weights)
    for by in ("ward", "k_means"):
        groups = group_tokens(tokens, 2, by)
        assert groups.tolist() == [[[0.5, 0, 0.5, 0], [0, 0.5, 0, 0.5]]]
    merged = merge_tokens(tokens, groups)
    expected = torch.stack([vectors[0, [0, 2]].mean(0), vectors[0, [1, 3]].mean(0)])
    assert torch.allclose(merged.vectors[0], expected, atol=1e-12)
    assert merged.salience.tolist() == [[3, 4]] and merged.mask.all()
    assert merged.ids[0, 0] in (11, 13) and merged.ids[0, 1] in (12, 14)
    kept = merge_tokens(tokens, group_tokens(tokens, 2, "salience"))
    assert kept.ids.tolist() == [[13, 14]] and torch.equal(kept.vectors, vectors[:, 2:])


def test_pooled_max_sim_is_eq_1_of_the_tokens():
    """A of a cluster spread over its tokens gives the clusters' relevance: S is linear in D."""
    tokens, queries = token_vectors((9, 4, 14, 3, 14)), token_vectors((3, 2, 5, 4, 1), False)
    groups = group_tokens(tokens, 2)
    pairs = Scoring(MaxSim()).align(merge_tokens(tokens, groups), queries)
    matrix = similarity(tokens.vectors, queries.vectors)
    spread = (groups.mT @ pairs.alignment[:, 0] * matrix).sum((1, 2))
    assert torch.allclose(pairs.relevance, spread, atol=1e-12)


@pytest.mark.parametrize("factor", [2, 3])
def test_ward_pools_as_sentence_transformers_does(factor):
    modules = pytest.importorskip("sentence_transformers.multi_vector_encoder.modules")
    options = {"num_protected_tokens": 0}
    try:
        theirs = modules.HierarchicalTokenPooling(factor, normalize_embeddings=False, **options)
    except (AttributeError, TypeError):
        pytest.skip("another version's token pooling")
    tokens = token_vectors((14, 9, 2, 1), False)
    merged = merge_tokens(tokens, group_tokens(tokens, factor))
    for row in range(4):
        expected = theirs.pool([tokens.vectors[row][tokens.mask[row]].clone()])[0]
        result = merged.vectors[row][merged.mask[row]]
        assert len(result) == len(expected)
        nearest = torch.cdist(result, expected).amin(1)  # their clusters are in another order
        assert nearest.max() < 1e-6 and torch.cdist(expected, result).amin(1).max() < 1e-6
