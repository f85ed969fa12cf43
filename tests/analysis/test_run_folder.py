"""A run's folder is found again by its own configuration, and by no other."""

import pytest
from omegaconf import OmegaConf

from analysis.run_folder import asked_run, find_run, start_run


def configuration(folder, **changed):
    run = {"run": str(folder / "run"), "resume": True, "seed": 0, "collections": "a,b"}
    return OmegaConf.create(run | changed)


def test_what_a_sweep_goes_through_does_not_make_another_run(tmp_path):
    assert find_run(configuration(tmp_path)) == (tmp_path / "run", ["config.yaml"])
    start_run(configuration(tmp_path), {})
    missing = ["metrics.json", "report.html"]
    assert find_run(configuration(tmp_path, collections="a")) == (tmp_path / "run", missing)
    with pytest.raises(ValueError, match="cannot resume, it was made with another config"):
        find_run(configuration(tmp_path, seed=1))
    with pytest.raises(FileExistsError, match=r"pass resume=true"):
        find_run(configuration(tmp_path, resume=False))


def test_a_command_for_a_run_asks_for_one(tmp_path):
    assert asked_run(str(tmp_path)) == tmp_path
    with pytest.raises(ValueError, match="run=null: must be the folder of a finished run"):
        asked_run(None)
