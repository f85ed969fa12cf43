"""Checks the user's values against the types that the configured classes declare."""

from collections.abc import Iterator
from typing import Any

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from gr_mvdr.signature import check_arguments

_HYDRA = ("_target_", "_args_", "_partial_", "_recursive_", "_convert_")


def check_values(config: DictConfig) -> None:
    """Refuses a value that is missing or whose type its class does not take.

    Called before anything is built.

    Args:
        config: the whole configuration; every node with `_target_` is checked.

    Raises:
        ValueError: names the key as the user typed it, the rule and the value.
    """
    # As it was written: what is made of a missing value cannot be resolved.
    for key in _missing(OmegaConf.to_container(config), ""):
        raise ValueError(f"{key}=…: must be given on the command line")
    for path, node in _targets(OmegaConf.to_container(config, resolve=True), ""):
        options = {key: value for key, value in node.items() if key not in _HYDRA}
        check_arguments(path.removesuffix("."), _target(path, node["_target_"]), options)


def _missing(node: Any, path: str) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _missing(value, f"{path}.{key}".strip("."))
    elif node == "???":
        yield path


def _target(path: str, name: str) -> Any:
    try:
        return get_object(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{path}_target_={name}: no such class") from error


def _targets(node: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, dict):
        if "_target_" in node:
            yield path, node
        for key, value in node.items():
            yield from _targets(value, f"{path}{key}.")
