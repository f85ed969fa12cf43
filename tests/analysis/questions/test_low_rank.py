import math
from itertools import product
from statistics import mean, median

import pytest
import torch

from analysis.questions.analysis import Findings
from analysis.questions.low_rank import (
    LowRank,
    composite_norm,
    equal_rows_residual,
    lemma_terms,
    low_rank,
)
from gr_mvdr.alignment import Softmax
from gr_mvdr.relevance import PairAlignment
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


def test_the_terms_are_those_of_the_centred_logits():
    logits, attention, *masks = random_attention(1.0)
    terms = lemma_terms(attention, *masks)
    for number, (rows, columns) in enumerate(zip(*masks, strict=True)):
        real = logits[number][rows][:, columns]
        real = real - real.mean(1, keepdim=True)
        means = real.mean(0)
        centred = real - means
        assert float(terms["logits_norm"][number]) == pytest.approx(
            float(centred.abs().sum(0).max())
        )
        residual = attention[number][rows][:, columns] - means.softmax(0)
        assert float(terms["residual_lemma"][number]) == pytest.approx(
            float(composite_norm(residual))
        )
    torch.testing.assert_close(
        4 * terms["gamma_squared"] * terms["logits_norm"], terms["bound_entries"]
    )


def heads_of(store, layer, head):
    """Each pair's matrix of one head, unpadded, with its masks."""
    for number in range(len(store)):
        pairs = store.explain(number).layers[layer]
        yield pairs.alignment[:, head], pairs.document_mask, pairs.query_mask


def test_rows_are_means_over_the_pairs_of_each_head(make_explanation, store_of, measure):
    explanation = make_explanation(9, layers=2, heads=3)
    second, decoder = explanation.layers[1], explanation.decoder
    second.alignment = second.alignment.flip(1) ** 2
    second.alignment /= second.alignment.sum(-1, keepdim=True).clamp_min(1e-30)
    store = store_of(explanation, "generative")
    found, errors = measure(LowRank, store, 4), []
    rows = found.tables["low_rank"]
    assert [(row["layer"], row["head"]) for row in rows] == [*product((1, 2), (1, 2, 3))]
    for row in rows:
        layer, head = row["layer"] - 1, row["head"] - 1
        parts = [low_rank(*pair) for pair in heads_of(store, layer, head)]
        errors.append(mean(float(part["equal_rows"] / part["frobenius"]) for part in parts))
        terms = [lemma_terms(*pair) for pair in heads_of(store, layer, head)]
        norms = (decoder.document_norms[:, layer] * decoder.query_norms).tolist()
        gammas = [float(t["gamma_squared"]) * n for t, n in zip(terms, norms, strict=True)]
        norm = float(decoder.projection_norms[layer, head])  # the model's own
        expected = {
            "relative_error": errors[-1],
            "effective_rank": mean(float(part["effective_rank"]) for part in parts),
            "projection_norm": norm,
            "gamma": median(gammas),
            "bound": 4 * median(gammas) * norm,
            "residual_lemma": median(float(term["residual_lemma"]) for term in terms),
        }
        assert {name: row[name] for name in expected} == pytest.approx(expected, rel=1e-4)
        assert row["residual_lemma"] <= row["bound_entries"]
    metric = found.metrics["analysis/low_rank/relative_error"]
    assert metric == pytest.approx(mean(errors[3:]), rel=1e-4)
    query, ratios = store.pairs[0][0], []
    for head in range(3):
        norm = float(decoder.projection_norms[1, head])
        for (other, _), pair in zip(store.pairs, heads_of(store, 1, head), strict=True):
            if other == query:
                ratios.append(float(composite_norm(equal_rows_residual(*pair))) / norm)
    row = next(row for row in found.tables["low_rank_queries"] if row["query"] == query)
    assert row["norm_ratio"] == pytest.approx(mean(ratios), rel=1e-4)
    assert errors[0] != pytest.approx(errors[3], rel=0.01)


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


def test_matrices_of_zeros_are_left_out_of_every_mean(make_explanation, store_of, measure):
    whole, fewer = (make_explanation(5, paradigm="multi_vector", seed=2) for _ in range(2))
    whole.layers[0].alignment[1:3] = 0
    kept = torch.tensor([0, 3, 4])
    fewer.layers[0] = PairAlignment(**{n: v[kept] for n, v in vars(fewer.layers[0]).items()})
    one, other = (
        measure(LowRank, store_of(found, "multi_vector", name=name))
        for name, found in (("whole", whole), ("fewer", fewer))
    )
    assert one.metrics == pytest.approx(other.metrics) and len(one.metrics) == 3
    (row,) = one.tables["low_rank"]
    assert "bound" not in row and row["pairs"] == 3
    whole.layers[0].alignment[:] = 0
    nothing = measure(LowRank, store_of(whole, "multi_vector", name="nothing"))
    assert nothing == Findings()


def test_half_precision_keeps_the_bound_above_the_residual(make_explanation, store_of, measure):
    explanation = make_explanation(6, layers=1, heads=2)
    pairs = explanation.layers[0]
    real = (pairs.document_mask[:, :, None] & pairs.query_mask[:, None])[:, None]
    pairs.alignment = (12 * pairs.similarity).masked_fill(~real, -1e9).softmax(-1) * real
    store = store_of(explanation, "generative", "float16")
    for row in measure(LowRank, store).tables["low_rank"]:
        assert row["residual_lemma"] <= row["bound_entries"] < float("inf")
        pairs = heads_of(store, 0, row["head"] - 1)
        norms = [float(lemma_terms(*pair, 2.0**-24)["logits_norm"]) for pair in pairs]
        assert row["logits_norm"] == pytest.approx(median(norms), rel=1e-4)
