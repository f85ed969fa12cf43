"""Builds a collection without training: ``python -m data_modules.build data=… data.path=…``."""

if __name__ == "__main__":  # before the other imports: errors of the command line need none
    from conf.command import run_command

    run_command("build", "data_modules.build:main")
    raise SystemExit

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rich.table
from hydra.utils import instantiate
from omegaconf import DictConfig
from rich.console import Console

from data_modules.collection import Collection
from data_modules.store import MANIFEST

PLAIN_WIDTH = 200  # where no terminal says how wide it is


def build(config: DictConfig) -> Collection:
    """Builds the collection of ``config.data``, or finds it built, and prints its manifest.

    Args:
        config: composed from `conf/build.yaml`.

    Raises:
        ValueError, OSError: the user's choices, files or disk are at fault; nothing is left behind.
    """
    started = time.time()
    collection = instantiate(config.data).read()
    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
    console.print(manifest_table(collection))
    console.print(_state(collection, started), soft_wrap=True, markup=False, highlight=False)
    return collection


def manifest_table(collection: Collection) -> rich.table.Table:
    """What a collection holds, and what it was made from."""
    table = rich.table.Table(title=collection.name, title_justify="left", show_header=False)
    for name, value in _rows(collection):
        table.add_row(name, value if isinstance(value, str) else json.dumps(value))
    return table


def _rows(collection: Collection) -> Iterator[tuple[str, Any]]:
    yield "documents", f"{len(collection.documents):,}"
    yield "queries", f"{len(collection.queries):,}"
    for split, judgements in collection.qrels.items():
        yield f"judgements of {split}", f"{len(judgements):,}"
    for kind, runs in (("candidates", collection.candidates), ("negatives", collection.negatives)):
        if runs:
            yield f"{kind} of", ", ".join(runs)
    if collection.folder is not None:
        manifest = json.loads((collection.folder / MANIFEST).read_text())
        yield from manifest["options"].items()
    for source, value in collection.sources.items():
        yield Path(source).name, value


def _state(collection: Collection, started: float) -> str:
    """Whether it was built since a time (seconds since 1970), and where it lies."""
    if collection.folder is None:
        return "generated, in the cache of datasets"
    made = (collection.folder / MANIFEST).stat().st_mtime
    return f"{'built' if made >= started else 'reused, built before'}: {collection.folder}"


def main(config: DictConfig) -> None:
    try:
        build(config)
    except KeyboardInterrupt:
        sys.exit("interrupted: nothing is left behind")
