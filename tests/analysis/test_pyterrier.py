"""A retriever in PyTerrier: ids and scores are its own, and pipelines of it work without Java."""

import pandas as pd
import pytest

from models.retriever import Retriever
from tests.runs import TINY

pt = pytest.importorskip("pyterrier")
QUERIES = {"q1": "Which city has a statue?", "q2": "a river", "q3": " "}


@pytest.fixture(scope="module")
def runs(finished_run):
    return finished_run("bm25", "data.language=none"), finished_run("t5_colbert", *TINY)


def frame(queries=QUERIES, **columns) -> pd.DataFrame:
    return pd.DataFrame({"qid": list(queries), "query": list(queries.values())} | columns)


def scores(results: pd.DataFrame) -> dict:
    """(query, document) → (score, rank)"""
    return {(r.qid, r.docno): (r.score, r.rank) for r in results.itertuples()}


def expected(ranking) -> dict:
    rows = ((qid, enumerate(ranking.scores(qid).items())) for qid in ranking.query_ids)
    return {(qid, name): (score, n) for qid, found in rows for n, (name, score) in found}


def test_a_transformer_searches_and_reranks_as_the_retriever_does(runs):
    from analysis.pyterrier import as_transformer

    bm25, colbert = map(Retriever.load, runs)
    first, second = as_transformer(bm25, k=7), as_transformer(runs[1])
    given = frame(topic=["a", "b", "c"], score=0.0)
    found = first(given)
    assert list(found.columns) == ["qid", "query", "topic", "docno", "score", "rank"]
    assert scores(found) == expected(bm25.retrieve(QUERIES, 7)) and len(found) == 14
    assert set(found[found.qid == "q2"].topic) == {"b"} and list(given.columns)[-1] == "score"
    hits = [(hit.id, hit.score) for hit in bm25.search(QUERIES["q2"], 7)]
    own = found[found.qid == "q2"]
    assert list(own.docno) == [name for name, _ in hits]
    assert list(own.score) == pytest.approx([score for _, score in hits])
    pipeline = first % 4 >> second
    candidates = {qid: bm25.retrieve(QUERIES, 4).documents(qid) for qid in QUERIES}
    reranked = pipeline(frame(topic=["a", "b", "c"]))
    assert scores(reranked) == expected(colbert.rerank(QUERIES, candidates))
    assert list(reranked["rank"]) == [0, 1, 2, 3] * 2 and set(reranked.topic) == {"a", "b"}
    with pytest.raises(ValueError, match="document=nowhere: no such id"):
        second(found.assign(docno="nowhere"))
    assert pt.inspect.transformer_inputs(second) == [["qid", "query"], ["qid", "docno", "query"]]
    assert not len(second(given[:0])) and not len(second(found[:0]))
    with pytest.raises(ValueError, match="k=0: must be ≥ 1"):
        as_transformer(bm25, k=0)


def test_missing_queries_find_nothing_and_numbers_name_documents(runs):
    from analysis.pyterrier import as_transformer

    retriever = Retriever.load(runs[0])
    retriever.index(["a river runs", "the city"])
    transform = as_transformer(retriever)
    found = transform(
        pd.DataFrame({"qid": ["a", "b", "c"], "query": ["river", None, float("nan")]})
    )
    assert set(found.qid) == {"a"}
    numbered = transform(pd.DataFrame({"qid": [1, 1], "query": "a river", "docno": [1, 0]}))
    assert list(numbered.docno) == ["0", "1"] and list(numbered.qid) == [1, 1]
