"""The command line of the entry points `python train.py …`, `python -m analysis.run …` and others.

Nothing heavy is imported before the command line is parsed and all values are checked.
"""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

import hydra
from hydra._internal import utils as internals
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.singleton import Singleton
from hydra.errors import (
    ConfigCompositionException,
    InstantiationException,
    MissingConfigException,
    OverrideParseException,
)
from hydra.types import RunMode
from hydra.version import VersionBase
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from conf.checks import check_hub, check_values, walk
from conf.composition import list_options, prepare_arguments, register_resolvers
from conf.rules import RULES
from conf.signatures import read_signature
from gr_mvdr.options import make_printable

CONFIGURATIONS = Path(__file__).parent
_NO_NAME = re.compile(r"null|true|false|[-+]?[\d.]+", re.IGNORECASE)
_UNKNOWN_KEY = re.compile(r"Could not override '(?P<key>[^']+)'")
# Parts of Hydra's and OmegaConf's messages that do not help the user.
_NOISE = ("See https://hydra.cc", "Config search path:", "provider=", "full_key:", "object_type=")

_SHARED = ("multi_vector.yaml", "docid.yaml")  # the keys of most models
_DATA = "data_modules.sources.FilesDataModule"
_SWEEP = "is a sweep, which needs the command line"
RESUME = "interrupted: the same command with resume=true goes on"


def run_command(name: str, target: str, interrupted: str = "interrupted") -> None:
    """Composes `conf/NAME.yaml` from the command line, checks its values, and calls a function.

    A mistake of the user, including one that Hydra finds, ends the command with status 1 and one
    line. Ctrl-C ends it with one line at any time, also during imports and during the comparison
    after a sweep.

    Args:
        name: the name of a configuration file in `conf/`.
        target: "module:function", which takes the configuration. The module is imported after
            all values are checked, so that `--help` and errors answer at once.
        interrupted: the line printed after Ctrl-C, by rank 0 only.
    """
    try:
        _run_command(name, target)
    except KeyboardInterrupt:
        sys.exit(interrupted if os.environ.get("RANK", "0") == "0" else 1)


def _run_command(name: str, target: str) -> None:
    module, _, function = target.partition(":")

    @hydra.main(version_base="1.3", config_path=str(CONFIGURATIONS), config_name=name)
    def job(config: DictConfig) -> None:
        with report_errors():
            check_values(config)
            check_hub(config)
            getattr(import_module(module), function)(config)

    register_resolvers()
    # Hydra would print its errors over many lines and exit; this makes it raise them.
    internals.run_and_report = lambda function: function()
    with report_errors():
        sys.argv[1:] = prepare_arguments(sys.argv[1:])
        _check_flags(sys.argv[1:])
        _check_options(sys.argv[1:])
        job()


def compose_command(name: str, overrides: Sequence[str]) -> DictConfig:
    """Composes the configuration of `run_command`, for a caller in Python.

    It may be called within another Hydra program, repeatedly, and from any folder: Hydra's own
    state is restored.

    Args:
        name: as in `run_command`.
        overrides: the arguments of the command line.

    Raises:
        ValueError, FileNotFoundError: the command line's error, in one line.
    """
    if isinstance(overrides, str):
        raise ValueError(f"{overrides}: must be a list, such as ['model=bm25', 'seed=2']")
    register_resolvers()
    with explain_errors(overrides), _own_hydra():
        arguments = prepare_arguments(list(overrides))
        _check_options(arguments)
        _refuse_sweep(arguments)
        with hydra.initialize_config_dir(str(CONFIGURATIONS), version_base="1.3"):
            config = hydra.compose(name, arguments, return_hydra_config=True)
        if config.hydra.mode == RunMode.MULTIRUN:
            raise ValueError(f"{' '.join(overrides)}: {_SWEEP}; hydra.mode=RUN makes one run of it")
        HydraConfig.instance().set_config(config)
        for key in ("name", "logger.group"):  # resolved while Hydra knows this command
            if (value := OmegaConf.select(config, key)) is not None:
                OmegaConf.update(config, key, value)
        with open_dict(config):
            del config["hydra"]
        check_values(config)
    return config


def _refuse_sweep(arguments: Sequence[str]) -> None:
    for argument in arguments:
        if argument.startswith("-"):
            raise ValueError(f"{argument}: must be key=value, options need the command line")
        (parsed,) = OverridesParser.create().parse_overrides([argument])
        if parsed.is_sweep_override():
            raise ValueError(f"{argument}: {_SWEEP}")


@contextmanager
def _own_hydra() -> Iterator[None]:
    """Clears Hydra's global state for the block, and restores it afterwards."""
    kinds = (GlobalHydra, HydraConfig, VersionBase)
    kept = {kind: Singleton._instances.pop(kind, None) for kind in kinds}
    try:
        yield
    finally:
        for kind, instance in kept.items():
            Singleton._instances.pop(kind, None)
            if instance is not None:
                Singleton._instances[kind] = instance


def _check_flags(arguments: Sequence[str]) -> None:
    """Raises ValueError for an option that Hydra does not know, such as `--model=bm25`.

    Hydra itself would print its usage.
    """

    def refuse(message: str) -> None:
        dashed = [argument for argument in arguments if argument.startswith("-")]
        flags = {argument: argument.partition("=")[0] for argument in dashed}
        unknown = [a for a, flag in flags.items() if not any(o.startswith(flag) for o in options)]
        if not unknown:
            raise ValueError(f"{dashed[-1]}: {message}")
        key, _, value = unknown[0].lstrip("-").partition("=")
        key = key.replace("-", "_")
        known = key in RULES or (CONFIGURATIONS / key).is_dir()
        meant = [f"{name}={value or '…'}" for name in ([key] if known else find_similar_keys(key))]
        raise ValueError(f"{unknown[0]}: must be key=value without dashes{_did_you_mean(meant)}")

    parser = internals.get_args_parser()
    options = parser._option_string_actions
    parser.error = refuse
    parser.parse_args(arguments)


def _check_options(arguments: list[str]) -> None:
    """Raises ValueError if a group's option is not a name; Hydra's error lacks the group."""
    for argument in arguments:
        group, _, option = argument.partition("=")
        if not _NO_NAME.fullmatch(option) or not group:
            continue
        folder = CONFIGURATIONS / group.partition("@")[0]
        if names := {path.stem for path in folder.glob("*.yaml")} | {*list_options(group)}:
            said = ", ".join(sorted(names))
            raise ValueError(f"{argument}: must be one of {said}; ~{group} leaves the group out")


@contextmanager
def report_errors() -> Iterator[None]:
    """Ends the program with status 1 and ``error: …`` for errors that this project explains.

    Other exceptions are bugs and keep their traceback. HYDRA_FULL_ERROR=1 keeps every traceback,
    since a library may raise a ValueError or OSError too.

    Raises:
        SystemExit: instead of a ValueError or OSError, also from within Hydra's instantiate, and
            instead of Hydra's errors about the command line.
    """
    if os.environ.get("HYDRA_FULL_ERROR") == "1":
        yield
        return
    try:
        with explain_errors(sys.argv[1:]):
            yield
    except (ValueError, OSError) as error:
        sys.exit(f"error: {make_printable(_explain(error))}")


@contextmanager
def explain_errors(arguments: Sequence[str]) -> Iterator[None]:
    """Turns errors of Hydra and OmegaConf into a ValueError of one line.

    Args:
        arguments: as the user typed them; an error quotes the wrong one.

    Raises:
        ValueError, OSError: this project's own errors unchanged, also from within an instantiate.
    """
    try:
        yield
    except InstantiationException as error:
        if isinstance(error.__cause__, ValueError | OSError):
            raise error.__cause__ from None
        raise ValueError(_explain(error.__cause__ or error)) from error
    except (ConfigCompositionException, OverrideParseException, OmegaConfBaseException) as error:
        raise ValueError(_explain(error, arguments)) from None


def _explain(error: BaseException, arguments: Sequence[str] = ()) -> str:
    """Returns an exception's message without line breaks; it names the key or the file."""
    if isinstance(error, MissingConfigException) and error.options:
        group, _, option = str(error.missing_cfg_file).rpartition("/")
        close = _did_you_mean(get_close_matches(option, error.options, 2))
        return f"{group}={option}: must be one of {', '.join(error.options)}{close}"
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    if unknown := _UNKNOWN_KEY.match(str(error)):
        key = unknown["key"]
        typed = (word for word in arguments if word.startswith(f"{key}="))
        return _explain_key(key, next(typed, key))
    lines = map(str.strip, str(error).splitlines())
    said = " ".join(line for line in lines if line and not line.startswith(_NOISE))
    if isinstance(error, OverrideParseException):
        return f"{error.override}: {said}"
    # OmegaConf's error about an interpolation knows the key that contains it.
    key = getattr(error, "full_key", None)
    return f"{key}: {said}" if key else said


def _explain_key(key: str, argument: str) -> str:
    """Explains an unknown key: names the options that have it, or similar keys.

    Args:
        argument: as the user typed it, such as "data.path=FOLDER".
    """
    group, _, rest = key.partition(".")
    if rest and (having := _options_with(key)):
        group = group if group in having else min(having)
        options = " or ".join(having[group])
        return f"{argument}: not a key of the chosen {group}, {group}={options} has it"
    adds = f", +{key}=… adds it"
    if key in RULES:
        return f"{argument}: not in this configuration{adds}"
    return f"{argument}: no such key{_did_you_mean(find_similar_keys(key)) or adds}"


def _options_with(key: str) -> dict[str, list[str]]:
    """Returns configuration group → its options that have the key."""
    having: dict[str, list[str]] = {}
    for file in sorted(CONFIGURATIONS.glob("*/*.yaml")):
        group, package = file.parent.name, _package(file)
        # A file of the whole configuration counts only if the key belongs to the file's group.
        may_have = key.startswith(f"{group if package == '' else package}.")
        if may_have and key in _keys_of(file):
            having.setdefault(group, []).append(file.stem)
    return having


def _keys_of(file: Path) -> set[str]:
    """Returns the keys that a YAML file sets, including those of shared files in its defaults."""
    content: Any = OmegaConf.to_container(OmegaConf.load(file))
    defaults, package = content.pop("defaults", []), _package(file)
    shared = [item for item in defaults if isinstance(item, str) and item.startswith("/")]
    keys = {name for name, _ in walk(content, package)}
    return keys.union(*(_keys_of(CONFIGURATIONS / f"{item[1:]}.yaml") for item in shared))


def _package(file: Path) -> str:
    """Returns the group of keys that a YAML file fills; "" for the whole configuration."""
    with file.open(encoding="utf-8") as lines:
        named = re.match(r"# @package (\S+)", lines.readline())
    package = named[1] if named else file.parent.name
    return "" if package == "_global_" else package


def find_similar_keys(key: str) -> list[str]:
    """Returns similar keys and groups: `data.path` for `path`, `model` for `modle`."""
    shared = (OmegaConf.to_container(OmegaConf.load(CONFIGURATIONS / file)) for file in _SHARED)
    listed = [*RULES, *(name for content in shared for name, _ in walk(content))]
    listed += [f"data.{name}" for name in read_signature(_DATA).types]
    known = dict.fromkeys(name for name in listed if "*" not in name and name != key)
    groups = {path.name for path in CONFIGURATIONS.iterdir() if path.is_dir()}
    ends = {name: name.rpartition(".")[2] for name in [*known, *sorted(groups - known.keys())]}
    tail = key.rpartition(".")[2]
    if same := [name for name in ends if ends[name] == tail]:
        return sorted(same, key=lambda name: (name.count("."), name))[:2]
    close = get_close_matches(key, list(ends), 2, 0.8)
    like = get_close_matches(tail, list(ends.values()), 1, 0.8)
    return close or [name for name in ends if ends[name] in like][:2]


def _did_you_mean(names: list[str]) -> str:
    return f", did you mean {' or '.join(names)}?" if names else ""
