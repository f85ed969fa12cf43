"""Builds a collection without training: ``python -m data_modules.build data=… data.path=…``."""

if __name__ == "__main__":  # before the slow imports, which errors of the command line do not need
    from conf.command import run_command

    run_command("build", "data_modules.build:main")
    raise SystemExit

import json
import sys
import time
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from data_modules.collection import MANIFEST, Collection
from gr_mvdr.options import build as build_part


def build(config: DictConfig) -> Collection:
    """Builds the collection of ``config.data``, or reuses it, and prints a summary.

    Args:
        config: composed from `conf/build.yaml`.

    Raises:
        ValueError, OSError: an option, a file or the disk is at fault; nothing is left behind.
    """
    started = time.time()
    collection = build_part("data", OmegaConf.to_container(config.data, resolve=True)).read()
    judged = {f"judgements of {split}": f"{len(t):,}" for split, t in collection.qrels.items()}
    runs = {"candidates of": collection.candidates, "negatives": collection.negatives}
    rows = {
        "documents": f"{len(collection.documents):,}",
        "queries": f"{len(collection.queries):,}",
        **judged,
        **{kind: ", ".join(named) for kind, named in runs.items() if named},
    }
    state = "generated, in the cache of datasets"
    if collection.folder is not None:
        manifest = collection.folder / MANIFEST
        rows |= json.loads(manifest.read_text())["options"]
        new = manifest.stat().st_mtime >= started
        state = f"{'built' if new else 'reused, built before'}: {collection.folder}"
    rows |= {Path(source).name: value for source, value in collection.sources.items()}
    width = max(map(len, rows))
    print(collection.name)
    for name, value in rows.items():
        print(f"  {name:{width}}  {value if isinstance(value, str) else json.dumps(value)}")
    print(state)
    return collection


def main(config: DictConfig) -> None:
    try:
        build(config)
    except KeyboardInterrupt:
        sys.exit("interrupted: nothing is left behind")
