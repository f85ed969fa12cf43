"""Where a comparison goes: by default named after its runs, and never over one of other runs.

`comparison.json` in its folder is the record of what it was made of: the runs, each as a path from
that folder, so that a comparison that is moved with its runs keeps its place.
"""

import hashlib
import json
import os
import re
from pathlib import Path

from analysis.runs.folder_lock import check_links
from analysis.tables.comparison import Comparison
from gr_mvdr.files import read_json, write_json
from gr_mvdr.options import make_printable

RECORD = "comparison.json"
WRITTEN = ("comparison.*", "comparison_*", "paper_table*", "study.*")  # files of its folder
_MADE = ("comparison.html", "comparison.md", "comparison.csv")
SHOWN_LETTERS = 60  # of the systems' names in a folder's name
SHOWN_RUNS = 3  # in an error


def name_comparison(comparison: Comparison) -> str:
    """`comparison-BM25_T5-SEAL-1a2b3c`: the systems, and a hash of the runs' folders.

    The same runs have the same name, wherever the folder that holds them all is.
    """
    systems = sorted({run.system for run in comparison.runs})
    names = [re.sub(r"[^A-Za-z0-9.]+", "-", system).strip("-.") or "system" for system in systems]
    shown = "_".join(names)
    while len(shown) > SHOWN_LETTERS and len(names) > 1:
        names.pop()
        shown = f"{'_'.join(names)}_and-{len(systems) - len(names)}-more"
    folders = sorted(_locate_runs(comparison, find_common_folder(comparison)))
    digest = hashlib.sha256(json.dumps(folders).encode()).hexdigest()
    return f"comparison-{shown[:SHOWN_LETTERS]}-{digest[:6]}"


def find_common_folder(comparison: Comparison) -> Path:
    """The innermost folder that holds all runs."""
    return Path(os.path.commonpath([run.path.absolute().parent for run in comparison.runs]))


def place_tables(comparison: Comparison, kind: str, output: str | None) -> Path:
    """The folder of other tables of runs: the user's, or `KIND-SYSTEMS-…` next to the runs."""
    name = name_comparison(comparison).replace("comparison", kind, 1)
    return Path(output) if output else find_common_folder(comparison) / name


def _locate_runs(comparison: Comparison, folder: Path) -> list[str]:
    """The runs' folders as paths from a folder."""
    start = folder.resolve()
    return [Path(os.path.relpath(run.path.resolve(), start)).as_posix() for run in comparison.runs]


def place_comparison(
    comparison: Comparison, output: Path | None = None, make_way: bool = False
) -> Path:
    """Makes the folder of a comparison and writes its record.

    Args:
        output: the folder; None: one named after the runs, in the folder that holds them.
        make_way: where `output` holds a comparison of other runs, take a folder in it that is
            named after the runs; otherwise such an `output` is refused.

    Raises:
        ValueError: the folder holds a comparison of other runs, or a link.
    """
    folder = output or find_common_folder(comparison)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"output={folder}: must be a folder, is a file")
    if not output or (make_way and _find_others(comparison, folder)):
        check_links(folder, [name_comparison(comparison)])
        folder /= name_comparison(comparison)
    if others := _find_others(comparison, folder):
        raise ValueError(
            f"output={folder}: holds a comparison of other runs ({others}), which stays: name "
            "another folder, or remove that one"
        )
    check_links(folder, WRITTEN)
    folder.mkdir(parents=True, exist_ok=True)
    labels = [group.label for group in comparison.groups for _ in group.runs]
    found = zip(_locate_runs(comparison, folder), comparison.runs, labels, strict=True)
    runs = [
        {"folder": place, "system": run.system, "seed": run.seed, "label": label}
        for place, run, label in found
    ]
    # First of all files: a comparison that is interrupted is made again in its place.
    write_json(folder / RECORD, {"runs": runs})
    return folder


def _find_others(comparison: Comparison, folder: Path) -> str:
    """The runs of another comparison in a folder; "" without one, or if it is of our runs."""
    if not (folder / RECORD).is_file():
        return (
            "which ones, it does not say" if any((folder / file).exists() for file in _MADE) else ""
        )
    try:
        places = sorted(str(run["folder"]) for run in read_json(folder / RECORD)["runs"])
    except (ValueError, KeyError, TypeError):
        return f"{RECORD} is damaged"
    if places == sorted(_locate_runs(comparison, folder)):
        return ""
    names = [make_printable(Path(place).name) for place in places[:SHOWN_RUNS]]
    return ", ".join(names + ["…"] * (len(places) > SHOWN_RUNS))
