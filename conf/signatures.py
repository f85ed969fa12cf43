"""Reads the signature of a class or function from its source: importing it would take seconds.

The reader follows imports, base classes, dataclasses and type aliases within the project.
"""

import ast
import builtins
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from gr_mvdr import options
from gr_mvdr.options import ROOMS, Signature

_HOUSE = Path(__file__).parents[1]
# Names that annotations may use, besides the types of `gr_mvdr.options`.
_TYPES = {name: getattr(typing, name) for name in ("Annotated", "Literal", "Optional", "Union")}
_TYPES |= {"Mapping": Mapping, "Sequence": Sequence, "Any": Any}


class Definition(NamedTuple):
    """A class or function of this project in an annotation, given by its path and not imported.

    ``Annotated[dict[str, Any], SearchOptions]`` is a group of keys that `SearchOptions` takes.
    """

    path: str


Place = tuple[str, Any]  # a module, and a class, a function or an alias that it defines
Parameters = tuple[dict[str, Any], bool]  # name → type, and whether other names are taken, too


@cache
def read_signature(path: str) -> Signature | None:
    """Reads the signature of a class or function by its dotted path; None if the project lacks it.

    It does not read which parameters have a default.
    """
    place = _find(*path.rpartition(".")[::2])
    match place:
        case module, ast.FunctionDef() as function:
            types, open_ended = _read_parameters(module, function)
        case module, ast.ClassDef() as definition:
            types, open_ended = {}, False
            for parent in _lineage(module, definition):
                if (own := _read_class(*parent)) is not None:
                    types, open_ended = own[0] | types, own[1]
                    if not open_ended:
                        break
        case _:
            return None
    return Signature(place[1].name, types, open_ended=open_ended)


def _read_class(module: str, definition: ast.ClassDef) -> Parameters | None:
    """Reads the parameters of a class's own `__init__`, or a dataclass's fields; else None."""
    for node in definition.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            types, open_ended = _read_parameters(module, node)
            del types[next(iter(types))]  # self
            return types, open_ended
    return (_fields(module, definition), False) if _is_dataclass(definition) else None


def _is_dataclass(definition: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in definition.decorator_list)


def _fields(module: str, definition: ast.ClassDef) -> dict[str, Any]:
    """Reads a dataclass's fields, including those of its parents."""
    return {
        node.target.id: _evaluate(source, node.annotation)
        for source, parent in _lineage(module, definition)
        if _is_dataclass(parent)
        for node in parent.body
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
    """Evaluates an annotation of a module to its type; an unknown name becomes `Any`."""
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
    """Returns what a name in an annotation means; follows aliases."""
    if name in _TYPES:
        return _TYPES[name]
    match _find(module, name):
        case options.__name__, _:
            return getattr(options, name)
        case source, ast.Assign(value=value):
            return _evaluate(source, value)
        case source, node:
            return Definition(f"{source}.{node.name}")
    return getattr(builtins, name, Any)


def _lineage(module: str, definition: ast.ClassDef) -> Iterator[tuple[str, ast.ClassDef]]:
    """Yields a class and its parents within the project, the nearest first."""
    yield module, definition
    for base in definition.bases:
        place = _find(module, ast.unparse(base).partition("[")[0])
        if place is not None:
            yield from _lineage(*place)


def _find(module: str, name: str) -> Place | None:
    """Finds where a name of a module is defined; None if that is outside the project."""
    for node in _statements(module):
        match node:
            case (
                ast.ClassDef(name=own)
                | ast.FunctionDef(name=own)
                | ast.Assign(targets=[ast.Name(id=own)])
            ) if own == name:
                return module, node
            case ast.ImportFrom(module=str(source)):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return _find(source, alias.name)
    return None


@cache
def _statements(module: str) -> list[ast.stmt]:
    """Returns the statements of a module of this project; [] for any other module."""
    path = _HOUSE.joinpath(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if module.partition(".")[0] in ROOMS and file.is_file():
            return ast.parse(file.read_text(encoding="utf-8")).body
    return []
