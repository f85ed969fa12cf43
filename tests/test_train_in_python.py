"""`from train import train`: a run from a script or a notebook, as the command line makes it."""

import os
import signal
from pathlib import Path

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.version import VersionBase

import train as train_module
from analysis.runs.run_folder import Run, read_run
from conf.command import compose_command
from tests.runs import NO_ANALYSIS, beir, command
from train import train

BM25 = ["model=bm25", "data=beir", "logger=none", *NO_ANALYSIS]


@pytest.fixture
def fruit(tmp_path):
    """Overrides for twelve documents, in a folder that is not the repository's."""
    path = beir(tmp_path / "fruit")
    return [*BM25, f"data.path={path}", f"output={tmp_path}"]


def test_a_list_of_overrides_gives_the_finished_run(fruit, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = train([*fruit[:-1], "output=here"])
    said = capsys.readouterr().out
    assert isinstance(run, Run) and run.metrics["retrieve/recall@100"] == 1.0
    name = "bm25-fruit-seed1-curve_pairs_0-pairs_0-analysis_none-"
    assert run.path == Path("here", name + run.path.name[-6:])
    assert Path(run) == run.path and os.path.isfile(os.path.join(run, "report.html"))
    assert read_run(run.path).metrics == run.metrics
    assert said.splitlines()[-1] == f"{run.path}: finished, {run.path / 'report.html'}"


def test_the_command_line_finds_the_run_that_python_made(fruit, capsys):
    run = train(fruit)
    capsys.readouterr()
    assert command("train.py", *fruit, "resume=true") == 0
    assert capsys.readouterr().out == f"{run.path}: finished before, kept\n"


@pytest.mark.filterwarnings("ignore:")
def test_a_run_within_another_hydra_program_leaves_its_state(fruit, tmp_path, monkeypatch):
    # Without what a command of another test left in this process.
    states = GlobalHydra, HydraConfig, VersionBase
    others = {kind: one for kind, one in Singleton._instances.items() if kind not in states}
    monkeypatch.setattr(Singleton, "_instances", others)
    compose_command("train", fruit)
    assert not GlobalHydra().is_initialized() and not HydraConfig.initialized()
    (tmp_path / "own.yaml").write_text("key: 1\n")
    with hydra.initialize_config_dir(str(tmp_path), version_base="1.1"):
        mine = hydra.compose("own", return_hydra_config=True)
        HydraConfig.instance().set_config(mine)
        try:
            first, second = (compose_command("train", [*fruit, f"seed={n}"]) for n in (1, 2))
            assert HydraConfig.get() == mine.hydra and hydra.compose("own") == {"key": 1}
            assert str(VersionBase.instance().getbase()) == "1.1"
        finally:
            Singleton._instances.pop(HydraConfig)
    assert first.name != second.name and "hydra" not in first


def test_what_is_wrong_is_one_line(tmp_path, capsys):
    given = ["logger=none", f"output={tmp_path}"]
    for overrides, message in (
        ("model=bm25", "model=bm25: must be a list"),
        ([*given, "seed=1,2"], "Ambiguous value for argument 'seed=1,2'.* add --multirun"),
        ([*given, "trainer.devices=2", "trainer.accelerator=cpu"], "must be one device in Python"),
    ):
        with pytest.raises(ValueError, match=message) as raised:
            train(overrides)
        assert "\n" not in str(raised.value) and capsys.readouterr() == ("", "")
    assert not any(tmp_path.iterdir())


def test_an_interruption_leaves_python_as_it_was(fruit, tmp_path, monkeypatch):
    """Lightning exits after Ctrl-C and ignores further ones: a kernel would be lost."""

    def interrupt(self, *_, **__):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise SystemExit(1)

    monkeypatch.setattr(train_module.pl.Trainer, "fit", interrupt)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match="resume=true to continue"):
        train([*fruit[1:], "model=t5_colbert"])
    assert signal.getsignal(signal.SIGINT) is handler
    assert not list(tmp_path.rglob(".lock"))
