"""What a class takes, read from its source: to import it would take seconds of torch and Lightning.

The source is followed through imports, base classes and dataclasses. Where it cannot tell (compiled
code, classes made by code), `read_signature` says so and the caller imports the class.
"""

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any, Literal, Optional, Union

from gr_mvdr.options import Signature

# The types that `gr_mvdr.options.fits_type` can compare a value with.
_TYPES = {kind.__name__: kind for kind in (int, float, bool, str, list, tuple, dict, Sequence)}
_TYPES |= {"Any": Any, "Literal": Literal, "Optional": Optional, "Union": Union}
# Base classes without an `__init__`.
_PLAIN_BASES = {"object", "ABC", "Generic", "Protocol"}
Place = tuple[str, ast.ClassDef | ast.FunctionDef]  # a module, and a definition in it
Parameters = tuple[dict[str, Any], bool]  # their types, and whether any other name is taken, too


def read_signature(path: str) -> Signature | None:
    """The signature of the class or function of a dotted path; None: the source cannot tell.

    Which parameters have a default is not read.
    """
    if (place := _find(*path.rpartition(".")[::2])) is None:
        return None
    name = place[1].name
    if isinstance(place[1], ast.FunctionDef):
        types, open_ended = _read_parameters(place[1])
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
        types, open_ended = _read_parameters(methods["__init__"])
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
        node.target.id: _type(node.annotation)
        for parent in _lineage(module, definition)
        if parent is not None and _is_dataclass(parent[1])
        for node in parent[1].body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        if "ClassVar" not in ast.unparse(node.annotation)
    }


def _read_parameters(function: ast.FunctionDef) -> Parameters:
    found = function.args
    named = [*found.posonlyargs, *found.args, *found.kwonlyargs]
    return {argument.arg: _type(argument.annotation) for argument in named}, bool(found.kwarg)


def _type(annotation: ast.expr | None) -> Any:
    if annotation is None:
        return Any
    code = compile(ast.Expression(annotation), "<annotation>", "eval")
    try:
        return eval(code, {"__builtins__": {}}, _TYPES)
    except Exception:  # it names what is not imported here
        return Any


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
    found, waiting = [], [*ast.parse(file.read_text(encoding="utf-8")).body]
    while waiting:
        found.append(node := waiting.pop(0))
        if isinstance(node, ast.If | ast.Try):
            waiting = [*node.body, *node.orelse, *waiting]
    return found


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
