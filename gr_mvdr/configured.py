"""Builds a part from the plain dict that describes it, as Hydra would, but without Hydra.

Systems keep such dicts among their hyper-parameters, so that a checkpoint holds nothing but
scalars, lists and dicts.
"""

from importlib import import_module
from typing import Any


def build(settings: dict[str, Any], *arguments: Any, **named: Any) -> Any:
    """Calls `settings["_target_"]` with the other settings and the given arguments.

    Args:
        settings: `_target_`, a dotted path to a class, and keyword arguments.
        arguments, named: what the settings cannot hold, such as a backbone.

    Raises:
        ValueError: there is no such class.
    """
    options = {key: value for key, value in settings.items() if key != "_target_"}
    return target(settings["_target_"])(*arguments, **options, **named)


def target(path: str) -> Any:
    """The class, or the function that makes one, of a dotted path.

    Raises:
        ValueError: there is none.
    """
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"_target_={path}: no such class ({error})") from error
