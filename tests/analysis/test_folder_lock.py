"""One command at a time has a run's folder, and the others are told which."""

import os
import signal
import socket

import pytest

from analysis.runs.folder_lock import LOCK, claim_folder


def child(folder, then):
    """A forked process that claims the folder, says so, and goes on with `then`."""
    reads, writes = os.pipe()
    if not (number := os.fork()):
        try:
            with claim_folder(folder):
                os.write(writes, b"1")
                then()
        finally:
            os._exit(0)
    os.close(writes)
    assert os.read(reads, 1) == b"1"
    return number


def test_the_second_command_is_told_who_has_the_folder(tmp_path):
    owner = child(tmp_path / "run", signal.pause)
    said = rf"process {owner} on {socket.gethostname()} works in it since \d{{4}}-"
    with pytest.raises(ValueError, match=said), claim_folder(tmp_path / "run"):
        pass
    os.kill(owner, signal.SIGKILL)
    os.waitpid(owner, 0)
    with claim_folder(tmp_path / "run"):  # what a killed one left is taken over
        assert f"process {os.getpid()} on" in (tmp_path / "run" / LOCK).read_text()
        with (
            pytest.raises(ValueError, match=f"process {os.getpid()}"),
            claim_folder(tmp_path / "run"),
        ):
            pass
    assert not (tmp_path / "run").exists(), "nothing came into it"


def test_a_folder_is_released_after_errors_and_kept_if_something_is_in_it(tmp_path):
    with pytest.raises(KeyboardInterrupt), claim_folder(tmp_path / "run"):
        (tmp_path / "run/config.yaml").touch()
        raise KeyboardInterrupt
    assert os.listdir(tmp_path / "run") == ["config.yaml"]


def test_a_child_does_not_keep_what_its_parent_claimed(tmp_path):
    """A loader's worker outlives a killed command by seconds."""
    reads, writes = os.pipe()

    def fork_and_die():
        if not (worker := os.fork()):
            signal.pause()
        os.write(writes, worker.to_bytes(4, "big"))
        os.kill(os.getpid(), signal.SIGKILL)

    os.waitpid(child(tmp_path / "run", fork_and_die), 0)
    worker = int.from_bytes(os.read(reads, 4), "big")
    try:
        with claim_folder(tmp_path / "run"):
            pass
    finally:
        os.kill(worker, signal.SIGKILL)
