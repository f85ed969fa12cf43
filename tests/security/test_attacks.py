"""Somebody else's folder names code, places and links: nothing of it runs, nothing is written.

Every payload would leave a marker file. That it would is part of the test: the old way, any dotted
path called with the folder's arguments, leaves it.
"""

import json
import os
import re
import shutil
import signal
import sys
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
import torch
import yaml
from pandas import concat

from analysis.compare import compare
from analysis.figures import read_gallery
from analysis.questions.alignment_store import AlignmentStore, StoreDescription
from analysis.questions.learning_curves import Curve
from analysis.run import analyse_again
from analysis.runs.numbers import make_frame, read_numbers, write_numbers
from analysis.runs.queries import read_queries
from analysis.runs.report import embed_picture, write_report
from analysis.runs.run_folder import read_kept, read_run
from analysis.viewer.pairs import embed_json
from conf.command import report_errors
from gr_mvdr.evaluation.ranking import Ranking, read_qrels
from gr_mvdr.files import (
    open_tensors,
    read_checkpoint,
    read_json,
    read_provenance,
    write_tensors,
)
from gr_mvdr.measures import RETRIEVE, Metric
from gr_mvdr.options import admitting, build, find_part
from gr_mvdr.tokenizers import build_word_tokenizer, load_tokenizer
from models.rerank_pipeline import RerankPipeline
from models.saved_model import open_model, restore_run
from models.training import CheckpointFile
from tests.analysis.conftest import make_explanation
from tests.analysis.test_compare import judge_gold, write_run
from tests.runs import NO_ANALYSIS, SMALL, TINY, beir, command, write_store
from tests.searches import make_search

NOTHING = {"pairs": 0, "questions": {}, "precision": "float32"}  # an analysis that asks nothing
KEYS = (*SMALL, *NO_ANALYSIS, *TINY)


def payload(marker: Path) -> dict:
    """A configuration of a "part" that touches a file."""
    return {"_target_": "os.system", "command": f"touch {marker}"}


def change_yaml(file: Path, *keys: str, value: object) -> None:
    config = node = yaml.safe_load(file.read_text())
    for key in keys[:-1]:
        node = node[key]
    node[keys[-1]] = value
    file.write_text(yaml.safe_dump(config))


def change_model(run: Path, **options: object) -> None:
    file = run / "model/gr_mvdr.json"
    settings = json.loads(file.read_text())
    settings["hyper_parameters"] |= options
    file.write_text(json.dumps(settings))


def test_a_configuration_runs_no_code(foreign, tmp_path):
    run, marker = foreign("t5_colbert"), tmp_path / "marker"
    whole, data = (run / "config.yaml").read_text(), restore_run(run)[1]
    for keys in (("data",), ("data", "examples")):
        change_yaml(run / "config.yaml", *keys, value=payload(marker))
        with pytest.raises(ValueError, match=r"_target_=.* is not a part of .*trust=true"):
            restore_run(run)
        (run / "config.yaml").write_text(whole)
    change_yaml(run / "config.yaml", "rerank", value={"form": {"alignment": payload(marker)}})
    with pytest.raises(ValueError, match="is not a part of this library.*trust=true"):
        stage = RerankPipeline([{"run": str(run)}])
        stage.prepare(data.documents, data.known_documents, tmp_path / "identifiers")
    for part in ("salience", "pooling", "alignment", "loss"):
        sided = part in ("pooling", "salience")
        change_model(run, **{part: {"query": payload(marker)} if sided else payload(marker)})
        with pytest.raises(ValueError, match=r"run=.*_target_=.* is not a part of this library"):
            restore_run(run, "")
    assert not marker.exists()


def test_an_exported_folder_runs_no_code(foreign, tmp_path):
    folder, marker = foreign("dsi_semantic-export"), tmp_path / "marker"
    whole = (folder / "gr_mvdr.json").read_text()
    for where in ("system", "head", "identifiers"):
        settings, attack = json.loads(whole), payload(marker)
        if where == "system":
            settings |= {"system": attack.pop("_target_"), "hyper_parameters": attack}
        else:
            settings["hyper_parameters"][where] = attack
        (folder / "gr_mvdr.json").write_text(json.dumps(settings))
        with pytest.raises(ValueError, match=r"_target_=.* is not a part of this library"):
            open_model(folder)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("loss", {"_target_": "gr_mvdr.alignment.MaxSim"}, "must be of the kind loss"),
        ("loss", {"_target_": "gr_mvdr.evaluation.ranking.write_qrels", "path": "x"}, "not a part"),
        ("alignment", {"_target_": "gr_mvdr.alignment.TopK", "k": 1, "_partial_": True},
         "alignment._partial_=true: must be"),
    ],
)  # fmt: skip
def test_only_parts_of_the_expected_kind_and_their_arguments(kind, settings, message):
    with pytest.raises(ValueError, match=message):
        build(kind, settings)


def test_a_name_in_a_folder_imports_nothing(foreign, tmp_path, monkeypatch):
    """A module on the path that a folder names stays unread, though it lies in a room's folder."""
    (tmp_path / "planted.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("planted.Part", "models.planted.Part", "planted.planted.Part", "antigravity.x"):
        with pytest.raises(ValueError, match="is not a part of this library"):
            find_part("loss", name)
    assert not (tmp_path / "marker").exists() and "antigravity" not in sys.modules
    import_module("planted")
    assert (tmp_path / "marker").exists()


MINE = """
from gr_mvdr.losses import InBatchCrossEntropy
from pathlib import Path
Path({marker!r}).touch()
class Mine(InBatchCrossEntropy):
    pass
"""


def test_a_users_own_class_trains_and_its_folder_asks_for_trust(tmp_path, monkeypatch):
    """From the command line anything goes; whoever gets the folder is asked first."""
    (tmp_path / "my_part.py").write_text(MINE.format(marker=str(tmp_path / "marker")))
    monkeypatch.syspath_prepend(tmp_path)

    def imports(function, *arguments, **options):
        """What it gives, and whether it imported the class, as a process that begins would."""
        sys.modules.pop("my_part", None)
        (tmp_path / "marker").unlink(missing_ok=True)
        return function(*arguments, **options), (tmp_path / "marker").exists()

    run = tmp_path / "run"
    own = "model.loss._target_=my_part.Mine"
    made = imports(command, "train.py", *KEYS, own, f"output={tmp_path}", "name=run")
    assert made == (0, True)
    asked = ["-m", "analysis.run", f"run={run}", "analysis=none"]
    refused, imported = imports(command, *asked)
    assert "my_part.Mine" in refused and "trust=true" in refused and not imported
    assert imports(command, *asked, "trust=true") == (0, True)
    exported = ["-m", "analysis.export", f"run={run}", "trust=true"]
    assert imports(command, *exported) == (0, True)
    sys.modules.pop("my_part")
    (tmp_path / "marker").unlink()
    with pytest.raises(ValueError, match="my_part.Mine"):
        open_model(run / "export")
    assert not (tmp_path / "marker").exists()
    assert imports(open_model, run / "export", trust=True)[1]
    del sys.modules["my_part"]


def test_trust_is_not_inherited_from_a_folder(foreign, tmp_path):
    """A pipeline's configuration says `trust: true` of its stage: the folder has no say in that."""
    stage, pipeline = foreign("t5_colbert"), foreign("dsi_semantic")
    change_model(stage, loss=payload(tmp_path / "marker"))
    settings = {"system": "models.rerank_pipeline.RerankPipeline",
                "hyper_parameters": {"stages": [{"run": str(stage), "trust": True}]}}  # fmt: skip
    (pipeline / "model/gr_mvdr.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match="os.system.*is not a part of this library"):
        restore_run(pipeline)
    assert not (tmp_path / "marker").exists()


def test_what_was_typed_is_admitted_no_longer_than_needed():
    with admitting({"deep": [{"_target_": "os.getpid"}]}):
        assert build("loss", {"_target_": "os.getpid"}) == os.getpid()
    with pytest.raises(ValueError, match="is not a part"):
        build("loss", {"_target_": "os.getpid"})


class Reduced:
    """Pickled, it touches a file when it is read."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def test_pickles_in_checkpoints_and_backbones_stay_unread(foreign, tmp_path):
    marker = tmp_path / "marker"
    torch.save({"state_dict": {}, "hyper_parameters": {"loss": Reduced(marker)}}, tmp_path / "x")
    with pytest.raises(ValueError, match="it holds more than weights"):
        read_checkpoint(tmp_path / "x")
    folder = foreign("t5_colbert-export")
    (folder / "model.safetensors").unlink()
    torch.save({"shared.weight": Reduced(marker)}, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="cannot be loaded"):
        open_model(folder)
    assert not marker.exists()
    torch.load(tmp_path / "x", weights_only=False)
    assert marker.exists()


CODE = "import os; os.system('touch {marker}')\nclass Evil: pass\n"
EVIL = {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil", "AutoTokenizer": ["evil.Evil"] * 2}


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("config.json", {"auto_map": EVIL, "model_type": "evil"}),
        ("config.json", {"quantization_config": {"quant_method": "gptq", "bits": 4}}),
        ("tokenizer_config.json", {"auto_map": EVIL, "tokenizer_class": "Evil"}),
    ],
)
def test_code_beside_a_backbone_stays_unread(file, changes, foreign, tmp_path):
    folder, marker = foreign("t5_colbert-export"), tmp_path / "marker"
    (folder / "evil.py").write_text(CODE.format(marker=marker))
    config = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(config | changes))
    with suppress(ValueError, OSError):
        open_model(folder)
        load_tokenizer(folder)
    assert not marker.exists()
    exec((folder / "evil.py").read_text())
    assert marker.exists()


def test_an_attention_of_the_hub_is_refused(foreign):
    """transformers fetches "owner/kernel" from the hub and runs it."""
    run = foreign("t5_colbert")
    backbone = read_json(run / "model/gr_mvdr.json")["hyper_parameters"]
    change_model(run, backbone={**backbone["backbone"], "attention": "evil/kernel"})
    with pytest.raises(ValueError, match="attention=evil/kernel: must be sdpa or eager"):
        restore_run(run)


def test_interpolations_stay_text(foreign, monkeypatch):
    monkeypatch.setenv("MY_SECRET", "s3cret")
    run = foreign("t5_colbert")
    change_yaml(run / "config.yaml", "data", "test_split", value="${oc.env:MY_SECRET}")
    with pytest.raises(ValueError, match=r"data.test_split=\$\{oc.env:MY_SECRET\}: must be one of"):
        restore_run(run)[1].evaluation.test_splits  # noqa: B018
    assert "s3cret" not in json.dumps(read_run(run).config)


def test_nothing_is_written_where_a_folder_says(foreign, tmp_path):
    """Built collections go to the user's own place."""
    run, place = foreign("t5_colbert"), tmp_path / "elsewhere"
    change_yaml(run / "config.yaml", "data", value={
        "_target_": "data_modules.sources.FilesDataModule", "path": str(beir(tmp_path / "beir")),
        "test_split": "test", "store": str(place),
        "tokenizer_options": {"backbone": None, "path": None, "unit": "word", "vocab_size": 100,
                      "lowercase": True}})  # fmt: skip
    before = sorted(run.rglob("*"))
    assert len(restore_run(run)[1].documents) == 12
    assert not place.exists() and sorted(run.rglob("*")) == before


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_results_replace_links_and_do_not_follow_them(link, foreign, tmp_path):
    run, target = foreign("t5_colbert"), tmp_path / "bashrc"
    target.write_text("mine")
    (run / "report.html").unlink(missing_ok=True)
    link(target, run / "report.html")
    write_report(run)
    assert target.read_text() == "mine" and "<html" in (run / "report.html").read_text()


def test_a_checkpoint_removes_no_folder_that_it_names(foreign, tmp_path):
    """Lightning's callback removes the checkpoint before, recursively, by the name in this one."""
    file, victim = foreign("t5_colbert") / "checkpoints/last.ckpt", tmp_path / "precious"
    state = torch.load(file, weights_only=True)
    path = f"{file.parent}/../../{victim.name}"
    (callback,) = (s for s in state["callbacks"].values() if "best_model_path" in s)
    callback |= {"best_model_path": path, "best_k_models": {path: torch.zeros(())}}
    torch.save(state, file)
    read = CheckpointFile().load_checkpoint(file, weights_only=True)
    assert victim.name not in str(read["callbacks"]) and victim.name in str(state["callbacks"])


def test_a_stages_name_is_no_path_and_its_folder_stays_as_it_was(foreign, tmp_path):
    run, out, victim = foreign("t5_colbert"), tmp_path / "out", tmp_path / "precious"
    data = restore_run(run)[1]
    record = json.loads((run / "provenance.json").read_text())
    (run / "provenance.json").write_text(json.dumps(record | {"system": f"../../../{victim.name}"}))
    change_model(run, search=make_search("gather", neighbours=None, probes=4).settings)
    victim.mkdir()
    (run / "index/neighbours").mkdir(exist_ok=True)
    (run / "index/neighbours/clusters.safetensors").write_bytes(b"evil")
    model = RerankPipeline([{"run": str(run)}])
    model.prepare(data.documents, data.known_documents, out / "identifiers")
    before = {file: file.stat().st_mtime_ns for file in run.rglob("*")}
    model.index(data.documents, out / "a" / "index")
    assert {file: file.stat().st_mtime_ns for file in run.rglob("*")} == before
    links = [file.name for file in out.rglob("*") if file.is_symlink()]
    assert links and "clusters.safetensors" not in links and not [*victim.iterdir()]


def test_pages_and_the_terminal_show_texts_as_texts(foreign, capsys):
    run = foreign("t5_colbert")
    evil = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
    record = json.loads((run / "provenance.json").read_text())
    (run / "provenance.json").write_text(json.dumps(record | {"system": evil, "git": evil}))
    row = Metric(evil, evil, evil).row(1.0, evil, evil, group=RETRIEVE)
    write_numbers(run, concat([read_numbers(run), make_frame([row])], ignore_index=True))
    change_yaml(run / "config.yaml", "collection", value=evil + "\x1b[2J")
    analyse_again(run, NOTHING)
    compare([run.parent], run / "out")
    for page in (run / "report.html", run / "out/comparison.html"):
        assert "<script>alert" not in page.read_text() and "<img src=x" not in page.read_text()
    assert "</script" not in embed_json({"token": "</script><!--"})
    assert "\x1b" not in capsys.readouterr().out
    (run / "provenance.json").write_text(json.dumps(record | {"system": "\x1b]0;evil\x07"}))
    with pytest.raises(ValueError, match="must be printable"):
        read_provenance(run)
    with pytest.raises(SystemExit) as ended, report_errors():
        raise ValueError("named \x1b[2J\u202e")
    assert str(ended.value) == "error: named \\x1b[2J\\u202e"


GALLERY = json.dumps([{"name": "../../../secret", "title": "", "caption": ""}])


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.yaml", "model: [", r"config.yaml:1: must be valid YAML with plain values \("),
        ("config.yaml", "a: " + "[" * 5000, "must be valid YAML"),
        ("config.yaml", "a: &a [x, x]\nb: [*a, *a]", r":2: must be valid .*must not use aliases"),
        ("config.yaml", "a: !!python/object/apply:os.system [touch x]", r":1: must be valid YAML"),
        ("metrics.parquet", "PAR1", "metrics.parquet: must be a table with the columns group"),
        ("provenance.json", '{"system": 3, "collection": "x"}', "system=3: must be"),
        ("provenance.json", "[" * 100_000, "provenance.json: not valid JSON"),
        ("figures/figures.json", GALLERY, "figures.json: must be a list of figures.*file's name"),
    ],
)
def test_a_broken_part_of_a_run_is_named(file, content, message, foreign):
    run = foreign("t5_colbert")
    (run / file).parent.mkdir(exist_ok=True)
    (run / file).write_text(content)
    with pytest.raises(ValueError, match=message):
        analyse_again(run, NOTHING) if "figures" in file else read_run(run)


# Each file of a run and a reader of it, which takes the run's folder.
READERS = {
    "config.yaml": read_run,
    "provenance.json": read_run,
    "metrics.parquet": read_run,
    "queries.parquet": read_queries,
    "retrieve.trec": lambda run: Ranking.read(run / "retrieve.trec", run),
    "retrieve.qrels": lambda run: read_qrels(run / "retrieve.qrels", run),
    "best_documents.json": lambda run: read_kept(run, "best_documents"),
    "token_contexts.json": lambda run: read_kept(run, "token_contexts"),
    "training/metrics.csv": lambda run: Curve(SimpleNamespace(run=run)).finish(),
    "figures/figures.json": lambda run: read_gallery(run / "figures"),
    "figures/shape.png": lambda run: embed_picture(run / "figures/shape.png"),
    "alignments/manifest.json": lambda run: AlignmentStore(run / "alignments"),
    "alignments/pairs.parquet": lambda run: AlignmentStore(run / "alignments"),
}
# Of these a link to another regular file is good: they may lie on another disk, or in a cache.
LINKED = {
    "index/index.json": lambda run: read_json(run / "index/index.json"),
    "checkpoints/last.ckpt": lambda run: read_checkpoint(run / "checkpoints/last.ckpt"),
    "model.safetensors": lambda run: open_tensors(run / "model.safetensors"),
    "tokenizer/tokenizer.json": lambda run: load_tokenizer(run / "tokenizer"),
    "a user's ranking.trec": lambda run: Ranking.read(run / "a user's ranking.trec"),
}


@pytest.fixture
def whole_run(tmp_path):
    """A run with every file of the tables above."""
    run = write_run(tmp_path / "foreign/run", "bm25", 1, {"retrieve/mrr@10": 0.5})
    for name, text in (
        ("retrieve.trec", "q Q0 d 1 1.0 x\n"),
        ("a user's ranking.trec", "q Q0 d 1 1.0 x\n"),
        ("retrieve.qrels", "q 0 d 1\n"),
        ("best_documents.json", "{}"),
        ("token_contexts.json", "{}"),
        ("training/metrics.csv", "step,alignment/soft\n1,0.5\n"),
        ("figures/figures.json", "[]"),
        ("figures/shape.png", "PNG"),
        ("index/index.json", "{}"),
    ):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text(text)
    judge_gold(run, [1])
    write_store(run / "alignments", StoreDescription("s", "generative", "c"), make_explanation(2))
    (run / "checkpoints").mkdir()
    torch.save({"state_dict": {}}, run / "checkpoints/last.ckpt")
    write_tensors(run / "model.safetensors", {"x": torch.zeros(1)}, {})
    build_word_tokenizer(["a b"]).save_pretrained(run / "tokenizer")
    return run


def spoil(file: Path, how: str) -> None:
    """Puts something else where a file is, or takes the right to read it."""
    if how == "unreadable":
        file.chmod(0)
        return
    kept = file.parents[2] / f"elsewhere-{file.name}"
    file.rename(kept)
    if how == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero" if how == "device" else kept)


@pytest.fixture
def place():
    """A folder that every user can enter, and nobody's rights while it is there."""
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@contextmanager
def without_privileges():
    """Root may read any file."""
    user = os.geteuid()
    os.seteuid(65534 if user == 0 else user)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.mark.parametrize("how", ["device", "pipe", "link", "unreadable"])
def test_every_reader_takes_regular_files_of_the_folder_alone(how, whole_run, place):
    """A device has no end, a pipe never begins, a link leads to the user's own files.

    A file that may not be read is not called damaged.
    """
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    refusals = PermissionError if how == "unreadable" else (ValueError, FileNotFoundError)
    for name, read in (READERS | LINKED).items():
        run = Path(shutil.copytree(whole_run, place / name.replace("/", "-") / "run"))
        read(run)
        spoil(run / name, how)
        signal.alarm(20)
        try:
            if how == "link" and name in LINKED:
                read(run)
                continue
            with without_privileges(), pytest.raises(refusals, match=re.escape(Path(name).name)):
                read(run)
        finally:
            signal.alarm(0)
