"""The import rules of the house: one direction, few doors, no pickles."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("gr_mvdr", "data_modules", "models", "analysis")
MAY_IMPORT = {
    "gr_mvdr": set(),
    "data_modules": {"gr_mvdr"},
    "models": {"gr_mvdr"},
    "analysis": {"gr_mvdr", "data_modules", "models"},
    "conf": {"gr_mvdr"},
}
ENTRY_POINTS = {"train.py", "analysis/compare/comparison.py", "analysis/studies/sweep.py"}

# What gr_mvdr and models import; any other library is for the function that needs it.
NEEDED = {
    *("torch", "transformers", "pytorch_lightning", "lightning_fabric", "torchmetrics"),
    *("numpy", "tqdm", "tokenizers", "safetensors", "huggingface_hub", "yaml", "regex"),
}


def code_files() -> list[Path]:
    return [*sorted(ROOT.glob("*.py")), *(f for room in ROOMS for f in room_files(room))]


def room_files(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py")) or pytest.fail(f"{room}: no code")


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), filename=str(file))


def imported(nodes: Iterator[ast.AST]) -> set[str]:
    """Top-level names of the imported packages; a relative import gives '.'."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add("." if node.level else str(node.module).split(".")[0])
        elif isinstance(node, ast.Call) and dotted(node.func) == "importlib.import_module":
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant):
                names.add(str(first.value).split(".")[0])
    return names


def outside_functions(node: ast.AST, types: bool = False) -> Iterator[ast.AST]:
    """The nodes that run at import; with `types` also those under TYPE_CHECKING."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and dotted(child.test).endswith("TYPE_CHECKING") and not types:
            continue
        yield child
        yield from outside_functions(child, types)


def dotted(node: ast.AST) -> str:
    """``a.b.c`` for an attribute chain of names, and '' for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def is_entry_point(file: Path) -> bool:
    main = 'if __name__ == "__main__"'
    return named(file) in ENTRY_POINTS or main in file.read_text(encoding="utf-8")


def named(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_rooms_import_in_one_direction(room):
    forbidden = {*ROOMS, "train", "tests"} - MAY_IMPORT[room] - {room}
    for file in room_files(room):
        assert not imported(ast.walk(tree_of(file))) & forbidden, named(file)


def modules_imported(nodes: Iterator[ast.AST]) -> set[str]:
    """The imported modules, and names in modules, as dotted paths."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return found


def test_no_import_comes_back_to_where_it_began_not_even_for_types():
    files = {named(f).removesuffix(".py").replace("/", "."): f for f in code_files()}
    files |= {f"conf.{f.stem}": f for f in room_files("conf")}
    waiting = {}
    for name, file in files.items():
        tree = tree_of(file)
        # Functions of `analysis` import nothing that would come back either.
        inside = name.startswith("analysis.")
        nodes = ast.walk(tree) if inside else outside_functions(tree, types=True)
        waiting[name] = modules_imported(nodes) & files.keys() - {name}
    while ready := [name for name, needs in waiting.items() if not needs]:
        for name in ready:
            del waiting[name]
        waiting = {name: needs - {*ready} for name, needs in waiting.items()}
    assert not waiting, "these import each other, or a module that does"


# The rooms of gr_mvdr, lowest first, and the files at its top that lie above a room.
LEVELS = ("", "evaluation", "identifiers", "heads", "decoding", "token_index")
ABOVE = {"passages": "evaluation", "cross_attention": "heads", "pooling": "token_index"}


def level(module: str) -> int:
    """The level of ``gr_mvdr.heads.plain``, or of ``gr_mvdr.losses``, which is in no room."""
    room = module.split(".")[1] if module.count(".") > 1 else ""
    return LEVELS.index(room)


def test_in_the_library_a_lower_file_imports_no_higher_room():
    files = {named(f).removesuffix(".py").replace("/", "."): f for f in room_files("gr_mvdr")}
    for name, file in files.items():
        if file.stem == "__init__":
            continue
        own = LEVELS.index(ABOVE[file.stem]) if file.stem in ABOVE else level(name)
        used = modules_imported(outside_functions(tree_of(file), types=True)) & files.keys()
        assert max(map(level, used), default=0) <= own, name


def test_nothing_imports_what_lies_beyond_the_papers():
    for file in code_files():
        if "beyond" not in file.parts:
            imports = modules_imported(ast.walk(tree_of(file)))
            assert not [name for name in imports if "beyond" in name.split(".")], named(file)


def test_imports_are_absolute_hydra_is_for_entry_points_and_wandb_for_configs():
    for file in code_files():
        banned = {".", "lightning", "wandb", *(() if is_entry_point(file) else ("hydra",))}
        assert not imported(ast.walk(tree_of(file))) & banned, named(file)


def test_other_libraries_are_imported_inside_the_function_that_needs_them():
    known = {*sys.stdlib_module_names, *NEEDED, "gr_mvdr", "models"}
    for file in room_files("gr_mvdr") + room_files("models"):
        assert not imported(outside_functions(tree_of(file))) - known, named(file)


def pickle_uses(tree: ast.Module) -> list[str]:
    """Calls and imports that could load a pickle, as ``line: what``."""
    found = []
    picklers = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and imported(iter([node])) & picklers:
            found.append(f"{node.lineno}: imports a pickler")
        if not isinstance(node, ast.Call):
            continue
        arguments = {keyword.arg: keyword.value for keyword in node.keywords}
        name = dotted(node.func)
        loads = name == "torch.load" or name.endswith("load_from_checkpoint")
        if (loads or "ckpt_path" in arguments) and not is_true(arguments.get("weights_only")):
            found.append(f"{node.lineno}: {name} without weights_only=True")
        if "allow_pickle" in arguments and not is_false(arguments["allow_pickle"]):
            found.append(f"{node.lineno}: {name} with allow_pickle")
        if name.endswith("read_pickle"):
            found.append(f"{node.lineno}: {name}")
    return found


def is_true(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def is_false(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def test_no_code_loads_pickles():
    for file in code_files():
        assert not pickle_uses(tree_of(file)), named(file)
