"""A run that finds no room says which file had none, and is resumed when there is some."""

import pytest

import train  # noqa: F401  (imported once, before children are forked)
from tests.faults.forked import Child, imported, metrics, run

MODEL = "model=t5_colbert"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("room")


@pytest.fixture(scope="module")
def whole(folder):
    """A run that has room, its caches filled."""
    child = Child(run(folder, MODEL, "name=whole"), folder / "cache")
    assert child.status() == 0, child.said
    imported(child.seen[1])
    return folder / "whole"


def test_a_file_that_may_not_grow_is_named_and_the_run_resumed(folder, whole):
    largest = (whole / "checkpoints/last.ckpt").stat().st_size
    for number, longest in enumerate((largest - 1, 2000)):
        keys = MODEL, f"name=limited-{number}"
        place = folder / f"limited-{number}"
        child = Child(run(folder, *keys), folder / "cache", longest=longest)
        assert child.status() == 1
        last = child.said.strip().splitlines()[-1]
        assert "File too large" in last and str(place) in last, last
        child = Child(run(folder, *keys, "resume=true"), folder / "cache")
        assert child.status() == 0, child.said
        assert metrics(place) == pytest.approx(metrics(whole), abs=1e-6)
