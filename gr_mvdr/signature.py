"""A configuration's values against the signature of what is to be called with them."""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from gr_mvdr.files.printable import shown

_SIMPLE = (int, float, bool, str, type(None))
_CONTAINERS = {dict: dict, list: (list, tuple), tuple: (list, tuple), Sequence: (list, tuple)}


def check_arguments(
    key: str,
    target: Callable[..., Any],
    options: Mapping[str, Any],
    given: Collection[str] | None = None,
) -> None:
    """Refuses options that a class or function does not take.

    Args:
        key: of the options in the configuration, such as "model.alignment".
        target: what will be called with them.
        options: name → value.
        given: names of the arguments that the caller gives himself; None = not known, so that
            nothing can be said to be missing.

    Raises:
        ValueError: names the key, the rule and the value.
    """
    known, open_ended = parameters(target)
    hints = _hints(target)
    for name, value in options.items():
        if (name not in known and not open_ended) or name in (given or ()):
            others = ", ".join(sorted(known.keys() - set(given or ())))
            rule = (
                f"must be one of {others}"
                if others
                else f"must be absent, as {target.__name__} has no keys"
            )
            raise ValueError(f"{key}.{name}={shown(value)}: {rule}")
        if not fits(value, hints.get(name, Any)):
            raise ValueError(f"{key}.{name}={shown(value)}: must be {described(hints[name])}")
    if given is not None:
        for name, parameter in known.items():
            if parameter.default is parameter.empty and name not in {*options, *given}:
                raise ValueError(f"{key}.{name}=…: must be given, {target.__name__} needs it")


def parameters(target: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], bool]:
    """Name → parameter, and whether any other name is taken, too.

    A subclass that passes **options on takes its parents' arguments as well.
    """
    found: dict[str, inspect.Parameter] = {}
    for function in _functions(target):
        try:
            own = list(inspect.signature(function).parameters.values())
        except ValueError:  # some of C's functions have none
            return found, True
        own = own[inspect.isclass(target) :]
        for parameter in own:
            if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                found.setdefault(parameter.name, parameter)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in own):
            return found, False
    parents = target.__mro__[:-1] if inspect.isclass(target) else ()
    return found, bool(_functions(target)) or any("__new__" in vars(base) for base in parents)


def _functions(target: Callable[..., Any]) -> list[Callable[..., Any]]:
    """A function itself; of a class each `__init__` that it and its parents have."""
    if not inspect.isclass(target):
        return [target]
    parents = (base for base in target.__mro__ if base is not object)
    return [base.__init__ for base in parents if "__init__" in vars(base)]


def positional(target: Callable[..., Any], count: int) -> list[str]:
    """The names of the first arguments."""
    return list(parameters(target)[0])[:count]


def _hints(target: Callable[..., Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for function in _functions(target):
        try:
            found = get_type_hints(function) | found
        except (NameError, TypeError):
            continue
    return found


def fits(value: Any, hint: Any) -> bool:
    """Whether a value of a configuration is of a declared type; True where nobody can say."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(fits(value, kind) for kind in get_args(hint))
    if origin is Literal:
        return value in get_args(hint)
    if (container := _CONTAINERS.get(origin or hint)) is not None:
        return isinstance(value, container)
    if hint not in _SIMPLE:
        return True
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, hint) or (hint is float and isinstance(value, int))


def described(hint: Any) -> str:
    """A type for people: "int or null"."""
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(map(described, get_args(hint)))
    if get_origin(hint) is Literal:
        return " or ".join(map(str, get_args(hint)))
    if hint is type(None):
        return "null"
    container = _CONTAINERS.get(get_origin(hint) or hint)
    return {None: "", dict: "a group of keys"}.get(container, "a list") or hint.__name__
