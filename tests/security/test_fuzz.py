"""Mutated folders through every door: nothing runs, nothing is written elsewhere."""

import json
import os
import subprocess
import sys

import pytest

from tests.security.conftest import ROOT
from tests.security.doors import Watch

MUTANTS = 24


def mutants(made, tmp_path, first: int, last: int) -> list[dict]:
    (tmp_path / "planted").mkdir()
    marker = tmp_path / "area/outside/marker"
    (tmp_path / "planted/payload_module.py").write_text(f"open({str(marker)!r}, 'w')")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path / 'planted'}"}
    environment |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    words = map(str, (made, tmp_path / "area", first, last))
    command = [sys.executable, "-m", "tests.security.doors", *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [one["number"] for one in found] == list(range(first, last))
    return found


@pytest.mark.slow
def test_mutated_folders_run_nothing_and_end_in_a_line(made, tmp_path):
    found = mutants(made, tmp_path, 0, MUTANTS)
    assert not [one for one in found if one["faults"]]
    assert sum(bool(one["refused"]) for one in found) > MUTANTS / 3, "mutations hardly matter"


def test_the_watch_sees_what_a_payload_would_do(tmp_path):
    """What the fuzz relies on: each of these events is a violation, and only outside the area."""
    watch = Watch([tmp_path / "area"], {"json"})
    watch.active = True
    inside, outside = str(tmp_path / "area/x"), str(tmp_path / "x")
    (tmp_path / "area").mkdir()
    (tmp_path / "area/link").symlink_to(tmp_path)
    harmless = [("open", (inside, "w", os.O_WRONLY)), ("open", (outside, "r", os.O_RDONLY)),
                ("import", ("json.decoder",)), ("os.rename", (inside, inside + "y")),
                ("compile", ("1 + 1", "<string>"))]  # fmt: skip
    for event, arguments in harmless:
        watch(event, arguments)
    assert not watch.violations
    harmful = [("open", (outside, "w", os.O_WRONLY | os.O_CREAT)), ("os.system", (b"touch x",)),
               ("open", (str(tmp_path / "area/link/x"), "w", os.O_WRONLY)),
               ("open", (str(tmp_path / "area/../x"), "a", os.O_APPEND)),
               ("subprocess.Popen", ("touch", ["touch"], None, None)), ("import", ("planted.x",)),
               ("os.rename", (inside, outside)), ("shutil.rmtree", (outside, None)),
               ("compile", ("open('marker')", "<string>")),
               ("socket.connect", (None, 1))]  # fmt: skip
    for number, (event, arguments) in enumerate(harmful, start=1):
        watch(event, arguments)
        assert len(watch.violations) == number, event
