"""A folder in which one command writes at a time; the others are told who it is."""

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from gr_mvdr.files.writing import is_running, machine, naming, start_of

LOCK = ".lock"
_PATIENCE = 5.0  # seconds
_held: set[int] = set()  # handles, which end with this process: no child keeps them


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Keeps other commands out of a folder until the block ends, however it ends.

    `.lock` in it names the process, its host and its start. The system's lock on that file ends
    with the process, so that what a killed one left is taken over. Network file systems do not all
    pass that lock on: a file of another machine counts, locked or not. The folder is made, and
    removed again if nothing has come into it.

    Raises:
        ValueError: another process has the folder; the message names it.
        OSError: the folder cannot be written to.
    """
    path, process = folder / LOCK, os.getpid()
    with naming(path):
        handle = _opened(path)
    _held.add(handle)
    try:
        try:
            _take(handle, path)
        except OSError:  # a full disk
            path.unlink(missing_ok=True)
            raise
        try:
            yield
        finally:
            if os.getpid() == process:
                path.unlink(missing_ok=True)
    finally:
        if handle in _held:
            _held.remove(handle)
            os.close(handle)
            with suppress(OSError):
                folder.rmdir()  # if it is empty


def _opened(path: Path) -> int:
    """The lock's file, not one that has just been removed."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # its folder has just been removed
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            with suppress(OSError):  # held, or a file system without locks
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_there(handle, path):
                return handle
            os.close(handle)


def _is_there(handle: int, path: Path) -> bool:
    """Whether the open file still has its name: its owner removes it in the end."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(handle), path.stat())
    return False


def _take(handle: int, path: Path) -> None:
    """Writes this process into the file, or refuses."""
    deadline = time.monotonic() + _PATIENCE
    while (owner := _owner(handle)) is None and not _is_free(handle):
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)  # it is about to write its name
    host, now = socket.gethostname(), datetime.now().astimezone().isoformat(timespec="seconds")
    if owner is not None or not _is_free(handle):
        owner = owner or {"pid": "?", "host": host, "since": now, "machine": machine()}
        is_here = machine() == owner["machine"] or _installation() == owner.get("installation")
        if not (is_here and _is_free(handle) and not _is_alive(owner)):
            hint = "" if is_here else f"; if it has ended, remove {path}"
            raise ValueError(
                f"run={path.parent}: process {owner.get('pid')} on {owner.get('host')} works in "
                f"it since {owner.get('since')}{hint}"
            )
    if not _is_there(handle, path):
        raise ValueError(f"run={path.parent}: another command has just left it, try again")
    own = {"pid": os.getpid(), "start": start_of(os.getpid()), "machine": machine()}
    own |= {"installation": _installation(), "host": host, "since": now}
    text = json.dumps(own) + "\n"
    with naming(path):
        os.ftruncate(handle, 0)
        os.pwrite(handle, text.encode(), 0)
        os.fsync(handle)


def _is_free(handle: int) -> bool:
    """Whether nobody else has the system's lock; True on a file system that knows none."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _is_alive(owner: dict[str, Any]) -> bool:
    """Whether an owner of this machine still runs, as far as its file can tell."""
    if owner["machine"] != machine():
        return False  # from before this machine started
    return is_running(owner["pid"], owner["start"])


def _owner(handle: int) -> dict[str, Any] | None:
    """What the file says; None where it is empty, as a killed process may leave it."""
    try:
        found = json.loads(os.pread(handle, 4096, 0))
    except (ValueError, RecursionError):
        return None
    kinds = {"pid": int, "start": int, "machine": str}
    fits = isinstance(found, dict) and all(isinstance(found.get(k), t) for k, t in kinds.items())
    return found if fits else None


def _installation() -> str:
    """This machine before and after a restart; equal host names may be of different machines."""
    with suppress(OSError):
        return f"{socket.gethostname()} {Path('/etc/machine-id').read_text().strip()}"
    return f"{socket.gethostname()} {machine()}"


def _let_go() -> None:
    """In a forked child: closing its copy of a handle does not end the parent's lock."""
    for handle in _held:
        with suppress(OSError):
            os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)
