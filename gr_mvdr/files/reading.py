"""Files that may come from anyone, read as nothing but data: YAML, JSON, checkpoints, tensors.

Each reader returns plain values or raises a ValueError that names the file, the line where there is
one, and what was expected (docs/security.md). `check_file` comes before every one of them.
"""

import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from ssl import SSLError
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

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


def read_weights(folder: Path) -> dict[str, "Tensor"]:
    """The tensors of a folder's model.safetensors, else of its pytorch_model.bin.

    Raises:
        FileNotFoundError, ValueError: there is neither; it holds anything but tensors by name.
    """
    from torch import Tensor

    if (folder / "model.safetensors").exists():
        return read_tensors(folder / "model.safetensors")
    file, rule = folder / "pytorch_model.bin", "must hold tensors by name"
    if not file.exists():
        raise FileNotFoundError(f"{folder}: must hold model.safetensors or pytorch_model.bin")
    found = _load_weights(check_file(file), rule)
    if not isinstance(found, Mapping) or not all(isinstance(v, Tensor) for v in found.values()):
        raise ValueError(f"{file}: {rule}")
    return dict(found)


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


_SHOWN = 80  # characters of a value in an error


def make_printable(text: object) -> str:
    """A text without what steers a terminal: escape codes and reversed writing are spelt out."""
    return "".join(
        letter if letter.isprintable() or letter == "\n" else ascii(letter)[1:-1]
        for letter in str(text)
    )


def show(value: object) -> str:
    """A value in an error as the command line has it: null, true, [a, b]; cut to a line."""
    if value is None or isinstance(value, bool):
        text = {None: "null", True: "true", False: "false"}[value]
    elif isinstance(value, list):
        text = f"[{', '.join(map(show, value))}]"
    else:
        text = str(value) if value != "" else "''"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
