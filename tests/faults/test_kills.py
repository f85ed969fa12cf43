"""A run that is killed, or finds no room, is resumed to equal metrics; one folder has one owner."""

import os
import re
import shutil
from functools import cache
from types import SimpleNamespace

import pytest

import train  # noqa: F401  (imported once, before children are forked)
from analysis.questions.learning_curves import read_curve
from analysis.runs.run_folder import LOCK
from models.training import CURVES
from tests.faults.forked import Child, imported, metrics, run

MODELS = ["bm25", "t5_colbert", "t5_seal", "dsi_naive"]
EVERY = 9  # every n-th file event; between two of them the disk is as after the first


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kills")


@pytest.fixture(scope="module")
def unbroken(folder):
    """By model: what a run that nobody disturbs leaves, its metrics and file events."""

    @cache
    def of(model, *options):
        for name in ("cold", "warm"):  # the second one finds all caches
            name += "-with" * bool(options)
            keys = f"model={model}", f"name={model}-{name}", *options
            child = Child(run(folder, *keys), folder / "cache")
            assert child.status() == 0, child.said
            imported(child.seen[1])
        whole = folder / f"{model}-{name}"
        cold = folder / f"{model}-{name.replace('warm', 'cold')}"
        assert metrics(whole) == pytest.approx(metrics(cold), abs=1e-6)
        found = dict(metrics=metrics(whole), files=files(whole), losses=losses(whole))
        return SimpleNamespace(events=child.seen[0], **found)

    return of


def files(run):
    """What lies in a run's folder; the last thing that a run does is to remove its lock.

    A shard's name begins with a hash of the weights, which a resumed training has up to rounding.
    """
    found = {re.sub(r"[0-9a-f]{12}-", "", str(path.relative_to(run))) for path in run.rglob("*")}
    return sorted(found - {LOCK})


def losses(run):
    """The loss of every step; none of a run without training."""
    return read_curve(run)["loss"].tolist() if (run / CURVES).is_file() else []


def check_event(folder, model, event, expected, *options, cache="cache"):
    """Kills a run before a file event, resumes it, and compares it with the run that was not."""
    shutil.rmtree(folder / "killed", ignore_errors=True)
    keys = f"model={model}", "name=killed", *options
    assert Child(run(folder, *keys), folder / cache, at_event=event).status() == -9, event
    child = Child(run(folder, *keys, "resume=true"), folder / cache)
    assert child.status() == 0, child.said
    assert metrics(folder / "killed") == pytest.approx(expected.metrics, abs=1e-6)
    assert losses(folder / "killed") == pytest.approx(expected.losses)
    assert files(folder / "killed") == expected.files


@pytest.mark.parametrize("model", ["bm25", "t5_colbert"])
def test_a_run_that_is_killed_at_a_file_event_is_resumed(model, folder, unbroken):
    expected = unbroken(model)
    for share in (0.3, 0.8):
        check_event(folder, model, int(expected.events * share), expected)


def test_a_run_that_is_killed_around_a_validation_keeps_the_same_best_step(folder, unbroken):
    rate = "model.optimizer.learning_rate=0.004", "model.optimizer.schedule=constant"
    options = (*rate, "trainer.max_epochs=4", "validation.every=3", "validation.metric=recall@1")
    expected = unbroken("t5_colbert", *options)
    assert [name for name in expected.files if "checkpoints/step-" in name], "the last is not best"
    for share in (0.26, 0.3, 0.45):
        check_event(folder, "t5_colbert", int(expected.events * share), expected, *options)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_runs_killed_at_file_events_are_resumed(model, folder, unbroken):
    expected = unbroken(model)
    for event in range(1, expected.events + 1, EVERY):
        check_event(folder, model, event, expected)


@pytest.mark.slow
def test_runs_killed_while_they_fill_a_cache_are_resumed(folder, unbroken):
    expected = unbroken("bm25")
    child = Child(run(folder, "model=bm25", "name=new"), folder / "new")
    assert child.status() == 0, child.said
    for event in range(1, child.seen[0] - expected.events, EVERY):
        shutil.rmtree(folder / "new")
        check_event(folder, "bm25", event, expected, cache="new")
        left = [path for path in (folder / "new").rglob(".*.partial")]
        assert not left, "the next one that makes something there sweeps"


def test_a_file_that_may_not_grow_is_named_and_the_run_resumed(folder, unbroken):
    model, expected = "model=t5_colbert", unbroken("t5_colbert").metrics
    largest = (folder / "t5_colbert-warm/checkpoints/last.ckpt").stat().st_size
    for number, longest in enumerate((largest - 1, 2000)):
        name = f"limited-{number}"
        keys = model, f"name={name}"
        child = Child(run(folder, *keys), folder / "cache", longest=longest)
        assert child.status() == 1
        last = child.said.strip().splitlines()[-1]
        # Of the run, or of the temporary index of a validation.
        assert re.search(rf"File too large: .*({folder / name}|/token-index-)", last), last
        child = Child(run(folder, *keys, "resume=true"), folder / "cache")
        assert child.status() == 0, child.said
        assert metrics(folder / name) == pytest.approx(expected, abs=1e-6)


def together(*jobs, cache):
    """Runs jobs that begin at the same moment: their children, ended, by status."""
    reads, writes = os.pipe()
    children = [Child(job, cache, gate=reads) for job in jobs]
    os.write(writes, b"x" * len(jobs))
    os.close(reads), os.close(writes)
    return sorted(((child.status(), child) for child in children), key=lambda pair: pair[0])


def test_a_folder_has_one_owner_and_the_other_is_told_who(folder, unbroken):
    assert unbroken("bm25")
    for pair in range(4):
        name = f"both-{pair}"
        jobs = [run(folder, "model=bm25", f"name={name}", f"seed={seed}") for seed in (1, 2)]
        (won, _), (lost, loser) = together(*jobs, cache=folder / "cache")
        assert (won, lost) == (0, 1), loser.said
        assert "another process works in it" in loser.said or "folder exists" in loser.said
        assert metrics(folder / name)


@pytest.mark.slow
def test_a_cache_is_filled_by_one_and_used_by_both(folder, unbroken):
    expected = unbroken("bm25").metrics
    for number in range(3):
        names = [f"{number}-{side}" for side in "ab"]
        jobs = [run(folder, "model=bm25", f"name={name}") for name in names]
        for status, child in together(*jobs, cache=folder / f"cache-{number}"):
            assert status == 0, child.said
        for name in names:
            assert metrics(folder / name) == pytest.approx(expected, abs=1e-6)
