"""The explorer over finished runs: from the command to its end, and every bad start."""

import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from analysis import explore
from analysis.viewer.session import open_session
from conf.command import report_errors
from data_modules.evaluation import EvaluationData
from gr_mvdr.evaluation.ranking import Ranking
from tests.analysis.viewer.tiny import client
from tests.runs import TINY, compose_config

ROOT = Path(__file__).parents[3]
MODELS = ("bm25", "t5_colbert", "dsi_naive")


@pytest.fixture(scope="module")
def runs(finished_run, tmp_path_factory):
    """Copies of three finished runs over one collection, in one folder."""
    folder = tmp_path_factory.mktemp("explored")
    for model in MODELS:
        shutil.copytree(finished_run(model, *TINY), folder / model)
    return folder


def files(folder):
    """Every file below a folder with its size and time."""
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in found}


def test_finished_runs_are_searched_aligned_and_left_as_they_are(runs, capsys):
    before = files(runs)
    session = open_session([runs])
    said = capsys.readouterr().out
    assert [system.run.path.name for system in session.systems] == [*MODELS]
    for system in session.systems:
        assert f"{system.label}: loaded " in said
    browser = client(session)
    queries = browser.post("/api/queries", json={}).json()
    ranking = Ranking.read(runs / "bm25" / "retrieve.trec")
    asked = next(query for query in queries if query["id"] in ranking.query_ids)
    places = ranking.documents(asked["id"])
    assert asked["ranks"][0] == min(places.index(d) + 1 for d in asked["gold"] if d in places)
    found = browser.post("/api/search", json={"query": asked["text"], "k": 5}).json()
    assert found["known"] == asked["text"]
    # A search here is the run's own search.
    assert [hit["id"] for hit in found["systems"][0]["hits"]] == places[:5]
    for system in found["systems"]:
        assert system["error"] is None and len(system["hits"]) == 5
    document = {"id": asked["gold"][0]}
    for number in range(len(MODELS)):
        pair = {"system": number, "query": asked["text"], "document": document}
        assert browser.post("/api/align", json=pair).status_code == 200
        why = browser.post("/api/explain", json={**pair, "document": document["id"]})
        assert why.status_code == 200 and why.json()["reason"].startswith(document["id"])
    assert files(runs) == before


def run_main(*overrides):
    """What the command does with these keys; errors as the user sees them."""
    with report_errors():
        explore.main(compose_config("explore", *overrides))


def ending(capsys, *overrides):
    with pytest.raises(SystemExit) as ended:
        run_main(*overrides)
    assert "\n" not in str(ended.value)
    return str(ended.value)


def test_bad_starts_are_one_line_each(runs, finished_run, tmp_path, capsys):
    assert "no such folder" in ending(capsys, f"runs={tmp_path / 'nowhere'}")
    assert "holds no run" in ending(capsys, f"runs={tmp_path}")
    unfinished = tmp_path / "unfinished"
    shutil.copytree(runs / "bm25", unfinished)
    (unfinished / "metrics.json").unlink()
    assert "metrics.json" in ending(capsys, f"runs={unfinished}")
    other = finished_run("bm25", "data.n_documents=60")
    said = ending(capsys, f"runs=[{runs / 'bm25'},{other}]")
    assert said.startswith("error: runs: must be over one collection and its splits, are over ")


def test_a_run_that_cannot_be_loaded_is_left_out_unless_none_remains(runs, tmp_path, capsys):
    broken = shutil.copytree(runs / "t5_colbert", tmp_path / "broken")
    shutil.rmtree(broken / "model")
    session = open_session([runs / "bm25", broken])
    assert [system.label for system in session.systems] == ["BM25"]
    (line,) = [s for s in capsys.readouterr().out.splitlines() if "left out" in s]
    assert line.startswith("T5-ColBERT: left out, ") and "has no model/" in line
    with pytest.raises(ValueError, match="runs: none can be explored; .*has no model/"):
        open_session([broken])


def test_runs_without_their_queries_are_explored_nevertheless(runs, monkeypatch, capsys):
    def lost(*_):
        raise FileNotFoundError("queries.jsonl: no such file")

    monkeypatch.setattr(EvaluationData, "test_queries", lost)
    browser = client(open_session([runs / "bm25"]))
    assert "no known queries: queries.jsonl: no such file" in capsys.readouterr().out
    assert browser.post("/api/queries", json={}).json() == []
    assert browser.post("/api/search", json={"query": "city"}).json()["known"] is None


@pytest.mark.slow
def test_the_command_serves_until_ctrl_c(runs):
    command = [sys.executable, "-m", "analysis.explore", f"runs={runs / 'bm25'}"]
    # A shell starts a job in the background with Ctrl-C ignored, and a test may be in one.
    started = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        for line in started.stdout:
            if found := re.match(r"explorer: (http://127\.0\.0\.1:\d+/) \(this machine only", line):
                break
        with urllib.request.urlopen(found[1], timeout=30) as answer:
            assert answer.status == 200
        started.send_signal(signal.SIGINT)
        said, faults = started.communicate(timeout=60)
    finally:
        started.kill()
    assert (said, faults, started.returncode) == ("explorer: ended\n", "", 0)
