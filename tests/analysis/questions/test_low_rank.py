import math

import pytest
import torch

from analysis.questions.low_rank import (
    LowRank,
    lemma_terms,
    low_rank,
)
from gr_mvdr.alignment import Softmax


def masks_of(matrix):
    batch, rows, columns = matrix.shape
    return torch.ones(batch, rows, dtype=torch.bool), torch.ones(batch, columns, dtype=torch.bool)


def random_attention(scale, batch=20, rows=11, columns=7, seed=0):
    """Attention of random vectors, and masks with padding."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(batch, rows, columns, generator=generator).double()
    logits += torch.randn(batch, 1, columns, generator=generator)
    document_mask = torch.arange(rows) < torch.randint(2, rows + 1, (batch, 1), generator=generator)
    query_mask = torch.arange(columns) < torch.randint(
        2, columns + 1, (batch, 1), generator=generator
    )
    attention = Softmax("document_to_query")(logits, document_mask, query_mask)
    return attention, document_mask, query_mask


def test_a_batch_is_measured_by_the_decomposition_of_each_matrix():
    """Of its real entries alone, whatever stands at padding."""
    attention, *masks = random_attention(1.0)
    real = masks[0][:, :, None] & masks[1][:, None]
    found = low_rank(attention.masked_fill(~real, 7.0), *masks)
    for number, matrix in enumerate(attention):
        matrix = matrix[masks[0][number]][:, masks[1][number]]
        values = torch.linalg.svdvals(matrix)
        expected = {
            "frobenius": matrix.norm(),
            "equal_rows": (matrix - matrix.mean(0)).norm(),
            "best_rank_one": values[1:].norm(),
            "effective_rank": torch.special.entr(values / values.sum()).sum().exp(),
        }
        for name, value in expected.items():
            assert found[name][number].item() == pytest.approx(value.item(), abs=1e-6), name


@pytest.mark.parametrize("scale", [0.0, 1e-3, 0.1, 1.0, 5.0, 20.0])
def test_the_lemma_holds_at_every_scale(scale):
    attention, *masks = random_attention(scale)
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
