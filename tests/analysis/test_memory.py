import numpy as np
import pytest

from analysis.runs import evaluation
from analysis.runs.evaluation import measure_memory, watch_run
from tests.runs import flat

BLOCK = 64 * 2**20


def test_a_system_without_proc_has_a_peak_too(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "_STATUS", tmp_path / "none")
    monkeypatch.setattr(evaluation, "_CLEAR", tmp_path / "none" / "clear")
    watch_run()
    assert flat(measure_memory())["cost/peak_memory_bytes"] > 0


@pytest.mark.skipif(not evaluation._CLEAR.exists(), reason="no /proc")
def test_what_was_freed_before_is_not_counted():
    watch_run()
    held = np.ones(BLOCK, np.uint8)
    before = flat(measure_memory())["cost/peak_memory_bytes"]
    del held
    watch_run()
    assert before - flat(measure_memory())["cost/peak_memory_bytes"] >= BLOCK // 2
