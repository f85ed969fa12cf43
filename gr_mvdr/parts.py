"""Parts: what a configuration may name with `_target_`, by kind, and the one way to build it.

A class becomes a part by its decorator, ``@part("alignment")``. A dotted path in a configuration
only chooses among parts: looking one up imports no module but those of this library's own folders,
and calls nothing that is not a part of the very kind that is expected. So what a folder from
elsewhere says can be built, and what it cannot name cannot run (docs/security.md).

What the user types on the command line is trusted: `admitting` lets its names through.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from inspect import isclass, isfunction
from pathlib import Path
from typing import Any, TypeVar

from gr_mvdr.files.printable import shown
from gr_mvdr.signature import check_arguments, positional

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
        raise ValueError(f"{kind}={shown(settings)}: must be a group of keys with {TARGET}")
    target = find_part(kind, settings[TARGET])
    options = {name: value for name, value in settings.items() if name != TARGET}
    check_arguments(kind, target, options, [*positional(target, len(arguments)), *named])
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
        f"{kind}.{TARGET}={shown(path)}: is no part of this library, and opening a folder runs "
        "no other code: trust=true runs it, for a folder of your own"
    )


def check_parts(kind: str, configuration: Any) -> None:
    """Refuses a configuration that names anything but parts, at any depth, before one is built.

    Raises:
        ValueError: as `find_part`.
    """
    for path in targets(configuration):
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
    names = frozenset(name for config in configurations for name in targets(config))
    token = _admitted.set(_admitted.get() | names)
    try:
        yield
    finally:
        _admitted.reset(token)


def targets(configuration: Any) -> Iterator[str]:
    """All names under `_target_` in a configuration."""
    if isinstance(configuration, Mapping):
        if isinstance(name := configuration.get(TARGET), str):
            yield name
        configuration = list(configuration.values())
    for item in configuration if isinstance(configuration, list | tuple) else []:
        yield from targets(item)
