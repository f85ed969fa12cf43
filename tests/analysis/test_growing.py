"""A growing corpus: every stage is a search of the documents that have arrived, and no others."""

from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import pytest

from analysis.claims import Claim, Side, estimate
from analysis.studies.study import run_study
from analysis.tables.rows import read_rows
from gr_mvdr.evaluation.ranking import evaluate
from models.bm25 import BM25
from tests.analysis.conftest import TinyData, tiny_collection
from tests.models.conftest import make_docid, make_multi_vector, make_seal, sharpen

STUDY = {"_target_": "analysis.studies.growing.GrowingCorpus", "splits": ["new"], "parts": 3}


class GrowingData(TinyData):
    """d15 to d19 arrive after training; q15 to q19 ask for them."""

    def read(self):
        whole = tiny_collection()
        test = whole.qrels["test"]
        parts = {"test": test.select(range(5)), "new": test.select(range(5, 10))}
        return replace(whole, qrels=whole.qrels | parts)


@pytest.fixture
def data(tiny_data):
    options = tiny_data.tokenizer_options, tiny_data.query_length, tiny_data.document_length
    names = "tokenizer_options", "query_length", "document_length"
    given = dict(zip(names, options, strict=True))
    return GrowingData(test_split="test", new_documents=["new"], **given)


def make(kind, data):
    if kind == "bm25":
        return BM25()
    if kind == "seal":
        return sharpen(make_seal())
    if kind == "xtr":
        return make_multi_vector("xtr", search={"mode": "impute", "neighbours": 60})
    return make_docid(kind, data.documents, data.known_documents)


@pytest.mark.parametrize("kind", ["bm25", "seal", "xtr", "titles", "semantic"])
def test_a_stage_is_a_search_of_an_index_of_its_documents_alone(kind, data, tmp_path):
    system, searches = make(kind, data), []
    system.index(data.documents)
    grow, retrieve = system.update_index, system.retrieve

    def update_index(documents):
        searches.append((documents, []))
        grow(documents)

    def recorded(queries, k):
        searches[-1][1].append((queries, ranking := retrieve(queries, k)))
        return ranking

    with (
        mock.patch.object(system, "update_index", update_index),
        mock.patch.object(system, "retrieve", recorded),
    ):
        metrics = run_study(STUDY, system, data, tmp_path)
    new = {f"d{n}" for n in range(15, 20)}
    assert [len(documents) for documents, _ in searches] == [25, 27, 29, 30]
    assert not new & {*searches[0][0]["id"]}
    arrived = [new & {*documents["id"]} for documents, _ in searches]
    for (documents, found), names in zip(searches, arrived, strict=True):
        alone = make(kind, data)
        alone.index(documents)
        assert {q for queries, _ in found[1:] for q in queries["id"]} == {
            name.replace("d", "q") for name in names
        }
        for queries, ranking in found:
            expected = alone.retrieve(queries, 100)
            for query in queries["id"]:
                assert {*ranking.documents(query)} <= {*documents["id"]}
                assert ranking.scores(query) == pytest.approx(expected.scores(query), rel=1e-4)
    if kind != "semantic":  # its numbers in a leaf depend on the order of arrival
        alone.index(data.documents)
        for queries, ranking in found:
            plain = alone.retrieve(queries, 100)
            for query in queries["id"]:
                assert ranking.scores(query) == pytest.approx(plain.scores(query), rel=1e-4)
    rows, name = read_rows(tmp_path / "study.csv"), "analysis/growing_corpus"
    assert [(row["stage"], row["queries"], row["n_queries"]) for row in rows] == [
        *[(0, "old", 5), (1, "old", 5), (1, "new", 2), (1, "latest", 2), (2, "old", 5)],
        *[(2, "new", 4), (2, "latest", 2), (3, "old", 5), (3, "new", 5), (3, "latest", 1)],
    ]
    for row, split in ((0, "test"), (-3, "test"), (-2, "new")):
        (queries, ranking) = searches[rows[row]["stage"]][1][split == "new"]
        judged = evaluate(ranking, data.judgements(split, queries), ["success@10", "mrr@10"])
        assert {metric: rows[row][metric] for metric in judged} == pytest.approx(judged)
    lost = metrics[f"{name}/mrr_forgetting@10"]
    assert lost == pytest.approx(rows[0]["mrr@10"] - rows[-3]["mrr@10"])
    sides = [Side(kind, "study=growing", {"stage": n, "queries": "old"}) for n in (0, 3)]
    group = SimpleNamespace(runs=[SimpleNamespace(path=tmp_path)], is_trained=True)
    assert estimate(Claim("", "", *sides), [group] * 2)["effect"] == pytest.approx(lost)
