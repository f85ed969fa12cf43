"""What a run keeps of its searches for the pages."""

import json
import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from analysis.analyse import ask, write_findings
from analysis.analysis import Subject, Texts
from analysis.best_documents import BEST, SHARES, read_best_documents
from analysis.tokens import TokenKinds
from gr_mvdr.tokenizers import token_strings
from models.base import Share
from models.bm25 import BM25


def kept(model, data, run, queries=100):
    pairs = [(query, query.replace("q", "d")) for query in data.test_queries("test")["id"][:]]
    no = torch.zeros(1, dtype=torch.bool)
    texts = Texts(no, TokenKinds(no, no, no), partial(token_strings, data.tokenizer))
    store = SimpleNamespace(pairs=pairs)
    question = {"_target_": "analysis.best_documents.BestDocuments", "queries": queries}
    assert write_findings(ask(Subject(model, data, run, store, texts), {"x": question}), run) == {}
    return read_best_documents(run)


def test_the_best_documents_are_those_of_the_search_and_say_why(tmp_path, tiny_data):
    model = BM25()
    model.index(tiny_data.documents)
    table = tiny_data.test_queries("test")
    ranking = model.retrieve(table, 100)
    found = kept(model, tiny_data, tmp_path)
    assert list(found) == table["id"][:]
    for query, text in zip(table["id"][:], table["text"][:], strict=True):
        scores, gold = ranking.scores(query), query.replace("q", "d")
        rows = {row.id: row for row in found[query].documents}
        places = ranking.documents(query)
        assert list(rows) == [d for n, d in enumerate(places) if n < BEST or d == gold]
        assert found[query].text == text and rows[gold].title == gold.replace("d", "title")
        for name, row in rows.items():
            assert (row.score, places[row.rank - 1]) == (scores[name], name)
            assert row.grade == (name == gold) and " | " not in row.snippet
            total = math.fsum([value for _, value in row.shares]) + row.others[1]
            assert total == pytest.approx(row.score, abs=1e-4)  # the index's scores are in fp32
    words = [text for text, _ in found["q10"].documents[0].shares]
    assert set(words) <= set(table["text"][0].split())


class Search(BM25):
    """BM25, which says of each document the same shares."""

    def __init__(self, shares):
        super().__init__()
        self.given = shares

    def retrieve(self, queries, k=100, among=None, with_shares=False):
        ranking = super().retrieve(queries, k, among)
        names = {query: ranking.documents(query) for query in ranking.query_ids}
        ranking.shares = {q: dict.fromkeys(found, self.given) for q, found in names.items()}
        return ranking


def test_shares_are_few_and_read_as_people_do(tmp_path, tiny_data):
    size = len(tiny_data.tokenizer)
    amber = tiny_data.tokenizer.convert_tokens_to_ids("amber")
    given = [Share((size + 7, size), 3.0), Share((amber, amber), -2.0), Share("word", 0.001)]
    model = Search(given + [Share((amber,), 1.0)] * SHARES)
    model.index(tiny_data.documents)
    found = kept(model, tiny_data, tmp_path, queries=3)
    assert len(found) == 3
    row = next(iter(found.values())).documents[0]
    shown = [("#7 #0", 3.0), ("amber amber", -2.0)] + [("amber", 1.0)] * (SHARES - 2)
    assert row.shares == shown
    assert row.others == (3, pytest.approx(2.001))


def test_what_is_no_such_file_is_said(tmp_path):
    assert read_best_documents(tmp_path) == {}
    path = tmp_path / "best_documents.json"
    row = dict(id="d", title="", snippet="", rank=1, score=1.0, grade=0, shares=[], others=[0, 0])
    for change in ({"score": float("nan")}, {"rank": None}, {"shares": [1]}, {"others": []}):
        path.write_text(json.dumps({"q": {"text": "x", "documents": [row | change]}}))
        with pytest.raises(ValueError, match="best_documents.json: must hold the best documents"):
            read_best_documents(tmp_path)
    path.write_text("[1")
    with pytest.raises(ValueError, match=r"best_documents.json.*not valid JSON"):
        read_best_documents(tmp_path)
