import math
from functools import partial

import pytest
import torch

from analysis.kernel import (
    Kernel,
    document_vectors,
    feature_maps,
    kernel_rankings,
    kernel_relevance,
    log_elu_features,
    log_random_features,
    log_trace_bound,
    orthogonal_projections,
    query_mass,
    query_vectors,
    softmax_relevance,
    squared_key_norm,
)
from analysis.statistics import spearman
from gr_mvdr.alignment import Softmax
from gr_mvdr.batch import pad
from gr_mvdr.evaluation.ranking import Ranking, evaluate
from gr_mvdr.relevance import Factors, relevance, similarity
from gr_mvdr.tokenizers import EOS_ID
from models.bm25 import BM25
from models.multi_vector import MultiVector
from models.t5_seal import T5SEAL
from tests.analysis.asking import asked


def factors(documents=(5, 2, 7), queries=(4, 1, 3), heads=2, scale=0.5, seed=0, keys=6, values=3):
    """Random vectors, zero at padding, in fp64."""
    generator = torch.Generator().manual_seed(seed)

    def side(lengths, size):
        shape = len(lengths), heads, max(lengths), size
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def mask(lengths):
        return torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)

    return Factors(
        side(documents, values),
        side(queries, values),
        scale * side(documents, keys),
        scale * side(queries, keys),
        mask(documents),
        mask(queries),
    )


def random_map(count, size=6, seed=0):
    return partial(log_random_features, projections=orthogonal_projections(count, size, seed))


def changed(found, **parts):
    return Factors(**{**vars(found), **parts})


def test_log_elu_features_are_elu_plus_one():
    x = torch.tensor([-3.0, -0.5, 0, 0.5, 40])
    assert torch.allclose(log_elu_features(x).exp(), torch.nn.functional.elu(x) + 1)
    # where φ itself would be zero in fp32
    assert log_elu_features(torch.tensor([-200.0])).item() == -200


def test_random_features_worked_out_by_hand():
    """φ = exp(ωᵀx − ‖x‖²/2)/√m: x = (1, 2), ω = (1, 1), (0, 2)."""
    projections = torch.tensor([[1.0, 1], [0, 2]])
    found = log_random_features(torch.tensor([1.0, 2]), projections)
    assert torch.allclose(found.exp(), torch.tensor([0.5, 1.5]).exp() / math.sqrt(2))


def test_random_features_are_unbiased_with_the_known_variance():
    """E φ(x)ᵀφ(y) = exp(xᵀy); relative variance (exp ‖x + y‖² − 1)/m without orthogonality."""
    x, y = torch.tensor([[0.3, -0.2, 0.4]]).double(), torch.tensor([[0.1, 0.5, 0.2]]).double()
    generator = torch.Generator().manual_seed(0)
    omegas = torch.randn(5_000, 8, 3, generator=generator, dtype=torch.float64)
    kernels = torch.stack(
        [(log_random_features(x, w) + log_random_features(y, w)).exp().sum() for w in omegas]
    )
    exact = (x @ y.T).exp()
    assert float(kernels.mean() / exact) == pytest.approx(1, abs=0.02)
    variance = float(kernels.var() / exact**2)
    assert variance == pytest.approx(math.expm1(float((x + y).square().sum())) / 8, rel=0.2)


def test_projections_are_gaussian_and_orthogonal_in_blocks():
    found = orthogonal_projections(7, 4, seed=1)
    assert found.shape == (7, 4)
    for block in (found[:4], found[4:]):
        products = block @ block.T
        assert torch.allclose(products, torch.diag(products.diagonal()), atol=1e-10)
    assert torch.equal(found, orthogonal_projections(7, 4, seed=1))
    assert not torch.equal(found, orthogonal_projections(7, 4, seed=2))
    many = torch.cat([orthogonal_projections(4, 4, seed) for seed in range(500)])
    assert torch.allclose(many.mean(0), torch.zeros(4).double(), atol=0.1)
    assert torch.allclose(many.T @ many / len(many), torch.eye(4).double(), atol=0.15)


def test_the_kernel_form_is_the_double_sum_of_the_lemma():
    """Σ_ij d_iᵀq_j φ(d_i)ᵀφ(q_j) / p_i, term by term (Eq. 25)."""
    found = factors(heads=2)
    for log_features in feature_maps(6, [10]).values():
        expected = torch.zeros(3, dtype=torch.float64)
        for b in range(3):
            rows, columns = found.document_mask[b], found.query_mask[b]
            for h in range(2):
                d = log_features(found.document_keys[b, h][rows]).exp()
                q = log_features(found.query_keys[b, h][columns]).exp()
                kernel = d @ q.T
                values = found.document_values[b, h][rows] @ found.query_values[b, h][columns].T
                expected[b] += (values * kernel / kernel.sum(1, keepdim=True)).sum()
        assert torch.allclose(kernel_relevance(found, log_features), expected)


@pytest.mark.parametrize("scale", [0.5, 100.0])
def test_the_trace_inequality_holds_term_by_term(scale):
    """Σ_ij 1/p_i ‖F(d_i)‖ ‖F(q_j)‖ with F(x) = value φ(key)ᵀ written down, without padding."""
    found = factors(scale=scale)
    for log_features in feature_maps(6, [10]).values():
        bound = log_trace_bound(found, log_features)
        assert (bound >= kernel_relevance(found, log_features).abs().log() - 1e-9).all()
        for b in range(3 if scale < 1 else 0):
            expected = torch.zeros((), dtype=torch.float64)
            for h in range(2):
                (d, phi), (q, psi) = (
                    (values[b, h][mask[b]], log_features(keys[b, h][mask[b]]).exp())
                    for values, keys, mask in (
                        (found.document_values, found.document_keys, found.document_mask),
                        (found.query_values, found.query_keys, found.query_mask),
                    )
                )
                norms = [
                    torch.linalg.matrix_norm(x.unsqueeze(2) * f.unsqueeze(1))
                    for x, f in ((d, phi), (q, psi))
                ]
                expected += (norms[0] / (phi @ psi.T).sum(1)).sum() * norms[1].sum()
            assert torch.isclose(bound[b].exp(), expected)


def test_softmax_relevance_worked_out_by_hand():
    """Keys 0 and log 3 against 1 weigh the values 2 and 6 as 1 : 3."""
    one, mask = torch.ones(1, 1, 1, 1), torch.ones(1, 2, dtype=torch.bool)
    values = torch.tensor([2.0, 6]).view(1, 1, 2, 1)
    keys = torch.tensor([0, math.log(3)]).view(1, 1, 2, 1)
    found = softmax_relevance(Factors(one, values, one, keys, mask[:, :1], mask))
    assert found.item() == pytest.approx(5)


def test_the_estimate_converges_as_features_grow():
    """The error falls like 1/√m: sixteen times the features, a quarter of the error."""
    found = factors(scale=0.2)
    truth = softmax_relevance(found)

    def error(count):
        errors = [kernel_relevance(found, random_map(count, seed=s)) - truth for s in range(40)]
        return float(torch.stack(errors).square().mean().sqrt())

    assert error(60) / error(960) == pytest.approx(4, rel=0.3)
    assert error(960) < 0.08


def test_any_kernel_is_exact_where_the_softmax_does_not_matter():
    """One query token has all the weight; equal query tokens have the same."""
    alone = factors(queries=(1, 1, 1))
    keys = factors().query_keys[:, :, :1].expand(3, 2, 4, 6)
    for found in (alone, changed(factors(), query_keys=keys)):
        truth = softmax_relevance(found)
        for log_features in feature_maps(6, [3]).values():
            assert torch.allclose(kernel_relevance(found, log_features), truth)


@pytest.mark.parametrize("name", ["elu", "8"])
def test_padding_and_batch_mates_change_nothing(name):
    log_features = feature_maps(6, [8])[name]
    found = factors()
    together = kernel_relevance(found, log_features)
    noisy = [
        torch.where(mask[:, None, :, None], part, 9.0)
        for part, mask in (
            (found.document_values, found.document_mask),
            (found.query_values, found.query_mask),
            (found.document_keys, found.document_mask),
            (found.query_keys, found.query_mask),
        )
    ]
    masks = found.document_mask, found.query_mask
    assert torch.allclose(kernel_relevance(Factors(*noisy, *masks), log_features), together)
    assert torch.allclose(softmax_relevance(Factors(*noisy, *masks)), softmax_relevance(found))
    assert torch.allclose(squared_key_norm(Factors(*noisy, *masks)), squared_key_norm(found))
    for b in range(3):
        m, n = (int(mask[b].sum()) for mask in masks)
        alone = Factors(
            found.document_values[b : b + 1, :, :m],
            found.query_values[b : b + 1, :, :n],
            found.document_keys[b : b + 1, :, :m],
            found.query_keys[b : b + 1, :, :n],
            *(mask[b : b + 1, :length] for mask, length in zip(masks, (m, n), strict=True)),
        )
        assert torch.allclose(kernel_relevance(alone, log_features)[0], together[b])


@pytest.mark.parametrize("scale", [0.01, 3.0, 100.0, 1e4])
def test_long_keys_give_finite_numbers_within_the_values_range(scale):
    """The weights of a row sum to 1 however far the features are from what a float holds."""
    found = factors(scale=scale)
    ones = torch.ones_like(found.query_values)
    found = changed(found, query_values=ones, document_values=ones[:, :, :1].expand(-1, -1, 7, -1))
    found = Factors(*(p.float() if p.is_floating_point() else p for p in vars(found).values()))
    expected = 2 * 3 * found.document_mask.sum(1)
    for log_features in feature_maps(6, [16]).values():
        assert torch.allclose(kernel_relevance(found, log_features), expected.float(), rtol=1e-4)


def test_a_constant_that_cancels_in_every_row_changes_nothing():
    found, log_features = factors(), random_map(16)
    plain = kernel_relevance(found, log_features)
    generator = torch.Generator().manual_seed(1)
    shifts = 300 * torch.randn(16, generator=generator, dtype=torch.float64)
    sides = iter((shifts, -shifts + 500))  # the query's features come first
    moved = kernel_relevance(found, lambda keys: log_features(keys) + next(sides))
    assert torch.allclose(moved, plain)


def test_squared_key_norm_worked_out_by_hand():
    """Keys 1 and 2 against 3: ‖4‖² and ‖5‖²."""
    documents, queries = torch.tensor([1.0, 2]).view(1, 1, 2, 1), torch.tensor(3.0).view(1, 1, 1, 1)
    mask = torch.ones(1, 2, dtype=torch.bool)
    found = squared_key_norm(Factors(documents, queries, documents, queries, mask, mask[:, :1]))
    assert found.item() == pytest.approx((16 + 25) / 2)


@pytest.mark.parametrize("name", ["elu", "8"])
def test_the_normaliser_is_the_mean_over_the_sampled_queries(name):
    """Φ(d) = Σ_i F(d_i) / p̂_i, p̂_i = φ(d_i)ᵀ Σ_q Σ_j φ(q_j), but for a factor of each query."""
    found, log_features = factors(heads=1), feature_maps(6, [8])[name]
    document, query = (
        [getattr(found, f"{side}_{part}") for part in ("values", "keys", "mask")]
        for side in ("document", "query")
    )
    (values, keys, real), (asked, query_keys, query_real) = (
        (values[:, 0], log_features(keys[:, 0]), mask) for values, keys, mask in (document, query)
    )
    shift, mass = query_mass(query_keys.flatten(0, 1), query_real.flatten())
    stored = document_vectors(values, keys, real, shift, mass).flatten(1)
    products = stored @ query_vectors(asked, query_keys, query_real, shift).flatten(1).T
    features = query_keys.exp() * query_real.unsqueeze(-1)
    weights = keys.exp() * real.unsqueeze(-1)
    weights = weights / (keys.exp() @ features.sum((0, 1))).unsqueeze(-1)
    expected = torch.einsum("bmk,bmr,cnk,cnr->bc", values, weights, asked, features)
    ratios = products / expected
    assert torch.allclose(ratios, ratios[:1].expand(3, 3)) and (ratios > 0).all()


SHAPE = dict(vocab_size=60, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2)
BACKBONE = dict(name=None, dropout_rate=0.0, attention="eager", shape=SHAPE)
OPTIMIZER = {"learning_rate": 1e-3, "weight_decay": 0.01, "schedule": "constant"}
EVIDENCE = dict(alpha=2.0, beta=0.8, smoothing=0.1, max_occurrences_1=1500)
SIZES = dict(query_length=8, document_length=10, optimizer=OPTIMIZER)
LEARNED = {"_target_": "gr_mvdr.salience.LearnedSalience", "gate": "relu"}


def multi_vector(**options):
    torch.manual_seed(0)
    return MultiVector(
        BACKBONE,
        **{
            **dict(dimension=8, alignment={"_target_": "gr_mvdr.alignment.MaxSim"}),
            **dict(loss={"_target_": "gr_mvdr.losses.InBatchCrossEntropy"}),
            **dict(search=dict(mode="exact"), **SIZES),
            **options,
        },
    )


def seal():
    torch.manual_seed(0)
    return T5SEAL(BACKBONE, key_length=4, beam_size=3, evidence=EVIDENCE, **SIZES)


def numbers(metrics, place):
    """The metrics of a feature map."""
    start = f"analysis/kernel/{place}/"
    return {key.removeprefix(start): v for key, v in metrics.items() if key.startswith(start)}


@pytest.mark.parametrize("make", [multi_vector, seal])
@torch.inference_mode()
def test_error_and_correlation_over_all_pairs(make, tiny_data):
    system = make()
    metrics = asked(Kernel, system, tiny_data, pairs=9, features=(4, 2048)).metrics
    _, (batch,) = tiny_data.test_pairs("test", 9, batch_size=9)
    factors = system.factors(batch)
    truth, maps = softmax_relevance(factors), feature_maps(8, (4, 2048))
    for name, log_features in maps.items():
        row = numbers(metrics, f"features_{name}" if name.isdigit() else name)
        estimate = kernel_relevance(factors, log_features)
        bound = log_trace_bound(factors, log_features).exp()
        error = ((estimate - truth).norm() / truth.norm()).item()
        assert row["error"] == pytest.approx(error, rel=1e-3)
        assert row["rank_correlation"] == pytest.approx(spearman(estimate, truth), abs=0.05)
        assert row["bound_share"] == pytest.approx(
            (estimate.norm() / bound.norm()).item(), rel=1e-3
        )
        assert row["bound_correlation"] == pytest.approx(spearman(bound, truth), abs=0.05)
    norm = squared_key_norm(factors).mean().item()
    assert metrics["analysis/kernel/squared_key_norm"] == pytest.approx(norm)
    errors = [numbers(metrics, f"features_{n}")["error"] for n in (4, 2048)]
    assert make is seal or errors[1] < 0.5 * errors[0]


def test_the_truth_is_the_generative_systems_own_relevance(tiny_data):
    """Lemma 5.2 starts from Eq. 16, which is what `align` answers."""
    _, (batch,) = tiny_data.test_pairs("test", 9, batch_size=9)
    system = seal().eval()
    with torch.inference_mode():
        found = softmax_relevance(system.factors(batch))
        assert torch.allclose(found, system.align(batch).relevance, rtol=1e-3, atol=1e-4)


@torch.inference_mode()
def exact(system, data, queries):
    """Σ S ⊙ softmax over the corpus, pair by pair."""
    system.eval()
    texts = {row["id"]: pad([[*row["tokens"][:9], EOS_ID]]) for row in data.documents}
    texts = {name: system.encode_documents(*sides) for name, sides in texts.items()}
    results = {}
    for query in queries:
        asked, scores = system.encode_queries(*pad([[*query["tokens"][:7], EOS_ID]])), {}
        for name, text in texts.items():
            matrix = similarity(text.vectors, asked.vectors)
            keys = matrix if text.keys is None else similarity(text.keys, asked.keys)
            weights = Softmax("document_to_query")(keys, text.mask, asked.mask)
            scores[name] = relevance(matrix, weights).item()
        results[query["id"]] = scores
    return Ranking(results)


@pytest.mark.parametrize(
    "options", [{}, {"projections": "attention"}, {"salience": {"document": LEARNED}}]
)
def test_the_exact_search_is_that_of_the_softmax(options, tiny_data, monkeypatch):
    monkeypatch.setattr("analysis.kernel._DOCUMENTS", 7)  # of thirty documents
    system = multi_vector(**options)
    with torch.no_grad():
        for weight in system.encoder.salience.parameters():
            weight.uniform_(0.5, 2)  # a fresh one is the same for all tokens
    queries = tiny_data.test_queries("test").select([0, 2, 4, 7, 9])
    expected = exact(system, tiny_data, queries)
    found = kernel_rankings(system, tiny_data.documents, queries, queries, [4])["exact"]
    for query in queries["id"]:
        scores = expected.top(10).scores(query)
        assert found.scores(query) == pytest.approx(scores, rel=1e-4, abs=1e-5)
    metrics = asked(Kernel, system, tiny_data, 4, (4,), 5).metrics
    quality = evaluate(expected, tiny_data.judgements("test", queries))
    assert numbers(metrics, "exact") == {"mrr@10": pytest.approx(quality["mrr@10"])}


def test_with_enough_features_and_the_query_as_sample_the_search_is_exact(tiny_data):
    query = tiny_data.test_queries("test").select([0])
    found = kernel_rankings(multi_vector().eval(), tiny_data.documents, query, query, [8192])
    expected, estimate = (found[name].scores("q10") for name in ("exact", "8192"))
    common = expected.keys() & estimate.keys()
    assert len(expected) == 10 and len(common) >= 9
    close = pytest.approx([expected[d] for d in common], abs=0.05 * max(expected.values()))
    assert [estimate[d] for d in common] == close


def test_only_a_multi_vector_system_searches_and_no_large_corpus(tiny_data):
    searched = asked(Kernel, multi_vector(), tiny_data, 6, (4, 16), 5, most_documents=30)
    assert len(searched.figures[0][0].axes) == 3
    maps = ("features_4", "features_16", "elu", "uniform")
    keys = ("error", "rank_correlation", "bound_share", "bound_correlation", "mrr@10")
    parts = {f"{name}/{key}" for name in maps for key in keys} | {
        "exact/mrr@10",
        "squared_key_norm",
    }
    assert set(searched.metrics) == {f"analysis/kernel/{part}" for part in parts}
    large = asked(Kernel, multi_vector(), tiny_data, 6, (4, 16), 5, most_documents=29)
    estimates = {k: v for k, v in searched.metrics.items() if not k.endswith("mrr@10")}
    assert large.metrics == pytest.approx(estimates) and len(large.figures[0][0].axes) == 2
    metrics = asked(Kernel, seal(), tiny_data, 6, (4,), retrieval_queries=5).metrics
    assert not any("mrr" in key for key in metrics)


def test_systems_without_factors_or_known_documents_have_nothing_to_measure(tiny_data):
    system = seal()
    system.covers = lambda row: False
    for model, pairs in ((BM25(), 4), (multi_vector(), 0), (system, 4)):
        found = asked(Kernel, model, tiny_data, pairs)
        assert (found.metrics, found.tables, found.figures) == ({}, {}, [])
