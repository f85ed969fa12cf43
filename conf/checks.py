"""Checks the user's values before anything is built, by `conf/rules.py` and classes' signatures."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from omegaconf import DictConfig, OmegaConf

from conf.rules import RULES
from conf.signatures import Definition, read_signature
from gr_mvdr.files import hub_options, is_on_hub
from gr_mvdr.options import (
    Signature,
    check_options,
    describe_type,
    exists,
    fits_type,
    import_named,
    inspect_signature,
    show,
)

_HYDRA = ("_target_", "_args_", "_partial_", "_recursive_", "_convert_")
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")


def check_values(config: DictConfig, typed: Sequence[str] = ()) -> None:
    """Raises an error if a value is missing or does not fit the declared type of its key.

    Args:
        config: the whole configuration of a command.
        typed: the arguments of the command line.

    Raises:
        ValueError, FileNotFoundError: names the key as the user typed it, the rule and the value.
    """
    # Not resolved: an interpolation of a missing value would fail.
    written = dict(walk(OmegaConf.to_container(config)))
    for key, value in written.items():
        if value == "???":
            raise ValueError(f"{key}=…: must be given on the command line")
    resolved = OmegaConf.to_container(config, resolve=True)
    nodes = dict(walk(resolved))
    added = {word[1:].partition("=")[0] for word in typed if word.startswith("+")}
    for key in added & resolved.keys():  # Hydra adds any key with "+"
        meant = did_you_mean(key, own_keys(config))
        raise ValueError(f"{key}={show(nodes[key])}: no such key{meant}")
    # Keys before their groups, so that an error names the innermost one.
    for key in sorted(nodes, key=lambda key: isinstance(nodes[key], dict)):
        for kind in find_types(nodes, key):
            if not fits_type(nodes[key], kind):
                name = _origin(key, written)
                raise ValueError(f"{name}={show(nodes[key])}: must be {describe_type(kind)}")
    _check_together(resolved)
    for key, value in nodes.items():
        if isinstance(value, dict) and (taker := read_taker(nodes, key)) is not None:
            options = {name: item for name, item in value.items() if name not in _HYDRA}
            check_options(key, replace(taker, types=dict.fromkeys(taker.types, Any)), options)


def own_keys(config: DictConfig) -> list[str]:
    """Returns the keys of a configuration, without those that take the value of another key."""
    written = walk(OmegaConf.to_container(config))
    return [key for key, value in written if not _REFERENCE.fullmatch(str(value))]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns ", did you mean X?" with the keys that end with a name or resemble it, or ""."""
    known = sorted({*known} - {name})
    close = [key for key in known if key.endswith(f".{name}")]
    names = [*dict.fromkeys(close + get_close_matches(name, known, 2, 0.8))][:2]
    return f", did you mean {' or '.join(names)}?" if names else ""


def check_hub(config: DictConfig) -> None:
    """Raises FileNotFoundError if the model is not in the cache and the hub cannot be reached."""
    backbone, weights = OmegaConf.select(config, "backbone.name"), config.get("weights")
    if weights and is_on_hub(weights):
        hub_options(weights, "weights")
    elif backbone and not weights:
        hub_options(backbone)


def find_types(nodes: dict[str, Any], key: str) -> list[Any]:
    """Returns the declared types of a key; its value must fit all of them.

    The first line of `conf/rules.py` that matches the key gives one type, the signature of what
    takes the key's group another. Without both, the type of the group declares the key
    (`dict[str, Size]`).

    Args:
        nodes: key → value, as from `walk`.
    """
    group, _, name = key.rpartition(".")
    if name.startswith("_"):  # Hydra's own, such as _target_
        return []
    types = [next((kind for line, kind in RULES.items() if fnmatchcase(key, line)), None)]
    if group and (taker := read_taker(nodes, group)) is not None:
        types.append(taker.types.get(name))
    elif group and types == [None]:
        holds = [kind for kind in _kinds(nodes, group) if get_origin(kind) is type(nodes[group])]
        types += [get_args(kind)[-1] for kind in holds]
    return [kind for kind in types if kind is not None]


def read_taker(nodes: dict[str, Any], group: str) -> Signature | None:
    """Returns the signature of what is called with a group of keys; None if nothing is.

    Args:
        nodes: key → value, as from `walk`.
    """
    own = nodes.get(group)
    if isinstance(own, dict) and (target := own.get("_target_")):
        return _read_class(f"{group}._target_", target)
    for kind in _kinds(nodes, group):
        for definition in getattr(kind, "__metadata__", ()):
            if isinstance(definition, Definition):
                return _read_class(group, definition.path)
    return None


def _kinds(nodes: dict[str, Any], group: str) -> Iterator[Any]:
    """Yields the types of a group or list; a union yields each of its alternatives."""
    for kind in find_types(nodes, group):
        yield from get_args(kind) if get_origin(kind) in (Union, UnionType) else [kind]


def walk(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every key below a node with its value; lists give places: `model.stages.0.depth`."""
    if key:
        yield key, node
    children = node.items() if isinstance(node, dict) else ()
    if isinstance(node, list):
        children = ((n, child) for n, child in enumerate(node) if isinstance(child, dict | list))
    for name, child in children:
        yield from walk(child, f"{key}.{name}".strip("."))


def _origin(key: str, written: dict[str, Any]) -> str:
    """Returns the key from which a value is interpolated, which the user may have typed."""
    while reference := _REFERENCE.fullmatch(str(written.get(key))):
        key = reference[1]
    return key


def _read_class(key: str, name: str) -> Signature | None:
    """Reads the signature of a class or function; None for Lightning's, which check themselves.

    Raises:
        ValueError: the class or function cannot be imported; the message names the key.
    """
    if name.startswith("pytorch_lightning."):
        return None
    if (signature := read_signature(name)) is not None:
        return signature
    return inspect_signature(import_named(key, name))


def _check_together(config: dict[str, Any]) -> None:
    """Raises an error if keys contradict each other, or the place of a run is wrong."""
    model = config.get("model") or {}
    search, size = model.get("search") or {}, model.get("dimension")
    source = search.get("source") or {}
    codes = source.get("code_bytes")
    if source.get("dtype") == "codes" and codes and size and size % codes:
        rule = f"must divide model.dimension={size}"
        raise ValueError(f"model.search.source.code_bytes={codes}: {rule}")
    key, longest = model.get("key_length"), model.get("document_length")
    if key and longest and key > longest:
        raise ValueError(f"model.key_length={key}: must be ≤ document_length={longest}")
    if {"output", "name"} <= config.keys():  # the command makes a folder
        parts = Path(name := str(config["name"])).parts
        if config["name"] is None or not parts or ".." in parts or Path(name).is_absolute():
            rule = f"must be a folder's name within output={config['output']}"
            raise ValueError(f"name={show(config['name'])}: {rule}")
    elif (run := config.get("run")) and not exists(run):  # the command is for a finished run
        raise FileNotFoundError(f"run={run}: no such run folder")
    initial, weights = config.get("initial"), config.get("weights")
    if initial and weights:
        rule = "must be null with weights=…, which trains nothing"
        raise ValueError(f"initial={initial}: {rule}")
