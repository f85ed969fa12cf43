"""A run that finds no room says which file had none, and is resumed when there is some."""

import os
import subprocess

import pytest

import train  # noqa: F401  (imported once, before children are forked)
from tests.faults.forked import Child, imported, metrics, run
from tests.runs import beir

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


@pytest.fixture
def disk(tmp_path):
    """A tmpfs, and a function that sets its size in kilobytes."""
    place = tmp_path / "disk"
    place.mkdir()

    def resized(kilobytes, *options):
        command = ["mount", "-t", "tmpfs", "-o", ",".join([f"size={kilobytes}k", *options])]
        return subprocess.run([*command, "tmpfs", str(place)], capture_output=True).returncode

    if os.geteuid() or resized(4):
        pytest.skip("a tmpfs can be mounted by root alone")
    yield place, lambda kilobytes, *options: resized(kilobytes, "remount", *options)
    subprocess.run(["umount", str(place)], check=True)


def check_said(child, said, place):
    assert child.status() == 1
    last = child.said.strip().splitlines()[-1]
    assert said in last and str(place) in last, last


def test_a_file_that_may_not_grow_is_named_and_the_run_resumed(folder, whole):
    largest = (whole / "checkpoints/last.ckpt").stat().st_size
    for number, longest in enumerate((largest - 1, 2000)):
        keys = MODEL, f"name=limited-{number}"
        place = folder / f"limited-{number}"
        child = Child(run(folder, *keys), folder / "cache", longest=longest)
        check_said(child, "File too large", place)
        child = Child(run(folder, *keys, "resume=true"), folder / "cache")
        assert child.status() == 0, child.said
        assert metrics(place) == pytest.approx(metrics(whole), abs=1e-6)


def test_a_filled_cache_is_read_from_a_disk_that_cannot_be_written_to(tmp_path, folder, disk):
    place, resize = disk
    assert resize(100_000) == 0
    data = ["data=beir", f"data.path={beir(tmp_path / 'beir')}", f"data.store={place}/store"]
    for name in ("fills", "reads"):
        job = run(folder, MODEL, *data, f"name={name}")
        child = Child(job, place / "cache", notes=tmp_path)
        assert child.status() == 0, child.said
        assert resize(100_000, "ro") == 0
    assert metrics(folder / "reads") == pytest.approx(metrics(folder / "fills"), abs=1e-6)
