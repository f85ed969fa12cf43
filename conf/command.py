"""What the entry points share: `python train.py …`, `python -m analysis.run …` and others."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import hydra
from hydra._internal import utils as internals
from omegaconf import DictConfig

from conf.checks import check_values
from conf.errors import errors_in_a_line
from conf.resolvers import register_resolvers

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
            with errors_in_a_line():
                check_values(config)
                function(config)

        @wraps(function)
        def main() -> None:
            with errors_in_a_line(), _raised_by_hydra():
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
            names = ", ".join(sorted(path.stem for path in folder.glob("*.yaml")))
            raise ValueError(f"{argument}: must be one of {names}; ~{group} leaves the group out")


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
