"""`source=engine`: a database finds what our own index finds, and holds what it was told."""

import os
import signal
import sys

import pytest
import torch
from qdrant_client import QdrantClient

from gr_mvdr.alignment import MaxSim
from gr_mvdr.fields import filter_table, find_matching
from gr_mvdr.texts import TextTable
from gr_mvdr.token_index.engine import EdgeClient, EngineIndex
from gr_mvdr.token_index.neighbours import NearestTokens
from gr_mvdr.token_index.search import Documents
from gr_mvdr.token_vectors import PackedTokens
from tests.models.conftest import Texts, draw_tokens, make_multi_vector

SERVER = "http://localhost:6333/texts?shard_number=2"


@pytest.fixture(params=["edge", SERVER], ids=["edge", "server"])
def engine(request, monkeypatch):
    """An engine; the client of the server asks its own stand-in for one, in memory."""
    if request.param == SERVER:
        client = QdrantClient(":memory:")
        monkeypatch.setattr("qdrant_client.QdrantClient", lambda **options: client)
        monkeypatch.setattr(client, "close", lambda: None)  # what the server holds stays
    return request.param


def make_pair(engine, documents, kind="t5_colbert", **search):
    """One model twice: with our own index of the documents, and with an engine."""
    own, model = (
        make_multi_vector(kind),
        make_multi_vector(kind, search={"mode": "engine", "address": engine, **search}),
    )
    model.load_state_dict(own.state_dict())
    own.index(documents)
    return own, model


@pytest.mark.parametrize("kind", ["t5_colbert", "xtr"])
def test_an_engine_finds_what_our_index_finds(engine, kind, documents, queries, tmp_path):
    documents["fields"] = [
        {
            "year": n % 3,
            "tags": ["a", "b"][: n % 4],
            "price": n % 2 + 0.0,
            "a.b": str(n),
            'say "b"': n,
        }
        for n in range(len(documents))
    ]
    own, model = make_pair(engine, documents, kind)
    model.index(documents, tmp_path)
    among = documents["id"][3:9]
    years = filter_table(documents)
    by_year = {"among": find_matching(years, {"year": [0, 1], "tags": "b", "id": among})}
    by_id = {"among": find_matching(years, {"price": 1})}
    quoted = {"among": find_matching(years, {'say "b"': [2, 5, 6]})}
    assert by_year["among"] and by_year["among"].values and not by_id["among"].values
    for options in ({}, {"among": among}, by_year, by_id, quoted):
        expected = own.retrieve(queries, 5, with_shares=True, **options)
        found = model.retrieve(queries, 5, with_shares=True, **options)
        for query in queries["id"]:
            assert found.documents(query) == expected.documents(query)
            assert found.scores(query) == pytest.approx(expected.scores(query), abs=1e-5)
            for name, shares in expected.shares[query].items():
                values = [share.value for share in found.shares[query][name]]
                assert values == pytest.approx([share.value for share in shares], abs=1e-5)
    candidates = {query: among for query in queries["id"]}
    for alignment in (None, MaxSim("document_to_query")):
        expected = own.rerank(queries, documents, candidates, alignment=alignment)
        found = model.rerank(queries, documents, candidates, alignment=alignment)
        for query in queries["id"]:
            assert found.scores(query) == pytest.approx(expected.scores(query), abs=1e-5)
    # The means propose all documents, and then one: its score is the full relevance.
    assert model.searcher.exact_search() == model.search
    proposed = model.retrieve(queries, 3, search=model.search.changed(proposed=1))
    every = model.retrieve(queries, len(documents))
    for query in queries["id"]:
        ((name, score),) = proposed.scores(query).items()
        assert score == pytest.approx(every.scores(query)[name], abs=1e-5)


def test_a_collection_is_reused_changed_and_refused(engine, documents, queries, tmp_path):
    own, model = make_pair(engine, documents)
    model.index(documents, tmp_path)
    model.close()
    search, fewer = {"mode": "engine", "address": engine}, documents.select(range(6))
    other, wide = make_multi_vector(search=search), make_multi_vector(search=search, dimension=12)
    next(other.parameters()).data.add_(1)
    kept = []  # errors with their tracebacks, as a notebook keeps them: the folder is open again
    for asked, texts, words in (
        (other, documents, "was made with model "),
        (wide, documents, "was made with dimension 8, expected 12"),
        (model, fewer, "was made with collection "),
    ):
        for use in (asked.index, asked.open_index):
            with pytest.raises(ValueError, match=f"address={engine[:4]}.*: {words}") as error:
                use(texts, tmp_path)
            kept.append(error)
    model.open_index(documents, tmp_path)
    encoded = []
    encode, model.encode_texts = (
        model.encode_texts,
        lambda texts: encoded.extend(texts) or encode(texts),
    )
    texts = Texts(documents["tokens"][2:] + draw_tokens([5, 3], 9), "n")
    texts["id"] = [*documents["id"][2:], "new", "newer"]
    model.update_index(texts)
    assert len(encoded) == 2, "only the new ones"
    own.index(texts)
    expected, found = (system.retrieve(queries, len(texts)) for system in (own, model))
    for query in queries["id"]:
        assert found.scores(query) == pytest.approx(expected.scores(query), abs=1e-5)


def load(folder, batches=None):
    """Loads 3,000 documents whose vectors tell their number; killed in the midst of a batch."""
    names = [f"d{number}" for number in range(3000)]
    made_from = {"dimension": 4, "model": "m", "collection": "c"}
    index, encoded, put = EngineIndex(), [], EdgeClient.upsert

    def put_or_die(client, name, points):
        encoded.extend(points)
        if len(encoded) > 32 * batches:
            put(client, name, points[:15])
            os.kill(os.getpid(), signal.SIGKILL)
        put(client, name, points)

    def encode(ids):
        for name in ids:
            number = torch.tensor([float(name[1:]), 1.0, 0.0, 0.0])
            yield PackedTokens(number.expand(3, 4), torch.tensor([3]), torch.arange(3))

    if batches is not None:  # in a process of its own
        EdgeClient.upsert = put_or_die
    table = TextTable({"id": names, "text": ["text"] * len(names)})
    index.build(Documents(table, encode, [], made_from), folder)
    return index


def test_a_load_that_is_killed_twenty_times_loses_and_doubles_nothing(tmp_path):
    for kill in range(20):
        if (child := os.fork()) == 0:
            load(tmp_path, batches=kill % 3)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
    index = load(tmp_path)
    assert index.client.shard.info().points_count == 3000
    held = index.vectors(index.names).vectors[:, :, 0]
    assert torch.equal(held, torch.arange(3000.0)[:, None].expand(-1, 3))


def test_what_an_engine_cannot_do_is_said_in_one_line(monkeypatch):
    nobody = "http://127.0.0.1:9/texts"
    for search, kind, words in (
        ({"address": nobody}, "t5_colbert", f"address={nobody}: .*refused"),
        ({}, "aligner", "address=edge: needs search=exact and a score that is MaxSim"),
        ({"proposer": NearestTokens()}, "t5_colbert", "NearestTokens: needs source=index"),
    ):
        with pytest.raises(ValueError, match=words):
            make_multi_vector(kind, search={"mode": "engine", **search})
    monkeypatch.setitem(sys.modules, "qdrant_edge", None)
    with pytest.raises(ValueError, match=r"address=edge: needs pip install 'gr-mvdr\[engine\]'"):
        make_multi_vector(search={"mode": "engine"})
