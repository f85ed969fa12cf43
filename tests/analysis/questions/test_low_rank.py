import math

import pytest
import torch

from analysis.questions.low_rank import (
    LowRank,
    lemma_terms,
    low_rank,
)
from gr_mvdr.alignment import Softmax
from tests.analysis.questions.test_exact_match import padded


def masks_of(matrix):
    batch, rows, columns = matrix.shape
    return torch.ones(batch, rows, dtype=torch.bool), torch.ones(batch, columns, dtype=torch.bool)


def test_equals_the_reference_in_a_padded_batch(golden):
    logits, _, _, *masks = padded(golden["pairs"])
    alignment = Softmax("document_to_query")(logits.double(), *masks)
    nonsense = alignment.masked_fill(~(masks[0][:, :, None] & masks[1][:, None]), 7.0)
    found = low_rank(nonsense, *masks)
    for key, values in found.items():
        expected = [p["low_rank_of_document_to_query_softmax"][key] for p in golden["pairs"]]
        assert values.tolist() == pytest.approx(expected, abs=1e-6), key


def random_attention(scale, batch=20, rows=11, columns=7, seed=0):
    """Attention of random vectors, its centred logits, and masks with padding."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(batch, rows, columns, generator=generator).double()
    logits += torch.randn(batch, 1, columns, generator=generator)
    document_mask = torch.arange(rows) < torch.randint(2, rows + 1, (batch, 1), generator=generator)
    query_mask = torch.arange(columns) < torch.randint(
        2, columns + 1, (batch, 1), generator=generator
    )
    return (
        logits,
        Softmax("document_to_query")(logits, document_mask, query_mask),
        document_mask,
        query_mask,
    )


@pytest.mark.parametrize("scale", [0.0, 1e-3, 0.1, 1.0, 5.0, 20.0])
def test_the_lemma_holds_at_every_scale(scale):
    _, attention, *masks = random_attention(scale)
    terms = lemma_terms(attention.float(), *masks)
    assert (terms["residual_lemma"] <= terms["bound_entries"] * (1 + 1e-5) + 1e-6).all()
    assert terms["bound_entries"].isfinite().all()


def test_the_bound_by_hand():
    # logits ±a, centred already: R = ½, spreads 2a, ‖E‖₁ = 2a
    a = 0.7
    attention = torch.tensor([[[a, -a], [-a, a]]]).double().softmax(-1)
    terms = lemma_terms(attention, *masks_of(attention))
    growth = math.exp(2 * a) - 1
    assert float(terms["bound_entries"]) == pytest.approx(math.sqrt(growth * 0.5 * 2 * growth))
    assert float(terms["logits_norm"]) == pytest.approx(2 * a)
    assert float(terms["gamma_squared"]) == pytest.approx(growth / (8 * a))
    assert float(terms["residual_lemma"]) == pytest.approx(math.tanh(a))


def test_salience_is_measured_with_and_without(make_explanation, store_of, measure):
    explanation = make_explanation(6, paradigm="multi_vector", salience=True)
    pairs = explanation.layers[0]
    weights = torch.rand(6, 1, 1, pairs.query_mask.shape[1])
    pairs.alignment = pairs.alignment * weights
    found = measure(LowRank, store_of(explanation, "multi_vector"))
    assert [row["alignment"] for row in found.tables["low_rank"]] == ["own", "without_salience"]
    for prefix, matrices in (("", pairs.alignment), ("without_salience/", explanation.pairwise)):
        parts = low_rank(matrices[:, 0], pairs.document_mask, pairs.query_mask)
        for name, key in (
            ("equal_rows", "relative_error"),
            ("best_rank_one", "relative_error_rank_one"),
        ):
            expected = float((parts[name] / parts["frobenius"]).mean())
            assert found.metrics[f"analysis/low_rank/{prefix}{key}"] == pytest.approx(
                expected, rel=1e-4
            )
    own, before = (row["effective_rank"] for row in found.tables["low_rank"])
    assert own != pytest.approx(before)
