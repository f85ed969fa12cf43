"""Packed relevance against Eq. 1 of each pair, document by document."""

from typing import get_args

import pytest
import torch

from gr_mvdr.alignment import (
    FirstK,
    FirstToken,
    LexicalMaxSim,
    MaxSim,
    TopK,
)
from gr_mvdr.relevance import Normaliser
from gr_mvdr.scoring import Scoring
from gr_mvdr.token_index import scorers
from gr_mvdr.token_index.scorers import (
    packed_relevance,
    segment_max,
)
from gr_mvdr.token_vectors import PackedTokens, TokenVectors
from tests.gr_mvdr.token_index.test_store import as_text, random_tokens
from tests.pairwise import pairwise

ONE = [MaxSim(), LexicalMaxSim(), FirstToken(), FirstK(2), TopK(1)]
QUERY_LENGTHS = [4, 2, 1]


def pair_by_pair(documents, queries, scoring):
    """(D, Q) from Eq. 1 with A written down, one pair after the other."""
    scores = torch.empty(len(documents.counts), len(queries.counts))
    for row in range(len(scores)):
        for column in range(scores.shape[1]):
            document, query = as_text(documents, row), as_text(queries, column)
            scores[row, column] = scoring(document, query)
    return scores


PARTS = [{}, {"salience": True}, {"keys": 5}, {"keys": 5, "salience": 1}]


@pytest.mark.parametrize(
    ("alignment", "parts", "normaliser"), pairwise(ONE, PARTS, get_args(Normaliser)), ids=str
)
def test_packed_documents_equal_eq_1_of_every_pair(alignment, parts, normaliser):
    documents = random_tokens([3, 1, 3, 3, 2, 2, 6], **parts)
    queries = random_tokens(QUERY_LENGTHS, seed=1, **parts)
    scoring = Scoring(alignment, normaliser)
    found = packed_relevance(documents, queries.pad(), scoring)
    assert found.dtype == torch.float32
    assert torch.allclose(found, pair_by_pair(documents, queries, scoring), atol=1e-5)


def test_packed_relevance_by_hand():
    axes = torch.eye(2)
    vectors = torch.cat([axes[[0]], -axes[[0, 1]]])  # one document of e1, one of −e1 and −e2
    documents = PackedTokens(vectors, torch.tensor([1, 2]), torch.tensor([7, 7, 8]))
    mask = torch.tensor([[True, True], [True, False]])
    ids = torch.tensor([[7, 8], [7, 0]])
    queries = TokenVectors(torch.stack([axes, torch.stack([axes[0], axes[0] * 0])]), mask, ids)
    scores = packed_relevance(documents, queries, Scoring(MaxSim()))
    assert scores.tolist() == [[1, 1], [0, 0]]
    # The second document's −e1 and −e2 have the ids of e1 and e2.
    scores = packed_relevance(documents, queries, Scoring(LexicalMaxSim()))
    assert scores.tolist() == [[1, 1], [-2, -1]]
    below = documents._replace(vectors=-axes[[0, 0, 0]])
    assert packed_relevance(below, queries, Scoring(MaxSim())).tolist() == [[-1, -1], [-1, -1]]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_segment_maxima_and_their_first_columns(device, monkeypatch):
    counts = torch.tensor([2, 2, 3, 1, 2])
    values = torch.randint(-3, 3, (50, 10), generator=torch.Generator().manual_seed(0)).float()
    if device != "cpu":  # the form of other devices, on this one
        monkeypatch.setattr(scorers, "_HOST", device)
    best, chosen = segment_max(values, counts, True)
    assert torch.equal(best, segment_max(values, counts, False)[0])
    for number, segment in enumerate(values.split(counts.tolist(), 1)):
        assert torch.equal(best[:, number], segment.amax(1))
        begin = int(counts[:number].sum())
        assert torch.equal(chosen[:, number], begin + segment.argmax(1))
