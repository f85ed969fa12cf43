"""One class for a person: plain texts in, small typed results out, for every kind of system."""

import gc
import json
import math
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Lock
from types import SimpleNamespace

import matplotlib
import pandas
import pyarrow.compute as pc
import pytest
import torch
import torch.nn.functional as F

from analysis.runs.run_folder import read_run
from models.base import System
from models.beyond.quantised_docids import RunEmbeddings
from models.inspection import continuations, nearest_tokens
from models.retriever import Retriever
from models.saved_model import FinishedRun
from tests.runs import TINY, small
from tests.stand_in import DEVICE, stand_in
from train import train

matplotlib.use("Agg")
QUERY = "Which city has a statue of the founder?"
# One system of each kind; tests/models/test_shares.py has the laws of all of them.
SYSTEMS = {
    "bm25": (),
    "xtr": (*TINY, "model.search.proposer.neighbours=100"),
    "cross_encoder": TINY,
    "t5_seal": TINY,
    "genre_np_base": TINY,
}


@pytest.fixture(scope="module", params=SYSTEMS)
def run(request, finished_run) -> Path:
    return finished_run(request.param, *SYSTEMS[request.param])


@pytest.fixture(scope="module")
def retriever(run) -> Retriever:
    return Retriever.load(run)


@pytest.fixture
def colbert(finished_run) -> Retriever:
    return Retriever.load(finished_run("t5_colbert", *TINY))


def test_a_run_is_searched_as_it_was_when_it_was_made(retriever, run, capsys):
    """The ranking of a test query in `retrieve.trec`, from the index that the run made."""
    lines = [line.split() for line in (run / "retrieve.trec").read_text().splitlines()]
    query = lines[0][0]
    queries = retriever.data.evaluation.test_queries(retriever.data.evaluation.test_splits[0])
    text = queries["text"][queries["id"][:].index(query)]
    hits = retriever.search(text, 5)
    kept = [(line[2], float(line[4])) for line in lines if line[0] == query][:5]
    assert [hit.score for hit in hits] == pytest.approx([score for _, score in kept], abs=1e-3)
    assert "an index of its own" not in capsys.readouterr().out


def check_shares(retriever):
    hits = retriever.search(QUERY, 5)
    assert len(hits) and [hit.rank for hit in hits] == list(range(1, len(hits) + 1))
    for hit in hits:
        assert math.fsum(share.value for share in hit.shares) == pytest.approx(hit.score, abs=1e-4)
        assert all(isinstance(share.text, str) for share in hit.shares)
    assert list(hits.to_pandas().id) == [hit.id for hit in hits] and "<table" in hits._repr_html_()
    told = json.loads(json.dumps(hits.to_dict(), allow_nan=False))["hits"]
    assert [(hit["id"], hit["score"]) for hit in told] == [(hit.id, hit.score) for hit in hits]
    assert told[0]["shares"][0]["value"] == hits[0].shares[0].value


def test_search_score_shares_retrieve_and_rerank_are_one_system(retriever):
    """A hit's shares sum to its score, and all verbs give one number for a pair."""
    check_shares(retriever)
    names, texts = retriever.documents["id"][:3], {"a": QUERY, "b": " ", "c": "a river"}
    assert {hit.id for hit in retriever.search(QUERY, 10, among=names)} <= set(names)
    ranking = retriever.retrieve(texts, 5)
    for query, hits in zip("ac", retriever.search([texts["a"], texts["c"]], 5), strict=True):
        expected = {hit.id: hit.score for hit in hits}
        assert ranking.scores(query) == pytest.approx(expected, rel=1e-5, abs=1e-4)
    assert ranking.query_ids == ["a", "b", "c"] and not ranking.documents("b")
    scores = retriever.score([QUERY, "a river"], names)
    assert list(scores.index) == names and list(scores) == [QUERY, "a river"]
    total = math.fsum(share.value for share in retriever.shares(QUERY, names[1]))
    assert total == pytest.approx(scores.loc[names[1], QUERY], abs=1e-4)
    reranked = retriever.rerank(texts, {"a": [*names, names[0]], "b": names})
    assert reranked.scores("a") == pytest.approx(scores[QUERY].to_dict(), abs=1e-4)
    assert not reranked.documents("b") and not reranked.documents("c")
    with pytest.raises(ValueError, match="document=nowhere: no such id"):
        retriever.rerank(texts, {"a": ["nowhere"]})


def test_a_filter_restricts_the_search_and_fields_come_back(run, tmp_path):
    r = Retriever.load(run)
    rows = [r.document(name) for name in r.search(QUERY, 12).to_pandas().id]
    rows = [row | {"year": 2000 + n % 3, "tags": ["x"]} for n, row in enumerate(rows)]
    r.index(rows)
    rows.append(
        {"id": "new", "title": "Zanzibar", "text": rows[0]["text"], "year": 2001, "url": "u"}
    )
    r.add(rows[-1:])
    kept = [row["id"] for row in rows if row["year"] == 2001]
    for one in (r, Retriever.load(save(r, tmp_path))):
        assert one.document("new") == rows[-1] and one.document(rows[0]["id"]) == rows[0]
        hits = one.search(QUERY, len(kept), where={"year": 2001})
        assert hits and [hit.id for hit in hits] == [
            hit.id for hit in one.search(QUERY, 99, among=kept)
        ]
        assert all(hit.fields["year"] == 2001 for hit in hits)
        assert list(hits.to_pandas().year) == [2001] * len(hits)
        assert json.dumps(hits.to_dict()["hits"][0]["fields"])
        both = one.search(QUERY, 9, among=["new", rows[0]["id"]], where=pc.field("year") > 2000)
        assert {hit.id for hit in both} <= {"new"}
        assert one.search(QUERY, where={"year": 1}) == []
    with pytest.raises(ValueError, match="where: date must be a field of the documents: year"):
        r.search(QUERY, where={"date": 1})


def test_a_pipelines_share_is_that_of_the_stage_that_scored_last(finished_run):
    stages = [finished_run("bm25"), finished_run("t5_colbert", *TINY)]
    asked = f"[{{run: {stages[0]}, depth: 3}}, {{run: {stages[1]}}}]"
    retriever = Retriever.load(finished_run("rerank_pipeline", f"model.stages={asked}"))
    check_shares(retriever)
    hits = retriever.search(QUERY, 5)
    assert [hit.shares[0].text for hit in hits] == ["2-T5-ColBERT"] * 3
    alone = Retriever.load(stages[0])  # its terms are words, the pipeline's tokens are pieces
    assert {hit.id for hit in hits} == {hit.id for hit in alone.search(QUERY, 3)}


def save(retriever, folder) -> Path:
    """Where it is opened: the folder has moved, and holds no link into another."""
    retriever.save(folder / "saved")
    assert not any(file.is_symlink() for file in (folder / "saved").rglob("*"))
    return shutil.move(folder / "saved", folder / "moved")


def test_documents_are_added_removed_and_saved(run, tmp_path):
    retriever = Retriever.load(run)
    before = retriever.search(QUERY, 5)
    # What the best hit says: two steps of training find little in other texts (T5-SEAL).
    text = retriever.document(before[0].id)["text"]
    row = {"id": "new", "title": "Zanzibar", "text": text}
    assert retriever.add([row]) == ["new"] and len(retriever) == len(retriever.documents) == 51
    assert retriever.document("new") == row
    assert retriever.search(QUERY, 1, among=["new"])[0].id == "new"
    with pytest.raises(ValueError, match="document=new: is indexed already"):
        retriever.add([{"id": "new", "text": "again"}])
    (number,) = map(int, retriever.add([{"title": "A new title", "text": "A text without an id."}]))
    assert str(number) not in list(before.to_pandas().id)
    kept, asked = Retriever.load(save(retriever, tmp_path)), [QUERY, "a text without an id"]
    for found, expected in zip(kept.search(asked, 4), retriever.search(asked, 4), strict=True):
        assert [(hit.id, hit.snippet) for hit in found] == [(h.id, h.snippet) for h in expected]
        assert [h.score for h in found] == pytest.approx([h.score for h in expected], abs=1e-5)
    assert kept.document("new") == row and kept.label == retriever.label
    kept.remove(number)
    assert kept.add([{"title": "Another", "text": "another text"}]) == [str(number + 1)]
    retriever.remove(["new", number])
    assert len(retriever) == 50 and "new" not in retriever.documents["id"][:]
    if run.name == "genre_np_base":
        return  # its output table has more rows now
    after = retriever.search(QUERY, 5)
    assert [hit.score for hit in after] == pytest.approx([h.score for h in before], abs=1e-4)


# Laws of single systems --------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["t5_colbert", "dsi_semantic"])
def test_what_is_left_after_a_removal_is_opened_as_it_was_saved(
    model, finished_run, tmp_path, capsys
):
    """A known document is gone, but its docid stays its own; no vector is encoded again."""
    retriever = Retriever.load(finished_run(model, *TINY))
    gone = retriever.document(retriever.search(QUERY, 1)[0].id)
    retriever.remove(gone["id"])
    retriever.add({"id": "new", "title": "A founder", "text": "A statue of the founder."})
    kept = Retriever.load(save(retriever, tmp_path))
    assert kept.search(QUERY, 5) == retriever.search(QUERY, 5)
    assert "is made again" not in capsys.readouterr().out
    for one in (retriever, kept):
        one.add(gone)
    assert kept.search(QUERY, 5) == retriever.search(QUERY, 5)


def test_an_id_is_never_given_twice(colbert):
    assert colbert.index(list("abcdef")) is None and len(colbert) == 6
    colbert.remove("3")
    assert colbert.add(["x"]) == ["6"]
    colbert.remove([6, "5"])
    assert colbert.add(["y", {"docno": 8, "text": "z"}, "w"]) == ["7", "8", "10"]
    colbert.index({1: "the first line", 2: "the second"})  # as a file of passages is numbered
    assert colbert.add("the third") == ["3"]


def test_one_bad_query_does_not_lose_the_others(colbert):
    asked = [QUERY, " ", "a river", None]
    with pytest.warns(UserWarning, match="finds nothing: ") as told:
        hits = colbert.search(asked, 3)
    assert [len(one) for one in hits] == [3, 0, 3, 0] and len(told) == 2
    assert "query 1 finds nothing: query=' ': must be a text" in str(told[0].message)
    assert json.dumps([one.to_dict() for one in hits], allow_nan=False)
    with pytest.warns(UserWarning, match="query q1 finds nothing: query=' '"):
        ranking = colbert.retrieve({"q0": asked[0], "q1": asked[1], "q2": asked[2]}, 3)
    lists = [ranking.documents(query) for query in ranking.query_ids]
    assert lists == [[hit.id for hit in one] for one in hits[:3]]


def test_an_integer_is_the_id_that_it_spells(colbert):
    one, two = colbert.documents["id"][:2]
    colbert.index({1: colbert.document(one), 2: colbert.document(two)})
    assert colbert.explain(QUERY, 2).id == "2" and colbert.document(2)["id"] == "2"
    assert colbert.search(QUERY, among=[2])[0].id == "2"
    assert colbert.align(QUERY, 2).document_tokens == colbert.align(QUERY, "2").document_tokens
    assert colbert.rerank({"q": QUERY}, {"q": [2, 1]}).scores("q").keys() == {"1", "2"}
    assert colbert.rerank({"q": QUERY}, {"q": {1: 0.9}}).scores("q").keys() == {"1"}  # scores
    frame = pandas.DataFrame({"docno": [3], "text": ["a third"]})
    assert colbert.add(frame) == ["3"]
    assert list(colbert.score(QUERY, [1, 3, "a text"]).index) == ["1", "3", "a text"]
    assert list(colbert.score(QUERY, frame).index) == ["3"]
    assert len(colbert.encode_documents([1, "a text"])) == 2


def test_a_hit_is_printed_in_a_line(colbert):
    colbert.index({"a291": "A text without a title.\n" * 50, "b": "another"})
    hits = colbert.search("a text", 2)
    hit = next(hit for hit in hits if hit.id == "a291")
    assert str(hit).startswith(f"{hit.rank}. {hit.score:.4f} a291: A text without a title. A text")
    assert "\n" not in str(hit) and "title" not in str(hits).split("\n")[1]
    colbert.add({"id": "c", "title": "Tarvik", "text": "A text."})
    assert "title" in str(colbert.search("a text", 3)).split("\n")[1]


def test_eight_threads_take_turns_and_find_what_one_finds(colbert, monkeypatch):
    """The modules of a model hold states of a call, which a second call at once would read."""
    texts = [f"Which city has number {number}?" for number in range(12)]
    alone = [colbert.search(text, 3) for text in texts]
    retrieve, turn = colbert.system.retrieve, Lock()

    def retrieve_slowly(*arguments, **options):
        assert turn.acquire(blocking=False), "two calls at once"
        time.sleep(0.01)  # the other threads arrive
        ranking = retrieve(*arguments, **options)
        turn.release()
        return ranking

    monkeypatch.setattr(colbert.system, "retrieve", retrieve_slowly)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(partial(colbert.search, k=3), texts)) == alone


def test_the_temporary_files_of_a_retriever_go_with_it(finished_run, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "gr_mvdr.files._process_folder", lambda process: SimpleNamespace(name=tmp_path)
    )
    for system in ("t5_colbert", "t5_seal"):
        retriever = Retriever.load(finished_run(system, *TINY))
        for text in ("another text", "a second text"):
            retriever.add(text)
            gc.collect()
        assert len(list(tmp_path.iterdir())) <= 2, "the run's index and that of the last documents"
        del retriever
        gc.collect()
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda r: r.search("a", among=["nobody"]), "document=nobody: no such id among the 50"),
        (lambda r: r.add([]), r"documents=\[\]: must hold at least one document"),
        (lambda r: r.add([{"id": "a", "text": "a"}, {"id": "a", "text": "b"}]), "document=a: two"),
        (lambda r: r.add([7]), "document=7: must be a text, or a row with a text"),
        (lambda r: r.search(b"a"), "queries=b'a': must be a text, several texts or a table"),
        (lambda r: r.search({"q1": "a"}), "retrieve takes a mapping of ids to texts"),
        (lambda r: r.explain("a", 5.5), "document=5.5: no such id among the 50"),
        (
            lambda r: r.retrieve(["a"]),
            r"queries=\[a\]: must be a mapping",
        ),
        (lambda r: r.retrieve({"q": "a"}, 0), "k=0: must be a whole number ≥ 1"),
        (
            lambda r: r.rerank("a", ["50"]),
            "search.query, among=ids. takes a text",
        ),
        (lambda r: r.rerank({"q": "a"}, ["50"]), r"candidates=\[50\]: must be a mapping"),
        (lambda r: r.score("a", ["b", None]), "document=null: must be a text"),
        (lambda r: r.encode_queries({"q": "a"}), "queries={'q': 'a'}: must be a text"),
        (lambda r: r.align("a", "b", layer=99), "layer=99: must be ≥ -1 and < 1"),
        (lambda r: r.align("a", "b", layer="c"), "layer=c: must be a whole number"),
        (lambda r: nearest_tokens(r, "a", "b"), "token=b: must be a whole number ≥ 0"),
        (lambda r: continuations(r, "a", "b"), "prefix=b: must be a list of token ids"),
        (lambda r: Retriever.load(None), "folder=null: must be a folder"),
        (lambda r: Retriever.load("x", dtype=torch.int64), "dtype=.*int64.*: must be a type of fl"),
        (lambda r: Retriever.load("x", "gpu"), "device=gpu: must be a device of torch"),
        (lambda r: r.remove(r.documents["id"][:]), "must leave one of the 50 documents"),
    ],
)
def test_bad_input_is_named_in_a_line(colbert, ask, message):
    with pytest.raises(ValueError, match=message) as error:
        ask(colbert)
    assert "\n" not in str(error.value)


def assert_codes_have_one_name(retriever, table):
    name, codes = table.read_text().splitlines()[0].split("\t")
    first, *others = codes.split()
    assert retriever.align(QUERY, name).document_tokens == [first, *others]
    explained = retriever.explain(QUERY, name)
    assert [share.text for share in explained.hit.shares] == [first, *others]
    assert explained.steps_to_pandas().best[0] == first
    tokens = {one.text: one.token for one in continuations(retriever, QUERY, k=99)}
    after = continuations(retriever, QUERY, [tokens[first]], k=99)
    assert others[0] in [one.text for one in after]


def test_documents_are_encoded_in_batches_as_the_index_stores_them(colbert, monkeypatch):
    ids, system = colbert.documents["id"][:], colbert.system
    system.search = system.search.changed(pool=2)
    colbert.index([{"id": name, "text": colbert.document(name)["text"]} for name in ids])
    monkeypatch.setattr("gr_mvdr.batch._PADDED_TOKENS", 500)
    encode, sizes = system.encode_texts, []
    monkeypatch.setattr(
        system, "encode_texts", lambda texts: sizes.append(len(texts)) or encode(texts)
    )
    encoded = colbert.encode_documents(ids)
    assert len(sizes) > 1 and sum(sizes) == len(ids)
    for text, name in zip(encoded, ids, strict=True):
        stored = system.searcher.vectors([name]).unpad(0).vectors
        torch.testing.assert_close(text.vectors, stored, atol=1e-5, rtol=0)
    texts = ["a", "b " * 30, "c"]
    for one, alone in zip(colbert.encode_queries(texts), texts, strict=True):
        expected = colbert.encode_queries(alone)[0]
        assert one.tokens == expected.tokens
        torch.testing.assert_close(one.vectors, expected.vectors, atol=1e-5, rtol=0)


def test_docids_quantise_the_vectors_of_a_finished_run(finished_run, monkeypatch):
    """The mean of T5-ColBERT's vectors of a text, of one that is added later, too."""
    run = finished_run("t5_colbert", *TINY)
    asked = [f"model.identifiers.embeddings.run={run}", "model.identifiers.codes=8"]
    docids = finished_run("dsi_rq", *TINY, *asked)
    retriever = Retriever.load(docids)
    scheme, documents = retriever.system.scheme, retriever.documents
    encoded = Retriever.load(run).encode_documents(documents["text"][:4])
    means = [F.normalize(text.vectors.mean(0), dim=0) for text in encoded]
    found = torch.from_numpy(scheme.embed(documents.select(range(4))))
    torch.testing.assert_close(found, torch.stack(means), atol=1e-5, rtol=0)
    assert_codes_have_one_name(retriever, docids / "identifiers/docids.tsv")
    before = retriever.system.identifiers.sequences
    retriever.add({"id": "copy", "text": documents["text"][0]})
    *others, copy = retriever.system.identifiers.sequences
    assert others == before and copy[:-1] == before[0][:-1] and copy != before[0]
    load, opened = FinishedRun.load_model, []
    monkeypatch.setattr(
        FinishedRun,
        "load_model",
        lambda *arguments: opened.append(load(*arguments)) or opened[-1],
    )
    other = RunEmbeddings(str(run))
    other.device = DEVICE
    with stand_in():
        there = other.transform(documents.select(range(4)))
    torch.testing.assert_close(torch.from_numpy(there), found, atol=1e-5, rtol=0)
    assert opened.pop().device == DEVICE
    assert not any(isinstance(value, System) for value in vars(other).values()), "it keeps it"
    other.weights = "others"
    with pytest.raises(ValueError, match="must hold the weights others that the docids were made"):
        other.transform(documents)
    with pytest.raises(ValueError, match="must be a multi-vector run, it is one of DSI"):
        RunEmbeddings(str(finished_run("dsi_semantic", *TINY))).transform(documents)


@pytest.mark.slow
def test_a_run_plans_the_search_of_another(finished_run, tmp_path):
    bm25 = finished_run("bm25")
    keys = ("model=dsi_semantic", "logger=none", *TINY, f"model.search.plan.scores={bm25}")
    config = small(tmp_path, *keys, "model.search.plan.weight=1000", "model.beam_size=1")
    found = train(config)
    assert found.metrics["cost/plan_documents"] == 50 and found.metrics["cost/plan_bytes"] > 0
    lexical, planned = read_run(bm25).metrics, found.metrics
    # Half of a beam of one ends somewhere else; untrained, it would find next to nothing.
    assert planned["retrieve/recall@1"] > 0.5 * lexical["retrieve/recall@1"] > 0.2
    retriever = Retriever.load(found.path)
    text = retriever.data.evaluation.test_queries("test")[0]["text"]
    (first, *_) = retriever.search(text, 3)
    assert retriever.explain(text, first.id).path.lost is None
    retriever.add([{"_id": "new", "title": "Zanzibar", "text": "Zanzibar grows cloves."}])
    assert "new" in {hit.id for hit in retriever.search("Zanzibar cloves", 3)}
    retriever.remove("new")
    assert retriever.search(text, 3)[0].id == first.id
