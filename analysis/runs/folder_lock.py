"""A folder that one command at a time writes into; the others are told which command it is."""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from gr_mvdr.files import name_errors

LOCK = ".lock"
# Of a run: only read once it is finished, so that they may lie on another disk.
READ_ONLY = ("checkpoints", "index", "identifiers", "tokenizer")
# wandb writes into a new folder there each time; in those of before its own links lead to its logs.
LOGS = "wandb"


@contextmanager
def claim_folder(folder: Path) -> Iterator[None]:
    """Keeps other commands out of a folder until the block ends, however it ends.

    The system locks the file `.lock` in it, which names the process, until the process ends; a file
    that a killed process left is taken over. The folder is created, and removed again if it is
    empty in the end.

    Raises:
        ValueError: another process has the folder; names it.
        OSError: the folder cannot be written to.
    """
    path = folder / LOCK
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, timeout=1)  # an owner that has just begun has not written its name yet
    try:
        lock.acquire()
    except Timeout:
        owner = ""
        with suppress(OSError):  # it has just ended
            owner = path.read_text()
        raise ValueError(f"run={folder}: {owner or 'another process works in it'}") from None
    try:
        with name_errors(path):
            now = datetime.now().astimezone().isoformat(timespec="seconds")
            owner = f"process {os.getpid()} on {socket.gethostname()}"
            path.write_text(f"{owner} works in it since {now}")
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.release()
        with suppress(OSError):
            folder.rmdir()  # if it is empty


def check_links(folder: Path, names: Sequence[str] = ("*",)) -> None:
    """Raises unless every file that is written into a folder stays in it.

    A symbolic link may lead out of the folder; a hard link is another name of a file that may lie
    outside of it.

    Args:
        names: patterns of what will be written; by default everything but `READ_ONLY`.

    Raises:
        ValueError: names the link.
    """
    for pattern in names:
        for path in sorted(Path(folder).glob(pattern)):
            if path.name not in READ_ONLY:
                _check(path, folder)
                for below, folders, files in os.walk(path) if path.name != LOGS else ():
                    for name in (*folders, *files):
                        _check(Path(below, name), folder)


def _check(path: Path, folder: Path) -> None:
    leads_out = path.is_symlink() and not path.resolve().is_relative_to(folder.resolve())
    if leads_out or (path.is_file() and path.stat().st_nlink > 1):
        raise ValueError(f"{path}: must be no link, what is written there would go elsewhere")
