from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from pandas import DataFrame

from analysis.questions.analysis import Subject
from analysis.questions.framework import (
    NAMES,
    Framework,
    FrameworkRanking,
    QueryPaths,
    candidate_batches,
    relevances,
    summarise_paths,
)
from analysis.statistics import spearman
from gr_mvdr.batch import PairBatch, pad
from gr_mvdr.evaluation.ranking import Ranking, evaluate
from gr_mvdr.heads.plain import real_places
from tests.analysis.asking import asked
from tests.analysis.viewer.tiny import make_docid
from tests.models.conftest import make_seal, sharpen

pytestmark = pytest.mark.usefixtures("float64")

PLACES = {"last_layer": "cross_attention_2", "cross_attention": "cross_attention_all"}


def test_shares_worked_out_by_hand():
    """Totals 3, 5, 7 of parts (1, 2), (2, 3), (3, 4): each part has half of the covariance."""
    names = ["self_attention_1", "cross_attention_1", "feed_forward_1"]
    values = [[1.0, 2, 0, 3], [2, 3, 0, 5], [3, 4, 0, 7]]
    frame = DataFrame(values, columns=[*names, "logit"]).rename_axis("pair")
    table = summarise_paths(frame).loc[names]
    assert table["covariance_share"].tolist() == pytest.approx([0.5, 0.5, 0])
    sizes = [(1 / 3 + 2 / 5 + 3 / 7) / 3, (2 / 3 + 3 / 5 + 4 / 7) / 3, 0]
    assert table["absolute_share"].tolist() == pytest.approx(sizes)
    assert summarise_paths(frame[:1])["covariance_share"].isna().all()


def measured(explanation, **changed):
    names = explanation.decoder.names
    store = SimpleNamespace(path_names=names, description=None)
    framework = Framework(Subject(store=store))
    for name, value in changed.items():
        setattr(explanation.decoder, name, value)
    framework.update(explanation, 0)
    found = framework.finish()
    return {row["path"]: row for row in found.tables["framework"]}, found


def test_shares_of_paths_add_up_and_metrics_are_those_of_the_table(make_explanation):
    explanation = make_explanation(6)
    table, found = measured(explanation)
    for share in ("covariance_share", "absolute_share", "pair_mean_share"):
        assert sum(table[name][share] for name in explanation.decoder.names) == pytest.approx(1)
        layers = (table[f"cross_attention_{layer}"][share] for layer in (1, 2))
        assert table["cross_attention_all"][share] == pytest.approx(sum(layers))
    metrics = found.metrics
    assert metrics.pop("analysis/framework/sum_error") < 1e-9
    assert metrics == {
        f"analysis/framework/{name}{kind}_share": table[path][f"{kind[1:] or 'covariance'}_share"]
        for name, path in PLACES.items()
        for kind in ("", "_absolute")
    }


@torch.inference_mode()
def test_query_paths_are_shares_of_the_difference_between_two_queries(tiny_data):
    system = sharpen(make_seal())
    found = asked(QueryPaths, system, tiny_data, 8)
    table = {row["path"]: row for row in found.tables["framework_query"]}
    _, (batch,) = tiny_data.evaluation.test_pairs("test", 8, batch_size=8)
    swapped = [4, 5, 6, 7, 0, 1, 2, 3]
    other = replace(batch, query_ids=batch.query_ids[swapped], query_mask=batch.query_mask[swapped])
    one, two = (system.explain(pairs).decoder for pairs in (batch, other))
    parts = (one.contributions - two.contributions).transpose(1, 2)[batch.document_mask]
    total = (one.logits - two.logits)[batch.document_mask]
    for number, name in enumerate(one.names):
        both = torch.cov(torch.stack([parts[:, number], total]))
        assert table[name]["covariance_share"] == pytest.approx(float(both[0, 1] / both[1, 1]))
    assert found.metrics == {
        f"analysis/framework/query_{name}_share": table[path]["covariance_share"]
        for name, path in PLACES.items()
    }


@torch.inference_mode()
def test_relevances_are_those_of_the_model(tiny_data):
    system = sharpen(make_seal())
    system.window = 99
    _, (batch,) = tiny_data.evaluation.test_pairs("test", 1)
    found = relevances(system.explain(batch))
    assert found["last_layer"].item() == pytest.approx(system.align(batch).relevance.item())
    both = sum(layer.relevance.item() for layer in system.explain(batch).layers)
    assert found["all_layers"].item() == pytest.approx(both)
    queries = system.encode(batch.query_ids, batch.query_mask)
    sides = batch.document_ids, batch.document_mask, batch.document_index
    log_probs = system.token_log_probs(queries, batch.query_mask, *sides)
    assert found["log_prob"].item() == pytest.approx(log_probs.sum().item())
    states = system.target_states(queries, batch.query_mask, sides[0], real_places(sides[1]))
    chosen = system.head.logits(*states).gather(1, batch.document_ids[0][:, None])
    assert found["logits"].item() == pytest.approx(chosen.sum().item())


@torch.inference_mode()
def test_every_candidate_is_ranked_as_on_its_own(tiny_data):
    system = sharpen(make_seal())
    metrics = asked(FrameworkRanking, system, tiny_data, queries=4).metrics
    queries = tiny_data.evaluation.rerank_queries("test").select([0, 3, 6, 9])
    names, documents = queries["id"][:], tiny_data.documents["id"][:]
    scores = {f"{name}/{form}": {} for name in NAMES for form in ("sum", "mean")} | {
        "score/own": {}
    }
    for pairs, batch in candidate_batches(Subject(system, tiny_data), queries):
        for row, (query, document) in enumerate(pairs):
            sides = (getattr(batch, side)[row : row + 1] for side in ("query_ids", "document_ids"))
            texts = [pad([ids[ids > 0].tolist()]) for ids in sides]
            one = PairBatch(*texts[0], *texts[1], torch.tensor([document]))
            explanation = system.explain(one)
            values = {"score/own": explanation.layers[-1].score}
            for name, value in relevances(explanation).items():
                values |= {f"{name}/sum": value, f"{name}/mean": value / one.document_mask.sum()}
            for key, value in values.items():
                scores[key].setdefault(names[query], {})[documents[document]] = value.item()
    grades = tiny_data.evaluation.judgements("test", queries)
    for key, ranking in scores.items():
        mrr = metrics[f"analysis/framework/{key}/mrr@10"]
        assert mrr == pytest.approx(evaluate(Ranking(ranking), grades)["mrr@10"])
        truth = scores["log_prob/sum" if key.endswith("/sum") else "log_prob/mean"]
        if ranking is not truth:
            sides = ([[*side[q].values()] for side in (ranking, truth)] for q in ranking)
            expected = [spearman(*map(torch.tensor, pair)) for pair in sides]
            found = metrics[f"analysis/framework/{key}/rank_correlation"]
            assert found == pytest.approx(sum(expected) / len(expected))


def test_documents_without_an_identifier_are_left_out(tiny_data, tmp_path):
    system = make_docid()
    system.prepare(tiny_data.documents, [row for row in range(30) if row % 3], tmp_path / "names")
    queries = tiny_data.evaluation.rerank_queries("test")
    batches = candidate_batches(Subject(system, tiny_data), queries)
    rows = [document for pairs, _ in batches for _, document in pairs]
    candidates = tiny_data.evaluation.list_candidates("test", queries)
    expected = [int(name[1:]) for names in candidates.values() for name in names]
    assert sorted(rows) == sorted(row for row in expected if row % 3) != sorted(expected)
    assert not asked(FrameworkRanking, system, tiny_data, queries=0).metrics
