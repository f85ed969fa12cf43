"""What the entry points share: `python train.py …`, `python -m analysis.run …` and others."""

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import hydra
from hydra._internal import utils as internals
from hydra.errors import (
    ConfigCompositionException,
    InstantiationException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf import DictConfig

from conf.checks import check_values
from conf.experiments import list_options, prepare_arguments
from conf.resolvers import register_resolvers
from gr_mvdr.files.reading import make_printable

CONFIGURATIONS = Path(__file__).parent
_NO_NAME = re.compile(r"null|true|false|[-+]?[\d.]+", re.IGNORECASE)


def command(name: str) -> Callable[[Callable[[DictConfig], None]], Callable[[], None]]:
    """`hydra.main` of `conf/NAME.yaml`, whose values are checked before the function is called.

    What the user got wrong ends the command with status 1 and one line, Hydra's errors included.

    Args:
        name: of a configuration that is a file of `conf/`.
    """

    register_resolvers()

    def decorate(function: Callable[[DictConfig], None]) -> Callable[[], None]:
        @hydra.main(version_base="1.3", config_path=str(CONFIGURATIONS), config_name=name)
        def job(config: DictConfig) -> None:
            with report_errors():
                check_values(config)
                function(config)

        @wraps(function)
        def main() -> None:
            with report_errors(), _raised_by_hydra():
                sys.argv[1:] = prepare_arguments(sys.argv[1:])
                _check_options(sys.argv[1:])
                job()

        return main

    return decorate


def _check_options(arguments: list[str]) -> None:
    """Refuses a group's option that is no name: Hydra would not say which group it was."""
    for argument in arguments:
        group, _, option = argument.partition("=")
        folder = CONFIGURATIONS / group.partition("@")[0]
        if _NO_NAME.fullmatch(option) and folder.is_dir() and folder != CONFIGURATIONS:
            names = {path.stem for path in folder.glob("*.yaml")} | {*list_options(group)}
            said = ", ".join(sorted(names))
            raise ValueError(f"{argument}: must be one of {said}; ~{group} leaves the group out")


@contextmanager
def _raised_by_hydra() -> Iterator[None]:
    """Hydra prints its errors over many lines and exits; here it raises them."""
    kept = internals.run_and_report

    def run(function: Callable[[], Any]) -> Any:
        return function()

    internals.run_and_report = run
    try:
        yield
    finally:
        internals.run_and_report = kept


# Of Hydra's and OmegaConf's messages, what tells the user nothing.
_NOISE = ("See https://hydra.cc", "Config search path:", "provider=", "full_key:", "object_type=")


@contextmanager
def report_errors() -> Iterator[None]:
    """Ends the program with status 1 and ``error: …`` for what messages of this project explain.

    Other exceptions are faults of the code and keep their traceback; so do these under
    HYDRA_FULL_ERROR=1, as a library may raise them, too.

    Raises:
        SystemExit: in the place of a ValueError or OSError, also of one within Hydra's instantiate,
            and of what Hydra refuses on the command line.
    """
    if os.environ.get("HYDRA_FULL_ERROR") == "1":
        yield
        return
    try:
        yield
    except InstantiationException as error:
        sys.exit(f"error: {make_printable(_line(error.__cause__ or error))}")
    except (ConfigCompositionException, OverrideParseException, ValueError, OSError) as error:
        sys.exit(f"error: {make_printable(_line(error))}")


def _line(error: BaseException) -> str:
    """An exception's message in one line, which names the key or the file."""
    if isinstance(error, MissingConfigException) and error.options:
        group, _, option = str(error.missing_cfg_file).rpartition("/")
        return f"{group}={option}: must be one of {', '.join(error.options)}"
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    lines = map(str.strip, str(error).splitlines())
    said = " ".join(line for line in lines if line and not line.startswith(_NOISE))
    if isinstance(error, OverrideParseException):
        return f"{error.override}: {said}"
    # An interpolation's: OmegaConf tells the key it was found in.
    key = getattr(error, "full_key", None)
    return f"{key}: {said}" if key else said
