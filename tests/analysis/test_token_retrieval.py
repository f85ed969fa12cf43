import json
import math
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset

from analysis.analyse import write_findings
from analysis.token_retrieval import (
    Retrieved,
    TokenRetrieval,
    by_rank,
    densities_of,
    read_token_contexts,
)
from gr_mvdr.template import TextTemplate
from gr_mvdr.token_index.index import TokenIndex
from gr_mvdr.token_vectors import PackedTokens, TokenVectors
from tests.analysis.asking import asked

END = 1


def test_a_rank_counts_the_tokens_that_are_there():
    rows = torch.tensor([[4, 7, 4], [9, 1, -1], [3, -1, -1]])
    gold = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]]).bool()
    found = by_rank(Retrieved(rows, rows.float(), gold, ~gold & (rows >= 0)))
    assert [row["gold"] for row in found] == pytest.approx([2 / 3, 1 / 2, 0])
    assert [row["lexical"] for row in found] == pytest.approx([1 / 3, 1 / 2, 1])


def unit(angle):
    return [torch.tensor(angle).cos().item(), torch.tensor(angle).sin().item()]


# Document a: tokens 10 11 </s>; document b: 10 12 </s>; angles on the circle.
DOCUMENTS = {"a": ([10, 11, END], [0.0, 1.0, 3.0]), "b": ([10, 12, END], [0.1, 2.0, -2.0])}
QUERIES = {"q0": ([10, END], [0.02, -2.0]), "q1": ([12, 11, END], [1.1, 1.2, 3.0])}
QRELS = {"q0": {"b": 1, "a": 0}, "q1": {"a": 2}}


def text(ids, angles, keys=None):
    vectors = torch.tensor([unit(angle) for angle in angles])
    mask = torch.ones(len(ids), dtype=torch.bool)
    return TokenVectors(vectors, mask, torch.tensor(ids), keys=keys)


class Model:
    paradigm = "multi_vector"

    def __init__(self, folder, queries=QUERIES, keys=False):
        ids, angles = zip(*DOCUMENTS.values(), strict=True)
        vectors = torch.tensor([unit(angle) for part in angles for angle in part])
        packed = PackedTokens(
            vectors=vectors.flip(0) if keys else vectors,
            counts=torch.tensor([3, 3]),
            ids=torch.tensor([token for part in ids for token in part]),
            keys=vectors if keys else None,
        )
        self.searcher = TokenIndex.build(folder / "index", list(DOCUMENTS), lambda ids: [packed])
        self.queries, self.keys = queries, keys

    def encoded_queries(self, table):
        encoded = []
        for name in table["id"]:
            query = text(*self.queries[name])
            if self.keys:
                query.vectors, query.keys = -query.vectors, query.vectors
            encoded.append((name, query))
        return encoded


class Tokenizer:
    """Ids are read as numbers: "w10 w11"."""

    all_special_ids = (0, END, 2)

    def __len__(self):
        return 100

    def convert_ids_to_tokens(self, number):
        return f"w{number}"

    def decode(self, ids):
        return " ".join(map(self.convert_ids_to_tokens, ids))


def data(queries=QUERIES, qrels=QRELS):
    table = Dataset.from_dict({"id": list(queries)})
    return SimpleNamespace(
        test_splits=["test"],
        test_queries=lambda split: table,
        judgements=lambda split, chosen: {q: qrels[q] for q in chosen["id"]},
        tokenizer=Tokenizer(),
        template=TextTemplate(),
        collection=SimpleNamespace(name="circle"),
        drop_identical=False,
    )


@pytest.mark.parametrize("keys", [False, True])
def test_retrieval_on_a_circle_worked_out_by_hand(tmp_path, keys):
    """Three words: q0's 10 at 0.02, q1's 12 at 1.1 and 11 at 1.2; end tokens ask for nothing.

    Their first three neighbours: a10 b10 a11; a11 b12 b10; a11 b12 b10. The similarity is that of
    the keys where there are any.
    """
    found = asked(TokenRetrieval, Model(tmp_path, keys=keys), data(), 10, neighbours=3)
    rows = found.tables["token_retrieval"]
    assert [row["rank"] for row in rows] == [1, 2, 3]
    third = 1 / 3
    assert [row["gold"] for row in rows] == pytest.approx([2 * third, third, 0])
    # q0: a10 b10; q1's 12: b12 at rank 2; q1's 11: a11 at rank 1.
    assert [row["lexical"] for row in rows] == pytest.approx([2 * third, 2 * third, 0])
    assert found.metrics == {
        "analysis/token_retrieval/gold@1": pytest.approx(2 / 3),
        "analysis/token_retrieval/lexical@1": pytest.approx(2 / 3),
    }


def test_all_tokens_are_a_rank_of_their_own(tmp_path):
    """Six tokens: every one is retrieved once, a half of them belongs to either document."""
    found = asked(TokenRetrieval, Model(tmp_path), data(), 10, neighbours=100)
    rows = found.tables["token_retrieval"]
    assert len(rows) == 6 and sum(row["gold"] for row in rows) == pytest.approx(3)


def test_deleted_documents_are_not_found(tmp_path):
    model = Model(tmp_path)
    model.searcher.delete(["a"])
    qrels = {"q0": {"b": 1}, "q1": {"b": 1}}
    found = asked(TokenRetrieval, model, data(qrels=qrels), 10)
    assert [row["gold"] for row in found.tables["token_retrieval"]] == [1, 1, 1]


def test_many_queries_are_searched_in_parts(tmp_path):
    """Twenty times the same queries: the same probabilities."""
    queries = {f"{name}-{n}": value for n in range(20) for name, value in QUERIES.items()}
    qrels = {name: QRELS[name.split("-")[0]] for name in queries}
    one = asked(TokenRetrieval, Model(tmp_path), data(), 10)
    many = asked(TokenRetrieval, Model(tmp_path, queries), data(queries, qrels), 100)
    assert many.metrics == pytest.approx(one.metrics)
    few = asked(TokenRetrieval, Model(tmp_path, queries), data(queries, qrels), 1)
    assert few.metrics["analysis/token_retrieval/gold@1"] == 0, "q0 alone"


def test_other_systems_say_nothing(tmp_path):
    for model in (SimpleNamespace(searcher=None), SimpleNamespace(searcher="a trie")):
        found = asked(TokenRetrieval, model, data(), 10)
        assert not (found.metrics or found.tables or found.figures)
    assert not asked(TokenRetrieval, Model(tmp_path), data(), 0).metrics
    nothing = {"q0": ([END], [0.3]), "q1": ([10], [0.3])}
    unjudged = data(nothing, {"q0": {"a": 1}, "q1": {"a": 0}})
    assert not asked(TokenRetrieval, Model(tmp_path, nothing), unjudged, 10).metrics


def test_tokens_of_the_query_itself_are_no_hits(tmp_path):
    """The query "a" is the document a: its 10 and 11 find b12, b10 and b's end, in that order."""
    queries = {"a": ([10, 11, END], [0.0, 1.0, 3.0])}
    found = data(queries, {"a": {"b": 1}})
    found.drop_identical = True
    tables = asked(TokenRetrieval, Model(tmp_path, queries), found, 10, neighbours=6).tables
    rows = tables["token_retrieval"]
    assert [row["gold"] for row in rows] == [1.0] * 3
    # 10 at 0.0: b10 at 0.1 first; 11 at 1.0: b10 at 0.1 before b12 at 2.0, both no 11.
    assert [row["lexical"] for row in rows] == [0.5, 0.0, 0.0]


def test_similarities_of_relevant_and_other_tokens_are_two_densities(tmp_path):
    """Relevant ones at 0.75 and 0, others twice at 0.25 and at 1; what is not there counts not."""
    real = torch.tensor([[True, True, True], [True, True, False]])
    gold = torch.tensor([[True, False, False], [False, True, False]])
    similarities = torch.tensor([[0.75, 0.25, 0.25], [1.0, 0.0, -torch.inf]])
    rows = densities_of(Retrieved(real.long() - 1, similarities, gold, gold))
    width = rows[1]["similarity"] - rows[0]["similarity"]
    assert width == pytest.approx(1 / 40) and rows[0]["similarity"] == pytest.approx(1 / 80)
    for kind, places in {"gold": [0.75, 0.0], "other": [0.25, 0.25, 1.0]}.items():
        assert math.fsum(row[kind] for row in rows) * width == pytest.approx(1, rel=1e-5)
        filled = {n: row[kind] * width for n, row in enumerate(rows) if row[kind]}
        counts = {min(39, int(40 * place)): places.count(place) / len(places) for place in places}
        assert filled == pytest.approx(counts, rel=1e-5)
    none = densities_of(Retrieved(real.long() - 1, similarities, gold & False, gold))
    assert {row["gold"] for row in none} == {None} and any(row["other"] for row in none)


def test_retrieved_tokens_are_kept_with_their_contexts(tmp_path):
    """q1's 12 at 1.1 finds a11 at 1.0 first and b12 at 2.0 second; a alone is relevant."""
    found = asked(TokenRetrieval, Model(tmp_path), data(), 10, neighbours=3, contexts=1)
    assert write_findings([found], tmp_path).keys() == found.metrics.keys()
    assert list(read_token_contexts(tmp_path)) == ["q0"], "the first of the queries alone"
    found = asked(TokenRetrieval, Model(tmp_path / "2"), data(), 10, neighbours=3)
    write_findings([found], tmp_path)
    kept = read_token_contexts(tmp_path)["q1"]
    text = {"before": "w10", "after": ""}
    first = {"rank": 1, "similarity": pytest.approx(math.cos(0.1)), "document": "a"}
    first |= {"relevant": True, "token": "w11"} | text
    second = {"rank": 2, "similarity": pytest.approx(math.cos(0.9)), "document": "b"}
    second |= {"relevant": False, "token": "w12"} | text
    shares = dict.fromkeys(("gold", "lexical"), pytest.approx(1 / 3))
    twelve, eleven = kept["tokens"]
    assert kept["text"] == "w12 w11" and eleven["retrieved"][0]["token"] == "w11"
    assert twelve == {"token": "w12", "retrieved": [first, second]} | shares


def test_contexts_that_cannot_be_read_are_said(tmp_path):
    assert read_token_contexts(tmp_path) == {}
    one = dict(rank=1, similarity=0.5, document="d", relevant=True, before="", token="t", after="")
    for change in ({"similarity": math.nan}, {"similarity": None}):
        token = {"token": "t", "gold": 0.5, "lexical": 0.5, "retrieved": [one | change]}
        record = {"q": {"text": "x", "tokens": [token]}}
        (tmp_path / "token_contexts.json").write_text(json.dumps(record))
        with pytest.raises(ValueError, match=r"token_contexts\.json: must hold what the tokens"):
            read_token_contexts(tmp_path)
