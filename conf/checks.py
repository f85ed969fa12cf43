"""Checks the user's values before anything is built: by `conf/rules.py`, then by their classes."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf
from pydantic import ConfigDict, TypeAdapter, ValidationError

from conf.rules import RULES
from conf.signatures import read_signature
from gr_mvdr.files import hub_options, is_on_hub
from gr_mvdr.options import ROOMS, Signature, check_options, inspect_signature, show

# Classes that take a whole group of keys without a `_target_`. A group is named by the class, or
# else the key, of the group that it is in.
_TAKERS = {
    "backbone.shape": "transformers.models.t5.configuration_t5.T5Config",
    "models.multi_vector.MultiVector.search": "gr_mvdr.token_index.plan.SearchOptions",
    "models.t5_seal.T5SEAL.evidence": "gr_mvdr.decoding.evidence.Parameters",
}
_HYDRA = ("_target_", "_args_", "_partial_", "_recursive_", "_convert_")
_STRICT = ConfigDict(strict=True, allow_inf_nan=False)
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
_KINDS = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "object": "a group of keys",
    "null": "null",
}


def check_values(config: DictConfig) -> None:
    """Refuses a value that is missing, or that its key's rule or its class does not take.

    Args:
        config: the whole configuration of a command.

    Raises:
        ValueError, FileNotFoundError: names the key as the user typed it, the rule and the value.
    """
    # As it was written: what is made of a missing value cannot be resolved, and a value that
    # others are made of is named by its own key.
    written = dict(walk(OmegaConf.to_container(config)))
    for key, value in written.items():
        if value == "???":
            raise ValueError(f"{key}=…: must be given on the command line")
    for key, value in written.items():
        if not any(map(_is_made, _parts(value))):
            _check_rule(key, value)
    resolved = OmegaConf.to_container(config, resolve=True)
    found = list(walk(resolved))
    for key, value in found:
        _check_rule(key, value, _origin(key, written))
    _check_together(resolved)
    nodes = dict(found)
    for key, value in found:
        if isinstance(value, dict) and (name := _find_taker(nodes, key)):
            _check_target(key, value, name)


def check_hub(config: DictConfig) -> None:
    """Raises FileNotFoundError if the model is not in the cache and the hub cannot be reached."""
    backbone, weights = OmegaConf.select(config, "backbone.name"), config.get("weights")
    if weights and is_on_hub(weights):
        hub_options(weights, "weights")
    elif backbone and not weights:
        hub_options(backbone)


def read_taker(nodes: dict[str, Any], group: str) -> Signature | None:
    """The parameters of the class that is made of a group of keys; None = there is no class.

    Args:
        nodes: of `walk`, by key.
    """
    name = _find_taker(nodes, group)
    return _read_class(f"{group}._target_", name) if name else None


def _find_taker(nodes: dict[str, Any], group: str) -> str | None:
    """The dotted path of a group's class: its `_target_`, or the one of `_TAKERS`."""
    parent, _, name = group.rpartition(".")
    own, target = (
        node.get("_target_") if isinstance(node := nodes.get(key), dict) else None
        for key in (group, parent)
    )
    return own or _TAKERS.get(f"{target or parent}.{name}")


def find_rule(key: str) -> Any:
    """The type of a key's values in `conf/rules.py`; None: the table does not know the key."""
    if key.rpartition(".")[2].startswith("_"):  # Hydra's own, such as _target_
        return None
    return next((RULES[pattern] for pattern in RULES if fnmatchcase(key, pattern)), None)


def walk(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every key below a node with its value; of a list, the places: `model.stages.0.depth`."""
    if key:
        yield key, node
    children = node.items() if isinstance(node, dict) else ()
    if isinstance(node, list):
        children = ((n, child) for n, child in enumerate(node) if isinstance(child, dict | list))
    for name, child in children:
        yield from walk(child, f"{key}.{name}".strip("."))


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else (value,)


def _is_made(value: Any) -> bool:
    """Whether a value is made of others, such as `${seed}`."""
    return isinstance(value, str) and "${" in value


def _origin(key: str, written: dict[str, Any]) -> str:
    """The key that a value was taken from, which the user may have typed."""
    while found := _REFERENCE.fullmatch(str(written.get(key))):
        key = found[1]
    return key


def _check_rule(key: str, value: Any, typed: str | None = None) -> None:
    if find_rule(key) is None:
        return
    try:
        _adapter(key).validate_python(value)
    except ValidationError:
        said = describe_rule(_adapter(key).json_schema())
        raise ValueError(f"{typed or key}={show(value)}: must be {said}") from None


@cache
def _adapter(key: str) -> TypeAdapter:
    return TypeAdapter(find_rule(key), config=_STRICT)


def describe_rule(schema: dict[str, Any]) -> str:
    """A rule as errors say it, from the JSON schema of its type: "a whole number ≥ 1, or null"."""
    if "description" in schema:
        return schema["description"]
    if "anyOf" in schema:
        *first, last = map(describe_rule, schema["anyOf"])
        return f"{', '.join(first)}{',' if len(first) > 1 or '≥' in first[0] else ''} or {last}"
    if "const" in schema or "enum" in schema:
        options = schema.get("enum") or [schema["const"]]
        names = f"{', '.join(map(str, options))}"
        return f"one of {names}" if len(options) > 2 else " or ".join(map(str, options))
    if schema.get("type") == "array":
        some = " with at least one value" if schema.get("minItems") else ""
        return f"a list{some}, each {describe_rule(schema['items'])}"
    bounds = [f"{sign} {schema[name]}" for name, sign in _BOUNDS.items() if name in schema]
    filled = " that is not empty" if schema.get("minLength") else ""
    return f"{_KINDS[schema['type']]}{filled} {' and '.join(bounds)}".strip()


def _read_class(key: str, name: str) -> Signature:
    """The signature of a class or function by its dotted path.

    Raises:
        ValueError: there is none; names the key.
    """
    if (signature := read_signature(name)) is not None:
        return signature
    try:
        return inspect_signature(get_object(name))
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ValueError(f"{key}={name}: no such class") from error


def _check_target(key: str, node: dict[str, Any], name: str) -> None:
    """A class must be there, and take what it is given."""
    signature = _read_class(f"{key}._target_", name)
    # A library takes more than it declares (name=5), and so does a group of `_TAKERS` ("auto").
    if name.partition(".")[0] not in ROOMS or "_target_" not in node:
        kinds = {k: Any if find_rule(f"{key}.{k}") else kind for k, kind in signature.types.items()}
        signature = replace(signature, types=kinds)
    check_options(key, signature, {k: value for k, value in node.items() if k not in _HYDRA})


def _check_together(config: dict[str, Any]) -> None:
    """What single values cannot show: keys that contradict each other, or this machine."""
    model, trainer = config.get("model") or {}, config.get("trainer")
    if trainer:
        _check_trainer(trainer)
    search, size = model.get("search") or {}, model.get("dimension")
    codes = search.get("pq_bytes")
    if search.get("dtype") in ("pq", "residual") and codes and size and size % codes:
        raise ValueError(f"model.search.pq_bytes={codes}: must divide model.dimension={size}")
    _check_effects(config, search)
    key, longest = model.get("key_length"), model.get("document_length")
    if key and longest and key > longest:
        raise ValueError(f"model.key_length={key}: must be ≤ document_length={longest}")
    if {"output", "name", "run"} <= config.keys():
        _check_place(config["output"], config["name"], config["run"])
    else:  # a finished run
        _check_there("run", config.get("run"), "run folder")
    _check_files(config)
    initial, weights = config.get("initial"), config.get("weights")
    if initial and weights:
        rule = "must be null with weights=…, which trains nothing"
        raise ValueError(f"initial={initial}: {rule}")
    shard = (config.get("data") or {}).get("shard")
    if shard and not weights:
        rule = "must be null without weights=RUN, nothing is trained on a part of the documents"
        raise ValueError(f"data.shard={shard}: {rule}")


def _check_effects(config: dict[str, Any], search: dict[str, Any]) -> None:
    """Raises ValueError for an option that has no effect beside the others.

    A study searches with further options, and weights that are taken over bring their own settings:
    there the options may have an effect.

    Args:
        search: `model.search`.
    """
    if not config.get("study"):
        dtype = search.get("dtype")
        if search.get("pq_bytes") and dtype not in ("pq", "residual"):
            rule = f"must be null under model.search.dtype={dtype}, which stores no codes"
            raise ValueError(f"model.search.pq_bytes={search['pq_bytes']}: {rule}")
    tokenizer, model = config.get("tokenizer") or {}, config.get("model") or {}
    query, document = map((tokenizer.get("markers") or {}).get, ("query", "document"))
    if query is not None and query == document:
        rule = "must differ from tokenizer.markers.query, to tell documents from queries"
        raise ValueError(f"tokenizer.markers.document={document}: {rule}")
    if tokenizer.get("expansion") is None and not (config.get("weights") or config.get("initial")):
        for key, default in (("expansion_length", None), ("attend_expansion", True)):
            if (value := model.get(key, default)) != default:
                rule = (
                    f"must be {show(default)} without tokenizer.expansion, which fills queries up"
                )
                raise ValueError(f"model.{key}={show(value)}: {rule}")


def _check_files(config: dict[str, Any]) -> None:
    """Every file and folder that a configuration reads, besides its run, must be there."""
    for run in _parts(config.get("runs")):
        _check_there("runs", run, "folder")
    identifiers = (config.get("model") or {}).get("identifiers") or {}
    embeddings = identifiers.get("embeddings") or {}
    _check_there("model.identifiers.embeddings.run", embeddings.get("run"), "run folder")
    _check_there("qrels", config.get("qrels"), "file")
    data, tokenizer = config.get("data") or {}, config.get("tokenizer") or {}
    for path in _parts(data.get("path")):
        _check_there("data.path", path, "folder or file")
    for key in ("candidates_run", "identifiers"):
        _check_there(f"data.{key}", data.get(key), "file")
    for view, file in (data.get("views") or {}).items():
        _check_there(f"data.views.{view}", file, "file")
    _check_there("tokenizer.path", tokenizer.get("path"), "file")
    weights = config.get("weights") or ""
    if not is_on_hub(weights):
        _check_there("weights", weights, "run folder")
    _check_there("initial", config.get("initial"), "run folder")


def _check_there(key: str, path: str | None, kind: str) -> None:
    if path and not Path(path).expanduser().exists():
        raise FileNotFoundError(f"{key}={path}: no such {kind}")


def _check_place(output: str | None, name: Any, run: str | None) -> None:
    for key, value in (("output", output), ("run", run)):
        if not value:
            raise ValueError(f"{key}={show(value)}: must be a folder")
    parts = Path(str(name)).parts
    if name is None or not parts or ".." in parts or Path(str(name)).is_absolute():
        raise ValueError(f"name={show(name)}: must be a folder's name within output={output}")
    for key, path in (("output", Path(output)), ("run", Path(run))):
        for place in (path, *path.parents):
            if place.exists() and not place.is_dir():
                raise ValueError(f"{key}={path}: must be a folder, {place} is a file")


def _check_trainer(trainer: dict[str, Any]) -> None:
    epochs, ends = trainer.get("max_epochs"), trainer.get("max_steps", -1) != -1
    if epochs in (None, -1) and not ends and not trainer.get("max_time"):
        raise ValueError(
            f"trainer.max_epochs={show(epochs)}: must be ≥ 1 without trainer.max_steps, or "
            "training would not end"
        )
    kind, devices = trainer.get("accelerator", "auto"), trainer.get("devices", "auto")
    if kind != "cpu" and (kind != "auto" or devices not in ("auto", -1, 1)):
        _check_gpus(kind, devices)
    elif kind == "cpu":
        _check_processes(devices)


def _check_gpus(kind: str, devices: int | str | list[int]) -> None:
    import torch

    mps = kind == "mps" or (kind == "gpu" and torch.backends.mps.is_available())
    there = int(torch.backends.mps.is_available()) if mps else torch.cuda.device_count()
    if kind == "auto" and not there:  # processes on the CPU
        _check_processes(devices)
        return
    if not there:
        raise ValueError(f"trainer.accelerator={kind}: must be auto or cpu, there is no such GPU")
    if isinstance(devices, str) and "," in devices:
        devices = [int(number) for number in devices.strip(",").split(",")]
    needed = max(devices) + 1 if isinstance(devices, list) else devices
    if isinstance(needed, int) and needed > there:
        raise ValueError(
            f"trainer.devices={show(devices)}: this machine has no more than {there} GPUs"
        )


def _check_processes(devices: int | str | list[int]) -> None:
    """Raises ValueError for a list of devices: on a CPU only their number can be chosen."""
    if isinstance(devices, list) or "," in str(devices):
        raise ValueError(f"trainer.devices={show(devices)}: must be one number without a GPU")
