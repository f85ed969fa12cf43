"""A growing corpus: every stage is a search of the documents that have arrived, and no others."""

from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import pytest

from analysis.claims import Claim, Side, estimate
from analysis.runs.numbers import make_frame
from analysis.studies.study import run_study
from gr_mvdr.evaluation.ranking import evaluate
from models.bm25 import BM25
from tests.analysis.conftest import tiny_collection
from tests.models.conftest import make_docid, make_multi_vector, make_seal, sharpen
from tests.runs import flat, read_lines_of

STUDY = {"_target_": "analysis.studies.growing.GrowingCorpus", "splits": ["new"], "parts": 3}
NEW = {f"d{n}" for n in range(15, 20)}


@pytest.fixture
def data(tiny_data):
    """d15 to d19 arrive after training; q15 to q19 ask for them."""
    whole = tiny_collection()
    test = whole.qrels["test"]
    splits = {"test": test.select(range(5)), "new": test.select(range(5, 10))}
    tiny_data.collection = replace(whole, qrels=whole.qrels | splits)
    tiny_data.new_documents = ["new"]
    return tiny_data


def make(kind, data):
    if kind == "bm25":
        return BM25()
    if kind == "seal":
        return sharpen(make_seal())
    if kind == "xtr":
        search = {"mode": "impute", "neighbours": 60, "probes": None}  # imputes, exactly
        return make_multi_vector("xtr", search=search)
    return make_docid(kind, data.documents, data.known_documents)


def assert_found(ranking, system, queries):
    expected = system.retrieve(queries, 100)
    for query in queries["id"]:
        assert ranking.scores(query) == pytest.approx(expected.scores(query), rel=1e-4)


@pytest.mark.parametrize("kind", ["bm25", "seal", "xtr", "titles", "semantic"])
def test_a_stage_is_a_search_of_an_index_of_its_documents_alone(kind, data, tmp_path):
    system, stages = make(kind, data), []
    system.index(data.documents)
    grow, retrieve = system.update_index, system.retrieve

    def update_index(documents):
        stages.append((documents, []))
        grow(documents)

    def recorded(queries, k):
        stages[-1][1].append((queries, ranking := retrieve(queries, k)))
        return ranking

    with mock.patch.multiple(system, update_index=update_index, retrieve=recorded):
        numbers = run_study(STUDY, system, data, tmp_path)
    assert [len(documents) for documents, _ in stages] == [25, 27, 29, 30]
    for documents, searches in stages:
        arrived, alone = NEW & {*documents["id"]}, make(kind, data)
        assert {q for queries, _ in searches[1:] for q in queries["id"]} == {
            name.replace("d", "q") for name in arrived
        }
        alone.index(documents)
        for queries, ranking in searches:
            assert_found(ranking, alone, queries)
            found = {name for query in queries["id"] for name in ranking.documents(query)}
            assert found and not (found & NEW) - arrived
    assert not stages[0][1][1:], "no new document has arrived"
    if kind != "semantic":  # its numbers in a leaf follow the order of arrival
        alone.index(data.documents)
        for queries, ranking in stages[-1][1]:
            assert_found(ranking, alone, queries)
    rows = read_lines_of(tmp_path / "study.csv")
    assert [(row["stage"], row["queries"], row["n_queries"]) for row in rows] == [
        *[(0, "old", 5), (1, "old", 5), (1, "new", 2), (1, "latest", 2), (2, "old", 5)],
        *[(2, "new", 4), (2, "latest", 2), (3, "old", 5), (3, "new", 5), (3, "latest", 1)],
    ]
    for row, split in ((rows[0], "test"), (rows[-3], "test"), (rows[-2], "new")):
        queries, ranking = stages[row["stage"]][1][split == "new"]
        judged = evaluate(
            ranking, data.evaluation.judgements(split, queries), ["success@10", "mrr@10"]
        )
        assert {metric: row[metric] for metric in judged} == pytest.approx(judged)
    lost = flat(numbers)["analysis/growing_corpus/mrr_forgetting@10"]
    assert lost == pytest.approx(rows[0]["mrr@10"] - rows[-3]["mrr@10"])
    sides = [Side(kind, "study", setting={"stage": n, "queries": "old"}) for n in (0, 3)]
    run = SimpleNamespace(seed=1, path=tmp_path, numbers=make_frame(numbers))
    group = SimpleNamespace(runs=[run], is_trained=True)
    assert estimate(Claim("", "", *sides), [group] * 2)["effect"] == pytest.approx(lost)
