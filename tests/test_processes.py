"""`trainer.devices=2`: two processes of the real command equal one, in sweeps and after a kill.

In fp64: a rounding error of the gathered sums cannot grow over the steps as it does in fp32.
"""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from analysis.questions.learning_curves import read_curve
from conf.launch import processes_to_start
from tests.runs import ROOT, TINY, compose_config

SMALL = [
    *("experiment=smoke", "logger=none", "data.n_documents=50", "data.train_questions=2"),
    *("analysis=none", "analysis.pairs=0", "analysis.curve_pairs=0", "trainer.max_steps=-1"),
    *("trainer.max_epochs=2", "trainer.precision=64-true", "data.batch_size=25", *TINY),
]
MODELS = ["t5_colbert", "t5_seal"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("processes")


def started(folder, *arguments):
    """The command in a session of its own, so that a signal reaches all of its processes."""
    command = [sys.executable, "train.py", *SMALL, f"output={folder}", *arguments]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finished(process) -> str:
    """What the command printed."""
    said, complained = process.communicate(timeout=300)
    assert process.returncode == 0, complained[-2000:]
    return said


@pytest.fixture(scope="module")
def alone(finished_run):
    """The run of one process, by model."""
    return lambda model: finished_run(model, *SMALL)


@pytest.fixture(scope="module")
def swept(once):
    """A sweep of both models in two processes each: the runs' folders, and what it printed."""

    def sweep(folder):
        keys = ["hydra.mode=MULTIRUN", f"model={','.join(MODELS)}", "trainer.devices=2"]
        (folder / "said").write_text(finished(started(folder, *keys)))

    folder = once("a sweep in two processes", sweep)
    runs = {model: next(folder.glob(f"{model}*/metrics.json")) for model in MODELS}
    return {model: file.parent for model, file in runs.items()}, (folder / "said").read_text()


def metrics(run):
    return json.loads((run / "metrics.json").read_text())


def weights(run):
    checkpoint = torch.load(run / "checkpoints/last.ckpt", weights_only=True)
    return checkpoint["global_step"], checkpoint["state_dict"]


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if not key.startswith("cost/"):
            assert found[key] == pytest.approx(value, abs=1e-6), key


@pytest.mark.slow  # every process imports torch: tests/models/test_two_ranks.py has the laws
@pytest.mark.parametrize("model", MODELS)
def test_two_processes_of_a_sweep_leave_what_one_process_leaves(model, alone, swept):
    run, one = swept[0][model], alone(model)
    steps, expected = weights(one)
    assert_same(metrics(run), metrics(one))
    losses, wanted = (read_curve(f)["loss"] for f in (run, one))
    assert losses.tolist() == pytest.approx(wanted.tolist(), rel=1e-5) and len(losses) == 8
    found_steps, found = weights(run)
    assert found_steps == steps == 8, "twice 90 pairs: three of 25, 13 and 12 of them, and 15"
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=1e-6, atol=1e-8), name
    assert json.loads((run / "provenance.json").read_text())["ranks"] == 2
    for file in ("retrieve.trec", "rerank.trec", "report.html"):
        assert (run / file).stat().st_size
    index = sorted(path.name for path in (run / "index").rglob("*"))
    assert index == sorted(path.name for path in (one / "index").rglob("*"))
    said = swept[1]
    assert said.count(f"{run}: finished") == said.count(f"→ {run}") == 1
    assert (run.parent / "comparison.md").is_file()


@pytest.mark.slow
def test_a_killed_run_of_two_processes_resumes_to_the_same_metrics(folder, alone):
    keys = ["model=t5_colbert", "trainer.devices=2", "name=part", "resume=true"]
    first = started(folder, *keys)
    checkpoint = folder / "part/checkpoints/last.ckpt"
    give_up = time.monotonic() + 120
    while not checkpoint.is_file() and first.poll() is None and time.monotonic() < give_up:
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGINT)
    complained = first.communicate(timeout=60)[1]
    assert first.returncode != 0 and complained.count("interrupted: run the same command") == 1
    assert checkpoint.is_file() and not (folder / "part/metrics.json").exists()
    again = started(folder, *keys)
    said, complained = again.communicate(timeout=300)
    assert again.returncode == 0 and said.count("resume: ") == 1
    assert "not empty" not in complained, "what is Lightning's warning of a run that goes on"
    assert_same(metrics(folder / "part"), metrics(alone("t5_colbert")))


@pytest.mark.slow
def test_an_error_in_two_processes_is_one_line(folder):
    keys = ["trainer.devices=2", "name=bad", "data.test_split=nowhere"]
    process = started(folder, *keys)
    complained = process.communicate(timeout=120)[1]
    assert process.returncode == 1
    assert complained.strip().splitlines()[-1].startswith("error: data.test_split=nowhere")
    assert complained.count("error:") == 1 and "Traceback" not in complained
    assert not list((folder / "bad").glob("*"))


# How many processes a job starts --------------------------------------------------------------


def test_only_training_starts_processes_and_only_once(monkeypatch):
    two = "trainer.devices=2"
    assert processes_to_start(compose_config("train", "model=t5_colbert", two, "name=x")) == 2
    assert processes_to_start(compose_config("train", "model=bm25", two, "name=x")) == 1
    sharded = compose_config("train", "trainer=fsdp", two, "name=x")
    assert sharded.trainer.strategy.data_parallel_size == 2 == processes_to_start(sharded)
    with pytest.raises(ValueError, match="trainer.num_nodes=2: start torchrun on each"):
        processes_to_start(
            compose_config("train", "model=t5_colbert", "trainer.num_nodes=2", "name=x")
        )
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert processes_to_start(compose_config("train", "model=t5_colbert", two, "name=x")) == 1
