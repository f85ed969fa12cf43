"""A folder that one command at a time writes into; the others are told which command it is."""

import fcntl
import json
import os
import socket
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from gr_mvdr.files import is_running, machine_id, name_errors, process_start

LOCK = ".lock"
_PATIENCE = 5.0  # seconds
_held: set[int] = set()  # handles, which end with this process: no child keeps them
# Of a run: only read once it is finished, so that they may lie on another disk.
READ_ONLY = ("checkpoints", "index", "identifiers", "tokenizer")
# wandb writes into a new folder there each time; in those of before its own links lead to its logs.
LOGS = "wandb"


@contextmanager
def claim_folder(folder: Path) -> Iterator[None]:
    """Keeps other commands out of a folder until the block ends, however it ends.

    `.lock` in it names the process, its host and its start. The system's lock on that file ends
    with the process, so that what a killed one left is taken over. Network file systems do not all
    pass that lock on: a file of another machine counts, locked or not. The folder is made, and
    removed again if nothing has come into it.

    Raises:
        ValueError: another process has the folder, and the message names it; or `.lock` in it is
            no regular file.
        OSError: the folder cannot be written to.
    """
    path, process = folder / LOCK, os.getpid()
    with name_errors(path):
        handle = _open_lock(path)
    _held.add(handle)
    try:
        try:
            _take_lock(handle, path)
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


def _open_lock(path: Path) -> int:
    """The lock's file, not one that has just been removed."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # its folder has just been removed
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                os.close(handle)
                raise ValueError(f"{path}: must be a regular file, not a pipe or a device")
            _is_free(handle)
            if _is_there(handle, path):
                return handle
            os.close(handle)


def _is_there(handle: int, path: Path) -> bool:
    """Whether the open file still has its name: its owner removes it in the end."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(handle), path.stat())
    return False


def _is_free(handle: int) -> bool:
    """Takes the system's lock if nobody else has it; True on a file system that knows none."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _take_lock(handle: int, path: Path) -> None:
    """Writes this process into the file, or refuses."""
    deadline = time.monotonic() + _PATIENCE
    while (owner := _read_owner(handle)) is None and not _is_free(handle):
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)  # it is about to write its name
    host, now = socket.gethostname(), datetime.now().astimezone().isoformat(timespec="seconds")
    here = machine_id()
    if owner is not None or not _is_free(handle):
        owner = owner or {"pid": "?", "host": host, "since": now, "machine": here}
        is_here = here == owner["machine"] or _installation() == owner.get("installation")
        if not (is_here and _is_free(handle) and not _still_runs(owner)):
            hint = "" if is_here else f"; if it has ended, remove {path}"
            raise ValueError(
                f"run={path.parent}: process {owner.get('pid')} on {owner.get('host')} works in "
                f"it since {owner.get('since')}{hint}"
            )
    if not _is_there(handle, path):
        raise ValueError(f"run={path.parent}: another command has just left it, try again")
    own = {"pid": os.getpid(), "start": process_start(os.getpid()), "machine": here}
    own |= {"installation": _installation(), "host": host, "since": now}
    with name_errors(path):
        os.ftruncate(handle, 0)
        os.pwrite(handle, (json.dumps(own) + "\n").encode(), 0)
        os.fsync(handle)


def _read_owner(handle: int) -> dict[str, Any] | None:
    """What the file says; None where it is empty, as a killed process may leave it."""
    try:
        found = json.loads(os.pread(handle, 4096, 0))
    except (ValueError, RecursionError):
        return None
    kinds = {"pid": int, "start": int, "machine": str}
    fits = isinstance(found, dict) and all(isinstance(found.get(k), t) for k, t in kinds.items())
    return found if fits else None


def _still_runs(owner: dict[str, Any]) -> bool:
    """Whether an owner of this machine, since its last start, is running."""
    return machine_id() == owner["machine"] and is_running(owner["pid"], owner["start"])


def _installation() -> str:
    """This machine before and after a restart; equal host names may be of different machines."""
    with suppress(OSError):
        return f"{socket.gethostname()} {Path('/etc/machine-id').read_text().strip()}"
    return f"{socket.gethostname()} {machine_id()}"


def _let_go() -> None:
    """In a forked child: closing its copy of a handle does not end the parent's lock."""
    for handle in _held:
        with suppress(OSError):
            os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)


def check_links(folder: Path, names: Sequence[str] = ("*",)) -> None:
    """Refuses a folder in which writing a file would write another one, elsewhere.

    A symbolic link may lead out of the folder; a hard link is another name of a file that may lie
    outside of it.

    Args:
        folder: that is about to be written into.
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
