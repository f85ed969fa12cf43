"""Files and folders are whole or not there."""

import os
import signal
import subprocess
import sys

import pytest
import torch

from gr_mvdr.files import (
    new_file,
    new_folder,
    open_tensors,
    remove_abandoned,
    write_tensors,
    write_text,
)


def in_child(function) -> int:
    """Runs a function in a forked process; its exit status."""
    if not (child := os.fork()):
        try:
            function()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed(function) -> None:
    """Runs a function in a process that kills itself at its end."""
    assert in_child(lambda: (function(), os.kill(os.getpid(), signal.SIGKILL))) == -signal.SIGKILL


def test_what_fails_leaves_what_was_there(tmp_path):
    write_text(tmp_path / "a", "old")
    with new_folder(tmp_path / "folder") as folder:
        (folder / "b").write_text("old")
    for make in (lambda: new_file(tmp_path / "a"), lambda: new_folder(tmp_path / "folder", True)):
        with pytest.raises(KeyboardInterrupt), make() as path:
            (path / "b" if path.is_dir() else path).write_text("new")
            raise KeyboardInterrupt
    assert sorted(os.listdir(tmp_path)) == ["a", "folder"]
    assert (tmp_path / "a").read_text() == (tmp_path / "folder/b").read_text() == "old"
    with new_folder(tmp_path / "folder", replace=True) as folder:
        (folder / "c").write_text("new")
    assert os.listdir(tmp_path / "folder") == ["c"] and len(os.listdir(tmp_path)) == 2
    with pytest.raises(ValueError, match="exists already"), new_folder(tmp_path / "folder"):
        pass


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path):
    def begin():
        with new_file(tmp_path / "file") as file, new_folder(tmp_path / "run/folder") as folder:
            for path in (file, folder / "x"):
                path.write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)

    killed(begin)
    (tmp_path / ".not.ours.partial").touch()
    assert len(os.listdir(tmp_path)) == 3 and len(os.listdir(tmp_path / "run")) == 1
    remove_abandoned(tmp_path, "file")
    assert len(os.listdir(tmp_path)) == 2 and len(os.listdir(tmp_path / "run")) == 1
    remove_abandoned(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".not.ours.partial", "run"]
    assert not os.listdir(tmp_path / "run")


def test_temporary_folders_end_with_their_process(tmp_path):
    code = "from gr_mvdr.files import temporary_folder; print(temporary_folder('index').is_dir())"
    process = [sys.executable, "-c", code], os.environ | {"TMPDIR": str(tmp_path)}
    assert subprocess.check_output(process[0], env=process[1], text=True) == "True\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("header", [2**24, 0])
def test_a_file_of_tensors_gives_them_and_their_settings(header, tmp_path, monkeypatch):
    """Wherever its settings are; a file that is cut short is damaged."""
    monkeypatch.setattr("gr_mvdr.files._HEADER", header)
    file, expected = tmp_path / "x/a.safetensors", torch.arange(20).to(torch.uint16)
    write_tensors(file, {"a": expected}, {"depth": 3})
    tensors, settings = open_tensors(file)
    assert torch.equal(tensors["a"], expected) and settings == {"depth": 3}
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match="is damaged"):
        open_tensors(file)
