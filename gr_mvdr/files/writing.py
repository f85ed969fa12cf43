"""Files and folders that are whole or not there: written next to their place, flushed, renamed.

A temporary name says whose it is, `.NAME.MACHINE-PROCESS-START-RANDOM.partial`, so that `sweep` can
remove what a process left behind that was killed, and nothing else. A folder that is about to be
replaced is called `.….old` for a moment, and gets its name back if the process is killed in it.
"""

import atexit
import errno
import json
import os
import re
import secrets
import shutil
import socket
import tempfile
import time
import weakref
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

_NAME = re.compile(
    r"\.(?P<name>.+)\.(?P<where>[0-9a-f]{8})-(?P<pid>\d+)-(?P<start>\d+)-\w+\.(?P<kind>partial|old|begun)"
)
# Another machine's processes cannot be seen from here: what is so old is taken for left behind.
_ABANDONED_SECONDS = 7 * 24 * 3600
NO_MORE_FILES = "The disk has no room for another file, all its inodes are in use"
# How libraries written in Rust (safetensors, tokenizers) name an error of the system.
_OS_ERROR = re.compile(r"\(os error (\d+)\)")


@contextmanager
def new_file(path: str | Path) -> Iterator[Path]:
    """A temporary name for a file (or a folder); it takes its own when the block has ended well.

    It replaces one of that name, which is whole until then. After an error nothing is left.

    Raises:
        OSError: it cannot be written; names `path`, whatever library wrote.
    """
    path = Path(path)
    partial = _partial(path)
    try:
        with name_errors(path, partial):
            yield partial
            for place in [*partial.rglob("*"), partial] if partial.is_dir() else [partial]:
                _flush(place)
            move_into_place(partial, path)
    except BaseException:
        _remove(partial)
        raise


@contextmanager
def new_folder(path: str | Path, replace: bool = False) -> Iterator[Path]:
    """A temporary folder to write into, which becomes `path` when all is written.

    Args:
        replace: take the place of what is there, at the end.

    Raises:
        ValueError: `path` exists and is not to be replaced.
        OSError: as `new_file`.
    """
    if Path(path).exists() and not replace:
        raise ValueError(f"{path}: exists already, an index is never overwritten")
    with new_file(path) as partial:
        partial.mkdir(parents=True)
        yield partial


@contextmanager
def resumable_folder(path: Path, marker: str | None) -> Iterator[Path]:
    """`new_folder` that replaces, and goes on with what a killed process has begun.

    Args:
        marker: a file in the folder; one that is interrupted and holds it is kept for the next that
            asks for the same `path`. None = nothing is kept.
    """
    if marker is None:
        with new_folder(path, replace=True) as folder:
            yield folder
        return
    folder = _partial(path, "begun")
    for left in path.parent.glob(f".{path.name}.*.begun"):
        found = _NAME.fullmatch(left.name)
        own = found and int(found["pid"]) == os.getpid()
        if found and (
            own or _is_abandoned(left, False, found["where"], found["pid"], found["start"])
        ):
            with suppress(OSError):  # another process took it, or this one has one already
                left.rename(folder)
    try:
        with name_errors(path, folder):
            folder.mkdir(parents=True, exist_ok=True)
            yield folder
            for place in [*folder.rglob("*"), folder]:
                _flush(place)
            move_into_place(folder, path)
    except BaseException as error:
        if isinstance(error, Exception) or not (folder / marker).is_file():
            _remove(folder)
        raise


def write_text(path: str | Path, text: str) -> None:
    """Writes a text in UTF-8; see `new_file`."""
    with new_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: str | Path, content: Any, indent: int | None = 2) -> None:
    """Writes JSON; see `new_file`.

    Raises:
        ValueError: a number in it is not finite, which JSON cannot hold.
    """
    try:
        text = json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    write_text(path, text + "\n")


def temporary_folder(name: str) -> Path:
    """A new folder among the system's temporary ones, removed when this process ends.

    Those that killed processes left are removed first.
    """
    place = Path(tempfile.gettempdir())
    remove_abandoned(place)
    folder = _partial(place / f"gr-mvdr-{name}")
    folder.mkdir(mode=0o700)
    atexit.register(_remove_own, folder, os.getpid())
    return folder


def remove_with(owner: object, folder: Path) -> None:
    """Removes a temporary folder when the object that reads its files is garbage collected."""
    weakref.finalize(owner, _remove_own, folder, os.getpid())


def remove_abandoned(folder: Path, claimed: bool = False) -> None:
    """Removes what processes left in a folder that were killed while they wrote.

    Args:
        claimed: this process has the folder and those below it for itself: names of other machines
            go at once. Those of living processes of this machine stay, such as an export's.
    """
    with suppress(FileNotFoundError, PermissionError):
        for path in list(folder.rglob(".*") if claimed else folder.iterdir()):
            found = _NAME.fullmatch(path.name)
            if found and found["kind"] == "begun" and not _is_old(path):
                continue
            if found and _is_abandoned(path, claimed, found["where"], found["pid"], found["start"]):
                place = path.with_name(found["name"])
                if found["kind"] == "old" and not place.exists():
                    path.rename(place)
                else:
                    _remove(path)


def _process_identity() -> str:
    """This process's machine, number and start: "MACHINE-PROCESS-START", equal for no other."""
    return f"{machine_id()}-{os.getpid()}-{process_start(os.getpid())}"


@cache
def machine_id() -> str:
    """8 hexadecimal digits of this machine since its start; of its name where that is unknown.

    A container counts as a machine: its process numbers are its own.
    """
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text()
        text += os.readlink("/proc/self/ns/pid")
    except OSError:
        text = socket.gethostname()
    return f"{zlib.crc32(text.encode()):08x}"


def process_start(pid: int) -> int:
    """When a process began, in ticks of the system; 0 where that is unknown."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def _is_abandoned(path: Path, claimed: bool, where: str, pid: str, start: str) -> bool:
    if where != machine_id():
        return claimed or _is_old(path)
    return not is_running(int(pid), int(start))


def _is_old(path: Path) -> bool:
    return time.time() - path.lstat().st_mtime > _ABANDONED_SECONDS


def is_running(pid: int, start: int) -> bool:
    """Whether the process of this machine that began then (`start_of`) is alive."""
    if pid < 1:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it lives, and is another user's
        pass
    return process_start(pid) in (0, start)  # a number is given again; 0: it is hidden from here


def _partial(path: Path, kind: str = "partial") -> Path:
    return path.with_name(f".{path.name}.{_process_identity()}-{secrets.token_hex(3)}.{kind}")


def _flush(path: Path) -> None:
    """Onto the disk, so that a name never outlives its content when the power fails."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if not (path.is_dir() and error.errno):  # not every file system flushes a folder
            raise
    finally:
        os.close(handle)


def move_into_place(partial: Path, path: Path) -> None:
    """Gives what is whole its name, and removes what had it."""
    old = _partial(path, "old") if path.is_dir() else None
    if old:  # a folder that holds something cannot be replaced at one stroke
        path.rename(old)
    os.replace(partial, path)
    _flush(path.parent)
    if old:
        _remove(old)


def _remove(path: Path) -> None:
    """Removes a file or folder as far as that is possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _remove_own(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # a forked child ends, too
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def name_errors(path: Path, partial: Path | None = None) -> Iterator[None]:
    """Gives the errors of writing a file its name, which most libraries leave out.

    Args:
        path: the name for people; partial: the one that is written to.

    Raises:
        OSError: with `filename`, in the place of one without, and of errors of libraries that
            only quote the system's.
    """
    try:
        yield
    except Exception as error:
        named = _named(error, path, str(partial or path))
        if named is None:
            raise
        raise named from error


def _named(error: Exception, path: Path, written: str) -> OSError | None:
    """The error with a name; None for one that has its own, or is not of the system."""
    if isinstance(error, OSError):
        number, name = error.errno, error.filename
        if name is not None and not str(name).startswith(written):
            return None  # of another file, such as one that is read
        if name is None and str(path) in str(error):
            return None
        if number is None:  # numpy counts items: "100 requested and 8 written"
            free = shutil.disk_usage(_existing(path)).free
            return OSError(f"{path}: could not be written ({error}), {free:,} bytes are free")
    else:
        found, name = _OS_ERROR.search(str(error)), None
        if not found:
            return None
        number = int(found[1])
    inner = str(name)[len(written) :] if name is not None else ""
    reason = os.strerror(number)
    if number == errno.ENOSPC:
        disk = os.statvfs(_existing(path))
        if disk.f_files and not disk.f_favail:  # bytes may be free
            reason = NO_MORE_FILES
    return OSError(number, reason, f"{path}{inner}")


def _existing(path: Path) -> Path:
    return next(place for place in [path, *path.absolute().parents] if place.exists())
