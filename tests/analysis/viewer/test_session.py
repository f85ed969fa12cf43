"""What the page is told equals what the retrievers say, and sums to what it says it sums to."""

import base64
import zlib
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from analysis.viewer.session import KnownQuery, LoadedSystem, Session, read_known_queries
from gr_mvdr.evaluation.ranking import Ranking
from tests.analysis.asking import data_of
from tests.analysis.viewer.tiny import DOCUMENTS, QUERIES, client, make_retriever
from tests.models.conftest import make_multi_vector

SYSTEMS = range(4)
PAIR = dict(query=QUERIES[0], document={"id": "a"})


def post(browser, verb, **asked):
    reply = browser.post(f"/api/{verb}", json=asked)
    assert reply.status_code == 200, reply.text
    return reply.json()


def close(value):
    """As far as six digits tell."""
    return pytest.approx(value, rel=1e-5, abs=1e-5)


def matrices(pair, name):
    """(L, 1 or 1 + H, M, N) the matrices of a name, as the page reads them."""
    packed = pair["matrices"][name]
    levels = zlib.decompress(base64.b64decode(packed["data"]))
    values = torch.tensor([*memoryview(levels).cast("H")], dtype=torch.float64) / 65535
    sizes = [len(pair[side]["tokens"]) for side in ("document", "query")]
    low, high = (
        torch.tensor(packed[k], dtype=torch.float64)[:, None, None] for k in ("low", "high")
    )
    unpacked = low + values.view(-1, *sizes) * (high - low)
    return unpacked.view(pair["layers"], -1, *sizes)


def alone(system, label):
    """A session of one system."""
    run = SimpleNamespace(path="run", setting="fruits")
    return Session([LoadedSystem(label, run, make_retriever(system, label))])


@pytest.mark.parametrize("query", QUERIES)
def test_a_search_over_http_is_the_retrievers(browser, session, query):
    told = post(browser, "search", query=query, k=3)
    for system, column in zip(session.systems, told["systems"], strict=True):
        hits = system.retriever.search(query, 3)
        assert column["error"] is None and len(column["hits"]) == len(hits)
        assert hits or system.label == "T5-SEAL"  # which retrieves what its beam generates
        for hit, shown in zip(hits, column["hits"], strict=True):
            keys = ("rank", "id", "title", "snippet")
            assert [getattr(hit, key) for key in keys] == [shown[key] for key in keys]
            shares = sum(share["value"] for share in shown["shares"])
            assert shown["score"] == close(hit.score) == pytest.approx(shares, rel=1e-4, abs=1e-4)


def test_a_known_query_has_its_relevant_documents_with_their_ranks(browser):
    told = post(browser, "search", query="  apple  PIE ", k=2)
    assert told["known"] == "Apple pie"
    assert [gold["id"] for gold in told["gold"]] == ["a", "c"]
    for number, system in enumerate(told["systems"]):
        for hit in system["hits"]:
            assert hit["gold"] == (hit["id"] in ("a", "c"))
        for gold in told["gold"]:
            shown = [hit["rank"] for hit in system["hits"] if hit["id"] == gold["id"]]
            # Below the documents that were asked for, the run's own ranking knows the place.
            deeper = {"a": 1, "c": 7}.get(gold["id"]) if number == 0 else None
            assert gold["ranks"][number] == (shown[0] if shown else deeper)
    assert post(browser, "search", query="apple pear")["known"] is None


def test_queries_of_one_text_are_one_known_query(tmp_path):
    """As two splits may share them: the relevant documents of both, each at its rank."""
    texts = {"dev": "apple pie", "test": "Apple  pie"}
    gold = {"dev": ["a"], "test": ["a", "b"]}
    data = data_of(
        test_splits=["dev", "test"],
        test_queries=lambda split: {"id": ["q1"], "text": [texts[split]]},
        relevant=lambda split, queries: {"q1": gold[split]},
    )
    run = SimpleNamespace(path=tmp_path)
    Ranking({"q1": {"c": 2.0, "a": 1.0}}).write(tmp_path / "retrieve.trec", "x")
    Ranking({"q1": {"b": 2.0, "a": 1.0}}).write(tmp_path / "retrieve-test.trec", "x")
    places = [{"a": 2, "b": 1}]
    assert read_known_queries([run], data) == [KnownQuery("q1", "apple pie", ["a", "b"], places)]


def test_known_queries_begin_where_systems_disagree_or_the_only_one_fails(session, browser):
    def ids(asked=browser, **filter):
        return [query["id"] for query in post(asked, "queries", **filter)]

    assert ids() == ["q1", "q0", "q2"]
    assert ids(text="PIE app") == ["q1"] and ids(text="q2") == ["q2"] and ids(text="fig") == []
    ranks = {"first": 1, "missed": None, "tenth": 10, "second": 2}
    known = [KnownQuery(i, i, ["a"], [{"a": r} if r else {}]) for i, r in ranks.items()]
    assert ids(client(Session(session.systems[:1], known))) == [
        "missed",
        "tenth",
        "second",
        "first",
    ]


@pytest.mark.parametrize("number", SYSTEMS)
def test_a_pair_is_told_as_its_layers_and_heads(browser, session, number):
    pair = post(browser, "align", system=number, **PAIR)
    retriever = session.systems[number].retriever
    assert sum(share["value"] for share in pair["shares"]) == close(pair["score"])
    names = {name: matrices(pair, name) for name in pair["matrices"]}
    for layer in range(pair["layers"]):
        aligned = retriever.align(QUERIES[0], "a", layer if pair["layers"] > 1 else -1)
        assert pair["query"]["tokens"] == aligned.query_tokens
        assert pair["relevance"][layer] == close(aligned.relevance.item())
        for name in ("alignment", "similarity", "product"):
            each = [None, *range(pair["heads"])] if pair["heads"] > 1 else [None]
            for place, head in enumerate(each):
                expected = aligned.matrix(name, head).double()
                step = (expected.max() - expected.min()) / 65535 + 1e-5 * expected.abs().max()
                assert (names[name][layer, place] - expected).abs().max() <= step
        for side, axis in (("query", 0), ("document", 1)):
            adds = torch.tensor(pair[side]["adds"][layer], dtype=torch.float64)
            assert torch.allclose(adds, names["product"][layer, 0].sum(axis), atol=1e-3)
            assert adds.sum().item() == pytest.approx(pair["relevance"][layer], rel=1e-4, abs=1e-4)
    assert ("§8" in pair["note"]) == (number >= 2)
    check_directions(pair)


def check_directions(pair):
    """Columns, then rows sum to one over the other side; a token with no partner has zeros."""
    for name, axis in (("query_to_document", 2), ("document_to_query", 3)):
        sums = matrices(pair, name).sum(axis)
        one = torch.isclose(sums, torch.ones_like(sums), atol=1e-3)
        assert (one | (sums == 0)).all() and one.any()


def test_each_tokens_salience_is_told_by_itself(browser):
    """u of aligner Eq. 2: A is 0 or u_i u_j, whatever a token is aligned with."""
    part = {"_target_": "gr_mvdr.salience.LearnedSalience", "gate": "relu"}
    system = make_multi_vector(salience={"query": part, "document": part})
    for weights in system.encoder.salience.parameters():
        torch.nn.init.normal_(weights)
    told = alone(system, "ALIGNER").align(0, **PAIR)
    salience = [torch.tensor(told[side]["salience"]).double() for side in ("document", "query")]
    aligned, pairs = matrices(told, "alignment")[0, 0], salience[0][:, None] * salience[1]
    assert aligned.shape == pairs.shape and len({*told["document"]["salience"]}) > 1
    assert torch.allclose(aligned, torch.where(aligned > 0, pairs, 0.0), atol=1e-4)
    assert "salience" not in post(browser, "align", system=1, **PAIR)["query"]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_an_edited_document_is_scored_as_it_reads(browser, number):
    """The collection's own text, given as a text, is the document itself."""
    assert post(browser, "document", id="b") == DOCUMENTS[1]
    asked = dict(system=number, query=QUERIES[1])
    own = post(browser, "align", **asked, document={"id": "b"})
    given = {key: DOCUMENTS[1][key] for key in ("title", "text")}
    assert post(browser, "align", **asked, document=given) == own
    other = post(browser, "align", **asked, document={"title": "Pear", "text": "no apple"})
    assert other["score"] != own["score"]


def test_the_nearest_tokens_are_those_of_all_similarities(browser, session):
    """The first of them is the largest similarity of any alignment; they come in order."""
    query, retriever = QUERIES[0], session.systems[1].retriever
    every = [
        (similarity, row["id"], pair.document_tokens[place])
        for row in DOCUMENTS
        for pair in [retriever.align(query, row["id"])]
        for place, similarity in enumerate(pair.matrix("similarity")[:, 1].tolist())
    ]
    every.sort(key=lambda found: -found[0])
    told = post(browser, "nearest", system=1, query=query, token=1, k=len(every) + 5)
    assert [near["similarity"] for near in told] == close([value for value, *_ in every])
    assert Counter((near["id"], near["token"]) for near in told) == Counter(
        (name, token) for _, name, token in every
    )
    pie = next(near for near in told if near["token"] == "pie")
    assert (pie["id"], pie["title"], pie["before"][-8:]) == ("a", "Apple", "an apple")
    assert pie["after"].startswith("with")
    reply = browser.post("/api/nearest", json=dict(system=1, query="apple pie", token=3))
    assert reply.json()["error"] == "token=3: must be ≥ 0 and < 3, the query's tokens"
