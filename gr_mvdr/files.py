"""Files: read as nothing but data, written whole or not at all.

Whatever comes from elsewhere is read as plain values (YAML, JSON, tensors, arrays); a reader raises
a ValueError that names the file, the line where there is one, and what it expected
(docs/security.md). What is written goes under a temporary name beside its destination, is flushed
and renamed. The temporary name, `.NAME.MACHINE-PROCESS-START-RANDOM.partial`, says which process
it belongs to, so that the files of a killed process can be removed, and no others.
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
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path
from ssl import SSLError
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import numpy as np
import yaml

if TYPE_CHECKING:
    from torch import Tensor

# Far above any configuration of this library; a file beyond them is made to exhaust a reader.
_BYTES, _DEPTH, _VALUES = 2**23, 40, 200_000
_HUB_SECONDS = 4  # to connect to one address of the hub
_LINE_BYTES = 2**20  # of a ranking or a table
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")  # "owner/model"
_NUMBER_TAGS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class _Loader(yaml.SafeLoader):
    """YAML's plain types: no key twice, no merged keys, which could double from line to line."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        if self.depth > 2 * _DEPTH:
            raise _problem("must not be nested so deep", self.peek_event())
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = {"<<"}
        for key, _ in getattr(node, "value", []):
            if not isinstance(key, yaml.ScalarNode) or key.value in seen:
                raise _problem(f"must have each key once, in words, found {key.value!r}", key)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _number(loader: _Loader, node: Any) -> Any:
    """A number that is not so long that reading it takes minutes (base 60: "1:59:59…")."""
    if len(node.value) > 100:
        raise _problem("must not have so many digits", node)
    return _NUMBERS[node.tag](loader, node)


_NUMBERS = {tag: yaml.SafeLoader.yaml_constructors[tag] for tag in _NUMBER_TAGS}
for _tag in _NUMBER_TAGS:
    _Loader.add_constructor(_tag, _number)


def _problem(text: str, place: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=text, problem_mark=place.start_mark)


def read_yaml(file: Path) -> dict[str, Any]:
    """The keys of a YAML file; interpolations such as ``${oc.env:HOME}`` stay text.

    Raises:
        FileNotFoundError, ValueError: there is none; it is no group of keys.
    """
    try:
        found = yaml.load(read_text(file), _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "broken"
        raise ValueError(f"{file}{line}: must be valid YAML, keys and values ({problem})") from None
    except (RecursionError, ValueError, OverflowError) as error:  # a date or number that is none
        raise ValueError(f"{file}: must be valid YAML, keys and values ({error})") from None
    return _checked(file, found)


def read_json(file: Path) -> dict[str, Any]:
    """The keys of a JSON file.

    Raises:
        FileNotFoundError, ValueError: there is none; it is no group of keys.
    """
    return _checked(file, _parse_json(file))


def read_json_list(file: Path) -> list[Any]:
    """The entries of a JSON file that holds a list.

    Raises:
        FileNotFoundError, ValueError: there is none; it is no list.
    """
    found = _parse_json(file)
    if not isinstance(found, list):
        raise ValueError(f"{file}: must be a list")
    return _checked(file, {"": found})[""]


def _parse_json(file: Path) -> Any:
    try:
        return json.loads(read_text(file))
    except json.JSONDecodeError as error:
        raise ValueError(f"{file}:{error.lineno}: not valid JSON ({error.msg})") from None
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{file}: not valid JSON ({error})") from None


def read_checkpoint(file: Path) -> dict[str, Any]:
    """A checkpoint of Lightning: tensors under "state_dict", plain values as "hyper_parameters".

    Raises:
        OSError: the file is missing or may not be read.
        ValueError: it is damaged, or holds anything else.
    """
    check_file(file)
    if not zipfile.is_zipfile(file):
        raise ValueError(f"{file}: is cut short or damaged, must be a whole checkpoint")
    import torch

    found = _load_weights(file, "must be a whole checkpoint")
    if not isinstance(found, dict) or not isinstance(found.get("state_dict"), Mapping):
        raise ValueError(f"{file}: must be a checkpoint with a state_dict")
    for name, value in found["state_dict"].items():
        if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
            raise ValueError(f"{file}: {name}: must be a plain tensor")
    _checked(f"{file}: hyper_parameters", found.setdefault("hyper_parameters", {}))
    return found


def _load_weights(file: Path, rule: str) -> Any:
    import torch

    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except OSError:
        raise
    # What torch raises depends on the byte that is wrong.
    except Exception as error:
        unsafe = type(error).__name__ == "UnpicklingError"
        cause = "it holds more than weights" if unsafe else describe_error(error)
        raise ValueError(f"{file}: is damaged, {rule} ({cause})") from None


def read_tensors(file: Path) -> dict[str, "Tensor"]:
    """The tensors of a safetensors file.

    Raises:
        OSError: the file is missing or may not be read.
        ValueError: it is damaged.
    """
    check_file(file)
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(file)
    except (SafetensorError, ValueError, KeyError, RuntimeError, TypeError) as error:
        raise ValueError(f"{file}: is cut short or damaged ({describe_error(error)})") from None


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Says of every fault that it is the fault of what is read here: a foreign folder, mostly.

    Args:
        what: begins the message, "run=outputs/a".

    Raises:
        OSError: as it came. ValueError: in the place of anything else.
    """
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        text = describe_error(error)
        raise ValueError(text if text.startswith(what) else f"{what}: {text}") from error


def is_on_hub(name: str | Path) -> bool:
    """Whether a name is one of the hub: it has two parts, and the first is no folder here."""
    parent = Path(name).expanduser().parent
    return not parent.is_dir() and _HUB_NAME.fullmatch(str(name)) is not None


def hub_options(name: str | Path, key: str = "backbone.name") -> dict[str, bool]:
    """Options of `from_pretrained`: if the hub cannot be reached, only cached files are read.

    Without them huggingface_hub would retry for half a minute for each file.

    Args:
        name: of a model on the hub, or a folder; key: of the option that names it, or "".

    Raises:
        FileNotFoundError: the model is not in the cache, and the hub cannot be reached.
    """
    if Path(name).expanduser().exists() or (cause := _hub_failure()) is None:
        return {}
    from huggingface_hub import constants, try_to_load_from_cache

    try:
        cached = isinstance(try_to_load_from_cache(str(name), "config.json"), str)
    except ValueError:  # no name of the hub
        cached = False
    if not cached:
        what = f"{key}={name}" if key else name
        raise FileNotFoundError(
            f"{what}: no such folder, not in the cache {constants.HF_HUB_CACHE}, and "
            f"{constants.ENDPOINT} cannot be reached ({cause})"
        )
    return {"local_files_only": True}


@cache
def _hub_failure() -> str | None:
    """Why the hub cannot be reached; None: it can, however slow its answer is."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    try:
        with urlopen(Request(constants.ENDPOINT, method="HEAD"), timeout=_HUB_SECONDS):
            return None
    except HTTPError:
        return None
    except URLError as error:  # before an answer: no address, no route, no connection
        return None if isinstance(error.reason, SSLError) else str(error.reason)
    except OSError:
        return None


def describe_error(error: BaseException) -> str:
    """What an exception says, in one line that is never empty."""
    text = " ".join(str(error).split())[:500]
    if isinstance(error, KeyError):
        return f"{text} is missing"
    if text and isinstance(error, ValueError | OSError | NotImplementedError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def check_file(file: str | Path, folder: Path | None = None, most: int | None = None) -> Path:
    """The path itself, if it names a regular file that may be read.

    A device such as /dev/zero has no end, and a pipe makes its reader wait for a writer.

    Args:
        folder: the file must lie in it: no link leads out of somebody else's folder. None = the
            user named the file, which may be a link.
        most: the file's largest size in bytes.

    Raises:
        FileNotFoundError, PermissionError: there is no such file; it may not be read.
        ValueError: it is a folder, a pipe or a device, lies in another folder, or is larger.
    """
    file = Path(file)
    if not file.exists():
        raise FileNotFoundError(f"{file}: no such file")
    if not file.is_file():
        raise ValueError(f"{file}: must be a regular file, not a folder, a pipe or a device")
    if folder is not None and not file.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{file}: must lie in {folder}, it is a link to {file.resolve()}")
    if most is not None and file.stat().st_size > most:
        raise ValueError(f"{file}: must be ≤ {most:,} bytes")
    file.open("rb").close()  # a library may call a file damaged or missing that it may not read
    return file


def check_files(folder: Path) -> None:
    """`check_file` for all files of a folder that a library will open.

    Raises:
        ValueError: one is a pipe or a device; names it.
    """
    for file in folder.iterdir():
        if file.exists() and not file.is_dir():
            check_file(file)


def read_lines(file: str | Path, folder: Path | None = None) -> Iterator[str]:
    """The lines of a text file with their ends; `folder` as in `check_file`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no regular file, a line of it is too long, or it is not UTF-8.
    """
    with check_file(file, folder).open("rb") as stream:
        for number in count(1):
            line = stream.readline(_LINE_BYTES + 1)
            if not line:
                return
            if len(line) > _LINE_BYTES:
                raise ValueError(f"{file}:{number}: a line must be ≤ {_LINE_BYTES:,} bytes")
            try:
                yield line.decode()
            except UnicodeDecodeError as error:
                rule = f"must be text in UTF-8 ({error.reason})"
                raise ValueError(f"{file}:{number}: {rule}") from None


def read_text(file: Path, most: int = _BYTES) -> str:
    """A text of at most so many bytes.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no regular file, is larger, or is not UTF-8.
    """
    try:
        return check_file(file, most=most).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: must be text in UTF-8 ({error.reason})") from None


def _checked(file: Path | str, value: Any) -> dict[str, Any]:
    """A group of keys whose values are plain ones, not too many and not too deep."""
    if not isinstance(value, dict):
        kind = {list: "a list", type(None): "nothing", str: "a text"}.get(type(value), "a value")
        raise ValueError(f"{file}: must be a group of keys, found {kind}")
    waiting, count = [(value, 1)], 0
    while waiting:
        node, depth = waiting.pop()
        count += 1
        if count > _VALUES or depth > _DEPTH:
            raise ValueError(f"{file}: must be ≤ {_DEPTH} levels deep, ≤ {_VALUES:,} values")
        if isinstance(node, dict):
            if wrong := [key for key in node if not isinstance(key, str)]:
                raise ValueError(f"{file}: {wrong[0]!r}: a key must be text")
            waiting += [(item, depth + 1) for item in node.values()]
        elif isinstance(node, list | tuple):
            waiting += [(item, depth + 1) for item in node]
        elif not isinstance(node, str | int | float | bool | type(None)):
            raise ValueError(f"{file}: must hold plain values, found {type(node).__name__}")
    return value


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


CONTENTS = "arrays.json"


def write_arrays(
    path: Path, arrays: dict[str, np.ndarray], settings: dict[str, Any], replace: bool = False
) -> None:
    """Writes arrays and settings (anything JSON can hold) as the folder `path`.

    Raises:
        ValueError: `path` exists already and is not to be replaced.
    """
    with new_folder(path, replace=replace) as folder:
        for name, array in arrays.items():
            write_array(folder / f"{name}.npy", array)
        files = {f"{name}.npy": checksum(folder / f"{name}.npy") for name in arrays}
        write_sealed(folder / CONTENTS, {"settings": settings, "files": files}, indent=1)


def write_array(file: Path, array: np.ndarray) -> None:
    """Writes a `.npy` file in place: for folders that take their name when they are whole."""
    with name_errors(file), file.open("wb") as stream:
        np.lib.format.write_array(_Stream(stream), np.asanyarray(array), allow_pickle=False)


class _Stream:
    """A file that numpy does not take for one: what it writes to files by itself fails without
    saying why, and here the system's error passes."""

    def __init__(self, file: BinaryIO):
        self.write = file.write


def check(holds: Any, path: str | Path, rule: str) -> None:
    """Raises ValueError, which names the file or folder, unless what was read from it holds."""
    if not holds:
        raise ValueError(f"{path}: is damaged, {rule}")


def check_offsets(offsets: np.ndarray, first: int, last: int, count: int, path: str | Path) -> None:
    """Raises ValueError unless `count` + 1 integers go from `first` to `last` without falling."""
    fits = offsets.shape == (count + 1,) and offsets.dtype == np.int64
    fits = fits and count >= 0 and offsets[0] == first and offsets[-1] == last
    rule = f"must hold {count + 1:,} ascending int64 from {first} to {last:,}"
    check(fits and bool((offsets[1:] >= offsets[:-1]).all()), path, rule)


def read_arrays(path: Path, names: tuple[str, ...]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Opens the named arrays of a folder by memory map (read-only), and its settings.

    Raises:
        OSError: there is no such folder, or a file may not be read.
        ValueError: a file is missing, cut short or changed; the message names it.
    """
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: no such folder")
    try:
        contents = read_sealed(path / CONTENTS)
        files, settings = dict(contents["files"]), dict(contents["settings"])
    except (FileNotFoundError, KeyError, TypeError) as error:
        raise ValueError(f"{path / CONTENTS}: must list the folder's files ({error})") from error
    arrays = {}
    for name in names:
        file = path / f"{name}.npy"
        if file.name not in files or not file.is_file():
            raise ValueError(f"{file}: is missing, the folder must hold {', '.join(names)}")
        verify(file, files[file.name])
        # A plain array over the map: np.memmap's own indexing is slow.
        arrays[name] = np.asarray(np.load(file, mmap_mode="r", allow_pickle=False))
    return arrays, settings


SMALL = 1 << 26  # bytes of a file that is read whole
_SAMPLES, _SAMPLE_BYTES = 256, 1 << 16
_BLOCK = 1 << 22
_SEAL = "checksum"
_SEALED = 2**30  # bytes of a file that lists all documents' ids

Checksum = dict[str, int]


def checksum(file: Path, size: int | None = None) -> Checksum:
    """Of a file's first `size` bytes, None = all: "bytes", "crc32", and "sampled" of a large one.

    Raises:
        ValueError: the file has fewer bytes.
    """
    size = file.stat().st_size if size is None else size
    return with_samples(file, {"bytes": size, "crc32": _whole(file, size)})


def with_samples(file: Path, known: Checksum) -> Checksum:
    """The checksum of a file that was summed up while it was written."""
    return known | ({"sampled": _sampled(file, known["bytes"])} if known["bytes"] > SMALL else {})


def continued(known: Checksum, array: np.ndarray) -> Checksum:
    """The checksum, without its samples, of a file to which these rows were added; {} = empty."""
    crc = zlib.crc32(array.reshape(-1).data.cast("B"), known.get("crc32", 0))
    return {"bytes": known.get("bytes", 0) + array.nbytes, "crc32": crc}


def verify(file: Path, expected: Checksum, whole: bool = False) -> None:
    """Compares a file's first bytes with their checksum.

    Args:
        whole: read a large file whole, too.

    Raises:
        ValueError: the file is missing, shorter, or other than it was; names it.
    """
    size = expected["bytes"]
    found = file.stat().st_size if file.is_file() else 0
    if found < size:
        raise ValueError(f"{file}: is damaged, {found} bytes, expected {size}: it was cut short")
    part = "sampled" if "sampled" in expected and not whole else "crc32"
    value = _sampled(file, size) if part == "sampled" else _whole(file, size)
    if value != expected[part]:
        raise ValueError(f"{file}: is damaged, its {part} is {value}, expected {expected[part]}")


def _whole(file: Path, size: int) -> int:
    crc = 0
    with file.open("rb") as stream:
        while size and (block := stream.read(min(size, _BLOCK))):
            crc, size = zlib.crc32(block, crc), size - len(block)
    if size:
        raise ValueError(f"{file}: is damaged, {size} bytes are missing at its end")
    return crc


def _sampled(file: Path, size: int) -> int:
    crc = 0
    with file.open("rb") as stream:
        for start in np.linspace(0, size - _SAMPLE_BYTES, _SAMPLES).astype(np.int64).tolist():
            stream.seek(start)
            crc = zlib.crc32(stream.read(_SAMPLE_BYTES), crc)
    return crc


def write_sealed(path: Path, content: dict[str, Any], indent: int | None = None) -> None:
    """Writes JSON that holds a checksum of itself."""
    sealed = {**content, _SEAL: _seal(content)}
    write_text(path, json.dumps(sealed, indent=indent, ensure_ascii=False) + "\n")


def read_sealed(path: Path) -> dict[str, Any]:
    """Reads it back; JSON without a checksum, of earlier versions, is taken as it is.

    Raises:
        ValueError: not a JSON object, or not the one that was written; names the file.
    """
    try:
        content = json.loads(read_text(path, _SEALED))
        seal = content.pop(_SEAL, None)
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: is damaged, must be a JSON object ({error})") from None
    if seal is not None and seal != _seal(content):
        raise ValueError(f"{path}: is damaged, its content does not fit its checksum")
    return content


def _seal(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
