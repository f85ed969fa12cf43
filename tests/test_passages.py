"""Long documents as passages: how texts are split, and that every system ranks by MaxP."""

from collections import Counter
from itertools import pairwise
from math import fsum

import pytest

from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.passages import PassageOptions, Passages, join_passages, name_document
from gr_mvdr.texts import TextTable
from models.base import Share
from models.retriever import Retriever
from tests.runs import TINY

TEXT = (
    " The Ouse rises in a wood. It has two arms, and 3.5 mills stand there.\nBelow the town it "
    "turns east and meets the sea. 乌斯河流入大海。两岸有磨坊。 Nobody has counted the birds"
)
SPLIT = "data.passages={words: 14, stride: 7}"
SYSTEMS = {
    "bm25": (SPLIT,),
    "t5_colbert": (*TINY, SPLIT),
    "cross_encoder": (*TINY, SPLIT, "model.depth=20"),
    "t5_seal": (*TINY, SPLIT),
    "dsi_naive": (*TINY, SPLIT),
    "dsi_semantic": (*TINY, SPLIT.replace("}", ", identifiers: documents}")),
}
QUERY = "Which city has a statue of the founder?"


@pytest.mark.parametrize("words, stride", [(5, 5), (9, 4), (20, 13), (24, 1), (200, 60)])
def test_passages_are_parts_of_the_text_that_leave_no_word_out(words, stride):
    spans = PassageOptions(words, stride).split(TEXT)
    assert spans[0][0] == 0 and spans[-1][1] == len(TEXT) and spans == sorted(spans)
    for (_, end), (start, _) in pairwise(spans):
        assert not TEXT[end:start].strip(), "a later passage begins before the words after this one"
    assert all(len(TEXT[start:end].split()) <= words for start, end in spans)
    joined = join_passages((start, TEXT[start:end]) for start, end in spans)
    assert joined.split() == TEXT.split() and len(joined) == len(TEXT)
    assert (len(spans) == 1) == (words == 200)


def test_passages_end_with_a_sentence_or_a_line_that_ends_near():
    spans = PassageOptions(words=16, stride=16).split(TEXT)
    assert TEXT[slice(*spans[0])].endswith("there.") and TEXT[slice(*spans[1])].startswith("Below")
    unspaced = "乌斯河流入大海。两岸有磨坊。"
    assert PassageOptions(words=10, stride=10).split(unspaced) == [(0, 8), (8, 14)]
    assert PassageOptions(words=16, stride=16, score="first").split(TEXT) == spans[:1]
    with pytest.raises(ValueError, match=r"data.passages.stride=9: must be ≤ 8"):
        PassageOptions(words=8, stride=9)


SCORES = {"a#0": 1.0, "a#1": 5.0, "a#2": 4.0, "b#0": 6.0, "b#1": 0.0, "c#0": 3.0, "d#0": 2.0}


@pytest.mark.parametrize(
    "score, expected",
    [
        ("max", {"b": 6.0, "a": 5.0, "c": 3.0}),
        ("sum", {"a": 9.0, "b": 6.0, "c": 3.0}),
        ("mean", {"a": 4.5, "b": 3.0, "c": 3.0}),
    ],
)
def test_scores_of_passages_become_those_of_documents(score, expected):
    """With the documents in the search's order, and shares that sum to the score."""
    table = TextTable({"id": [*SCORES], "start": [0] * len(SCORES)})
    passages = Passages(PassageOptions(score=score, best=2), table)

    def search(queries, depth, among):
        found = {name: SCORES[name] for name in among or SCORES}
        shares = {name: [Share("x", value - 1), Share("y", 1.0)] for name, value in found.items()}
        return Ranking({q: found for q in queries}, {q: shares for q in queries}).top(depth)

    ranking = passages.search(["q"], 3, search)
    assert ranking.scores("q") == expected
    assert {document: ranking.passage("q", document) for document in "abc"} == {
        **{"a": "a#1", "b": "b#0", "c": "c#0"}
    }
    for document, value in expected.items():
        assert fsum(share.value for share in ranking.shares["q"][document]) == value
    assert passages.search(["q"], 9, search, among=["d", "a"]).documents("q") == ["a", "d"]


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_ranks_documents_by_their_best_passage(name, finished_run):
    retriever = Retriever.load(finished_run(name, *SYSTEMS[name]))
    system, table, data = retriever.system, retriever.documents, retriever.data
    queries = data.evaluation.test_queries("test").select(range(3))
    counts = Counter(map(name_document, table["id"][:]))
    assert len(retriever) == len(counts) == 50 and max(counts.values()) > 2
    every = system._retrieve(queries, len(table), None, False)
    few = system.retrieve(queries, 4)
    for query in queries["id"][:]:
        best = {}
        for passage, score in every.scores(query).items():
            document = name_document(passage)
            best[document] = max(score, best.get(document, score))
        expected = Ranking({query: best}).top(4)
        assert few.documents(query) == expected.documents(query), "as many documents as asked for"
        assert few.scores(query) == pytest.approx(expected.scores(query), rel=1e-5)
        for document in few.documents(query):
            assert name_document(few.passage(query, document)) == document
    documents = [*counts][:6]
    reranked = system.rerank(queries, table, dict.fromkeys(queries["id"][:], documents))
    pairs = {q: [p for p in table["id"][:] if name_document(p) in documents] for q in queries["id"]}
    rows = system._rerank(queries, table, pairs)
    for query in queries["id"][:]:
        assert reranked.documents(query)[0] == name_document(rows.documents(query)[0])
        assert {*reranked.documents(query)} == {*documents}


@pytest.mark.parametrize("name", ["bm25", "t5_colbert", "dsi_naive"])
def test_a_hit_names_its_passage_and_its_place_in_the_document(name, finished_run, tmp_path):
    retriever = Retriever.load(finished_run(name, *SYSTEMS[name]))
    texts = {row["id"]: row["text"] for row in retriever.data.collection.documents}
    retriever.save(tmp_path / "saved")
    for one in (retriever, Retriever.load(tmp_path / "saved")):
        hits = one.search(QUERY, 5)
        assert hits and len({hit.id for hit in hits}) == len(hits)
        for hit in hits:
            assert name_document(hit.passage.id) == hit.id
            part = texts[hit.id][hit.passage.start : hit.passage.end]
            assert one.document(hit.passage.id)["text"] == part
            assert one.document(hit.id)["text"].split() == texts[hit.id].split()
            pair = one.align(QUERY, hit.id)
            assert pair.document_tokens == one.align(QUERY, hit.passage.id).document_tokens
        found = {hit.id for hit in one.search(QUERY, 9, among=[hits[-1].id])}
        assert found == {hits[-1].id} and one.explain(QUERY, hits[1].id).rank == 2
    one.add({"new": "word " * 40 + QUERY})
    if name != "dsi_naive":
        assert one.search(QUERY, 1)[0].id == "new" and one.search(QUERY, 1)[0].passage.start > 0
    one.remove("new")
    assert len(one) == 50


@pytest.mark.parametrize("name", ["bm25", "t5_colbert", "dsi_naive", "t5_seal"])
def test_passages_longer_than_every_document_change_no_result(name, finished_run):
    tiny = () if name == "bm25" else TINY
    whole, split = (
        finished_run(name, *tiny, *more)
        for more in ((), ("data.passages={words: 9999, stride: 9999}",))
    )
    for file in ("retrieve.trec", "rerank.trec"):
        assert (whole / file).read_text() == (split / file).read_text()
