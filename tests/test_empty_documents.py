"""Documents without text, as MS MARCO and FiQA have: every system trains, searches, reranks."""

import json
import re
from pathlib import Path

import datasets
import pytest
from hydra import compose, initialize_config_dir

from gr_mvdr.decoding.ngram_index import NgramIndex
from gr_mvdr.evaluation.ranking import Ranking
from train import train

ROOT = Path(__file__).parents[1]
MODELS = sorted(path.stem for path in (ROOT / "conf/model").glob("*.yaml"))
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
    "xtr": ["model.search.neighbours=100"],
}


@pytest.fixture(autouse=True)
def quiet(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setenv("WANDB_MODE", "offline")


def collection(folder: Path) -> Path:
    """Twelve documents, four of them empty; a test query has the id of a document."""
    (folder / "qrels").mkdir(parents=True)
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
    }
    qrels["test"] = [(query, "pear" if query == "apple" else d) for query, d in qrels["test"]]
    for name, rows in (("corpus", documents), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for split, pairs in qrels.items():
        lines = ["query-id\tcorpus-id\tscore", *(f"{q}\t{d}\t1" for q, d in pairs)]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def run(tmp_path, *overrides, name="run"):
    path = tmp_path / "fruit"
    given = ["data=beir", "experiment=smoke", f"data.path={path}", "data.empty_documents=keep"]
    given += ["logger=none", f"output={tmp_path}", f"name={name}", "data.batch_size=4", *overrides]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return train(compose("train", given)).metrics


@pytest.mark.slow
@pytest.mark.parametrize("model", [model for model in MODELS if model != "rerank_pipeline"])
def test_every_system_runs_with_documents_that_have_no_text(model, tmp_path):
    collection(tmp_path / "fruit")
    metrics = run(tmp_path, f"model={model}", "data.drop_identical=true", *FURTHER.get(model, []))
    folder = tmp_path / "run"
    assert 0 <= metrics["retrieve/recall@1"] <= 1 and 0 <= metrics["rerank/mrr@10"] <= 1
    assert (folder / "report.html").is_file()
    for name in ("retrieve", "rerank"):
        ranking = Ranking.read(folder / f"{name}.trec")
        assert not any(query in ranking.documents(query) for query in ranking.query_ids)


def test_t5_seal_counts_what_has_no_span_and_ranks_it_nowhere(tmp_path, capsys):
    collection(tmp_path / "fruit")
    metrics = run(tmp_path, "model=t5_seal", "indexing=random_spans", "analysis=none")
    said = capsys.readouterr().out
    assert len(re.findall("2 of 10 training pairs are left out: .*no text, so no spans", said)) == 1
    assert len(re.findall("4 of 12 documents have no text to be indexed by", said)) == 1
    assert metrics["rerank/mrr@10"] >= 0
    for file in (tmp_path / "run").glob("re*.trec"):
        ranking = Ranking.read(file)
        assert ranking.query_ids, file
        for query in ranking.query_ids:
            assert not EMPTY & set(ranking.documents(query)), file
    index = NgramIndex.load(tmp_path / "run/index/ngrams")
    for number, fruit in enumerate(FRUITS):
        tokens = index.sequence(number).tolist()
        assert tokens.index(1) == len(tokens) - 1, "the end token is at the end alone"
        assert (len(tokens) == 1) == (fruit in EMPTY) and 0 not in tokens


@pytest.mark.slow
def test_full_seal_and_a_pipeline_run_too(tmp_path):
    collection(tmp_path / "fruit")
    run(tmp_path, "experiment=seal_full", "trainer.max_steps=2", "analysis=none", name="full")
    for model, name in (("bm25", "bm25"), ("t5_seal", "seal")):
        run(tmp_path, f"model={model}", "analysis=none", name=name)
    stages = f"model.stages=[{{run: {tmp_path}/bm25, depth: 5}}, {{run: {tmp_path}/seal}}]"
    metrics = run(tmp_path, "model=rerank_pipeline", stages, "analysis=none", name="pipeline")
    assert metrics["retrieve/recall@100"] >= 0
