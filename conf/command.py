"""The command line of the entry points `python train.py …`, `python -m analysis.run …` and others.

Nothing heavy is imported before the command line is parsed and all values are checked.
"""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

import hydra
from hydra._internal import utils as internals
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.errors import (
    ConfigCompositionException,
    InstantiationException,
    MissingConfigException,
    OverrideParseException,
    SearchPathException,
)
from hydra.types import RunMode
from hydra.version import VersionBase
from omegaconf import DictConfig, open_dict
from omegaconf.errors import OmegaConfBaseException

from conf.composition import GROUPS, list_options, prepare_arguments, register_resolvers
from gr_mvdr.options import make_printable

CONFIGURATIONS = Path(__file__).parent
_NO_NAME = re.compile(r"null|true|false|[-+]?[\d.]+", re.IGNORECASE)
_UNKNOWN_KEY = re.compile(r"Could not override '(?P<key>[^']+)'")
# Parts of Hydra's and OmegaConf's messages that do not help the user.
_NOISE = ("See https://hydra.cc", "Config search path:", "provider=", "full_key:", "object_type=")
# An item of a list; commas within its brackets belong to it.
_LIST_ITEM = r"(\([^)]*\)|[^][,(])+"

_DATA = "data_modules.sources.FilesDataModule"
RESUME = "interrupted: run the same command with resume=true to continue"


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
        from conf.checks import check_hub, check_values  # not needed for --help

        with report_errors():
            check_values(config, sys.argv[1:])
            check_hub(config)
            getattr(import_module(module), function)(config)

    register_resolvers()
    # Hydra would print its errors over many lines and exit; this makes it raise them.
    internals.run_and_report = lambda function: function()
    with report_errors(name):
        sys.argv[1:] = prepare_arguments(sys.argv[1:])
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
    from conf.checks import check_values

    register_resolvers()
    with explain_errors(overrides, name), _own_hydra():
        arguments = prepare_arguments(list(overrides))
        _check_options(arguments)
        with hydra.initialize_config_dir(str(CONFIGURATIONS), version_base="1.3"):
            config = hydra.compose(name, arguments, return_hydra_config=True)
        if config.hydra.mode == RunMode.MULTIRUN:
            rule = "is a sweep, which needs the command line; hydra.mode=RUN makes one run of it"
            raise ValueError(f"{' '.join(overrides)}: {rule}")
        HydraConfig.instance().set_config(config)
        if "name" in config:
            config.name = config.name  # resolved while Hydra knows this command
        with open_dict(config):
            del config["hydra"]
        check_values(config, arguments)
    return config


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


def _check_options(arguments: list[str]) -> None:
    """Raises ValueError if a group's option is not a name; Hydra's error lacks the group."""
    for argument in arguments:
        group, _, option = argument.partition("=")
        folder = CONFIGURATIONS / group.partition("@")[0]
        if group and _NO_NAME.fullmatch(option) and (group in GROUPS or folder.is_dir()):
            names = {path.stem for path in folder.glob("*.yaml")} | {*list_options(group)}
            said = ", ".join(sorted(names))
            raise ValueError(f"{argument}: must be one of {said}; ~{group} leaves the group out")


@contextmanager
def report_errors(name: str = "train") -> Iterator[None]:
    """Ends the program with status 1 and ``error: …`` for errors that this project explains.

    Other exceptions are bugs and keep their traceback. HYDRA_FULL_ERROR=1 keeps every traceback,
    since a library may raise a ValueError or OSError too.

    Args:
        name: as in `run_command`.

    Raises:
        SystemExit: instead of a ValueError or OSError, also from within Hydra's instantiate, and
            instead of Hydra's errors about the command line.
    """
    if os.environ.get("HYDRA_FULL_ERROR") == "1":
        yield
        return
    try:
        with explain_errors(sys.argv[1:], name):
            yield
    except (ValueError, OSError) as error:
        sys.exit(f"error: {make_printable(_explain(error))}")


@contextmanager
def explain_errors(arguments: Sequence[str], name: str = "train") -> Iterator[None]:
    """Turns errors of Hydra and OmegaConf into a ValueError of one line.

    Args:
        arguments: as the user typed them; an error quotes the wrong one.
        name: as in `run_command`.

    Raises:
        ValueError, OSError: this project's own errors unchanged, also from within an instantiate.
    """
    try:
        yield
    except InstantiationException as error:
        if isinstance(error.__cause__, ValueError | OSError):
            raise error.__cause__ from None
        raise ValueError(_explain(error.__cause__ or error)) from error
    except (
        ConfigCompositionException,
        OverrideParseException,
        OmegaConfBaseException,
        SearchPathException,
    ) as error:
        raise ValueError(_explain(error, arguments, name)) from None


def _explain(error: BaseException, arguments: Sequence[str] = (), name: str = "") -> str:
    """Returns an exception's message without line breaks; it names the key or the file."""
    from conf.checks import did_you_mean

    if isinstance(error, MissingConfigException) and error.options:
        group, _, option = str(error.missing_cfg_file).rpartition("/")
        close = did_you_mean(option, error.options)
        return f"{group}={option}: must be one of {', '.join(error.options)}{close}"
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    if unknown := _UNKNOWN_KEY.match(str(error)):
        key = unknown["key"]
        typed = (word for word in arguments if word.startswith(f"{key}="))
        return _explain_key(key, next(typed, key), name, arguments)
    lines = map(str.strip, str(error).splitlines())
    said = " ".join(line for line in lines if line and not line.startswith(_NOISE))
    if isinstance(error, OverrideParseException):
        key, _, value = error.override.partition("=")
        if "=" in value and "'" not in value:
            items = _LIST_ITEM if value.startswith("[") else ".+"
            quoted = re.sub(items, r"'\g<0>'", value)
            return f'{error.override}: must be quoted: "{key}={quoted}"'
        return f"{error.override}: {said}"
    # OmegaConf's error about an interpolation knows the key that contains it.
    key = getattr(error, "full_key", None)
    return f"{key}: {said}" if key else said


def _explain_key(key: str, argument: str, command: str, arguments: Sequence[str]) -> str:
    """Explains an unknown key: names the options that have it, or similar keys.

    Args:
        argument: as the user typed it, such as "data.path=FOLDER".
        command, arguments: as in `explain_errors`.
    """
    from conf.checks import did_you_mean, own_keys
    from conf.rules import RULES
    from conf.signatures import read_signature

    names = key.split(".")
    for place in reversed(range(len(names) - 1)):
        group, *inner = names[place:]
        lines = [re.compile(rf"^ *{re.escape(name)}:", re.MULTILINE) for name in inner]
        texts = {f.stem: f.read_text("utf-8") for f in CONFIGURATIONS.glob(f"{group}/*.yaml")}
        having = [o for o in sorted(texts) if all(line.search(texts[o]) for line in lines)]
        if having:
            options = " or ".join(f"{group}={option}" for option in having)
            return f"{argument}: not a key of the chosen {group}, {options} has it"
    adds = f", +{key}=… adds it"
    if key in RULES and "." in key:
        return f"{argument}: not in this configuration{adds}"
    groups = {path.name for path in CONFIGURATIONS.iterdir() if path.is_dir()}
    chosen = [a for a in arguments if a.partition("=")[0].partition("@")[0] in groups]
    known = [*(k for k in RULES if "*" not in k), *groups]
    # An option in a folder of the user's own is not found.
    with (
        suppress(ConfigCompositionException),
        _own_hydra(),
        hydra.initialize_config_dir(str(CONFIGURATIONS), version_base="1.3"),
    ):
        known += own_keys(hydra.compose(command, chosen))
    known += [f"data.{name}" for name in read_signature(_DATA).types]
    # A new key at the top level would be refused.
    meant = did_you_mean(key, known) or did_you_mean(names[-1], known)
    return f"{argument}: no such key{meant or adds * ('.' in key)}"
