import json
import math
from pathlib import Path

import pytest
import torch

from analysis.low_rank import (
    composite_norm,
    effective_rank,
    equal_rows_residual,
    low_rank,
    normalised_values,
    singular_values,
)
from analysis.low_rank_bound import lemma_terms
from gr_mvdr.alignment import Softmax
from gr_mvdr.batch import pad

GOLDEN = Path(__file__).parents[2].parent / "shared/golden/alignment_measures.json"


def masks_of(matrix):
    batch, rows, columns = matrix.shape
    return torch.ones(batch, rows, dtype=torch.bool), torch.ones(batch, columns, dtype=torch.bool)


@pytest.mark.parametrize("extra", [0, 4])
def test_equals_the_reference_in_a_padded_batch(extra):
    if not GOLDEN.exists():
        pytest.skip(f"{GOLDEN} is not there")
    pairs = json.loads(GOLDEN.read_text())["pairs"]
    ids = [pad([pair[f"{side}_ids"] for pair in pairs]) for side in ("document", "query")]
    masks = [torch.nn.functional.pad(mask, (0, extra)) for _, mask in ids]
    logits = torch.full((len(pairs), masks[0].shape[1], masks[1].shape[1]), 99.0)
    for row, pair in zip(logits, pairs, strict=True):
        values = torch.tensor(pair["similarity"])
        row[: values.shape[0], : values.shape[1]] = values
    alignment = Softmax("document_to_query")(logits.double(), *masks)
    nonsense = alignment.masked_fill(~(masks[0][:, :, None] & masks[1][:, None]), 7.0)
    found = low_rank(nonsense, *masks)
    for key, values in found.items():
        expected = [pair["low_rank_of_document_to_query_softmax"][key] for pair in pairs]
        assert values.tolist() == pytest.approx(expected, abs=1e-6), key


def test_a_matrix_of_equal_rows_has_no_residual():
    alignment = torch.rand(3, 1, 6).softmax(-1).expand(3, 9, 6)
    found = low_rank(alignment, *masks_of(alignment))
    assert found["equal_rows"].max() < 1e-12 and found["best_rank_one"].max() < 1e-12
    torch.testing.assert_close(found["effective_rank"], torch.ones(3).double())
    residual = equal_rows_residual(alignment, *masks_of(alignment))
    torch.testing.assert_close(residual, torch.zeros(3, 9, 6).double())


def test_rank_one_without_equal_rows():
    alignment = (torch.tensor([[1.0], [2.0]]) @ torch.tensor([[3.0, 4.0]]))[None]
    found = low_rank(alignment, *masks_of(alignment))
    assert float(found["best_rank_one"]) < 1e-6
    # the rows differ from their mean, (4.5, 6), by (1.5, 2) each
    assert float(found["equal_rows"]) == pytest.approx((2 * (1.5**2 + 2**2)) ** 0.5)


def test_a_permutation_has_full_rank():
    alignment = torch.eye(7)[torch.randperm(7, generator=torch.Generator().manual_seed(0))][None]
    found = low_rank(alignment, *masks_of(alignment))
    assert float(found["effective_rank"]) == pytest.approx(7)
    assert float(found["frobenius"]) ** 2 == pytest.approx(7)
    assert float(found["best_rank_one"]) ** 2 == pytest.approx(6)
    assert float(found["equal_rows"]) ** 2 == pytest.approx(6)


@pytest.mark.parametrize("shape", [(4, 12, 5), (4, 5, 12)])
def test_singular_values_equal_those_of_a_decomposition(shape):
    matrix = torch.rand(shape, generator=torch.Generator().manual_seed(1)).double()
    expected = torch.linalg.svdvals(matrix)
    found = singular_values(matrix, *masks_of(matrix))
    torch.testing.assert_close(found, expected)
    shares = normalised_values(found)
    torch.testing.assert_close(shares, expected / expected.sum(-1, keepdim=True))


def test_an_empty_alignment_has_rank_zero():
    found = low_rank(torch.zeros(1, 3, 2), *masks_of(torch.zeros(1, 3, 2)))
    assert all(float(value) == 0 for value in found.values())
    assert effective_rank(torch.tensor([2.0, 2.0, 0.0])) == pytest.approx(2)


def test_the_norm_by_hand():
    matrix = torch.tensor([[1.0, -2.0], [3.0, 0.5]])
    assert float(composite_norm(matrix)) == pytest.approx((4 * 3.5) ** 0.5)


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
    assert (terms.residual <= terms.bound * (1 + 1e-5) + 1e-6).all()
    assert terms.bound.isfinite().all()
    assert (terms.residual <= terms.trivial).all()


def test_the_bound_by_hand():
    # logits ±a, centred already: R = ½, spreads 2a, ‖E‖₁ = 2a
    a = 0.7
    attention = torch.tensor([[[a, -a], [-a, a]]]).double().softmax(-1)
    terms = lemma_terms(attention, *masks_of(attention))
    growth = math.exp(2 * a) - 1
    assert float(terms.bound) == pytest.approx(math.sqrt(growth * 0.5 * 2 * growth))
    assert float(terms.logits_norm) == pytest.approx(2 * a)
    assert float(terms.gamma_squared) == pytest.approx(growth / (8 * a))
    assert float(terms.residual) == pytest.approx(math.tanh(a))
    assert float(terms.trivial) == 2
    assert float(terms.small_spread) == 0


def test_the_bound_is_tight_where_attention_hardly_differs():
    # of two query tokens, one deviating row: |A - R| is R times about the spread
    _, attention, *masks = random_attention(1e-3)
    terms = lemma_terms(attention, *masks)
    assert (terms.bound / terms.residual).median() < 10
    assert (terms.small_spread == 1).all()


def test_the_terms_are_those_of_the_centred_logits():
    logits, attention, *masks = random_attention(1.0)
    terms = lemma_terms(attention, *masks)
    for number, (rows, columns) in enumerate(zip(*masks, strict=True)):
        real = logits[number][rows][:, columns]
        real = real - real.mean(1, keepdim=True)
        means = real.mean(0)
        centred = real - means
        assert float(terms.logits_norm[number]) == pytest.approx(float(centred.abs().sum(0).max()))
        residual = attention[number][rows][:, columns] - means.softmax(0)
        assert float(terms.residual[number]) == pytest.approx(float(composite_norm(residual)))
        spread = centred.amax(1) - centred.amin(1)
        assert float(terms.small_spread[number]) == pytest.approx(
            float((spread <= 1.256).double().mean())
        )
    torch.testing.assert_close(4 * terms.gamma_squared * terms.logits_norm, terms.bound)


def test_each_entry_is_within_its_row_s_spread():
    logits, attention, *masks = random_attention(3.0, batch=1, seed=3)
    logits, attention = (x[0][masks[0][0]][:, masks[1][0]] for x in (logits, attention))
    centred = logits - logits.mean(1, keepdim=True)
    shared = centred.mean(0).softmax(0)
    spread = (centred - centred.mean(0)).amax(1) - (centred - centred.mean(0)).amin(1)
    assert ((attention - shared).abs() <= shared * spread.expm1()[:, None]).all()


def test_vanished_weights_overflow_nothing():
    attention = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]])
    terms = lemma_terms(attention, *masks_of(attention))
    assert terms.bound.isfinite().all() and terms.bound > terms.trivial
    assert float(terms.small_spread) == 0


def test_padding_changes_nothing():
    _, attention, *masks = random_attention(1.0, seed=4)
    for number in range(len(attention)):
        cut = attention[number][masks[0][number]][:, masks[1][number]][None]
        alone, whole = lemma_terms(cut, *masks_of(cut)), lemma_terms(attention, *masks)
        for name in ("residual", "logits_norm", "bound", "trivial", "small_spread"):
            assert float(getattr(whole, name)[number]) == pytest.approx(float(getattr(alone, name)))
        one = composite_norm(equal_rows_residual(cut, *masks_of(cut)))
        residual = equal_rows_residual(attention, *masks)[number]
        assert float(composite_norm(residual)) == pytest.approx(float(one))
        assert not residual[~masks[0][number]].any()
