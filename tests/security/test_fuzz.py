"""300 mutated folders through every door: nothing runs, nothing is written elsewhere."""

import json
import os
import subprocess
import sys

import pytest

from tests.security.conftest import ROOT

MUTANTS = 300


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
    assert not [one for one in mutants(made, tmp_path, 0, MUTANTS) if one["faults"]]
