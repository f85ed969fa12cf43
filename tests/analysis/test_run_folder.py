"""A run's folder is found by its own configuration alone; one command at a time writes into it."""

import os
import signal
from math import nan

import pytest
from omegaconf import OmegaConf

from analysis.runs.run_folder import (
    LOCK,
    claim_folder,
    find_run,
    open_run,
    start_run,
)
from tests.runs import write_metrics


def configuration(folder, **changed):
    run = {"run": str(folder / "run"), "resume": True, "seed": 0, "collections": "a,b"}
    return OmegaConf.create(run | changed)


def test_what_a_sweep_goes_through_does_not_make_another_run(tmp_path):
    assert find_run(configuration(tmp_path)) == (tmp_path / "run", ["config.yaml"])
    start_run(configuration(tmp_path), {})
    missing = ["metrics.json", "report.html"]
    assert find_run(configuration(tmp_path, collections="a")) == (tmp_path / "run", missing)
    said = r"cannot resume, .* config.yaml: seed=1 \(was 0\), model.k=null \(was missing\)$"
    with pytest.raises(ValueError, match=said):
        find_run(configuration(tmp_path, seed=1, model={"k": None}))
    with pytest.raises(FileExistsError, match=r"pass resume=true"):
        find_run(configuration(tmp_path, resume=False))


def finished(folder, **changed):
    """A folder with all that a finished run of retrieval has."""
    config = configuration(folder, **changed)
    start_run(config, {"system": "a", "collection": "b"})
    (folder / "run/report.html").touch()
    write_metrics(folder / "run", {"retrieve/mrr@10": 1.0})
    return config


def test_a_run_without_a_readable_configuration_is_not_continued(tmp_path):
    config = finished(tmp_path)
    assert find_run(config)[1] == []
    (tmp_path / "run/report.html").unlink()
    assert find_run(config)[1] == ["report.html"]
    (tmp_path / "run/config.yaml").write_text("{")
    with pytest.raises(ValueError, match=r"config.yaml:1: must be valid YAML"):
        find_run(config)
    (tmp_path / "run/checkpoints").mkdir()
    (tmp_path / "run/checkpoints/last.ckpt").touch()
    (tmp_path / "run/config.yaml").unlink()
    with pytest.raises(FileNotFoundError, match=r"config.yaml"):
        find_run(config)


def test_metrics_that_are_not_finite_are_refused(tmp_path):
    finished(tmp_path)
    with pytest.raises(ValueError, match=r"metrics.parquet: retrieve/mrr@10=nan: must be a finite"):
        write_metrics(tmp_path / "run", {"retrieve/mrr@10": nan})


def test_a_claimed_folder_is_swept_and_finished_ones_are_not_touched(tmp_path):
    config = finished(tmp_path)
    os.chmod(tmp_path / "run", 0o555)
    with open_run(config) as (_, missing):
        assert not missing and not (tmp_path / "run/.lock").exists()
    os.chmod(tmp_path / "run", 0o755)
    (tmp_path / "run/report.html").unlink()
    left = tmp_path / "run/figures" / f".a.png.{'0' * 8}.partial"
    left.parent.mkdir()
    left.touch()
    with open_run(config) as (_, missing):
        assert missing == ["report.html"] and (tmp_path / "run/.lock").exists()
        assert not left.exists()


def test_a_killed_commands_folder_is_free_although_its_child_lives_on(tmp_path):
    """A loader's worker outlives a killed command by seconds."""
    reads, writes = os.pipe()
    if not (owner := os.fork()):
        with claim_folder(tmp_path / "run"):
            if not (worker := os.fork()):
                signal.pause()
            os.write(writes, worker.to_bytes(4, "big"))
            signal.pause()
    worker = int.from_bytes(os.read(reads, 4), "big")
    try:
        with (
            pytest.raises(ValueError, match="run=.*: another process works in it"),
            claim_folder(tmp_path / "run"),
        ):
            pass
        os.kill(owner, signal.SIGKILL)
        os.waitpid(owner, 0)
        with claim_folder(tmp_path / "run"):
            assert (tmp_path / "run" / LOCK).exists()
    finally:
        os.kill(worker, signal.SIGKILL)
    assert not (tmp_path / "run").exists(), "nothing came into it"


def test_a_folder_is_released_after_errors_and_kept_if_something_is_in_it(tmp_path):
    with pytest.raises(KeyboardInterrupt), claim_folder(tmp_path / "run"):
        (tmp_path / "run/config.yaml").touch()
        raise KeyboardInterrupt
    assert os.listdir(tmp_path / "run") == ["config.yaml"]
