"""Two commands that begin at the same moment: one folder has one owner, one cache two users."""

import os
import shutil

import pytest
import yaml

import train  # noqa: F401  (imported once, before children are forked)
from tests.faults.forked import Child, imported, metrics, run

PAIRS = 4


def together(*jobs, cache):
    """Runs jobs that begin at the same moment: their children, ended, by status."""
    reads, writes = os.pipe()
    children = [Child(job, cache, gate=reads) for job in jobs]
    os.write(writes, b"x" * len(jobs))
    os.close(reads), os.close(writes)
    return sorted(((child.status(), child) for child in children), key=lambda pair: pair[0])


def test_a_folder_has_one_owner_and_the_other_is_told_who(tmp_path):
    child = Child(run(tmp_path, "model=bm25", "name=first"), tmp_path / "cache")
    assert child.status() == 0, child.said
    imported(child.seen[1])
    for _ in range(PAIRS):
        jobs = [run(tmp_path, "model=bm25", "name=both", f"seed={seed}") for seed in (1, 2)]
        (won, _), (lost, loser) = together(*jobs, cache=tmp_path / "cache")
        assert (won, lost) == (0, 1), loser.said
        assert "another process works in it" in loser.said or "folder exists" in loser.said
        assert metrics(tmp_path / "both")
        shutil.rmtree(tmp_path / "both")
    assert yaml.safe_load((tmp_path / "first/config.yaml").read_text())["seed"] == 1


@pytest.mark.slow
def test_a_cache_is_filled_by_one_and_used_by_both(tmp_path):
    found = []
    for number in range(3):
        names = [f"{number}-{side}" for side in "ab"]
        jobs = [run(tmp_path, "model=bm25", f"name={name}") for name in names]
        for status, child in together(*jobs, cache=tmp_path / f"cache-{number}"):
            assert status == 0, child.said
        found += [metrics(tmp_path / name) for name in names]
    assert all(other == pytest.approx(found[0], abs=1e-6) for other in found)
