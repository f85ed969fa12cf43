from functools import partial
from itertools import product

import pytest
import torch

from analysis.questions.kernel import (
    Kernel,
    feature_maps,
    kernel_rankings,
    kernel_relevance,
    log_random_features,
    log_trace_bound,
    orthogonal_projections,
    softmax_relevance,
    squared_key_norm,
)
from gr_mvdr.alignment import Softmax
from gr_mvdr.batch import pad
from gr_mvdr.evaluation.ranking import Ranking, evaluate
from gr_mvdr.relevance import Factors, relevance, similarity
from gr_mvdr.tokenizers import EOS_ID
from tests.analysis.asking import asked
from tests.models.conftest import make_multi_vector, make_seal


def factors(documents=(5, 2, 7), queries=(4, 1, 3), heads=2, scale=0.5, seed=0, keys=6, values=3):
    """Random vectors, at padding too, in fp64."""
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


def test_the_kernel_form_and_its_trace_bound_are_double_sums():
    """Σ_ij d_iᵀq_j φ(d_i)ᵀφ(q_j) / p_i (Eq. 25) and Σ_ij ‖F(d_i)‖ ‖F(q_j)‖ / p_i, term by term.

    F(x) = value φ(key)ᵀ, whose norm is that of the value times that of φ.
    """
    found = factors()
    for log_features in feature_maps(6, [10]).values():
        expected, bound = torch.zeros(2, 3, dtype=torch.float64)
        for b, h in product(range(3), range(2)):
            rows, columns = found.document_mask[b], found.query_mask[b]
            d, q = found.document_values[b, h][rows], found.query_values[b, h][columns]
            phi = log_features(found.document_keys[b, h][rows]).exp()
            psi = log_features(found.query_keys[b, h][columns]).exp()
            kernel = phi @ psi.T
            p = kernel.sum(1)
            expected[b] += (d @ q.T * kernel / p.unsqueeze(1)).sum()
            norms = d.norm(dim=1) * phi.norm(dim=1) / p
            bound[b] += norms.sum() * (q.norm(dim=1) * psi.norm(dim=1)).sum()
        assert torch.allclose(kernel_relevance(found, log_features), expected)
        assert torch.allclose(log_trace_bound(found, log_features).exp(), bound)
        assert (bound >= expected.abs()).all()


def test_the_estimate_converges_as_features_grow():
    """The error falls like 1/√m: sixteen times the features, a quarter of the error."""
    found = factors(scale=0.2)
    truth = softmax_relevance(found)

    def error(count):
        errors = [kernel_relevance(found, random_map(count, seed=s)) - truth for s in range(40)]
        return float(torch.stack(errors).square().mean().sqrt())

    assert error(60) / error(960) == pytest.approx(4, rel=0.3)
    assert error(960) < 0.08


def test_long_keys_give_finite_numbers_within_the_values_range():
    """The weights of a row sum to 1 however far the features are from what a float holds."""
    found = factors(scale=1e4)
    ones = torch.ones_like(found.query_values)
    values = {"query_values": ones, "document_values": ones[:, :, :1].expand(-1, -1, 7, -1)}
    parts = (vars(found) | values).values()
    found = Factors(*(p.float() if p.is_floating_point() else p for p in parts))
    expected = 2 * 3 * found.document_mask.sum(1)
    for log_features in feature_maps(6, [16]).values():
        assert torch.allclose(kernel_relevance(found, log_features), expected.float(), rtol=1e-4)


def test_squared_key_norm_worked_out_by_hand():
    """Keys 1 and 2 against 3: ‖4‖² and ‖5‖²."""
    documents, queries = torch.tensor([1.0, 2]).view(1, 1, 2, 1), torch.tensor(3.0).view(1, 1, 1, 1)
    mask = torch.ones(1, 2, dtype=torch.bool)
    found = squared_key_norm(Factors(documents, queries, documents, queries, mask, mask[:, :1]))
    assert found.item() == pytest.approx((16 + 25) / 2)


def test_the_truth_is_the_generative_systems_own_relevance(tiny_data):
    """Lemma 5.2 starts from Eq. 16, which is what `align` answers."""
    _, (batch,) = tiny_data.evaluation.test_pairs("test", 9, batch_size=9)
    system = make_seal().eval()
    with torch.inference_mode():
        found = softmax_relevance(system.factors(batch))
        assert torch.allclose(found, system.align(batch).relevance, rtol=1e-3, atol=1e-4)


@torch.inference_mode()
def exact(system, data, queries):
    """Σ S ⊙ softmax over the corpus, pair by pair."""
    system.eval()
    texts = {row["id"]: pad([[*row["tokens"][:11], EOS_ID]]) for row in data.documents}
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


LEARNED = {"_target_": "gr_mvdr.salience.LearnedSalience", "gate": "relu"}


@pytest.mark.parametrize(
    "options", [{}, {"projections": "attention", "salience": {"document": LEARNED}}]
)
def test_the_exact_search_is_that_of_the_softmax(options, tiny_data, monkeypatch):
    monkeypatch.setattr("analysis.questions.kernel._DOCUMENTS", 7)  # of thirty documents
    system = make_multi_vector(**options)
    with torch.no_grad():
        for weight in system.encoder.salience.parameters():
            weight.uniform_(0.5, 2)  # a fresh one is the same for all tokens
    queries = tiny_data.evaluation.test_queries("test").select([0, 2, 4, 7, 9])
    expected = exact(system, tiny_data, queries)
    found = kernel_rankings(system, tiny_data.documents, queries, queries, [4])["exact"]
    for query in queries["id"]:
        scores = expected.top(10).scores(query)
        assert found.scores(query) == pytest.approx(scores, rel=1e-4, abs=1e-5)
    metrics = asked(Kernel, system, tiny_data, 4, (4,), 5).metrics
    quality = evaluate(expected, tiny_data.evaluation.judgements("test", queries))
    assert metrics["analysis/kernel/exact/mrr@10"] == pytest.approx(quality["mrr@10"])
