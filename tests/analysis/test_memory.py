import numpy as np
import pytest

from analysis import evaluation as memory
from analysis.evaluation import StagePeaks

BLOCK = 64 * 2**20


def status(tmp_path, peak: int, files: int) -> None:
    text = f"Name:\tpython\nVmHWM:\t{peak} kB\nVmRSS:\t9 kB\nRssFile:\t{files} kB\n"
    (tmp_path / "status").write_text(text)


def test_each_stage_has_its_own_peak_and_the_run_the_largest(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "status")
    monkeypatch.setattr(memory, "_CLEAR", tmp_path / "clear")
    peaks = StagePeaks()
    for stage, peak, files in (("load", 500, 100), ("train", 900, 150), ("index", 800, 20)):
        assert (tmp_path / "clear").read_text() == "5"  # the kernel counts from here
        (tmp_path / "clear").write_text("")
        status(tmp_path, peak, files)
        peaks.end(stage)
    found = {name.removeprefix("cost/"): value / 1024 for name, value in peaks.metrics.items()}
    assert {n.removeprefix("peak_memory_bytes"): v for n, v in found.items() if "peak" in n} == {
        "": 900,
        "/load": 500,
        "/train": 900,
        "/index": 800,
    }
    assert {n.removeprefix("own_memory_bytes"): v for n, v in found.items() if "own" in n} == {
        "": 780,
        "/load": 400,
        "/train": 750,
        "/index": 780,
    }


def test_a_system_without_proc_has_a_peak_too(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "none")
    monkeypatch.setattr(memory, "_CLEAR", tmp_path / "none" / "clear")
    peaks = StagePeaks()
    peaks.end("load")
    assert peaks.metrics.keys() >= {"cost/peak_memory_bytes", "cost/peak_memory_bytes/load"}
    assert "cost/own_memory_bytes" not in peaks.metrics


@pytest.mark.skipif(not memory._CLEAR.exists(), reason="no /proc")
def test_what_one_stage_freed_is_not_counted_in_the_next():
    peaks = StagePeaks()
    held = np.ones(BLOCK, np.uint8)
    peaks.end("holds")
    del held
    peaks.end("frees")
    peaks.end("after")
    of = {name.split("/")[-1]: v for name, v in peaks.metrics.items() if "peak" in name}
    assert of["holds"] - of["after"] >= BLOCK // 2
