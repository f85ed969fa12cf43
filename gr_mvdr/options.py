"""Options: the parts that `_target_` may name, by kind, and the ranges of their arguments.

A class becomes a part by its decorator, ``@part("alignment")``. A dotted path in a configuration
only chooses among parts: the lookup imports only modules from this library's own folders, and calls
only parts of the expected kind. So a configuration from elsewhere can be built, but can run no
other code (docs/design.md).

The type of an argument declares which values it may have: `k: Annotated[int, AtLeast(1)]`. A part
checks its arguments when it is called; the command line checks them before anything heavy is
imported.

What the user types on the command line is trusted: `admitting` allows the classes that it names.
"""

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, wraps
from importlib import import_module
from inspect import isclass, isfunction
from pathlib import Path
from sys import float_info
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

TARGET = "_target_"
_SHOWN = 80  # characters of a value in an error
_HOUSE = Path(__file__).parents[1]
ROOMS = ("gr_mvdr", "data_modules", "models", "analysis")

Target = TypeVar("Target", bound=Callable[..., Any])

# Class or function → its kind; and its arguments that are parts themselves → their kinds.
_parts: dict[Any, tuple[str, Mapping[str, str]]] = {}
_admitted: ContextVar[frozenset[str]] = ContextVar("admitted", default=frozenset())


def part(kind: str, **nested: str) -> Callable[[Target], Target]:
    """Makes a class, or a function that makes one, a part that configurations can name.

    Args:
        kind: the part's role, such as "alignment"; `build` asks for a part of a kind.
        nested: arguments that are parts themselves (or lists of parts) → their kind. They are
            built before the class is called. Subclasses inherit this.
    """

    def register(target: Target) -> Target:
        if isfunction(target):
            target = checked(target)
        elif isfunction(target.__init__) and not hasattr(target.__init__, "__wrapped__"):
            target.__init__ = checked(target.__init__)  # type: ignore[method-assign]
        _parts[target] = kind, nested
        return target

    return register


def checked(function: Target) -> Target:
    """Makes a function check its arguments against the rules that their types declare.

    Raises:
        ValueError: when the function is called, such as "k=0: must be a whole number ≥ 1".
    """
    signature = inspect.signature(function)

    @cache  # at the first call, when every name in the annotations is defined
    def rules() -> dict[str, Any]:
        return {name: hint for name, hint in _hints(function).items() if _has_rule(hint)}

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        for name, value in signature.bind(*arguments, **named).arguments.items():
            if name in rules() and not fits_type(value, rules()[name]):
                raise ValueError(f"{name}={show(value)}: must be {describe_type(rules()[name])}")
        return function(*arguments, **named)

    return call  # type: ignore[return-value]


def _has_rule(hint: Any) -> bool:
    """Whether a type restricts its values: it is, or contains, an `Annotated` or a `Literal`."""
    return get_origin(hint) in (Annotated, Literal) or any(map(_has_rule, get_args(hint)))


def build(kind: str, settings: Mapping[str, Any], *arguments: Any, **named: Any) -> Any:
    """Builds a part from the plain dict that describes it.

    Args:
        kind: the kind of part that is expected.
        settings: `_target_`, a dotted path, and keyword arguments.
        arguments, named: what settings cannot hold, such as a backbone.

    Raises:
        ValueError: no part of this kind has that path, or it does not take the arguments. The error
            names the kind and the key: "alignment.k=a: must be a whole number ≥ 1".
    """
    if not isinstance(settings, Mapping) or TARGET not in settings:
        raise ValueError(f"{kind}={show(settings)}: must be a group of keys with {TARGET}")
    target = find_part(kind, settings[TARGET])
    options = {name: value for name, value in settings.items() if name != TARGET}
    signature = inspect_signature(target)
    check_options(kind, signature, options, [*list(signature.types)[: len(arguments)], *named])
    owners = reversed(target.__mro__) if isclass(target) else [target]  # the class itself counts
    nested = {n: k for owner in owners if owner in _parts for n, k in _parts[owner][1].items()}
    for name in nested.keys() & options.keys():
        options[name] = _build_nested(nested[name], options[name])
    return target(*arguments, **options, **named)


def _build_nested(kind: str, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_build_nested(kind, item) for item in value]
    return None if value is None else build(kind, value)


def find_part(kind: str, path: Any) -> Callable[..., Any]:
    """Returns the class, or the function that makes an object, with this dotted path.

    Raises:
        ValueError: the path names no part of this kind, nor anything that the user has typed.
    """
    target = _find_own(path) if isinstance(path, str) else None
    if target in _parts:
        if _parts[target][0] != kind:
            raise ValueError(f"{kind}.{TARGET}={path}: must be of the kind {kind}")
        return target
    if isinstance(path, str) and path in _admitted.get():
        return import_named(f"{kind}.{TARGET}", path)
    raise ValueError(
        f"{kind}.{TARGET}={show(path)}: is not a part of this library. Opening a folder "
        "never runs other code; pass trust=true if the folder is yours"
    )


def check_parts(kind: str, configuration: Any) -> None:
    """Checks, before anything is built, that a configuration names only parts at any depth.

    Raises:
        ValueError: as `find_part`.
    """
    for path in find_targets(configuration):
        target = _find_own(path)
        find_part(_parts[target][0] if target in _parts else kind, path)


def _find_own(path: str) -> Any:
    """Returns this library's class or function with this dotted path; None if it does not exist."""
    module, _, name = path.rpartition(".")
    words = module.split(".")
    if words[0] not in ROOMS or not all(word.isidentifier() for word in words):
        return None
    if not _HOUSE.joinpath(*words).with_suffix(".py").is_file():
        return None
    value = vars(import_module(module)).get(name)
    return value if isclass(value) or isfunction(value) else None


def import_named(key: str, path: str) -> Callable[..., Any]:
    """Imports the class or function with this dotted path; `key` names it in the configuration.

    Raises:
        ValueError: its module cannot be imported or lacks it; the message shows the cause.
    """
    module, _, name = path.rpartition(".")
    try:
        if callable(target := getattr(import_module(module), name)):
            return target
        raise TypeError(f"is {show(target)}, not a class")
    except Exception as error:  # a module of the user may raise anything
        cause = f"{type(error).__name__}: {error}"
        raise ValueError(f"{key}={path}: cannot be imported ({cause})") from error


@contextmanager
def admitting(*configurations: Any) -> Iterator[None]:
    """Allows, inside the block, every class that these configurations name: the user typed them.

    Args:
        configurations: dicts and lists; every `_target_` in them counts, at any depth.
    """
    names = frozenset(name for config in configurations for name in find_targets(config))
    token = _admitted.set(_admitted.get() | names)
    try:
        yield
    finally:
        _admitted.reset(token)


def find_targets(configuration: Any) -> Iterator[str]:
    """Yields every name under `_target_` in a configuration, at any depth."""
    if isinstance(configuration, Mapping):
        if isinstance(name := configuration.get(TARGET), str):
            yield name
        configuration = list(configuration.values())
    for item in configuration if isinstance(configuration, list | tuple) else []:
        yield from find_targets(item)


class Rule(NamedTuple):
    """A rule for an option that its type cannot express: ``Annotated[int, AtLeast(1)]``.

    Attributes:
        words: the rule in an error message, after the type: "≥ 1". Words that begin with a letter
            replace the type.
        accepts: tells whether a value of the type obeys the rule.
    """

    words: str
    accepts: Callable[[Any], bool]


def AtLeast(least: float) -> Rule:
    return Rule(f"≥ {least}", lambda value: value >= least)


Count = Annotated[int, AtLeast(0)]
Size = Annotated[int, AtLeast(1)]
NonNegative = Annotated[float, AtLeast(0)]
Positive = Annotated[float, Rule("> 0", lambda value: value > 0)]
Fraction = Annotated[float, Rule("≥ 0 and ≤ 1", lambda value: 0 <= value <= 1)]
Proportion = Annotated[float, Rule("> 0 and ≤ 1", lambda value: 0 < value <= 1)]
Rate = Annotated[float, Rule("≥ 0 and < 1", lambda value: 0 <= value < 1)]
Seed = Annotated[int, Rule("≥ 0 and < 4294967296", lambda value: 0 <= value < 2**32)]
Text = Annotated[str, Rule("text that is not empty", bool)]


def exists(path: str) -> bool:
    """Whether there is a file or folder at a path; "~" is the user's home folder."""
    return bool(path) and Path(path).expanduser().exists()


ExistingPath = Annotated[str, Rule("an existing file or folder", exists)]


def _is_pattern(text: str) -> bool:
    try:
        return bool(re.compile(text).pattern)
    except re.error:
        return False


Pattern = Annotated[str, Rule("a regular expression", _is_pattern)]

_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
_WORDS |= {type(None): "null"}
_LISTS, _GROUPS = (list, tuple, Sequence), (dict, Mapping)


@dataclass(frozen=True)
class Signature:
    """The arguments that a class or function takes by name.

    Attributes:
        name: the name of the class or function.
        types: parameter → its declared type; `Any` if none is declared.
        required: the parameters without a default.
        open_ended: whether other names are accepted, too.
    """

    name: str
    types: Mapping[str, Any]
    required: Collection[str] = ()
    open_ended: bool = False


def check_options(
    key: str, signature: Signature, options: Mapping[str, Any], given: Collection[str] | None = None
) -> None:
    """Checks that a class or function takes these options.

    Args:
        key: the options' place in the configuration, such as "model.alignment".
        signature: the signature of the class or function that takes them.
        options: name → value.
        given: names of the arguments that the caller passes itself; None = unknown: missing
            arguments are not reported.

    Raises:
        ValueError: names the key, the rule and the value.
    """
    own = [name for name in signature.types if name not in (given or ())]
    for name, value in options.items():
        if name in (given or ()) or not (name in own or signature.open_ended):
            rule = f"must be one of {', '.join(sorted(own))}"
            rule = rule if own else f"must be absent, as {signature.name} has no keys"
            raise ValueError(f"{key}.{name}={show(value)}: {rule}")
        if not fits_type(value, kind := signature.types.get(name, Any)):
            raise ValueError(f"{key}.{name}={show(value)}: must be {describe_type(kind)}")
    if given is not None:
        for name in own:
            if name in signature.required and name not in options:
                raise ValueError(f"{key}.{name}=…: must be given, {signature.name} needs it")


def inspect_signature(target: Any) -> Signature:
    """Returns the signature of an imported class or function.

    A subclass that takes ``**options`` has its parents' arguments as well.
    """
    functions: list[Any] = [target]
    if is_class := isclass(target):
        functions = [vars(c)["__init__"] for c in target.__mro__[:-1] if "__init__" in vars(c)]
    types: dict[str, Any] = {}
    required: set[str] = set()
    open_ended = False
    for function in functions:
        hints = _hints(function)
        parameters = list(inspect.signature(function).parameters.values())[is_class:]
        open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
        for p in parameters:
            if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) and p.name not in types:
                types[p.name] = hints.get(p.name, Any)
                required |= {p.name} if p.default is p.empty else set()
        if not open_ended:
            break
    return Signature(target.__name__, types, required, open_ended)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError):
        return {}


def fits_type(value: Any, hint: Any) -> bool:
    """Whether a value fits a declared type; True if the type cannot be checked."""
    origin = get_origin(hint)
    if origin is Annotated:
        rules = [rule for rule in hint.__metadata__ if isinstance(rule, Rule)]
        return fits_type(value, hint.__origin__) and all(rule.accepts(value) for rule in rules)
    if origin in (Union, UnionType):
        return any(fits_type(value, kind) for kind in get_args(hint))
    if origin is Literal:
        return any(value == one and type(value) is type(one) for one in get_args(hint))
    kind = origin or hint
    if kind in _LISTS:
        fits = isinstance(value, Sequence) and not isinstance(value, str)
        return fits and all(fits_type(item, _item_type(hint)) for item in value)
    if kind in _GROUPS:
        fits = isinstance(value, Mapping)
        return fits and all(fits_type(item, _item_type(hint)) for item in value.values())
    if kind is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and abs(value) <= float_info.max  # neither nan nor inf
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind) if kind in _WORDS else True


def _item_type(hint: Any) -> Any:
    """Returns the type of a list's items or a group's values; `Any` if none is declared."""
    return next((kind for kind in reversed(get_args(hint)) if kind is not ...), Any)


def describe_type(hint: Any) -> str:
    """Describes a type for error messages: "a whole number ≥ 1, or null"."""
    origin = get_origin(hint)
    if origin is Annotated:
        rules = [rule.words for rule in hint.__metadata__ if isinstance(rule, Rule)]
        if rules and rules[0][0].isalpha():
            return rules[0]
        return " ".join([describe_type(hint.__origin__), *rules])
    if origin in (Union, UnionType):
        kinds = get_args(hint)
        lists = {kind: "a list of them" for kind in kinds if _item_type(kind) in kinds}
        *first, last = (lists.get(kind) or describe_type(kind) for kind in kinds)
        comma = "," if len(first) > 1 or "≥" in first[0] else ""
        return f"{', '.join(first)}{comma} or {last}"
    if origin is Literal:
        names = list(map(str, get_args(hint)))
        return f"one of {', '.join(names)}" if len(names) > 2 else " or ".join(names)
    if (origin or hint) in _LISTS + _GROUPS:
        name = "a list" if (origin or hint) in _LISTS else "a group of keys"
        item = _item_type(hint)
        return name if item is Any else f"{name}, each {describe_type(item)}"
    return _WORDS.get(hint) or getattr(hint, "__name__", str(hint))


def check_choice(key: str, value: str, choices: Collection[str]) -> None:
    """Raises ValueError unless the value is one of the choices."""
    if value not in choices:
        raise ValueError(f"{key}={show(value)}: must be one of {', '.join(choices)}")


def make_printable(text: object) -> str:
    """Spells out the characters that control a terminal: escape codes, reversed writing."""
    return "".join(
        letter if letter.isprintable() or letter == "\n" else ascii(letter)[1:-1]
        for letter in str(text)
    )


def name_some(names: Sequence[str]) -> str:
    """Formats a list for an error or a message: three names, and the number of the others."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")


def show(value: object) -> str:
    """Formats a value for an error in one line, as the command line writes it: null, [a, b]."""
    if value is None or isinstance(value, bool):
        text = {None: "null", True: "true", False: "false"}[value]
    elif isinstance(value, list):
        text = f"[{', '.join(map(show, value))}]"
    else:
        text = " ".join(str(value).split()) or repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
