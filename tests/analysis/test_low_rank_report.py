from statistics import mean, median

import pytest
import torch

from analysis.exact_match import ExactMatch
from analysis.low_rank import LowRank, low_rank
from analysis.low_rank_bound import lemma_terms
from analysis.shape import Shape
from analysis.statistics import HeadSample, select


def heads_of(store, layer, head):
    """Each pair's matrix of one head, unpadded, with its masks."""
    for number in range(len(store)):
        pairs = store.explain(number).layers[layer]
        yield pairs.alignment[:, head], pairs.document_mask, pairs.query_mask


@pytest.mark.parametrize("size", [1, 4, 64])
def test_rows_are_means_over_the_pairs_of_each_head(make_explanation, store_of, measure, size):
    explanation = make_explanation(9, layers=2, heads=3)
    second = explanation.layers[1]
    second.alignment = second.alignment.flip(1) ** 2
    second.alignment /= second.alignment.sum(-1, keepdim=True).clamp_min(1e-30)
    store = store_of(explanation, "generative")
    found = measure(LowRank, store, size)
    rows = found.tables["low_rank"]
    assert [(row["layer"], row["head"]) for row in rows] == [
        (a, b) for a in (1, 2) for b in (1, 2, 3)
    ]
    errors = []
    for row in rows:
        parts = [low_rank(*pair) for pair in heads_of(store, row["layer"] - 1, row["head"] - 1)]
        ratios = [float(part["equal_rows"] / part["frobenius"]) for part in parts]
        assert row["relative_error"] == pytest.approx(mean(ratios), rel=1e-4)
        ranks = [float(part["effective_rank"]) for part in parts]
        assert row["effective_rank"] == pytest.approx(mean(ranks), rel=1e-4)
        errors.append(mean(ratios))
    assert found.metrics["analysis/low_rank/relative_error"] == pytest.approx(
        mean(errors[3:]), rel=1e-4
    )
    assert errors[0] != pytest.approx(errors[3], rel=0.01)


def test_the_lemma_is_measured_with_the_models_own_norms(make_explanation, store_of, measure):
    explanation = make_explanation(9, layers=2, heads=2)
    store = store_of(explanation, "generative")
    rows = measure(LowRank, store, size=2).tables["low_rank"]
    decoder = explanation.decoder
    for row in rows:
        layer, head = row["layer"] - 1, row["head"] - 1
        terms = [lemma_terms(*pair) for pair in heads_of(store, layer, head)]
        gammas = [
            float(term.gamma_squared)
            * float(decoder.document_norms[n, layer] * decoder.query_norms[n])
            for n, term in enumerate(terms)
        ]
        norm = float(decoder.projection_norms[layer, head])
        assert row["projection_norm"] == pytest.approx(norm)
        assert row["gamma"] == pytest.approx(median(gammas), rel=1e-4)
        assert row["bound"] == pytest.approx(4 * median(gammas) * norm, rel=1e-4)
        assert row["residual_lemma"] == pytest.approx(
            median(float(term.residual) for term in terms), rel=1e-4
        )
        assert row["residual_lemma"] <= row["bound_entries"]
        vacuous = [float(term.bound >= term.trivial) for term in terms]
        assert row["vacuous_entries"] == pytest.approx(mean(vacuous))


def test_equal_rows_have_no_error(make_explanation, store_of, measure):
    explanation = make_explanation(5, layers=1, heads=2)
    pairs = explanation.layers[0]
    pairs.alignment = (
        pairs.alignment[:, :, :1] * pairs.document_mask[:, None, :, None]
    ).contiguous()
    found = measure(LowRank, store_of(explanation, "generative"))
    assert found.metrics["analysis/low_rank/relative_error"] < 1e-6
    assert found.metrics["analysis/low_rank/effective_rank"] == pytest.approx(1)
    assert all(row["bound_entries"] < 1e-4 for row in found.tables["low_rank"])


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


def test_a_system_without_salience_has_one_row_and_no_bound(make_explanation, store_of, measure):
    explanation = make_explanation(4, paradigm="multi_vector")
    explanation.layers[0].alignment[0] = 0  # a pair aligned to nothing has no relative error
    found = measure(LowRank, store_of(explanation, "multi_vector"))
    (row,) = found.tables["low_rank"]
    assert "bound" not in row and row["pairs"] == 4 and 0 < row["relative_error"] <= 1
    assert [entry.name for _, entry in found.figures] == ["low_rank"]


def test_matrices_of_zeros_are_left_out_of_every_mean(make_explanation, store_of, measure):
    whole, fewer = (make_explanation(5, paradigm="multi_vector", seed=2) for _ in range(2))
    whole.layers[0].alignment[1:3] = 0
    kept = torch.tensor([0, 3, 4])
    fewer.layers[0] = select(fewer.layers[0], kept)
    one, other = (
        measure(LowRank, store_of(found, "multi_vector", name=name))
        for name, found in (("whole", whole), ("fewer", fewer))
    )
    assert one.metrics == pytest.approx(other.metrics) and len(one.metrics) == 3
    shares = [[row["share"] for row in found.tables["spectrum"]] for found in (one, other)]
    assert shares[0][: len(shares[1])] == pytest.approx(shares[1])
    whole.layers[0].alignment[:] = 0
    nothing = measure(LowRank, store_of(whole, "multi_vector", name="nothing"))
    assert nothing.metrics == {} and len(nothing.figures) == 1


def test_the_mean_spectrum_stands_in_a_table(make_explanation, store_of, measure):
    store = store_of(make_explanation(6, layers=2, heads=3), "generative")
    rows = measure(LowRank, store, size=1).tables["spectrum"]
    for layer in (1, 2):
        found = [row for row in rows if row["layer"] == layer]
        assert [row["number"] for row in found] == list(range(1, len(found) + 1))
        assert {row["alignment"] for row in found} == {"own"}
        matrices = [pair for head in range(3) for pair in heads_of(store, layer - 1, head)]
        values = [torch.linalg.svdvals(matrix[0].double()) for matrix, _, _ in matrices]
        for row in found:
            number = row["number"] - 1
            shares = [float(v[number] / v.sum()) if number < len(v) else 0 for v in values]
            assert row["share"] == pytest.approx(mean(shares), abs=1e-6)


def test_bounds_beyond_single_precision_stay_finite(make_explanation, store_of, measure):
    explanation = make_explanation(6, layers=1, heads=1)
    pairs = explanation.layers[0]
    first = torch.arange(pairs.query_mask.shape[1]) == 0
    odd = (torch.arange(pairs.document_mask.shape[1]) % 2 == 1)[:, None]
    second = torch.arange(pairs.query_mask.shape[1]) == 1
    pairs.alignment = torch.where(odd, first, second).float().expand(pairs.alignment.shape)
    pairs.alignment = pairs.alignment * pairs.document_mask[:, None, :, None]
    decoder = explanation.decoder
    for norms in (decoder.projection_norms, decoder.document_norms, decoder.query_norms):
        norms[:] = 10
    (row,) = measure(LowRank, store_of(explanation, "generative")).tables["low_rank"]
    for name in ("bound_entries", "bound", "gamma", "gamma_squared"):
        assert torch.finfo(torch.float32).max < row[name] < float("inf"), name


def test_figure_4_has_a_mark_for_each_head_and_a_box_for_each_layer(
    make_explanation, store_of, measure
):
    # one pair at a time: spectra of different lengths
    found = measure(LowRank, store_of(make_explanation(5, layers=2, heads=3), "generative"), 1)
    (norms, norm_entry), (ranks, _) = found.figures
    assert norm_entry.name == "low_rank_bound"
    assert norms.get_suptitle() == ranks.get_suptitle() == "system on almanac"
    assert [len(marks.get_offsets()) for marks in norms.axes[0].collections] == [6, 6, 6]
    assert norms.axes[0].get_yscale() == "log"
    boxes, lines = ranks.axes
    assert [label.get_text() for label in boxes.get_xticklabels()] == ["1", "2"]
    for line in lines.lines:  # shares of the sum, falling
        values = torch.tensor(line.get_ydata())
        assert float(values.sum()) == pytest.approx(1) and (values.diff() <= 1e-9).all()


def test_half_precision_keeps_the_bound_above_the_residual(make_explanation, store_of, measure):
    explanation = make_explanation(6, layers=1, heads=2)
    pairs = explanation.layers[0]
    real = (pairs.document_mask[:, :, None] & pairs.query_mask[:, None])[:, None]
    pairs.alignment = (12 * pairs.similarity).masked_fill(~real, -1e9).softmax(-1) * real
    store = store_of(explanation, "generative", "float16")
    for row in measure(LowRank, store).tables["low_rank"]:
        assert row["residual_lemma"] <= row["bound_entries"] < float("inf")
        pairs = heads_of(store, 0, row["head"] - 1)
        norms = [float(lemma_terms(*pair, 2.0**-24).logits_norm) for pair in pairs]
        assert row["logits_norm"] == pytest.approx(sorted(norms)[2], rel=1e-4)  # nanmedian's


def test_a_sample_is_even_and_independent_of_batches():
    sample = HeadSample(pairs=100, heads=8, matrices=160)
    numbers = [
        first + int(row)
        for first, size in ((0, 7), (7, 30), (37, 1), (38, 62))
        for row in sample.rows(first, size)
    ]
    assert numbers == list(range(0, 100, 5))
    assert HeadSample(100, 1, 160).rows(32, 4).tolist() == [0, 1, 2, 3]


def test_selected_pairs_keep_all_their_tensors(make_pairs):
    pairs = make_pairs(5)
    chosen = select(pairs, torch.tensor([3, 1]))
    assert all(
        torch.equal(value, getattr(pairs, name)[[3, 1]]) for name, value in vars(chosen).items()
    )


def test_only_the_sample_is_measured(make_explanation, store_of, measure, monkeypatch):
    store = store_of(make_explanation(6, layers=2, heads=3), "generative")
    monkeypatch.setattr(HeadSample.__init__, "__defaults__", (18,))  # 3 pairs of 6 heads
    # one pair at a time: batches without any of the sample too
    assert {row["pairs"] for row in measure(LowRank, store, 1).tables["low_rank"]} == {3}
    for measurement, name in ((ExactMatch, "exact_match_heads"), (Shape, "shape")):
        whole, single = (measure(measurement, store, size).tables[name] for size in (6, 1))
        for row, other in zip(whole, single, strict=True):
            assert row == pytest.approx(other, abs=1e-4, nan_ok=True)
