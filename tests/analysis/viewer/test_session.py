"""What the page is told equals what the retrievers say, and sums to what it says it sums to."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from types import SimpleNamespace

import pytest
import torch

from analysis.patching import patch_texts
from analysis.viewer.known_queries import KnownQueries, KnownQuery
from analysis.viewer.loading import LoadedSystem
from analysis.viewer.session import Session
from tests.analysis.viewer.tiny import (
    DOCUMENTS,
    QUERIES,
    client,
    make_multi_vector,
    make_retriever,
)

SYSTEMS = range(4)


def post(browser, verb, **asked):
    found = browser.post(f"/api/{verb}", json=asked)
    assert found.status_code == 200, found.text
    return found.json()


def close(value):
    """As far as six digits tell."""
    return pytest.approx(value, rel=1e-5, abs=1e-5)


def test_the_page_is_told_what_each_system_can_do(browser):
    found = browser.get("/api/about").json()
    assert (found["collection"], found["documents"]) == ("fruits (test)", 4)
    expected = [
        ("BM25", "lexical", 1, 1, "query_to_document", False, "word"),
        ("ColBERT", "multi vector", 1, 1, "query_to_document", False, "query token"),
        ("SEAL", "generative", 2, 2, "document_to_query", True, "n-gram"),
        ("DSI", "generative", 2, 2, "document_to_query", True, "docid token"),
    ]
    keys = ("label", "paradigm", "heads", "layers", "direction", "generative", "shares_of")
    assert [tuple(system[key] for key in keys) for system in found["systems"]] == expected
    assert all(system["alignable"] for system in found["systems"])
    assert [system["patchable"] for system in found["systems"]] == [False, True, True, True]


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("among", [None, ["b", "c"]])
def test_a_search_over_http_is_the_retrievers(browser, session, query, among):
    found = post(browser, "search", query=query, k=3, among=among)
    for system, told in zip(session.systems, found["systems"], strict=True):
        hits = system.retriever.search(query, 3, among)
        assert told["error"] is None and len(told["hits"]) == len(hits)
        assert hits or system.label == "SEAL"  # which finds what its beam generates
        for hit, shown in zip(hits, told["hits"], strict=True):
            assert (hit.rank, hit.id, hit.title, hit.snippet) == tuple(
                shown[key] for key in ("rank", "id", "title", "snippet")
            )
            assert shown["score"] == close(hit.score)
            shares = sum(share["value"] for share in shown["shares"])
            assert shares + shown["rest"] == pytest.approx(hit.score, rel=1e-4, abs=1e-4)
            assert shown["rest"] == 0  # all shares are shown
            assert among is None or shown["id"] in among


def test_a_known_query_has_its_relevant_documents_with_their_ranks(browser):
    found = post(browser, "search", query="  apple  PIE ", k=2)
    assert found["known"] == {"known": "q1", "id": "q1", "text": "Apple pie"}
    assert [gold["id"] for gold in found["gold"]] == ["a", "c"]
    for number, system in enumerate(found["systems"]):
        for hit in system["hits"]:
            assert hit["gold"] == (hit["id"] in ("a", "c"))
        for gold in found["gold"]:
            shown = [hit["rank"] for hit in system["hits"] if hit["id"] == gold["id"]]
            # Below the documents that were asked for, the run's own ranking knows the place.
            deeper = {"a": 1, "c": 7}.get(gold["id"]) if number == 0 else None
            assert gold["ranks"][number] == (shown[0] if shown else deeper)
    assert post(browser, "search", query="apple pear")["known"] is None


def test_of_two_known_queries_with_one_text_the_chosen_one_has_its_gold(session):
    """By the query's name, from the list to search and explanation; splits may share an id."""
    nowhere = ({},) * len(session.systems)
    one = KnownQuery("q1", "apple pie", ("a",), nowhere, "dev")
    two = KnownQuery("q1", "Apple  pie", ("b",), nowhere, "test")
    browser = client(Session(session.systems, KnownQueries([one, two])))
    listed = browser.get("/api/queries").json()
    assert {q["known"]: q["gold"] for q in listed} == {"dev/q1": ["a"], "test/q1": ["b"]}
    for query in listed:
        asked = {"query": query["text"], "known": query["known"]}
        found = post(browser, "search", **asked)
        assert found["known"]["known"] == query["known"] and found["namesakes"] == []
        assert [gold["id"] for gold in found["gold"]] == query["gold"]
        why = post(browser, "explain", system=1, document="c", **asked)
        assert why["best"]["gold"] == (why["best"]["id"] in query["gold"])
    typed = post(browser, "search", query="apple pie")
    assert typed["known"] is None and typed["gold"] == []
    assert [query["known"] for query in typed["namesakes"]] == ["dev/q1", "test/q1"]
    edited = post(browser, "search", query="apple", known="test/q1")  # it is another query now
    assert edited["known"] is None and edited["gold"] == edited["namesakes"] == []


@pytest.mark.parametrize("system", [1, 2, 3])
def test_patches_over_http_are_those_of_the_analysis(browser, session, system, monkeypatch):
    monkeypatch.setattr("analysis.patching.LEAST", 1e-6)
    asked = dict(system=system, query="apple pie", document={"id": "a"})
    suggested = post(browser, "patch", **asked)
    assert suggested["perturbed"] not in ("", "apple pie")
    found = post(browser, "patch", **asked, perturbed="a pear pie")
    retriever = session.systems[system].retriever
    maps = patch_texts(
        retriever,
        ("apple pie", "a pear pie"),
        "a",
        lambda pair: [pair.clean, pair.perturbed, *map(pair.maps, pair.sites)],
    )
    assert found["scores"] == close(maps[:2])
    assert [s["name"] for s in found["stacks"]] == ["encoder", "decoder"][: len(maps) - 2]
    for stack, (by_token, by_head) in zip(found["stacks"], maps[2:], strict=True):
        for told, own, names in (
            ("by_token", by_token, "parts"),
            ("by_head", by_head, "attentions"),
        ):
            assert stack[told] == [close(row) for row in own.tolist()]
            assert len(stack[names]) == len(own)
        assert len(stack["tokens"]) == by_token.shape[1]
    assert len(found["stacks"][0]["tokens"]) == 4  # "apple", a filler, "pie", the end


def test_searches_at_the_same_time_do_not_mix(browser):
    asked = [{"query": query, "k": k} for query in QUERIES for k in (1, 2, 3, 4)] * 2

    def search(body):
        found = browser.post("/api/search", json=body).json()
        return [system["hits"] for system in found["systems"]]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(search, asked)) == list(map(search, asked))


def test_a_system_that_cannot_search_leaves_the_others_alone(browser, session, monkeypatch):
    def search(*_):
        raise ValueError("two\nlines")

    monkeypatch.setattr(session.systems[1].retriever, "search", search)
    found = post(browser, "search", query="apple")["systems"]
    assert found[1]["error"] == "two lines" and found[1]["hits"] == []
    assert found[0]["error"] is None and found[0]["hits"]


def test_known_queries_are_ordered_and_filtered(browser):
    def ids(**asked):
        return [query["id"] for query in browser.get("/api/queries", params=asked).json()]

    assert ids() == ["q1", "q0", "q2"]
    assert ids(order="name") == ["q0", "q1", "q2"]
    assert ids(text="PIE app") == ["q1"] and ids(text="q2") == ["q2"] and ids(text="fig") == []
    assert ids(limit=1) == ["q1"]
    first = browser.get("/api/queries").json()[0]
    assert first["ranks"] == [1, None, None, None] and first["disagreement"] == 1
    assert first["gold"] == ["a", "c"]


def test_a_document_is_shown_as_it_was_written(browser):
    found = browser.get("/api/document", params={"id": "a"}).json()
    assert found == DOCUMENTS[0]


@pytest.mark.parametrize(("number", "head"), [*product(SYSTEMS, (None, 0))])
def test_the_product_sums_to_the_relevance_and_shares_to_the_score(browser, number, head):
    asked = dict(system=number, query=QUERIES[0], document={"id": "a"}, head=head)
    found = post(browser, "align", **asked)
    columns = [sum(column) for column in zip(*found["product"], strict=True)]
    rows = [sum(row) for row in found["product"]]
    assert found["query_shares"] == close(columns) and found["document_shares"] == close(rows)
    for key in ("similarity", "alignment", "product"):
        assert len(found[key]) == len(found["document_tokens"])
        assert {len(row) for row in found[key]} == {len(found["query_tokens"])}
    if head is None:
        assert sum(rows) == pytest.approx(found["relevance"], rel=1e-4, abs=1e-4)
    assert sum(s["value"] for s in found["shares"]) == pytest.approx(found["score"], abs=1e-4)
    assert found["shares_sum"] == pytest.approx(found["score"], abs=1e-4)
    generative = number >= 2
    assert ("§8" in found["note"]) == generative
    assert generative or found["relevance"] == close(found["score"])


def test_each_tokens_salience_is_told_by_itself():
    """u of aligner Eq. 2: A is 0 or u_i u_j, whatever a token is aligned with."""
    torch.manual_seed(0)
    part = {"_target_": "gr_mvdr.salience.LearnedSalience", "gate": "relu"}
    system = make_multi_vector(salience={"query": part, "document": part})
    for weights in system.encoder.salience.parameters():
        torch.nn.init.normal_(weights)
    retriever = make_retriever(system, "ALIGNER")
    run = SimpleNamespace(path="run")
    session = Session([LoadedSystem("ALIGNER", run, retriever)], KnownQueries())
    told = session.align(0, QUERIES[0], {"id": "a"})
    pairs = torch.tensor(told["document_salience"])[:, None] * torch.tensor(told["query_salience"])
    aligned = torch.tensor(told["alignment"])
    assert aligned.shape == pairs.shape and len({*told["document_salience"]}) > 1
    assert torch.allclose(aligned, torch.where(aligned > 0, pairs, 0.0), atol=1e-6)
    table = retriever.encode_documents("a")[0].to_pandas()
    assert table["salience"].tolist() == close(told["document_salience"])
    assert table.shape == (len(told["document_tokens"]), 1 + 8)


@pytest.mark.parametrize("system", SYSTEMS)
def test_without_salience_none_is_told(browser, system):
    found = post(browser, "align", system=system, query=QUERIES[0], document={"id": "a"})
    assert found["query_salience"] is found["document_salience"] is None


def test_the_heads_parts_sum_to_the_relevance_of_the_layer(browser):
    asked = dict(system=2, query=QUERIES[0], document={"id": "b"}, layer=0)
    whole = post(browser, "align", **asked)
    parts = [post(browser, "align", **asked, head=head) for head in range(whole["heads"])]
    total = sum(sum(part["query_shares"]) for part in parts)
    assert total == pytest.approx(whole["relevance"], rel=1e-4)
    assert whole["relevance"] != post(browser, "align", **{**asked, "layer": -1})["relevance"]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_an_edited_document_is_scored_as_it_reads(browser, number):
    """The collection's own text, given as a text, is the document itself."""
    asked = dict(system=number, query=QUERIES[1])
    own = post(browser, "align", **asked, document={"id": "b"})
    given = {key: DOCUMENTS[1][key] for key in ("title", "text")}
    same = post(browser, "align", **asked, document=given)
    assert same == own
    other = post(browser, "align", **asked, document={"title": "Pear", "text": "no apple"})
    assert other["score"] != own["score"]


def test_two_texts_are_compared_side_by_side(browser):
    asked = dict(system=1, queries=[QUERIES[0]], documents=[{"id": "a"}, {"text": "a pear"}])
    found = post(browser, "compare", **asked)
    alone = [
        post(browser, "align", system=1, query=QUERIES[0], document=document)
        for document in asked["documents"]
    ]
    assert found == alone
    both = post(browser, "compare", system=1, queries=QUERIES[:2], documents=[{"id": "a"}])
    assert [pair["score"] for pair in both] == [
        post(browser, "align", system=1, query=query, document={"id": "a"})["score"]
        for query in QUERIES[:2]
    ]


@pytest.mark.parametrize("kind", ["png", "pdf"])
def test_a_view_is_saved_as_a_file_with_a_harmless_name(browser, session, kind, monkeypatch):
    hostile = '../"\r\nSet-Cookie: x/ ÄSEAL'
    monkeypatch.setitem(session.systems[2].__dict__, "label", hostile)
    asked = dict(system=2, query="apple $pie$", document={"id": "a"}, layer_shown="product")
    found = browser.post("/api/figure", json={**asked, "format": kind})
    assert found.status_code == 200
    start = {"png": b"\x89PNG", "pdf": b"%PDF"}[kind]
    assert found.content.startswith(start)
    name = found.headers["content-disposition"]
    assert name == f'attachment; filename="set-cookie-x-seal-product.{kind}"'
    assert "set-cookie" not in found.headers


def test_a_query_of_five_thousand_words_is_cut_as_each_system_cuts_it(browser):
    long, short = (f"{'a ' * count}b" for count in (5000, 400))
    found = [post(browser, "search", query=query)["systems"] for query in (long, short)]
    assert {system["error"] for system in found[0]} == {None}
    assert [s["hits"] for s in found[0][1:]] == [s["hits"] for s in found[1][1:]]


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
    found = post(browser, "nearest", system=1, query=query, token=1, k=len(every) + 5)
    assert [near["similarity"] for near in found] == close([value for value, *_ in every])
    told = Counter((near["id"], near["token"]) for near in found)
    assert told == Counter((name, token) for _, name, token in every)
    pie = next(near for near in found if near["token"] == "pie")
    assert (pie["id"], pie["title"], pie["before"][-8:]) == ("a", "Apple", "an apple")
    assert pie["after"].startswith("with")


def test_a_query_token_that_is_not_there_is_a_line(browser):
    asked = dict(system=1, query="apple pie", token=3)
    found = browser.post("/api/nearest", json=asked)
    assert found.status_code == 400
    assert found.json()["error"] == "token=3: must be ≥ 0 and < 3, the query's tokens"


@pytest.mark.parametrize("number", SYSTEMS)
@pytest.mark.parametrize("document", ["a", "d"])
def test_an_explanation_says_rank_score_and_best(browser, session, number, document):
    asked = dict(system=number, query=QUERIES[0], document=document)
    found, own = post(browser, "explain", **asked), session.systems[number].retriever
    hits = own.search(QUERIES[0], 100)
    ranks = {hit.id: hit.rank for hit in hits}
    assert found["rank"] == ranks.get(document)
    assert found["best"]["id"] == hits[0].id and found["reason"].startswith(document)
    if found["rank"]:
        assert found["score"] == close(hits[found["rank"] - 1].score) == found["hit"]["score"]
    assert ("steps" in found) == (number >= 2)


@pytest.mark.parametrize("number", [2, 3])
def test_a_beam_search_is_told_step_by_step(browser, session, number):
    retriever, lost = session.systems[number].retriever, 0
    for document in "abcd":
        found = post(browser, "explain", system=number, query=QUERIES[2], document=document)
        steps = found["steps"]
        assert [step["depth"] for step in steps] == [*range(1, len(steps) + 1)]
        for step in steps:
            kept = [hypothesis["probability"] for hypothesis in step["kept"]]
            assert kept == sorted(kept, reverse=True) and all(0 <= p <= 1 for p in kept)
            assert (step["gold_rank"] is None) == (step["gold_token"] is None)
        if found["lost"]:
            lost += 1
            step = steps[found["lost"] - 1]
            assert not step["alive"] and all(
                before["alive"] for before in steps[: step["depth"] - 1]
            )
            assert found["replaced_by"] in step["kept"]
            if step["gold_probability"] is not None:
                assert found["replaced_by"]["probability"] >= step["gold_probability"]
        else:
            assert found["replaced_by"] is None and all(step["alive"] for step in steps)
        for one in found["generated"]:
            assert one["log_probability"] <= 0 and one["count"] >= len(one["documents"])
            for named in one["documents"]:
                assert named == {"id": named["id"], "title": retriever.read(named["id"])[0]}
    assert number == 3 or lost  # the beam of three is too small for all


def test_continuations_lead_from_token_to_token_to_a_document(browser, session):
    system = session.systems[3].retriever.system
    prefix, walked = [], None
    while found := post(browser, "continuations", system=3, query="pear", prefix=prefix, k=9):
        probabilities = [one["probability"] for one in found]
        assert probabilities == sorted(probabilities, reverse=True)
        walked = next(one for one in found if one["allowed"])
        assert walked["documents"] >= len(walked["examples"]) >= 1
        assert all(not one["examples"] for one in found if not one["allowed"])
        prefix = [*prefix, walked["token"]]
    number = system.document_ids.index(walked["examples"][0]["id"])
    assert tuple(prefix) in system.names.gold_prefixes(number)


def test_a_prefix_that_no_search_generates_is_a_line(browser):
    asked = dict(system=2, query="pear")
    for prefix in ([59, 58], [10**30], [-1]):
        found = browser.post("/api/continuations", json={**asked, "prefix": prefix})
        assert found.status_code == 400, prefix
        assert found.json()["error"].startswith("prefix=")
    found = browser.post("/api/continuations", json={**asked, "prefix": ["a"]})
    assert found.json()["error"] == "prefix=[a]: must be a list of token numbers"
