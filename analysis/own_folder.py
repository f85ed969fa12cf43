"""Folders that results are written into, though somebody else may have made them."""

import os
from collections.abc import Sequence
from pathlib import Path

# Of a run: only read once it is finished, so that they may lie on another disk.
READ_ONLY = ("checkpoints", "index", "identifiers", "tokenizer")
# wandb writes into a new folder there each time; in those of before its own links lead to its logs.
LOGS = "wandb"


def check_links(folder: Path, names: Sequence[str] = ("*",)) -> None:
    """Refuses a folder in which writing a file would write another one, elsewhere.

    A symbolic link may lead out of the folder; a hard link is another name of a file that may lie
    outside of it.

    Args:
        folder: that is about to be written into.
        names: patterns of what will be written; by default everything but `READ_ONLY`.

    Raises:
        ValueError: names the link.
    """
    for pattern in names:
        for path in sorted(Path(folder).glob(pattern)):
            if path.name not in READ_ONLY:
                _check(path, folder)
                for below, folders, files in os.walk(path) if path.name != LOGS else ():
                    for name in (*folders, *files):
                        _check(Path(below, name), folder)


def _check(path: Path, folder: Path) -> None:
    leads_out = path.is_symlink() and not path.resolve().is_relative_to(folder.resolve())
    if leads_out or (path.is_file() and path.stat().st_nlink > 1):
        raise ValueError(f"{path}: must be no link, what is written there would go elsewhere")
