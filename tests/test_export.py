"""A finished run becomes a folder that three libraries read: `python -m analysis.export run=…`."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file

from analysis.export import export_run
from gr_mvdr.files import UnfinishedRun
from gr_mvdr.tokenizers import EOS_ID
from models.retriever import Retriever
from models.saved_model import open_model, restore_run
from tests.runs import NO_ANALYSIS, TINY, command, small
from train import train

MODELS = {
    "t5_colbert": ["tokenizer.expansion='<extra_id_0>'"],
    "xtr": [],
    "aligner": [],
    "cross_encoder": [],
    "t5_seal": [],
    "dsi_atomic": [],
    "dsi_pawa": ["model.head.layers=1"],
    "bm25": [],
}


@pytest.fixture(scope="session")
def runs(finished_run):
    """A short run of each model, without an analysis."""
    return lambda model, *more: finished_run(model, *TINY, *MODELS.get(model, []), *more)


def run_card(card: str) -> dict:
    """Runs the code of a model card, block by block; what its names stand for afterwards."""
    names: dict = {}
    blocks = re.findall(r"```python\n(.*?)```", card, re.S)
    assert len(blocks) >= 2
    for block in blocks:
        exec(block, names)
    return names


def check_scores(loaded, system, data):
    """Of the test pairs, both systems' scores are the same."""
    _, batches = data.evaluation.test_pairs(data.evaluation.test_splits[0], 20)
    assert sum(map(len, batches)) >= 10
    for batch in batches:
        assert torch.allclose(loaded.score(batch), system.score(batch), atol=1e-6)


@pytest.mark.parametrize("model", [name for name in MODELS if name != "bm25"])
def test_a_run_loads_back_and_the_cards_code_runs(runs, tmp_path, model):
    folder = export_run(runs(model), tmp_path / "exported")
    system, data = restore_run(runs(model))
    if model.startswith("dsi"):
        system.assign_new(data.documents)
    check_scores(open_model(folder), system, data)
    card = (folder / "README.md").read_text()
    names = run_card(card.replace('"…"', repr(str(folder))))
    record = json.loads((runs(model) / "provenance.json").read_text())
    for value in (record["git"], record["version"], record["sources"]["generator"]):
        assert f"| {value} |" in card
    assert "Apache-2.0" in card and str(runs(model).parent) not in card
    if model in ("t5_colbert", "xtr"):  # sentence-transformers scores as we do
        found = names["model"].similarity(names["queries"], names["documents"])
        assert float(found) == pytest.approx(names["scores"].iloc[0, 0], abs=1e-4)
    if model == "dsi_atomic":  # `generate` finds what a search of ours finds
        found = [document for named in names["documents"] for document in named]
        hits = [hit.id for hit in names["hits"]]
        assert len(set(found)) > 2 and found[:10] == hits[: len(found)]
        assert names["constraint"].ids == names["names"]
    assert names["tokenizer"]("a")["input_ids"][-1] == EOS_ID


@pytest.mark.parametrize("model", ["t5_colbert", "dsi_pawa", "t5_seal"])
def test_a_published_run_comes_back_from_the_hub(runs, model, hub, tmp_path, capsys):
    run = shutil.copytree(runs(model), tmp_path / "run")
    record = json.loads((run / "provenance.json").read_text())
    record["overrides"] = [f"model={model}", "data.path=[/home/me/a,~/b]", "name=run", "seed=1"]
    (run / "provenance.json").write_text(json.dumps(record))
    asked = [f"run={run}", "push=owner/tiny", "license=cc0-1.0"]
    assert command("-m", "analysis.export", *asked) == 0
    assert f"{run}: published, https://hub/owner/tiny" in capsys.readouterr().out
    assert not (run / "export").exists()
    system, data = restore_run(run)
    check_scores(loaded := Retriever.load("owner/tiny").system, system, data)
    if model == "dsi_pawa":
        system.assign_new(data.documents)
        assert loaded.identifiers.hash == system.identifiers.hash
    text = (hub / "owner/tiny/README.md").read_text()
    card = ModelCard(text).data
    metrics = json.loads((run / "metrics.json").read_text())
    results = {(r.task_type, r.dataset_split, r.metric_type): r for r in card.eval_results}
    first, *others = data.evaluation.test_splits
    assert card.license == "cc0-1.0"
    for split in (first, *others):
        key = "retrieve/mrr@10" if split == first else f"retrieve/{split}/mrr@10"
        assert results["text-retrieval", split, "mrr@10"].metric_value == metrics[key]
    assert f"    python train.py model={model} 'data.path=[a,b]' seed=1\n" in text
    assert "/home/me" not in text and str(run.parent) not in text
    names = run_card(text)
    assert (Path(names["folder"]) / "identifiers").is_dir() == (model == "dsi_pawa")
    assert not list(Path(names["folder"]).glob("constraint*")), "n-grams are the documents' texts"


def test_a_retriever_is_published_without_its_documents(runs, hub):
    retriever = Retriever.load(runs("t5_seal"))
    assert retriever.push_to_hub("owner/tiny") == "https://hub/owner/tiny"
    assert not {file.name for file in (hub / "owner/tiny").iterdir()} & {
        *("documents.parquet", "index", "constraint.safetensors"),
    }
    scores, again = (r.score("a city", "a text") for r in (retriever, Retriever.load("owner/tiny")))
    assert again.iloc[0, 0] == pytest.approx(scores.iloc[0, 0], abs=1e-6)


def test_what_the_hub_refuses_is_one_line(runs, tmp_path, hub, monkeypatch):
    run = runs("t5_seal")
    files = sorted(run.rglob("*"))
    refused = r"^other/tiny: the hub refuses: no such name, or no access: .* \(HTTP 403\)$"
    with pytest.raises(ValueError, match=refused):
        export_run(run, tmp_path / "exported", push="other/tiny")
    asked = command("-m", "analysis.export", f"run={run}", "push=tiny")
    assert asked == "error: push=tiny: must be a name on the hub: USER/NAME or null"
    for module in ("gr_mvdr.files", "models.export"):
        monkeypatch.setattr(f"{module}.find_hub_failure", lambda: "no network")
    with pytest.raises(ValueError, match=r"^owner/tiny: the hub cannot be reached \(no net"):
        Retriever.load(run).push_to_hub("owner/tiny")
    with pytest.raises(FileNotFoundError, match=r"^owner/tiny: no such folder, .*no network\)$"):
        Retriever.load("owner/tiny")
    assert sorted(run.rglob("*")) == files and not (tmp_path / "exported").exists()


def test_bm25_searches_new_documents_as_its_run_did(runs, tmp_path):
    run = Retriever.load(runs("bm25"))
    exported = Retriever.load(export_run(runs("bm25"), tmp_path / "exported"))
    rows = [run.document(name) for name in run.documents["id"][:]]
    exported.index([{key: row[key] for key in ("id", "title", "text")} for row in rows])
    query = rows[0]["text"]
    for one in (run, exported):
        pair = one.align(query, rows[0]["id"])
        assert pair.score == pytest.approx(one.search(query, 1)[0].score, abs=1e-4)
    scores = [{h.id: h.score for h in one.search(query, 5)} for one in (run, exported)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


def test_a_missing_library_is_named(runs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(ValueError, match=r"≥ 6 is missing, .*: pip install 'gr-mvdr\[export\]'"):
        export_run(runs("t5_colbert"), tmp_path / "exported")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_exported_is_named(runs, tmp_path):
    bm25 = runs("bm25")
    stages = f"model.stages=[{{run: {bm25}, depth: 5}}, {{run: {bm25}}}]"
    pipeline = runs("rerank_pipeline", stages)
    with pytest.raises(ValueError, match=r"RerankPipeline: consists of other runs, export these"):
        export_run(pipeline, tmp_path / "exported")
    with pytest.raises(FileExistsError, match=r"output=.*: exists, must be a new folder"):
        export_run(runs("t5_seal"), tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnfinishedRun):
        export_run(tmp_path / "empty", tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


def test_an_exported_folder_is_a_backbone_of_a_run(runs, tmp_path):
    folder = export_run(runs("dsi_atomic"), tmp_path / "exported")
    chosen = ["model=genre", "backbone=pretrained", f"backbone.name={folder}", *NO_ANALYSIS]
    assert "retrieve/mrr@10" in train(small(tmp_path, *chosen, name="second")).metrics
    before = load_file(folder / "model.safetensors")["shared.weight"].shape
    weights = torch.load(tmp_path / "second/checkpoints/last.ckpt", weights_only=True)
    assert weights["state_dict"]["backbone.shared.weight"].shape == before
