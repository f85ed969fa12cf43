"""Queries that are documents: whoever judges a ranking leaves the query's own document out."""

import pytest

from analysis.questions.kernel import Kernel, kernel_rankings
from analysis.runs.evaluation import average_metrics, evaluate_reranking, evaluate_retrieval, judge
from analysis.runs.queries import read_queries
from analysis.studies.study import run_study
from data_modules.module import RetrievalDataModule
from gr_mvdr.evaluation.ranking import Ranking
from tests.analysis.asking import asked
from tests.data_modules.tiny import TOKENIZER, make_collection, words
from tests.models.conftest import make_multi_vector
from tests.runs import flat, read_lines_of

METRICS = ["recall@1", "mrr@5", "ndcg@5", "success@3"]


class Arguments(RetrievalDataModule):
    """Twelve of twenty documents are queries; the three that follow each are relevant to it."""

    def read(self):
        texts = [words(n, 7) for n in range(20)]
        pairs = [(f"d{n}", f"d{(n + step) % 20}") for n in range(12) for step in (1, 2, 3)]
        queries = {f"d{n}": texts[n] for n in range(12)}
        return make_collection(texts, queries, qrels={"train": pairs, "test": pairs})


@pytest.fixture(params=[True, False], ids=["dropped", "kept"])
def data(request, cache):
    options = dict(drop_identical=request.param, metrics=METRICS, candidates=4)
    lengths = dict(query_length=8, document_length=12)
    return Arguments(test_split="test", tokenizer_options=TOKENIZER, **options, **lengths)


@pytest.fixture
def system(data, tmp_path):
    model = make_multi_vector()
    model.index(data.documents, tmp_path / "index")
    return model


def rows(run, settings, system, data):
    run_study(settings, system, data, run)
    return read_lines_of(run / "study.csv")


def by_definition(ranking, data, metrics):
    """Recall@1, MRR@5 and success@3 by their definitions, the query's own document taken out."""
    found = dict.fromkeys(metrics, 0.0)
    for query, grades in data.evaluation.judgements(
        "test", data.evaluation.test_queries("test")
    ).items():
        documents = [d for d in ranking.documents(query) if not data.drop_identical or d != query]
        places = [place for place, d in enumerate(documents, start=1) if grades.get(d, 0) > 0]
        found["recall@1"] += (1 in places) / len(grades) / 12
        found["mrr@5"] += (1 / places[0] if places and places[0] <= 5 else 0) / 12
        found["success@3"] += (bool(places) and places[0] <= 3) / 12
    return found


def test_a_run_and_its_studies_have_the_same_numbers(system, data, tmp_path):
    run = flat(evaluate_retrieval(system, data, tmp_path, 5))
    whole = system.retrieve(data.evaluation.test_queries("test"), 20)
    for metric, value in by_definition(whole, data, ["recall@1", "mrr@5", "success@3"]).items():
        assert run[f"retrieve/{metric}"] == pytest.approx(value), metric
    first = {query: Ranking.read(tmp_path / "retrieve.trec").documents(query) for query in ["d3"]}
    assert (first["d3"][0] == "d3") == (not data.drop_identical) and len(first["d3"]) == 5
    grid = {"_target_": "analysis.studies.search_grid.SearchGrid", "depth": 5}
    grid |= {"settings": {"search": ["exact"]}, "curves": {"x": "search"}}
    grid |= {"searches": {"exact": {}}}
    adaptation = {"_target_": "analysis.studies.adaptation.Adaptation", "depth": 5}
    adaptation |= {"k": [1], "p": [], "folds_of": [2]}
    for settings in (grid, adaptation):
        (row, *_) = rows(tmp_path, settings, system, data)
        for metric in METRICS:
            assert row[metric] == pytest.approx(run[f"retrieve/{metric}"]), (settings, metric)


def test_kernels_and_reranking_leave_it_out_too(system, data, tmp_path):
    queries = data.evaluation.test_queries("test")
    found = asked(Kernel, system, data, 4, (4,), 12).metrics
    ranking = kernel_rankings(system, data.documents, queries, queries, (4,), 20)["exact"]
    deep = average_metrics(judge(ranking, data, "test", queries, ["mrr@10"]))
    assert found["analysis/kernel/exact/mrr@10"] == pytest.approx(deep["mrr@10"])
    reranked = flat(evaluate_reranking(system, data, tmp_path, {"maxsim": {}}))
    written, lists = (
        Ranking.read(tmp_path / "rerank.trec"),
        data.evaluation.list_candidates("test", queries),
    )
    assert all(set(written.documents(query)) == set(lists[query]) for query in queries["id"])
    assert ("d3" in lists["d3"]) == (not data.drop_identical)
    for metric, value in by_definition(written, data, ["recall@1", "mrr@5", "success@3"]).items():
        assert reranked[f"rerank/{metric}"] == pytest.approx(value), metric


def test_a_macro_average_counts_every_group_the_same(system, data, tmp_path):
    """Groups of d0 … d11 by their first digit: d1, d10 and d11 are one, all others are alone."""
    data.groups = r"^d\d"
    found = flat(evaluate_retrieval(system, data, tmp_path, 5))
    found |= flat(evaluate_reranking(system, data, tmp_path, {"maxsim": {}}))
    queries = data.evaluation.test_queries("test")
    for stage in ("retrieve", "rerank"):
        values = judge(Ranking.read(tmp_path / f"{stage}.trec"), data, "test", queries)
        for metric in METRICS:
            one = (values["d1"][metric] + values["d10"][metric] + values["d11"][metric]) / 3
            macro = (one + sum(values[f"d{n}"][metric] for n in (0, *range(2, 10)))) / 10
            assert found[f"{stage}/macro_{metric}"] == pytest.approx(macro)
            assert found[f"{stage}/{metric}"] == pytest.approx(average_metrics(values)[metric])
    assert found["retrieve/macro_ndcg@5"] != pytest.approx(found["retrieve/ndcg@5"])
    data.groups = "^d1"
    with pytest.raises(ValueError, match=r"data\.groups=\^d1: must find something in the .* 'd0'"):
        evaluate_retrieval(system, data, tmp_path, 5)


def test_queries_about_documents_with_a_training_question_are_judged_apart(
    system, data, tmp_path, monkeypatch
):
    """Training asks for d5 alone, which is relevant to d2, d3 and d4."""
    monkeypatch.setattr("analysis.runs.evaluation.LEAST_QUERIES", 3)
    assert not any("question" in key for key in flat(evaluate_retrieval(system, data, tmp_path, 5)))
    data.collection.qrels["train"] = data.collection.qrels["train"].filter(
        lambda row: row["document_id"] == "d5" and row["query_id"] == "d2"
    )
    found = flat(evaluate_retrieval(system, data, tmp_path, 5))
    queries = data.evaluation.test_queries("test")
    values = judge(Ranking.read(tmp_path / "retrieve.trec"), data, "test", queries)
    trained = {query: values.pop(query) for query in ("d2", "d3", "d4")}
    for part, own in (("training_question", trained), ("no_training_question", values)):
        assert found[f"retrieve/{part}/mrr@5"] == pytest.approx(average_metrics(own)["mrr@5"])
        kept = read_queries(tmp_path)
        assert set(kept.loc[kept["place"] == part, "query"]) == set(own)
