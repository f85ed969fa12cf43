"""The signature of a class, read from its source: importing it would take seconds of torch.

The reader follows imports, base classes, dataclasses and type aliases. Where the source is not
enough (compiled code, classes made by code), `read_signature` returns None and the caller imports
the class.
"""

import ast
import builtins
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any, NamedTuple

from gr_mvdr import options
from gr_mvdr.options import ROOMS, Signature

# What annotations are made of, besides the types of `gr_mvdr.options`.
_TYPES = {name: getattr(typing, name) for name in ("Annotated", "Literal", "Optional", "Union")}
_TYPES |= {"Mapping": Mapping, "Sequence": Sequence, "Any": Any}
# Base classes without an `__init__`.
_PLAIN_BASES = {"object", "ABC", "Generic", "Protocol"}


class Definition(NamedTuple):
    """A class or function of this project in an annotation; stands for what is not imported.

    ``Annotated[dict[str, Any], SearchOptions]`` is a group of keys that `SearchOptions` takes.
    """

    path: str


Place = tuple[str, ast.ClassDef | ast.FunctionDef]  # a module, and a definition in it
Parameters = tuple[dict[str, Any], bool]  # their types, and whether any other name is taken, too


@cache
def read_signature(path: str) -> Signature | None:
    """The signature of the class or function of a dotted path; None: the source cannot tell.

    Which parameters have a default is not read.
    """
    if (place := _find(*path.rpartition(".")[::2])) is None:
        return None
    name = place[1].name
    if isinstance(place[1], ast.FunctionDef):
        types, open_ended = _read_parameters(*place)
        return Signature(name, types, open_ended=open_ended)
    types, open_ended = {}, False
    for parent in _lineage(*place):
        if parent is None:
            return None
        if (own := _read_class(*parent)) is not None:
            types, open_ended = own[0] | types, own[1]
            if not open_ended:
                break
    return Signature(name, types, open_ended=open_ended)


def _read_class(module: str, definition: ast.ClassDef) -> Parameters | None:
    """The parameters of a class's own `__init__`; None: it has none."""
    methods = {node.name: node for node in definition.body if isinstance(node, ast.FunctionDef)}
    if "__init__" in methods:
        types, open_ended = _read_parameters(module, methods["__init__"])
        del types[next(iter(types))]  # self
        return types, open_ended
    if "__new__" in methods:
        return {}, True
    return (_fields(module, definition), False) if _is_dataclass(definition) else None


def _is_dataclass(definition: ast.ClassDef) -> bool:
    # transformers makes its configurations dataclasses under a decorator of its own.
    decorators = map(ast.unparse, definition.decorator_list)
    return any("dataclass" in name or name == "strict" for name in decorators)


def _fields(module: str, definition: ast.ClassDef) -> dict[str, Any]:
    """A dataclass's fields, its parents' among them."""
    return {
        node.target.id: _evaluate(parent[0], node.annotation)
        for parent in _lineage(module, definition)
        if parent is not None and _is_dataclass(parent[1])
        for node in parent[1].body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        if "ClassVar" not in ast.unparse(node.annotation)
        if node.value is None or "init=False" not in ast.unparse(node.value)
    }


def _read_parameters(module: str, function: ast.FunctionDef) -> Parameters:
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    types = {argument.arg: _evaluate(module, argument.annotation) for argument in named}
    return types, bool(arguments.kwarg)


def _evaluate(module: str, annotation: ast.expr | None) -> Any:
    """The type that an annotation of a module means; `Any` stands for every unknown name."""
    if annotation is None:
        return Any
    used = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}
    names = {name: _resolve(module, name) for name in used}
    code = compile(ast.Expression(annotation), "<annotation>", "eval")
    try:
        return eval(code, {"__builtins__": {}} | names)
    except Exception:  # such as an attribute of an unknown name
        return Any


@cache
def _resolve(module: str, name: str) -> Any:
    """What a name in an annotation means; follows the aliases of this project's modules."""
    if name in _TYPES:
        return _TYPES[name]
    in_project = module.partition(".")[0] in ROOMS
    for node in _statements(module) if in_project else ():
        match node:
            case ast.ClassDef() | ast.FunctionDef() if node.name == name:
                return Definition(f"{module}.{name}")
            case ast.Assign(targets=[ast.Name(id=target)]) if target == name:
                return _evaluate(module, node.value)
            case ast.ImportFrom(module=options.__name__):
                if name in (alias.name for alias in node.names):
                    return getattr(options, name, Any)
            case ast.ImportFrom():
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return _resolve(_source(module, node), alias.name)
    return getattr(builtins, name, Any)


def _lineage(module: str, definition: ast.ClassDef) -> Iterator[tuple[str, ast.ClassDef] | None]:
    """A class and its parents, the nearest first; None for one that is not found."""
    yield module, definition
    for base in definition.bases:
        name = ast.unparse(base).partition("[")[0]
        if name.rpartition(".")[2] not in _PLAIN_BASES:
            place = _find(module, name)
            if place is None or not isinstance(place[1], ast.ClassDef):
                yield None
            else:
                yield from _lineage(place[0], place[1])


def _find(module: str, name: str) -> Place | None:
    """Where what a module calls by this name (with dots or without) is defined."""
    head, _, rest = name.partition(".")
    for node in _statements(module):
        match node:
            case ast.ClassDef() | ast.FunctionDef() if node.name == name:
                return module, node
            case ast.ImportFrom():
                source = _source(module, node)
                for alias in node.names:
                    if (alias.asname or alias.name) == head:
                        inner = f"{source}.{alias.name}"
                        return _find(inner, rest) if rest else _find(source, alias.name)
            case ast.Import():
                for alias in node.names:
                    if alias.asname == head:
                        return _find(alias.name, rest)
                    if not alias.asname and name.startswith(f"{alias.name}."):
                        return _find(alias.name, name.removeprefix(f"{alias.name}."))
    return None


def _source(module: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = module if _file(module).name == "__init__.py" else module.rpartition(".")[0]
    return resolve_name("." * node.level + (node.module or ""), package)


@cache
def _statements(module: str) -> list[ast.stmt]:
    """A module's own statements, those within if and try among them; [] without a source."""
    if (file := _file(module)) is None:
        return []
    statements, waiting = [], [*ast.parse(file.read_text(encoding="utf-8")).body]
    while waiting:
        statements.append(node := waiting.pop(0))
        if isinstance(node, ast.If | ast.Try):
            waiting = [*node.body, *node.orelse, *waiting]
    return statements


@cache
def _file(module: str) -> Path | None:
    """A module's source; only the import system's finders are asked, nothing is imported."""
    top, *inner = module.split(".")
    try:
        spec, name = find_spec(top), top
    except ValueError:  # it was made by code
        return None
    for part in inner:
        if spec is None or spec.submodule_search_locations is None:
            return None
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, spec.submodule_search_locations)
    file = Path(spec.origin) if spec is not None and spec.origin else None
    return file if file is not None and file.suffix == ".py" else None
