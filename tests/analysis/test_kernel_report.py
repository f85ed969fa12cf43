import pytest
import torch

from analysis.figures import Gallery
from analysis.kernel import (
    Kernel,
    feature_maps,
    kernel_relevance,
    softmax_relevance,
    squared_key_norm,
)
from analysis.kernel_retrieval import kernel_rankings
from analysis.statistics import spearman
from analysis.tables import write_rows
from gr_mvdr.alignment import Softmax
from gr_mvdr.batch import cut, pad
from gr_mvdr.evaluation.metrics import evaluate
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.relevance import relevance, similarity
from gr_mvdr.tokenizers import EOS_ID
from models.bm25 import BM25
from models.multi_vector import MultiVector
from models.t5_seal import T5SEAL
from tests.analysis.asking import asked

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


def maps_of(count):
    return lambda size: feature_maps(size, [count])


def rows(measured):
    return {row["features"]: row for row in measured.tables["kernel"]}


@pytest.mark.parametrize("make", [multi_vector, seal])
@torch.inference_mode()
def test_error_and_correlation_over_all_pairs(make, tiny_data):
    system = make()
    measured = asked(Kernel, system, tiny_data, pairs=9, features=(4, 32))
    _, (batch,) = tiny_data.test_pairs("test", 9, batch_size=9)
    factors = system.factors(batch)
    truth = softmax_relevance(factors)
    maps = feature_maps(8, (4, 32))
    assert rows(measured).keys() == maps.keys() == {"uniform", "elu", "4", "32"}
    for name, row in rows(measured).items():
        estimate = kernel_relevance(factors, maps[name])
        error = ((estimate - truth).norm() / truth.norm()).item()
        assert row["error"] == pytest.approx(error, rel=1e-3)
        assert row["rank_correlation"] == pytest.approx(spearman(estimate, truth), abs=0.05)
        assert row["pairs"] == 9
    norm = squared_key_norm(factors).mean().item()
    assert measured.metrics["analysis/kernel/squared_key_norm"] == pytest.approx(norm)


def test_the_truth_is_the_generative_systems_own_relevance(tiny_data):
    """Lemma 5.2 starts from Eq. 16, which is what `align` answers."""
    _, (batch,) = tiny_data.test_pairs("test", 9, batch_size=9)
    system = seal().eval()
    with torch.inference_mode():
        found = softmax_relevance(system.factors(batch))
        assert torch.allclose(found, system.align(batch).relevance, rtol=1e-3, atol=1e-4)


def test_the_error_falls_with_features(tiny_data):
    metrics = asked(Kernel, multi_vector(), tiny_data, 10, features=(8, 2048)).metrics
    error = "analysis/kernel/features_{}/error"
    assert metrics[error.format(2048)] < 0.5 * metrics[error.format(8)]
    assert metrics["analysis/kernel/features_2048/rank_correlation"] > 0.9


@torch.inference_mode()
def exact(system, data, queries):
    """Σ S ⊙ softmax over the corpus, pair by pair."""
    system.eval()
    results = {}
    for query in queries:
        ids, mask = pad([cut(query["tokens"], 8, EOS_ID)])
        asked = system.encode_queries(ids, mask)
        results[query["id"]] = {}
        for document in data.documents:
            ids, mask = pad([cut(document["tokens"], 10, EOS_ID)])
            text = system.encode_documents(ids, mask)
            matrix = similarity(text.vectors, asked.vectors)
            keys = matrix if text.keys is None else similarity(text.keys, asked.keys)
            weights = Softmax("document_to_query")(keys, text.mask, asked.mask)
            results[query["id"]][document["id"]] = relevance(matrix, weights).item()
    return Ranking(results)


@pytest.mark.parametrize(
    "options", [{}, {"projections": "attention"}, {"salience": {"document": LEARNED}}]
)
def test_the_exact_search_is_that_of_the_softmax(options, tiny_data, monkeypatch):
    monkeypatch.setattr("analysis.kernel_retrieval._BATCH", 7)  # of thirty documents
    system = multi_vector(**options)
    with torch.no_grad():
        for weight in system.encoder.salience.parameters():
            weight.uniform_(0.5, 2)  # a fresh one is the same for all tokens
    measured = rows(asked(Kernel, system, tiny_data, 4, (4,), 5, (16,)))
    queries = tiny_data.test_queries("test").select([0, 2, 4, 7, 9])
    expected = exact(system, tiny_data, queries)
    quality = evaluate(expected, tiny_data.judgements("test", queries))
    found = kernel_rankings(system, tiny_data.documents, queries, queries, maps_of(4))["exact"]
    for query in queries["id"]:
        scores = expected.top(10).scores(query)
        assert found.scores(query) == pytest.approx(scores, rel=1e-4, abs=1e-5)
    row = measured["exact"]
    assert {key: row[key] for key in ("mrr@10", "recall@10")} == pytest.approx(
        {key: quality[key] for key in ("mrr@10", "recall@10")}
    )
    assert row["queries"] == 5 and "error" not in row
    assert measured["16"].keys() == {"features", "mrr@10", "recall@10", "queries"}


def test_with_enough_features_and_the_query_as_sample_the_search_is_exact(tiny_data):
    query = tiny_data.test_queries("test").select([0])
    system = multi_vector().eval()
    found = kernel_rankings(system, tiny_data.documents, query, query, maps_of(8192))
    assert found.keys() == {"uniform", "elu", "8192", "exact"}
    expected, estimate = (found[name].scores("q10") for name in ("exact", "8192"))
    assert len(expected) == 10
    common = expected.keys() & estimate.keys()
    assert len(common) >= 9
    largest = max(expected.values())
    for document in common:
        assert estimate[document] == pytest.approx(expected[document], abs=0.05 * largest)


def test_metrics_of_pairs_and_of_retrieval(tiny_data):
    metrics = asked(Kernel, multi_vector(), tiny_data, 6, (4, 16), 5, (16,)).metrics
    maps = ("features_4", "features_16", "elu", "uniform")
    parts = {f"{name}/{key}" for name in maps for key in ("error", "rank_correlation")}
    parts |= {f"{name}/mrr@10" for name in ("features_16", "elu", "uniform", "exact")}
    parts |= {"squared_key_norm"}
    assert set(metrics) == {f"analysis/kernel/{part}" for part in parts}


def test_a_generative_system_does_not_retrieve(tiny_data):
    measured = asked(Kernel, seal(), tiny_data, 6, (4,), retrieval_queries=5)
    assert not any("mrr" in key for key in measured.metrics)
    assert rows(measured).keys() == {"uniform", "elu", "4"}
    assert len(measured.figures[0][0].axes) == 2


def test_a_larger_corpus_is_not_searched(tiny_data, monkeypatch):
    system = multi_vector()
    sizes = dict(features=(4,), retrieval_queries=5, retrieval_features=(4,))
    searched = asked(Kernel, system, tiny_data, 6, **sizes, most_documents=30)
    assert "mrr@10" in rows(searched)["exact"]
    monkeypatch.setattr("analysis.kernel.retrieval_quality", None)
    measured = asked(Kernel, system, tiny_data, 6, **sizes, most_documents=29)
    assert rows(measured).keys() == {"uniform", "elu", "4"}
    estimates = {k: v for k, v in searched.metrics.items() if not k.endswith("mrr@10")}
    assert measured.metrics == pytest.approx(estimates)


def test_systems_without_factors_have_nothing_to_measure(tiny_data):
    for found in (
        asked(Kernel, BM25(), tiny_data, 4),
        asked(Kernel, multi_vector(), tiny_data, 0),
    ):
        assert (found.metrics, found.tables, found.figures) == ({}, {}, [])


def test_documents_that_the_system_does_not_know_are_left_out(tiny_data):
    system = seal()
    system.covers = lambda row: row % 2 == 0
    assert rows(asked(Kernel, system, tiny_data, 10, (4,)))["elu"]["pairs"] == 5
    system.covers = lambda row: False
    assert asked(Kernel, system, tiny_data, 10, (4,)).tables == {}


def test_the_figure_and_the_table_can_be_written(tiny_data, tmp_path):
    measured = asked(Kernel, multi_vector(), tiny_data, 6, (4, 16), 5, (8, 16))
    ((figure, entry),) = measured.figures
    assert [axes.get_title() for axes in figure.axes][2] == "MRR@10, whole corpus"
    assert f"{measured.metrics['analysis/kernel/squared_key_norm']:.1f}" in entry.caption
    Gallery(tmp_path).add(figure, entry)
    assert (tmp_path / "kernel.png").is_file()
    write_rows(measured.tables["kernel"], tmp_path / "kernel.csv")
    header = (tmp_path / "kernel.csv").read_text().splitlines()[0]
    assert header == "features,error,rank_correlation,pairs,mrr@10,recall@10,queries"
