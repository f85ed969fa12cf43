"""What a run keeps of its searches for the pages."""

import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from analysis.questions.analysis import Subject, Texts
from analysis.questions.best_documents import BEST, FILE
from analysis.questions.tokens import TokenKinds
from analysis.run import ask, write_findings
from analysis.runs.run_folder import read_kept
from gr_mvdr.tokenizers import token_strings
from models.bm25 import BM25


def kept(model, data, run, queries=100):
    pairs = [
        (query, query.replace("q", "d")) for query in data.evaluation.test_queries("test")["id"][:]
    ]
    no = torch.zeros(1, dtype=torch.bool)
    texts = Texts(no, TokenKinds(no, no, no), partial(token_strings, data.tokenizer))
    store = SimpleNamespace(pairs=pairs)
    question = {"_target_": "analysis.questions.best_documents.BestDocuments", "queries": queries}
    assert write_findings(ask(Subject(model, data, run, store, texts), {"x": question}), run) == []
    return read_kept(run, FILE)


def test_the_best_documents_are_those_of_the_search_and_say_why(tmp_path, tiny_data):
    model = BM25()
    model.index(tiny_data.documents)
    table = tiny_data.evaluation.test_queries("test")
    ranking = model.retrieve(table, 100)
    read = kept(model, tiny_data, tmp_path)
    assert list(read) == table["id"][:]
    for query, text in zip(table["id"][:], table["text"][:], strict=True):
        scores, gold = ranking.scores(query), query.replace("q", "d")
        rows = {row["id"]: row for row in read[query]["documents"]}
        places = ranking.documents(query)
        assert list(rows) == [d for n, d in enumerate(places) if n < BEST or d == gold]
        assert read[query]["text"] == text
        assert rows[gold]["title"] == gold.replace("d", "title")
        for name, row in rows.items():
            assert (row["score"], places[row["rank"] - 1]) == (scores[name], name)
            assert row["gold"] == (name == gold) and " | " not in row["snippet"]
            total = math.fsum(share["value"] for share in row["shares"])
            assert total == pytest.approx(row["score"], abs=1e-4)
            assert {share["text"] for share in row["shares"]} <= set(text.split())
