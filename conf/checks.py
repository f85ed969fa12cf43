"""Checks the user's values against the types that the configured classes declare."""

import inspect
from collections.abc import Iterator
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

_SIMPLE = (int, float, bool, str, type(None))


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
        types = _declared_types(_target(path, node["_target_"]))
        for key, value in node.items():
            allowed = types.get(key, ())
            if allowed and isinstance(value, _SIMPLE) and not _fits(value, allowed):
                names = " or ".join(kind.__name__.replace("NoneType", "null") for kind in allowed)
                raise ValueError(f"{path}{key}={value}: must be {names}")


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


def _declared_types(target: Any) -> dict[str, tuple[type, ...]]:
    """Argument → the plain types it takes; arguments that take anything else are left out."""
    types: dict[str, tuple[type, ...]] = {}
    # A subclass that passes **options on takes its parents' arguments too.
    bases = [base.__init__ for base in target.__mro__] if inspect.isclass(target) else [target]
    for function in bases:
        try:
            hints = get_type_hints(function)
        except (NameError, TypeError):
            continue
        for name, hint in hints.items():
            kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
            if name not in types:
                plain = all(kind in _SIMPLE for kind in kinds) and get_origin(hint) is not Literal
                types[name] = tuple(kinds) if plain else ()
    return types


def _fits(value: Any, allowed: tuple[type, ...]) -> bool:
    if isinstance(value, bool):
        return bool in allowed
    return isinstance(value, allowed) or (float in allowed and isinstance(value, int))
