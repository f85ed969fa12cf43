"""The list of runs: what it shows of finished, unfinished and broken ones, and how it is asked."""

import os

import pytest

from tests.analysis.test_compare import write_run
from tests.runs import command


@pytest.fixture
def outputs(tmp_path):
    """Four runs, named in another order than they were made in."""

    def made(name, at, overrides, metrics=None):
        about = {"collection": "towns", "overrides": overrides, "splits": ["test", "dev"]}
        run = write_run(tmp_path / "outputs" / name, name.upper(), 1, metrics or {}, **about)
        if not metrics:
            (run / "metrics.json").unlink()
        for file in (*run.iterdir(), run):
            os.utime(file, (at, at))

    found = {"retrieve/recall@10": 0.25, "retrieve/mrr@10": 0.5, "retrieve/dev/mrr@10": 0.75}
    typed = ["model=a", "data.path=x", "seed=2", "+trainer.max_time=1", "output=y", "resume=true"]
    made("b", 1000, typed, found)
    made("a", 2000, [], found | {"rerank/mrr@10": 0.9})
    made("cut", 3000, [])
    made("sweep/broken", 4000, [], found)
    (tmp_path / "outputs/sweep/broken/provenance.json").write_text("{")
    return tmp_path / "outputs"


def test_runs_are_listed_newest_last_with_what_is_known_of_them(outputs, capsys):
    assert command("-m", "analysis.runs", f"runs={outputs}") == 0
    said = capsys.readouterr().out
    lines = [line.split("  ") for line in said.splitlines()[1:]]
    rows = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    names = [f"{outputs}/{name}" for name in ("b", "a", "cut", "sweep/broken")]
    assert [row[0] for row in rows] == names
    assert rows[0][1:5] == ["B", "towns", "0.500", "0.250"]
    said = [row[-1] for row in rows]
    assert said[0] == "python train.py model=a data.path=x seed=2 +trainer.max_time=1"
    assert said[1:3] == ["python train.py", "unfinished; python train.py"]
    assert rows[2][1:5] == ["CUT", "towns", "–", "–"]
    assert "provenance.json" in rows[3][-1] and "cannot be read" in rows[3][-1]


def test_a_folder_without_runs_and_none_are_one_line(tmp_path):
    assert "existing" in command("-m", "analysis.runs", "runs=nowhere")
    said = command("-m", "analysis.runs", f"runs={tmp_path}")
    assert said == f"error: runs=[{tmp_path}]: there is no run"
