"""Files: read as data only, written whole or not at all; the files of a finished run.

Readers take plain values (YAML, JSON, tensors, arrays) and raise a ValueError that names the file,
the line and what was expected (docs/design.md). Writers use a temporary name beside the
destination, `.NAME.RANDOM.partial`, flush the file and rename it. A killed process leaves the
temporary file behind; the next process that owns the folder removes it (`remove_abandoned`).
"""

import gzip
import hashlib
import json
import lzma
import os
import re
import secrets
import shutil
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from io import BufferedReader
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import yaml

from gr_mvdr.options import fits_type, make_printable, show

if TYPE_CHECKING:
    from torch import Tensor

_HUB_SECONDS = 4  # for connecting to one address of the hub
PACKED = (".gz", ".xz", ".zip", ".zst")  # a file may have one of these after its own ending
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")  # "owner/model"


class _PlainLoader(yaml.SafeLoader):
    """Loads YAML's plain types without aliases, which could double the data with every line."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            place = self.peek_event().start_mark
            raise yaml.MarkedYAMLError(problem="must not use aliases", problem_mark=place)
        return super().compose_node(parent, index)


def read_yaml(file: Path) -> dict[str, Any]:
    """Reads the keys of a YAML file; interpolations such as ``${oc.env:HOME}`` stay text.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is damaged or not a group of keys.
    """
    text = read_text(file)
    try:
        content = yaml.load(text, _PlainLoader)
        json.dumps(content)  # raises for dates and bytes, which are not plain values
    except (yaml.YAMLError, RecursionError, ValueError, TypeError, OverflowError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        cause = getattr(error, "problem", None) or describe_error(error)
        raise ValueError(f"{file}{line}: must be valid YAML with plain values ({cause})") from None
    return _check_kind(file, content, dict)


def read_json(file: Path, kind: type = dict) -> Any:
    """Reads a JSON file that holds keys (`dict`) or a list (`list`); raises as `read_yaml`."""
    try:
        content = json.loads(read_text(file))
    except (json.JSONDecodeError, RecursionError) as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise ValueError(f"{file}{line}: not valid JSON ({error})") from None
    return _check_kind(file, content, kind)


def _check_kind(file: Path, content: Any, kind: type) -> Any:
    if not isinstance(content, kind):
        name = "a list" if kind is list else "a group of keys"
        raise ValueError(f"{file}: must be {name}, found {type(content).__name__}")
    return content


def read_checkpoint(file: Path) -> dict[str, Any]:
    """Reads Lightning's checkpoint: tensors in "state_dict", options in "hyper_parameters".

    Raises:
        OSError: the file is missing or not readable.
        ValueError: the file is damaged or holds anything else.
    """
    check_file(file)
    if not zipfile.is_zipfile(file):
        raise ValueError(f"{file}: is cut short or damaged, must be a whole checkpoint")
    import torch

    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except OSError:
        raise
    # The type of the exception depends on which byte is wrong.
    except Exception as error:
        unsafe = type(error).__name__ == "UnpicklingError"
        cause = "it holds more than weights" if unsafe else describe_error(error)
        raise ValueError(f"{file}: is damaged, must be a whole checkpoint ({cause})") from None
    if not isinstance(content, dict) or not isinstance(content.get("state_dict"), Mapping):
        raise ValueError(f"{file}: must be a checkpoint with a state_dict")
    _check_kind(file, content.setdefault("hyper_parameters", {}), dict)
    return content


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turns every error but an OSError into a ValueError that begins with `what`.

    Args:
        what: names what the block reads, such as "run=outputs/a".
    """
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        text = describe_error(error)
        raise ValueError(text if text.startswith(what) else f"{what}: {text}") from error


def describe_error(error: BaseException) -> str:
    """Returns the message of an exception as one line that is never empty."""
    text = " ".join(str(error).split())[:500]
    if isinstance(error, KeyError):
        return f"{text} is missing"
    if text and isinstance(error, ValueError | OSError | NotImplementedError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def is_on_hub(name: str | Path) -> bool:
    """Whether a name is a hub name: "owner/model", and no local folder is called "owner"."""
    parent = Path(name).expanduser().parent
    return not parent.is_dir() and HUB_NAME.fullmatch(str(name)) is not None


def hub_options(name: str | Path, key: str = "backbone.name") -> dict[str, bool]:
    """Returns options for `from_pretrained`: if the hub cannot be reached, read only cached files.

    Without them, huggingface_hub would retry for half a minute for each file.

    Args:
        name: a model on the hub, or a folder.
        key: the option that holds the name, which an error mentions; may be "".

    Raises:
        FileNotFoundError: the model is not in the cache, and the hub cannot be reached.
    """
    if Path(name).expanduser().exists() or (cause := find_hub_failure()) is None:
        return {}
    from huggingface_hub import constants, try_to_load_from_cache

    cached = None
    with suppress(ValueError):  # the name is not a valid hub name
        cached = try_to_load_from_cache(str(name), "config.json")
    if not isinstance(cached, str):
        what = f"{key}={name}" if key else name
        raise FileNotFoundError(
            f"{what}: no such folder, not in the cache {constants.HF_HUB_CACHE}, and "
            f"{constants.ENDPOINT} cannot be reached ({cause})"
        )
    return {"local_files_only": True}


def find_file(name: str, file: str, options: dict[str, bool]) -> str | None:
    """Returns the path of a file of a folder or hub name; None if it has no such file."""
    from transformers.utils import cached_file

    lenient = ("missing_entries", "connection_errors", "gated_repo")
    ignored = {f"_raise_exceptions_for_{kind}": False for kind in lenient}
    return cached_file(name, file, **ignored, **options)


def describe_hub_error(error: Exception) -> str:
    """Returns in one line why the hub refused a request."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403, 404):
        rule = "HF_TOKEN or `hf auth login` must belong to an account with access"
        return f"no such name, or no access: {rule} (HTTP {status})"
    return describe_error(error)


@cache
def find_hub_failure() -> str | None:
    """Returns why the hub cannot be reached; None if it can, however slowly it answers."""
    from ssl import SSLError
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    try:
        urlopen(Request(constants.ENDPOINT, method="HEAD"), timeout=_HUB_SECONDS).close()
    except URLError as error:
        answered = isinstance(error, HTTPError) or isinstance(error.reason, SSLError)
        return None if answered else str(error.reason)
    except OSError:  # the connection works, but the answer takes longer
        pass
    return None


def check_file(file: str | Path, folder: Path | None = None) -> Path:
    """Checks that a path names a readable regular file, and returns it.

    A device such as /dev/zero has no end, and a pipe makes its reader wait for a writer.

    Args:
        folder: must contain the file, so that a link in a foreign folder cannot lead out of it.
            None = the user named the file, which may be a link.

    Raises:
        FileNotFoundError: no such file.
        PermissionError: the file is not readable.
        ValueError: the path is a folder, a pipe or a device, or lies in another folder.
    """
    file = Path(file)
    if not file.exists():
        raise FileNotFoundError(f"{file}: no such file")
    if not file.is_file():
        raise ValueError(f"{file}: must be a regular file, not a folder, a pipe or a device")
    if folder is not None and not file.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{file}: must lie in {folder}, it is a link to {file.resolve()}")
    file.open("rb").close()  # libraries call an unreadable file damaged or missing
    return file


def check_files(folder: Path) -> None:
    """Applies `check_file` to all files of a folder that a library will open."""
    for file in folder.iterdir():
        if file.exists() and not file.is_dir():
            check_file(file)


def plain_name(file: Path) -> str:
    """The file's name without the ending of a packed file (`PACKED`)."""
    return file.stem if file.suffix in PACKED else file.name


@contextmanager
def open_packed(file: Path) -> Iterator[IO[bytes]]:
    """Opens the content of a file: plain, gzip, xz, zstd, or a zip archive of one file.

    Raises:
        ValueError: the path is a pipe or a device, or the archive is damaged or has several files.
    """
    check_file(file)
    try:
        if file.suffix == ".zip":
            with zipfile.ZipFile(file) as archive:
                if len(names := archive.namelist()) != 1:
                    raise ValueError(f"{file}: must be an archive of one file, has {len(names)}")
                with archive.open(names[0]) as content:
                    yield content
        elif file.suffix == ".zst":
            import pyarrow

            with pyarrow.CompressedInputStream(str(file), "zstd") as stream:
                yield BufferedReader(stream)  # pyarrow's own has no lines
        else:
            unpacked: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}
            with unpacked.get(file.suffix, open)(file, "rb") as content:
                yield content
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError) as error:
        if getattr(error, "errno", None) is not None:  # the disk's error, not the archive's
            raise
        raise ValueError(f"{file}: a damaged archive ({error}): fetch the file again") from None


def read_lines(file: str | Path, folder: Path | None = None) -> Iterator[str]:
    """Reads a text file, packed or not, line by line, with line ends; `folder` as in `check_file`.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the path is not a regular file, or a line is not UTF-8.
    """
    with open_packed(check_file(file, folder)) as stream:
        for number, line in enumerate(stream, start=1):
            yield _decode(f"{file}:{number}", line)


def read_text(file: Path) -> str:
    """Reads a text file.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the path is not a regular file, or the file is not UTF-8.
    """
    return _decode(file, check_file(file).read_bytes())


def _decode(where: str | Path, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: must be text in UTF-8 ({error.reason})") from None


_PARTIAL = re.compile(r"\.(.+)\.[0-9a-f]+\.partial")
# How libraries written in Rust (safetensors, tokenizers) quote an error of the operating system.
_OS_ERROR = re.compile(r"\(os error (\d+)\)")


@contextmanager
def new_file(path: str | Path) -> Iterator[Path]:
    """Yields a temporary path for a new file (or folder), and renames it to `path` after the block.

    An older file stays intact until then. After an error, the temporary file is removed.

    Raises:
        OSError: writing failed; the error names `path`, whichever library wrote.
    """
    path = Path(path)
    partial = _partial(path)
    try:
        with name_errors(path, partial):
            yield partial
            for place in [*partial.rglob("*"), partial]:
                _flush(place)
            old = _partial(path)
            if path.is_dir():  # rename cannot replace a folder that is not empty
                path.rename(old)
            os.replace(partial, path)
            _flush(path.parent)
            _remove(old)
    except BaseException:
        _remove(partial)
        raise


@contextmanager
def new_folder(path: str | Path, replace: bool = False) -> Iterator[Path]:
    """Yields a temporary folder, and renames it to `path` after the block; see `new_file`.

    Args:
        replace: whether to replace an existing folder.

    Raises:
        ValueError: `path` exists and `replace` is False.
    """
    if Path(path).exists() and not replace:
        raise ValueError(f"{path}: exists already, an index is never overwritten")
    with new_file(path) as partial:
        partial.mkdir(parents=True)
        yield partial


def write_text(path: str | Path, text: str) -> None:
    """Writes a text file in UTF-8; see `new_file`."""
    with new_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: str | Path, content: Any, indent: int | None = 2) -> None:
    """Writes JSON; see `new_file`.

    Raises:
        ValueError: a number is not finite, which JSON cannot hold.
    """
    try:
        text = json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    write_text(path, text + "\n")


def temporary_folder(name: str) -> Path:
    """Creates a folder in the system's temporary folder; it is removed when this process ends."""
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=_process_folder(os.getpid()).name))


@cache
def _process_folder(process: int) -> tempfile.TemporaryDirectory:
    """Creates the temporary folder of a process; a forked child creates its own."""
    return tempfile.TemporaryDirectory(prefix="gr-mvdr-")


def remove_with(owner: object, folder: Path) -> None:
    """Removes a temporary folder when the object that reads its files is garbage collected."""
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)


def remove_abandoned(folder: Path, name: str | None = None) -> None:
    """Removes the temporary files that a killed process left behind.

    Args:
        folder: the caller holds its lock: no other process writes into it, or none writes `name`.
        name: the file whose temporary files are removed; None = all files, in subfolders too.
    """
    for path in list(folder.rglob(".*") if name is None else folder.iterdir()):
        match = _PARTIAL.fullmatch(path.name)
        if match and name in (None, match[1]):
            _remove(path)


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")


def _flush(path: Path) -> None:
    """Flushes a file to disk, so that a power failure cannot keep its name and lose its content."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:
        if not path.is_dir():  # not every file system flushes a folder
            raise
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    """Removes a file or folder, and ignores errors."""
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()


@contextmanager
def name_errors(path: Path, partial: Path | None = None) -> Iterator[None]:
    """Adds a file's name to the operating system's errors of writing it: most libraries omit it.

    Args:
        path: the name in the error.
        partial: the name that is written to; None = `path`.

    Raises:
        OSError: with `filename`; also replaces a library's error that quotes the system's.
    """
    written = str(partial or path)
    try:
        yield
    except Exception as error:
        quoted = _OS_ERROR.search(str(error))
        number = int(quoted[1]) if quoted else getattr(error, "errno", None)
        name = str(getattr(error, "filename", None) or written)
        if number is None or not name.startswith(written):  # not a system error, or another file's
            raise
        raise OSError(number, os.strerror(number), name.replace(written, str(path))) from error


def check(holds: Any, path: str | Path, rule: str) -> None:
    """Raises a ValueError that names the file or folder, unless `holds` is true."""
    if not holds:
        raise ValueError(f"{path}: is damaged, {rule}")


SMALL = 1 << 26  # largest number of bytes of a file whose content is compared


def sha256(file: Path) -> str:
    """Returns the SHA-256 of a file's content, in hexadecimal."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def checksum(file: Path) -> dict[str, int]:
    """Returns a file's size, "bytes", and its CRC-32, "crc32", if the file has at most 64 MB."""
    size = file.stat().st_size
    return {"bytes": size} | ({"crc32": zlib.crc32(file.read_bytes())} if size <= SMALL else {})


def verify(file: Path, expected: dict[str, int]) -> None:
    """Compares a file with its checksum.

    Raises:
        ValueError: the file, which it names, is missing, cut short or changed.
    """
    actual = checksum(file) if file.is_file() else {"bytes": 0}
    for key, rule in (("bytes", "it was cut short"), ("crc32", "it was changed")):
        if key in actual and actual[key] != expected[key]:
            numbers = f"{key}={actual[key]}, expected {expected[key]}"
            raise ValueError(f"{file}: is damaged, {numbers}: {rule}")


_HEADER = 1 << 24  # largest number of characters of settings in a header; safetensors reads 100 MB


def write_tensors(file: Path, tensors: "dict[str, Tensor]", settings: Any) -> None:
    """Writes tensors and settings (plain values) as a safetensors file; see `new_file`.

    Creates the file's folder if it is missing.
    """
    import torch
    from safetensors.torch import save_file

    content = json.dumps({"settings": settings}, ensure_ascii=False)
    metadata = {"content": content}  # one key: the order is random
    if len(content) > _HEADER:  # such as the ids of millions of documents
        large = torch.frombuffer(bytearray(content.encode()), dtype=torch.uint8)
        tensors, metadata = {**tensors, "settings": large}, {}
    file.parent.mkdir(parents=True, exist_ok=True)
    with new_file(file) as partial:
        save_file({name: part.contiguous() for name, part in tensors.items()}, partial, metadata)


def open_tensors(file: Path) -> "tuple[dict[str, Tensor], Any]":
    """Opens a file of `write_tensors` by memory map, and returns its tensors and settings.

    Only the header is read, which holds every tensor's type, shape and place. A changed number in a
    tensor is not noticed.

    Raises:
        OSError: the file is missing or not readable.
        ValueError: the header is damaged, or the file does not have the size that it states.
    """
    from safetensors import safe_open

    check_file(file)
    with reading(f"{file}: is damaged"), safe_open(file, "pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        large = tensors.pop("settings", None)
        text = opened.metadata()["content"] if large is None else large.numpy().tobytes()
        settings = json.loads(text)["settings"]
    return tensors, settings


def check_fingerprint(what: str, held: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raises ValueError if `what` was made from something else than expected."""
    for key, value in expected.items():
        if held.get(key) != value:
            raise ValueError(f"{what}: was made with {key} {held.get(key)}, expected {value}")


# The files of a finished run ----------------------------------------------------------------------

CHECKPOINT = "checkpoints/last.ckpt"  # from which training resumes
PARTS = CONFIG, PROVENANCE, METRICS_FILE = "config.yaml", "provenance.json", "metrics.json"
# Keys of the configuration that change where or how a run is made, but not its results.
CIRCUMSTANCES = ("resume", "output", "name", "run", "logger")

try:
    VERSION = version("gr-mvdr")
except PackageNotFoundError:  # not installed
    VERSION = "unknown"


class UnfinishedRun(ValueError):
    """Raised if a run's folder lacks a file; the message names both."""


def check_finished(key: str, run: Path, parts: Sequence[str] = PARTS) -> None:
    """Raises unless the folder is a finished run.

    Args:
        key: the beginning of an error message: the user's "weights=outputs/…", or the folder.
        parts: files that the folder must hold.

    Raises:
        FileNotFoundError: no such folder.
        UnfinishedRun: a file is missing.
    """
    if not run.is_dir():
        raise FileNotFoundError(f"{key}: no such run folder")
    for part in parts:
        if not (run / part).is_file():
            raise UnfinishedRun(f"{key}: must be a finished run, it has no {part}")


def read_config(run: Path) -> dict[str, Any]:
    """Reads a run's configuration.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: the file is damaged; names file and line.
    """
    return read_yaml(check_file(run / CONFIG, run))


def read_provenance(run: Path) -> dict[str, Any]:
    """Reads a run's provenance: "system", "collection", and further keys.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: the file is damaged, or one of the two names is not printable text.
    """
    file = check_file(run / PROVENANCE, run)
    record = read_json(file)
    for key in ("system", "collection"):
        value = record.get(key, "")
        if not isinstance(value, str) or not value.isprintable():
            raise ValueError(f"{file}: {key}={show(value)}: must be printable text")
    return record


def check_finite(metrics: Mapping[str, Any], file: Path) -> dict[str, float]:
    """Returns the metrics; all must be finite numbers with names such as "retrieve/mrr@10".

    Raises:
        ValueError: names the file and the metric.
    """
    for key, value in metrics.items():
        if "/" not in key.strip("/") or not key.isprintable():
            rule = "must be the name of a metric, such as retrieve/mrr@10"
            raise ValueError(f"{file}: {show(make_printable(key))}: {rule}")
        if not fits_type(value, float):
            raise ValueError(f"{file}: {show(key)}={show(value)}: must be a finite number")
    return dict(metrics)
