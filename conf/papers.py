"""The papers' experiments: `conf/paper/PAPER.yaml` holds in one file what Hydra reads as many.

- `shared`: NAME → what all systems have in common on a collection: the group `shared`. Within it
  `own`: MODEL → what that system has of its own there, merged over the shared values.
- `experiments`: NAME → what `experiment=NAME` adds. Its `about` says which table or figure it makes.
- `smoke`: what `smoke=true` changes for these experiments besides `conf/smoke/small.yaml`.

`needs` of a shared entry: the arguments of the command line that name the user's files.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

PAPERS = Path(__file__).parent / "paper"


@cache
def read_papers() -> dict[str, dict[str, Any]]:
    """The papers' files: name → content, not resolved."""
    files = sorted(PAPERS.glob("*.yaml"))
    found = {file.stem: OmegaConf.to_container(OmegaConf.load(file)) for file in files}
    return {name: content for name, content in found.items() if "experiments" in content}


@cache
def register_papers() -> None:
    """Makes the papers' experiments known to Hydra, once a process."""
    for paper, content in read_papers().items():
        for name, shared in content["shared"].items():
            _store("shared", name, shared)
            for model, own in shared.get("own", {}).items():
                _store(f"own/{name}", model, own)
        for name, experiment in content["experiments"].items():
            _store("experiment", name, experiment)
        smoke = content.get("smoke", {})
        _store("smoke", paper, {**smoke, "defaults": ["small", *smoke.get("defaults", [])]})


def _store(group: str, option: str, content: dict[str, Any]) -> None:
    values = {k: v for k, v in content.items() if k not in ("own", "needs", "about")}
    ConfigStore.instance().store(option, values, group, "_global_", provider="conf/paper")


def expand_smoke(arguments: list[str]) -> list[str]:
    """Replaces `smoke=true`, which Hydra refuses as an option, by the option of the paper.

    Args:
        arguments: of the command line.

    Raises:
        ValueError: `smoke` is false, or another value that is no name.
    """
    chosen = [a.partition("=")[2] for a in arguments if a.startswith("experiment=")]
    names = re.findall(r"\w+", chosen[-1]) if chosen else []
    papers = [p for p, content in read_papers().items() if {*names} & {*content["experiments"]}]
    return [f"smoke={(papers or ['small'])[0]}" if a == "smoke=true" else a for a in arguments]
