"""Parts: what a configuration may name with `_target_`, by kind, and the one way to build it.

A class becomes a part by its decorator, ``@part("alignment")``. A dotted path in a configuration
only chooses among parts: looking one up imports no module but those of this library's own folders,
and calls nothing that is not a part of the very kind that is expected. So what a folder from
elsewhere says can be built, and what it cannot name cannot run (docs/security.md).

What the user types on the command line is trusted: `admitting` lets its names through.
"""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from inspect import isclass, isfunction
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from gr_mvdr.files.reading import show

TARGET = "_target_"
_HOUSE = Path(__file__).parents[1]
_ROOMS = ("gr_mvdr", "data_modules", "models", "analysis")

Target = TypeVar("Target", bound=Callable[..., Any])


@dataclass(frozen=True)
class _Part:
    """A registered class or function: its kind, and which of its arguments are parts of a kind."""

    kind: str
    nested: Mapping[str, str]


_parts: dict[Any, _Part] = {}
_admitted: ContextVar[frozenset[str]] = ContextVar("admitted", default=frozenset())


def part(kind: str, **nested: str) -> Callable[[Target], Target]:
    """Makes a class, or a function that makes one, a part that configurations can name.

    Args:
        kind: what it is, such as "alignment"; whoever builds one asks for a kind.
        nested: arguments that are parts themselves (or lists of them) → their kind. They are
            built before the class is called; a subclass has them, too.
    """

    def register(target: Target) -> Target:
        _parts[target] = _Part(kind, nested)
        return target

    return register


def build(kind: str, settings: Mapping[str, Any], *arguments: Any, **named: Any) -> Any:
    """Builds a part from the plain dict that describes it.

    Args:
        kind: of the part that is expected here.
        settings: `_target_`, a dotted path, and keyword arguments.
        arguments, named: what settings cannot hold, such as a backbone.

    Raises:
        ValueError: no such part of this kind, or arguments that it does not take; names the key
            after the kind, "alignment.k=a: must be int".
    """
    if not isinstance(settings, Mapping) or TARGET not in settings:
        raise ValueError(f"{kind}={show(settings)}: must be a group of keys with {TARGET}")
    target = find_part(kind, settings[TARGET])
    options = {name: value for name, value in settings.items() if name != TARGET}
    check_arguments(kind, target, options, [*_positional(target, len(arguments)), *named])
    for name, nested in _nested(target).items():
        if name in options:
            options[name] = _built(nested, options[name])
    return target(*arguments, **options, **named)


def find_part(kind: str, path: Any) -> Callable[..., Any]:
    """The class, or the function that makes one, of a dotted path.

    Raises:
        ValueError: there is no such part of this kind, and the user has not named it himself.
    """
    found = _of_the_house(path) if isinstance(path, str) else None
    if found in _parts:
        if _parts[found].kind != kind:
            raise ValueError(f"{kind}.{TARGET}={path}: must be of the kind {kind}")
        return found
    if isinstance(path, str) and path in _admitted.get():
        return _imported(kind, path)
    raise ValueError(
        f"{kind}.{TARGET}={show(path)}: is no part of this library, and opening a folder runs "
        "no other code: trust=true runs it, for a folder of your own"
    )


def check_parts(kind: str, configuration: Any) -> None:
    """Refuses a configuration that names anything but parts, at any depth, before one is built.

    Raises:
        ValueError: as `find_part`.
    """
    for path in find_targets(configuration):
        found = _of_the_house(path)
        find_part(_parts[found].kind if found in _parts else kind, path)


def _of_the_house(path: str) -> Any:
    """What a module of this library calls by that name; None if there is no such module or name."""
    module, _, name = path.rpartition(".")
    words = module.split(".")
    if words[0] not in _ROOMS or not all(word.isidentifier() for word in words):
        return None
    if not _HOUSE.joinpath(*words).with_suffix(".py").is_file():
        return None
    found = vars(import_module(module)).get(name)
    return found if isclass(found) or isfunction(found) else None


def _imported(kind: str, path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{kind}.{TARGET}={path}: no such class ({error})") from error


def _nested(target: Callable[..., Any]) -> dict[str, str]:
    """Argument → the kind of part that it is, for a class or function and its parents."""
    owners = reversed(target.__mro__) if isclass(target) else [target]
    return {n: k for owner in owners if owner in _parts for n, k in _parts[owner].nested.items()}


def _built(kind: str, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_built(kind, item) for item in value]
    return None if value is None else build(kind, value)


@contextmanager
def admitting(*configurations: Any) -> Iterator[None]:
    """Within it, whatever these configurations name may be built: the user has typed them.

    Args:
        configurations: of dicts and lists; names are those under `_target_`, at any depth.
    """
    names = frozenset(name for config in configurations for name in find_targets(config))
    token = _admitted.set(_admitted.get() | names)
    try:
        yield
    finally:
        _admitted.reset(token)


def find_targets(configuration: Any) -> Iterator[str]:
    """All names under `_target_` in a configuration."""
    if isinstance(configuration, Mapping):
        if isinstance(name := configuration.get(TARGET), str):
            yield name
        configuration = list(configuration.values())
    for item in configuration if isinstance(configuration, list | tuple) else []:
        yield from find_targets(item)


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
    known, open_ended = _parameters(target)
    hints = _hints(target)
    for name, value in options.items():
        if (name not in known and not open_ended) or name in (given or ()):
            others = ", ".join(sorted(known.keys() - set(given or ())))
            rule = (
                f"must be one of {others}"
                if others
                else f"must be absent, as {target.__name__} has no keys"
            )
            raise ValueError(f"{key}.{name}={show(value)}: {rule}")
        if not fits_type(value, hints.get(name, Any)):
            raise ValueError(f"{key}.{name}={show(value)}: must be {describe_type(hints[name])}")
    if given is not None:
        for name, parameter in known.items():
            if parameter.default is parameter.empty and name not in {*options, *given}:
                raise ValueError(f"{key}.{name}=…: must be given, {target.__name__} needs it")


def _parameters(target: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], bool]:
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


def _positional(target: Callable[..., Any], count: int) -> list[str]:
    """The names of the first arguments."""
    return list(_parameters(target)[0])[:count]


def _hints(target: Callable[..., Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for function in _functions(target):
        try:
            found = get_type_hints(function) | found
        except (NameError, TypeError):
            continue
    return found


def fits_type(value: Any, hint: Any) -> bool:
    """Whether a value of a configuration is of a declared type; True where nobody can say."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(fits_type(value, kind) for kind in get_args(hint))
    if origin is Literal:
        return value in get_args(hint)
    if (container := _CONTAINERS.get(origin or hint)) is not None:
        return isinstance(value, container)
    if hint not in _SIMPLE:
        return True
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, hint) or (hint is float and isinstance(value, int))


def describe_type(hint: Any) -> str:
    """A type for people: "int or null"."""
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(map(describe_type, get_args(hint)))
    if get_origin(hint) is Literal:
        return " or ".join(map(str, get_args(hint)))
    if hint is type(None):
        return "null"
    container = _CONTAINERS.get(get_origin(hint) or hint)
    return {None: "", dict: "a group of keys"}.get(container, "a list") or hint.__name__
