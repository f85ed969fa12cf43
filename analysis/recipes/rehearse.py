"""Rehearses recipes one after the other: ``python -m analysis.recipes.rehearse [NAMES…]``.

Every recipe runs as a user would run it, with `rehearse=true`. What was rehearsed is written to
`docs/rehearsals.json`, from which `docs/reproduce.md` is made.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from analysis.provenance import find_processor, find_revision
from analysis.recipes.recipe import Recipe, makers, read_recipes
from analysis.run_folder import find_runs
from conf.command import report_errors
from gr_mvdr.files.writing import write_json

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "docs" / "rehearsals.json"
# What every rehearsed run leaves, as the real one does.
FILES = ("config.yaml", "metrics.json", "retrieve.trec", "rerank.trec", "report.html")


def rehearse(names: Sequence[str], folder: Path, record: Path = RECORD) -> list[str]:
    """Rehearses recipes, and before each those whose runs it reads.

    A recipe that was rehearsed at this very commit is kept.

    Args:
        names: of recipes; none = all.
        folder: where the rehearsals' folders go.
        record: name → when, at which commit, in how many seconds, on which machine.

    Returns:
        The recipes that failed.

    Raises:
        ValueError: no recipe of a name.
    """
    recipes, commit, failed = read_recipes(), find_revision(), []
    chosen = chosen_recipes(recipes, names)
    for number, recipe in enumerate(chosen, start=1):
        print(f"{number}/{len(chosen)} {recipe.name}: ", end="", flush=True)
        last = read_record(record).get(recipe.name, {})
        kept = last.get("commit") == commit and "-dirty" not in commit
        if kept and (folder / recipe.tables).is_dir():
            print("rehearsed at this commit, kept")
            continue
        start = time.perf_counter()
        fault = run(recipe, folder)
        seconds = round(time.perf_counter() - start)
        print(f"failed: {fault}" if fault else f"{seconds} s", flush=True)
        if fault:
            failed.append(recipe.name)
        remember(record, recipe.name, None if fault else entry(commit, seconds))
    return failed


def remember(record: Path, name: str, rehearsal: dict[str, Any] | None) -> None:
    """Writes a recipe's rehearsal, or that it has none; what is known of the others stays."""
    known = read_record(record)
    known.pop(name, None)
    if rehearsal is not None:
        known[name] = rehearsal
    write_json(record, dict(sorted(known.items())))


def entry(commit: str, seconds: int) -> dict[str, Any]:
    """What is remembered of a rehearsal."""
    today = date.today().isoformat()
    return {"date": today, "commit": commit, "seconds": seconds, "machine": find_processor()}


def chosen_recipes(recipes: list[Recipe], names: Sequence[str]) -> list[Recipe]:
    """The named recipes and those that they read, in the order of the list."""
    known = {recipe.name: recipe for recipe in recipes}
    for name in names:
        if name not in known:
            raise ValueError(f"{name}: must be one of {', '.join(known)}")
    wanted = set(names or known)
    for name in list(wanted):
        wanted.update(makers(known[name], recipes))
    return [recipe for recipe in recipes if recipe.name in wanted]


def run(recipe: Recipe, folder: Path, *overrides: str) -> str | None:
    """Runs a rehearsal in a process of its own; what went wrong, if anything did.

    Args:
        folder: see `rehearse`; overrides: further words of the command line.
    """
    arguments = [f"experiment={recipe.name}", "rehearse=true", f"recipes={folder}", *overrides]
    done = subprocess.run(
        [sys.executable, "train.py", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return (done.stderr.strip() or done.stdout.strip()).splitlines()[-1]
    missing = missing_files(recipe, folder)
    return f"it left no {', '.join(missing)}" if missing else None


def missing_files(recipe: Recipe, folder: Path) -> list[str]:
    """What a rehearsal should have left and has not."""
    tables = ["comparison.csv", "comparison.html", *(["paper_table.md"] if recipe.numbers else [])]
    wanted = [folder / recipe.tables / name for name in tables]
    runs = find_runs(folder / recipe.folder)
    wanted += [run / name for run in runs for name in FILES]
    wanted += [] if runs else [folder / recipe.folder / FILES[0]]
    return [str(path) for path in wanted if not path.is_file()]


def read_record(record: Path = RECORD) -> dict[str, dict[str, Any]]:
    """Recipe → its last rehearsal."""
    return json.loads(record.read_text()) if record.is_file() else {}


if __name__ == "__main__":
    with report_errors():
        failed = rehearse(sys.argv[1:], ROOT / "outputs" / "rehearsals" / find_revision())
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)
