"""A finished run's index is opened, not made again, and finds what the run found."""

import json
import shutil

import datasets
import pytest
from hydra.utils import instantiate

from gr_mvdr.evaluation.ranking import Ranking
from models.retriever import Retriever
from tests.runs import NO_ANALYSIS, TINY, beir, compose_config, small
from train import train


def write_pseudo_queries(folder):
    """A file of texts for half of the documents, as `experiment=query_generation` writes it."""
    documents = instantiate(small(folder).data).collection.documents
    lines = [
        {"document_id": row["id"], "queries": row["text"].split(". ")[:2]}
        for row in documents.select(range(0, len(documents), 2))
    ]
    file = folder / "pseudo_queries.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f"data.views.query={file}"


def test_documents_without_pseudo_queries_come_and_go(finished_run, tmp_path):
    """The others keep theirs; what arrives is found by its other views."""
    keys = ["experiment=[smoke,minder]", *TINY, write_pseudo_queries(tmp_path)]
    r = Retriever.load(finished_run("t5_seal_views", *keys))
    query = "Which town lies on the river Ouse?"
    before, views = r.search(query, 50), r.system.names.texts
    r.add([{"id": "new", "title": "The river Ouse", "text": "A town on the river Ouse."}])
    grown = r.system.names.texts
    assert grown["query"] == [*views["query"], []] and len(grown["title"]) == len(r.documents)
    (hit,) = r.search(query, 1, among=["new"])
    assert {share.view for share in hit.shares} <= {"body", "title"}
    assert sum(share.value for share in hit.shares) == pytest.approx(hit.score, abs=1e-4)
    assert r.explain(query, "new").reason
    r.remove("new")
    assert r.search(query, 50) == before and r.system.names.texts == views
    r.index([{"id": "only", "title": "Ouse", "text": "A river."}])
    assert len(r.documents) == 1 and set(r.system.names.texts) == {"title"}


def test_a_run_in_an_engine_is_opened_twice_and_left_as_it_is(finished_run, tmp_path, capsys):
    run = finished_run("t5_colbert", *TINY, "source=engine")
    one, two = Retriever.load(run), Retriever.load(run, trust=True)
    query = "Which town lies on the river Ouse?"
    before = one.search(query, 5)
    assert two.search(query, 5) == before
    one.add([{"id": "new", "title": "The river Ouse", "text": "A town on the river Ouse."}])
    assert one.search(query, 1, among=["new"])[0].id == "new" and two.search(query, 5) == before
    one.remove("new")
    assert one.search(query, 5) == before == Retriever.load(run).search(query, 5)
    assert "is made again" not in capsys.readouterr().out
    # Nobody's folder may send this user's queries, and a key, to an address.
    shutil.copytree(run, foreign := tmp_path / "foreign")
    settings = json.loads((file := foreign / "model/gr_mvdr.json").read_text())
    settings["hyper_parameters"]["search"]["source"]["address"] = "http://127.0.0.1:9/texts"
    file.write_text(json.dumps(settings))
    with pytest.raises(
        ValueError, match="vectors are at http://127.0.0.1:9/texts: an address is asked only"
    ):
        Retriever.load(foreign)


def test_a_search_with_the_weights_of_a_run_keeps_them(finished_run, tmp_path):
    keys = ["model=t5_colbert", *NO_ANALYSIS, *TINY]
    keys += [f"weights={finished_run('t5_colbert', *TINY)}"]
    keys += [
        "search=gather",
        "model.search.proposer.probes=300",
        "model.search.source.dtype=float16",
    ]
    run = train(small(tmp_path, *keys, name="searched")).path
    r = Retriever.load(run.rename(tmp_path / "moved"))
    assert r.system.search.recall is None  # tuned when the run was made
    assert not r.system.tunes_search
    query = next(iter(r.data.evaluation.test_queries("test")))
    expected = Ranking.read(tmp_path / "moved/retrieve.trec").scores(query["id"])
    hits = {hit.id: hit.score for hit in r.search(query["text"], 5)}
    assert hits == {name: pytest.approx(expected[name], abs=1e-4) for name in hits}


def test_the_weights_of_a_run_bring_its_index_where_it_fits(finished_run, tmp_path, capsys):
    source = finished_run("t5_colbert", *TINY)
    keys = ["model=t5_colbert", *NO_ANALYSIS, *TINY, f"weights={source}"]
    contents = {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}

    def search(*others):
        run = train(small(tmp_path, *keys, *others, name=str(hash(others))))
        reused = "its index is searched" in capsys.readouterr().out
        assert reused != ("cost/index_seconds" in run.metrics)
        return run.path, reused

    same, is_reused = search("model.optimizer.learning_rate=1e-4")
    found = Ranking.read(same / "retrieve.trec")
    assert is_reused and found == Ranking.read(source / "retrieve.trec")
    assert search("search=gather")[1]
    for other in ("model.search.source.dtype=float16", "document_length=50", "data.n_documents=60"):
        assert not search(other)[1]
    assert {path: path.read_bytes() for path in contents} == contents
    assert Retriever.load(same.rename(tmp_path / "moved")).search("river")
    assert "made again" not in capsys.readouterr().out


def test_only_the_store_holds_built_collections(tmp_path, cache, monkeypatch):
    """Else a folder of somebody's own would be read as built, and its links written through."""
    settings = compose_config("train", "data=files", f"data.path={beir(tmp_path / 'fruit')}").data
    built = instantiate(settings).collection.folder
    copy, outside = tmp_path / built.name, tmp_path / "outside"
    shutil.copytree(built, copy, ignore=shutil.ignore_patterns("tables"))
    outside.mkdir()
    (copy / "tables").symlink_to(outside)
    settings.path = str(copy)
    with pytest.raises(ValueError, match="no known format"):
        instantiate(settings).documents  # noqa: B018
    assert not list(outside.iterdir())
    monkeypatch.chdir(built)
    almanac = compose_config("train", "data=almanac_small").data
    assert instantiate(almanac).collection.name == "almanac-60"


def test_a_run_is_opened_without_the_files_of_its_data(tmp_path, cache, monkeypatch):
    data = beir(tmp_path / "fruit")
    run = train(["model=bm25", f"data.path={data}", "data=beir", "logger=none", *NO_ANALYSIS,
                 f"output={tmp_path}", "name=run"])  # fmt: skip
    before = Retriever.load(run).search("who eats lime?", 3)
    (tmp_path / "moved").mkdir()
    moved = data.rename(tmp_path / "moved" / data.name)
    assert Retriever.load(run).search("who eats lime?", 3) == before  # from the store
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match=f"run=.*: data.path={data}: is missing, pass"):
        Retriever.load(run)
    assert Retriever.load(run, path=str(moved)).search("who eats lime?", 3) == before
