"""A finished run becomes a folder that three libraries read: `python -m analysis.export run=…`."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file

from analysis.export import export_run, export_vectors, write_token_arrays
from gr_mvdr.files import UnfinishedRun, find_hub_failure
from gr_mvdr.token_index.codec import Storage
from gr_mvdr.token_index.index import TokenIndex
from gr_mvdr.token_vectors import PackedTokens, TokenVectors
from gr_mvdr.tokenizers import EOS_ID
from models.export import load_exported
from models.finished_run import restore_run
from models.retriever import Retriever
from tests.hub_server import serve_hub
from tests.runs import NO_ANALYSIS, ROOT, TINY, command, small
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
    return lambda model: finished_run(model, *TINY, *MODELS[model])


def run_card(card: str) -> dict:
    """Runs the code of a model card, block by block; what its names stand for afterwards."""
    names: dict = {}
    blocks = re.findall(r"```python\n(.*?)```", card, re.S)
    assert len(blocks) >= 2
    for block in blocks:
        exec(block, names)
    return names


@pytest.mark.parametrize("model", [name for name in MODELS if name != "bm25"])
def test_a_run_loads_back_and_the_cards_code_runs(runs, tmp_path, model):
    pytest.importorskip("sentence_transformers")
    folder = export_run(runs(model), tmp_path / "exported")
    system, data = restore_run(runs(model))
    if model.startswith("dsi"):
        system.assign_new(data.documents)
    loaded, pairs = load_exported(folder), 0
    for batch in data.test_pairs(data.test_splits[0], 20)[1]:
        scores = system.score(batch)
        assert torch.allclose(loaded.score(batch), scores, atol=1e-6)
        pairs += len(scores)
    assert pairs >= 10
    card = (folder / "README.md").read_text()
    names = run_card(card.replace('"…"', repr(str(folder))))
    record = json.loads((runs(model) / "provenance.json").read_text())
    for value in (record["git"], record["version"], record["sources"]["generator"]):
        assert f"| {value} |" in card
    assert "Apache-2.0" in card and str(runs(model).parent) not in card
    if model == "dsi_atomic":  # `generate` finds what a search of ours finds
        found = [document for named in names["documents"] for document in named]
        hits = [hit.id for hit in names["hits"]]
        assert len(set(found)) > 2 and found[:10] == hits[: len(found)]
        assert names["constraint"].ids == names["names"]
    assert names["tokenizer"]("a")["input_ids"][-1] == EOS_ID


@pytest.fixture
def hub(tmp_path):
    with serve_hub(tmp_path / "cache") as hub:
        yield hub


@pytest.mark.parametrize("model", ["t5_colbert", "dsi_pawa", "t5_seal"])
def test_a_published_run_comes_back_from_the_hub(runs, model, hub, tmp_path, capsys, monkeypatch):
    pytest.importorskip("sentence_transformers")
    hub.models["owner/tiny"] = {"identifiers/old.json": b"{}"}  # of an earlier export
    run = shutil.copytree(runs(model), tmp_path / "run")
    record = json.loads((run / "provenance.json").read_text())
    record["overrides"] = [f"model={model}", "data.path=[/home/me/a,~/b]", "name=run", "seed=1"]
    (run / "provenance.json").write_text(json.dumps(record))
    asked = [f"run={run}", "push=owner/tiny", "license=cc0-1.0"]
    assert command("-m", "analysis.export", *asked) == 0
    assert f"{run}: published, {hub.url}/owner/tiny" in capsys.readouterr().out
    assert not (run / "export").exists() and "identifiers/old.json" not in hub.models["owner/tiny"]
    system, data = restore_run(run)
    Retriever.load("owner/tiny")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    find_hub_failure.cache_clear()  # the hub is gone, its copy is in the cache
    loaded, pairs = Retriever.load("owner/tiny").system, 0
    monkeypatch.undo()
    find_hub_failure.cache_clear()
    for batch in data.test_pairs(data.test_splits[0], 20)[1]:
        scores = system.score(batch)
        assert torch.allclose(loaded.score(batch), scores, atol=1e-6, rtol=0)
        pairs += len(scores)
    assert pairs >= 10
    if model == "dsi_pawa":
        system.assign_new(data.documents)
        assert loaded.identifiers.hash == system.identifiers.hash
    text = hub.models["owner/tiny"]["README.md"].decode()
    card = ModelCard(text).data
    metrics = json.loads((run / "metrics.json").read_text())
    results = {(r.task_type, r.dataset_split, r.metric_type): r for r in card.eval_results}
    split = data.test_splits[0]
    value = results["text-retrieval", split, "mrr@10"].metric_value
    assert value == metrics["retrieve/mrr@10"] and card.license == "cc0-1.0"
    for split in data.test_splits[1:]:
        value = results["text-retrieval", split, "mrr@10"].metric_value
        assert value == metrics[f"retrieve/{split}/mrr@10"]
    assert f"    python train.py model={model} 'data.path=[a,b]' seed=1\n" in text
    assert "/home/me" not in text and str(run.parent) not in text
    names = run_card(text)  # its folder is a copy of the hub's
    assert (Path(names["folder"]) / "identifiers").is_dir() == (model == "dsi_pawa")
    assert not list(Path(names["folder"]).glob("constraint*")), "n-grams are the documents' texts"


def test_what_the_hub_refuses_is_one_line(runs, tmp_path, hub, monkeypatch):
    run = runs("t5_seal")
    files = sorted(run.rglob("*"))
    with pytest.raises(ValueError, match=r"push=other/tiny: the hub refuses: .* \(HTTP 403\)$"):
        export_run(run, push="other/tiny")
    monkeypatch.setenv("HF_TOKEN", "hf_stranger")
    with pytest.raises(ValueError, match=r"push=owner/tiny: .* HF_TOKEN .* \(HTTP 401\)$"):
        export_run(run, tmp_path / "exported", push="owner/tiny")
    with pytest.raises(FileNotFoundError, match=r"^owner/none: no such folder, .* \(HTTP 401\)$"):
        Retriever.load("owner/none")
    for line, wrong in {
        "push=tiny": "push=tiny: must be a name on the hub: USER/NAME or null",
        "push=a/b vectors=true": "push=a/b: must be null with vectors=true, it is of the model",
    }.items():
        asked = command("-m", "analysis.export", f"run={run}", *line.split())
        assert asked == f"error: {wrong}"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    find_hub_failure.cache_clear()
    offline = r"push=owner/tiny: the hub cannot be reached \(HF_HUB_OFFLINE is set\)"
    with pytest.raises(ValueError, match=offline):
        export_run(run, push="owner/tiny")
    with pytest.raises(
        FileNotFoundError, match=r"^owner/tiny: no such folder, .*OFFLINE is set\)$"
    ):
        Retriever.load("owner/tiny")
    assert sorted(run.rglob("*")) == files and not (tmp_path / "exported").exists()


def test_sentence_transformers_is_checked_on_the_runs_own_pairs(
    runs, tmp_path, monkeypatch, capsys
):
    library = pytest.importorskip("sentence_transformers").MultiVectorEncoder
    score_pairs, shift = library.similarity_pairwise, 5e-5
    shifted = lambda *pairs: score_pairs(*pairs) + shift  # noqa: E731
    monkeypatch.setattr(library, "similarity_pairwise", shifted)
    export_run(runs("t5_colbert"), tmp_path / "exported", check=True)
    reported = re.search(r"gives the run's scores to (.*)", capsys.readouterr().out)[1]
    assert float(reported) == pytest.approx(5e-5, abs=2e-5)
    shift = 0.01
    with pytest.raises(ValueError, match=r"check=true: .* differs by 1.0e-02 .*, must be ≤ 1e-04"):
        export_run(runs("t5_colbert"), tmp_path / "second", check=True)
    assert [folder.name for folder in tmp_path.iterdir()] == ["exported"]


def test_a_missing_library_is_named(runs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(ValueError, match=r"≥ 6 is missing, .*: pip install 'gr-mvdr\[export\]'"):
        export_run(runs("t5_colbert"), tmp_path / "exported")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_exported_is_named(runs, tmp_path):
    with pytest.raises(ValueError, match=r"BM25: has no weights to export"):
        export_run(runs("bm25"), tmp_path / "exported")
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


def read_arrays(folder: Path, side: str) -> dict[str, TokenVectors]:
    """The texts of one side by id, as docs/using.md says."""
    vectors, counts = [], []
    for file in sorted((folder / side).glob("vectors_?????.npy")):
        vectors.append(np.load(file))
        counts.append(np.load(file.with_suffix(".doclens.npy")))
        assert len(vectors[-1]) == counts[-1].sum() and counts[-1].dtype == np.int64
    joined = torch.from_numpy(np.concatenate(vectors))
    of_tokens, salience = folder / f"{side}_salience.npy", None
    if of_tokens.is_file():
        salience = torch.from_numpy(np.load(of_tokens))
    count = torch.from_numpy(np.concatenate(counts))
    packed = PackedTokens(joined, count, torch.zeros(len(joined), dtype=torch.int64), salience)
    padded = packed.pad()
    names = json.loads((folder / f"{side}.json").read_text())
    return {name: padded.unpad(row) for row, name in enumerate(names)}


@pytest.mark.parametrize("model", ["t5_colbert", "aligner"])
def test_arrays_of_token_vectors_score_as_the_run(runs, tmp_path, model, monkeypatch, capsys):
    run = runs(model)  # made before encoding is forbidden
    monkeypatch.setattr("analysis.export._FILE", 20)
    monkeypatch.setattr("analysis.export._BLOCK", 7)
    monkeypatch.setattr("models.multi_vector.MultiVector.encode_texts", None)  # nothing is encoded
    folder = export_vectors(run, tmp_path / "vectors")
    documents, queries = read_arrays(folder, "documents"), read_arrays(folder, "queries")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["documents"]["count"] == len(documents) == 50
    assert manifest["queries"]["tokens"] == sum(map(len, queries.values()))
    assert len(list((folder / "documents").iterdir())) == 6  # 20, 20 and 10 documents
    retriever = Retriever.load(run)
    scoring = retriever.system.scoring
    table = retriever.data.test_queries("test").select(range(3))
    ranking = retriever.system.retrieve(table, 50)
    for name in table["id"][:]:
        for document, score in ranking.scores(name).items():
            found = scoring(documents[document][None], queries[name][None])
            assert float(found) == pytest.approx(score, rel=1e-5, abs=1e-4)
    warned = "other engines by MaxSim" in capsys.readouterr().out
    assert manifest["maxsim"] == (not warned) == (model == "t5_colbert")
    if model == "t5_colbert":
        similarity = pytest.importorskip("sentence_transformers.util").maxsim
        one, all_vectors = table["id"][0], [text.vectors for text in documents.values()]
        best = ranking.scores(one)
        theirs = similarity([queries[one].vectors], all_vectors)[0].tolist()
        assert dict(zip(documents, theirs, strict=True)) == pytest.approx(best, abs=1e-4)


def test_documents_without_judgements_have_arrays(runs, tmp_path):
    (tmp_path / "fruit.tsv").write_text("pear\tA fruit.\n")
    chosen = ["model=t5_colbert", "data=files", f"data.path={tmp_path}/fruit.tsv", "logger=none"]
    run = train([*chosen, *TINY, f"weights={runs('t5_colbert')}", f"output={tmp_path}"]).path
    folder = export_vectors(run)
    assert folder == run / "vectors" and list(read_arrays(folder, "documents")) == ["pear"]
    assert not list(folder.glob("queries*"))
    pytest.importorskip("sentence_transformers")
    with pytest.raises(ValueError, match="check=true: must be false, the run has no test queries"):
        export_run(run, check=True)


def test_arrays_leave_out_deleted_documents_and_keep_the_type(runs, tmp_path):
    system, _ = restore_run(runs("t5_colbert"))
    vectors = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    packed, storage = (
        PackedTokens(vectors, torch.tensor([3, 1, 2]), torch.arange(6)),
        Storage("float16"),
    )
    index = TokenIndex.build(
        tmp_path / "index", ["a", "b", "c"], lambda ids: [packed], storage=storage
    )
    system.searcher = index
    index.delete(["b"])
    (tmp_path / "out").mkdir()
    assert write_token_arrays(system, {}, tmp_path / "out")["documents"] == dict(count=2, tokens=5)
    found = read_arrays(tmp_path / "out", "documents")
    assert list(found) == ["a", "c"] and found["c"].vectors.dtype == torch.float16
    assert torch.equal(found["c"].vectors.float(), index.store.vectors("vectors", slice(4, 6)))


def test_what_has_no_arrays_is_named(runs, tmp_path):
    with pytest.raises(ValueError, match="vectors=true: T5-SEAL has no token vectors"):
        export_vectors(runs("t5_seal"), tmp_path / "vectors")


def test_the_command_line(runs, tmp_path):
    run = shutil.copytree(runs("t5_seal"), tmp_path / "t5_seal")
    asked = [sys.executable, "-m", "analysis.export", f"run={run}"]
    found = subprocess.run(asked, cwd=ROOT, text=True, capture_output=True)
    assert found.returncode == 0 and not found.stderr, "nor bars of transformers"
    assert f"{run}: exported, {run}/export" in found.stdout
    assert (run / "export/generation_config.json").is_file()
