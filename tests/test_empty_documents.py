"""Every system trains, searches, reranks and is analysed, and leaves what a run leaves behind.

The collection has documents without text, as MS MARCO and FiQA have.
"""

import json
import re
from contextlib import nullcontext
from pathlib import Path

import pytest

from analysis.runs.run_folder import read_run
from gr_mvdr.decoding.ngram_index import NgramIndex
from gr_mvdr.evaluation.ranking import Ranking
from tests.runs import TINY, compose_config, undrawn, write_beir
from train import train

ROOT = Path(__file__).parents[1]
MODELS = sorted(path.stem for path in (ROOT / "conf/model").glob("*.yaml"))
# One of a class of systems in `make test`, all of them in `make test-slow`; some of them draw.
FAST = {"bm25", "t5_colbert", "cross_encoder", "t5_seal", "dsi_semantic", "genre_np_async"}
DRAWN = {"bm25", "t5_colbert", "t5_seal"}
RUN = [
    model if model in FAST else pytest.param(model, marks=pytest.mark.slow)
    for model in MODELS
    if model not in ("rerank_pipeline", "fusion")
]
NOT_ALIGNED = ["cross_encoder"]
FRUITS = "apple pear plum cherry quince fig grape lemon lime melon peach date".split()
# Of them pear (train and test) and lime (train) answer a query, peach and date none.
EMPTY = {"pear", "lime", "peach", "date"}
SPECIAL = "It ends with </s> and <pad> is no pad."
FURTHER = {
    "genre": ["model.identifiers.missing=first_tokens"],
    "genre_np_async": ["model.identifiers.missing=first_tokens"],
    "genre_np_base": ["model.identifiers.missing=first_tokens"],
    "genre_np_contrastive": ["model.identifiers.missing=first_tokens"],
    "query_generator": ["model.n_queries=2"],
    # One that copies at once finds each query's own fruit alone, which is dropped.
    "t5_seal": ["backbone.initialisation=random"],
    "t5_seal_views": ["backbone.initialisation=random"],
    "xtr": ["model.search.proposer.neighbours=100"],
}


@pytest.fixture(scope="module")
def fruit(once) -> Path:
    """The collection's folder."""
    return once("fruit without text", lambda folder: collection(folder / "fruit")) / "fruit"


def collection(folder: Path) -> None:
    """Writes twelve documents, four of them empty; a test query has the id of a document."""
    documents = [
        {"_id": f, "title": f, "text": f"The {f} is a fruit, number {n}. {SPECIAL}"}
        for n, f in enumerate(FRUITS)
    ]
    documents = [d | {"title": "", "text": ""} if d["_id"] in EMPTY else d for d in documents]
    queries = [{"_id": f"a-{f}", "text": f"what is a {f}?"} for f in FRUITS[:10]]
    queries += [{"_id": f, "text": f"who eats {f} </s>?"} for f in FRUITS[:6]]
    qrels = {
        "train": [(f"a-{f}", f) for f in FRUITS[:10]],
        "test": [(f, f if f == "pear" else FRUITS[n + 1]) for n, f in enumerate(FRUITS[:6])],
        "test_unseen": [("apple", "grape")],
    }
    qrels["test"] = [(query, "pear" if query == "apple" else d) for query, d in qrels["test"]]
    write_beir(folder, documents, queries, qrels)


def run(path, tmp_path, *overrides):
    given = ["data=beir", "experiment=smoke", f"data.path={path}", "data.empty_documents=keep"]
    given += ["logger=none", f"output={tmp_path}", "name=run", "data.batch_size=4", *overrides]
    return train(compose_config("train", *given))


def check_contract(model, finished, queries):
    """A run over test and test_unseen, with its analysis, leaves what every run leaves."""
    run, metrics = finished.path, finished.metrics
    files = "config.yaml provenance.json metrics.json report.html retrieve.trec rerank.trec "
    files += "retrieve-test_unseen.trec "
    if model not in (*NOT_ALIGNED, "repllama"):  # the latter aligns end tokens, which are special
        files += "exact_match.csv "
    if model != "bm25":
        files += "training/metrics.csv figures/training.png figures/training.pdf"
    for name in files.split():
        assert (run / name).stat().st_size, name
    assert (model == "bm25") != (run / "training").exists()
    for folder in ("index", *([] if model in NOT_ALIGNED else ["alignments", "figures"])):
        assert any((run / folder).iterdir()), folder
    drawn = 'alt="Training, step by step"' in (run / "report.html").read_text()
    assert drawn == (model != "bm25")
    assert json.loads((run / "metrics.json").read_text()) == metrics
    keys = "retrieve/recall@1 retrieve/mrr@10 retrieve/test_unseen/recall@1 rerank/mrr@10 "
    keys += "cost/index_bytes cost/query_ms_p50 cost/query_ms_p95 cost/peak_memory_bytes"
    for key in keys.split() + ["cost/train_seconds"] * (model != "bm25"):
        assert metrics[key] >= 0, key
    found = len(Ranking.read(run / "retrieve.trec"))
    # T5-SEAL may find nothing but the document that the query itself is, which is dropped.
    assert found == queries or (model == "t5_seal" and 0 < found < queries)
    record = read_run(run).provenance
    assert record["text_fields"] == ["title", "text"] and record["splits"][0] == "test"
    assert not list(run.rglob("*.unfinished"))


@pytest.mark.parametrize("model", RUN)
def test_every_system_runs_with_documents_that_have_no_text(model, fruit, tmp_path):
    keys = ["data.drop_identical=true", "data.test_split=[test,test_unseen]", *TINY]
    with nullcontext() if model in DRAWN else undrawn():
        finished = run(fruit, tmp_path, f"model={model}", *keys, *FURTHER.get(model, []))
    check_contract(model, finished, queries=6)
    assert finished.metrics["retrieve/recall@1"] <= 1 and finished.metrics["rerank/mrr@10"] <= 1
    for name in ("retrieve", "rerank"):
        ranking = Ranking.read(finished.path / f"{name}.trec")
        assert not any(query in ranking.documents(query) for query in ranking.query_ids)


def test_t5_seal_counts_what_has_no_span_and_ranks_it_nowhere(fruit, tmp_path, capsys):
    metrics = run(
        fruit, tmp_path, "model=t5_seal", "indexing=random_spans", "analysis=none"
    ).metrics
    said = capsys.readouterr().out
    assert len(re.findall("2 of 10 training pairs are left out: .*no text, so no spans", said)) == 1
    assert len(re.findall("4 of 12 documents have no text to be indexed by", said)) == 1
    assert metrics["rerank/mrr@10"] >= 0
    for file in (tmp_path / "run").glob("re*.trec"):
        ranking = Ranking.read(file)
        assert ranking.query_ids, file
        for query in ranking.query_ids:
            assert not EMPTY & set(ranking.documents(query)), file
    index = NgramIndex.load(tmp_path / "run/index/ngrams.safetensors")
    for number, fruit in enumerate(FRUITS):
        tokens = index.sequence(number).tolist()
        assert tokens.index(1) == len(tokens) - 1, "the end token is at the end alone"
        assert (len(tokens) == 1) == (fruit in EMPTY) and 0 not in tokens
