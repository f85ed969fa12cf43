"""XTR's scoring from retrieved tokens against its formula in loops, and by hand."""

from dataclasses import replace

import pytest
import torch

from gr_mvdr.alignment import MaxSim
from gr_mvdr.relevance import Scoring, divide
from gr_mvdr.token_index.scorers import Retrieved, expected_relevance, imputed_terms
from gr_mvdr.token_vectors import TokenVectors

# Two query tokens that retrieve tokens: the first those of documents 4, 7, 4; the second two of
# document 7.
HAND = Retrieved(
    2,
    torch.tensor([0, 0, 0, 1, 1]),
    torch.tensor([4, 7, 4, 7, 7]),
    torch.tensor([0.9, 0.8, 0.5, 0.7, 0.6]),
)


# The documents' tokens: of document 7 the second query token retrieved both, the first one of two.
LENGTHS = torch.tensor([0, 0, 0, 0, 5, 0, 0, 2, 0])


def relevance(retrieved, imputation, salience=None, lengths=LENGTHS):
    terms, z = imputed_terms(retrieved, imputation, lengths, salience)
    scores = divide(terms.sum(1), z)
    return dict(zip(retrieved.documents.tolist(), scores.tolist(), strict=True))


@pytest.mark.parametrize(
    ("imputation", "expected"),
    [
        ("last", {4: (0.9 + 0.6) / 2, 7: (0.8 + 0.7) / 2}),
        ("zero", {4: 0.9 / 2, 7: 1.5 / 2}),
        ("mean", {4: (0.9 + 0.65) / 2, 7: 1.5 / 2}),
        (0.2, {4: (0.9 + 0.2) / 2, 7: 1.5 / 2}),
        (-1, {4: (0.9 - 1) / 2, 7: 1.5 / 2}),
        # m wins over the retrieved 0.8 and 0.9; not over 0.7, of a document retrieved whole.
        (0.95, {4: (0.95 + 0.95) / 2, 7: (0.95 + 0.7) / 2}),
        ("none", {4: 0.9, 7: 1.5 / 2}),
    ],
)
def test_figure_3_by_hand(imputation, expected):
    assert relevance(HAND, imputation) == pytest.approx(expected)


def test_saliences_weight_the_query_tokens():
    salience = torch.tensor([3.0, 1.0])
    relevances = relevance(HAND, "last", salience)
    assert relevances == pytest.approx({4: (2.7 + 0.6) / 4, 7: (2.4 + 0.7) / 4})
    assert relevance(HAND, "none", salience) == pytest.approx({4: 0.9, 7: (2.4 + 0.7) / 4})
    silent = relevance(HAND, "none", torch.tensor([0.0, 1.0]))
    assert silent == pytest.approx({4: 0.0, 7: 0.7}), "no weight is left: 0, not 0/0"


@pytest.mark.parametrize("normaliser", ["none", "alignment", "query_tokens"])
def test_expected_relevance_by_hand(normaliser):
    """A missed similarity is as far below the token's lowest as the mean is above it."""
    salience = torch.tensor([1.0, 2.0, 3.0, 0.5, 1.5])
    retrieved = replace(HAND, salience=salience)
    query = TokenVectors(
        torch.zeros(2, 1), torch.ones(2, dtype=torch.bool), torch.ones(2), torch.tensor([2.0, 1.0])
    )
    relevances = expected_relevance(retrieved, query, Scoring(MaxSim(), normaliser))
    # Document 4: 0.9 with u 1 · 2; the second token has 0.7 and 0.6, so 2 · 0.6 − 0.65 is missed,
    # with u (0.5 + 1.5)/2. Document 7: 0.8, 0.7.
    totals = torch.tensor([0.9 * 2 + 0.55 * 1, 0.8 * 4 + 0.7 * 0.5])
    z = {"none": 1, "alignment": torch.tensor([3.0, 4.5]), "query_tokens": 2}[normaliser]
    assert torch.allclose(relevances, totals / z)
