"""A run's folder: opened for a new run, read back when it is finished."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from gr_mvdr.run_files import PARTS, read_config, read_metrics, read_provenance

# Keys of the configuration that say where or how a run was made, not what was run. The data's
# contents are compared by their hashes.
CIRCUMSTANCES = ("seed", "output", "name", "run", "resume", "logger", "data.path")


class UnfinishedRun(ValueError):
    """A run's folder lacks a part; the message names both."""


@dataclass(frozen=True)
class Run:
    """A run as reports and comparisons see it.

    Attributes:
        path: its folder.
        config: the resolved configuration, nested.
        provenance: with "system" and "collection", and where known "seed", "paradigm", "splits"
            and "sources" (what the data were made of).
        metrics: flat, such as "retrieve/recall@1".
    """

    path: Path
    config: dict[str, Any]
    provenance: dict[str, Any]
    metrics: dict[str, float]

    @property
    def system(self) -> str:
        return str(self.provenance["system"])

    @property
    def seed(self) -> Any:
        return self.provenance.get("seed", self.config.get("seed"))

    @property
    def setting(self) -> str:
        """What the run was measured on, in a line: "wtq (dev)"."""
        splits = self.provenance.get("splits", flatten(self.config).get("data.test_split", []))
        if isinstance(splits, dict):
            splits = list(splits.values())
        names = ", ".join(map(str, splits)) if isinstance(splits, list) else str(splits)
        return self.provenance["collection"] + (f" ({names})" if names else "")

    @property
    def fingerprint(self) -> str:
        """Of the data themselves: equal names may hide different files."""
        sources = self.provenance.get("sources", {})
        # A file's name, not its path: a copy elsewhere holds the same data.
        contents = sorted((Path(name).name, str(value)) for name, value in sources.items())
        return hashlib.sha256(json.dumps(contents).encode()).hexdigest()[:8]

    @property
    def choices(self) -> dict[str, str]:
        """The flat configuration without circumstances, what follows the seed, and the folder.

        Two runs of the same choices differ in their seed only.
        """
        seed, folder = self.config.get("seed"), self.config.get("run")
        return {
            key: str(value).replace(str(folder), "") if folder else str(value)
            for key, value in flatten(self.config).items()
            if not {key, key.split(".")[0]} & set(CIRCUMSTANCES)
            and not (key.split(".")[-1] == "seed" and value == seed)
        }


def find_run(config: DictConfig) -> tuple[Path, bool]:
    """Where a run's folder is, and whether it holds this very run, finished.

    Args:
        config: with `run`, the folder, and `resume`.

    Raises:
        FileExistsError: the folder holds a run and `resume` is false.
        ValueError: it holds a run of another configuration.
    """
    run = Path(config.run)
    path = run / "config.yaml"
    if path.is_file():
        if not config.resume:
            raise FileExistsError(
                f"run={run}: the folder exists; pass resume=true to continue or keep it, "
                "or another name=…"
            )
        if _choices(path.read_text()) != _choices(OmegaConf.to_yaml(config, resolve=True)):
            raise ValueError(f"run={run}: cannot resume, it was made with another config.yaml")
    return run, (run / "metrics.json").is_file()


def start_run(config: DictConfig, record: dict[str, Any]) -> None:
    """Makes a run's folder with the resolved configuration and the provenance.

    Called once everything that the user chose has been read: a typing error leaves no folder.
    """
    run = Path(config.run)
    run.mkdir(parents=True, exist_ok=True)
    (run / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=True))
    write_json(run / "provenance.json", record)


def _choices(text: str) -> dict[str, Any]:
    """A configuration without what may differ in a resumed run; what sweeps go through, too."""
    config = OmegaConf.to_container(OmegaConf.create(text))
    left_out = ("resume", "logger", "collections", "batches", "k_trains")
    return {key: value for key, value in config.items() if key not in left_out}


def write_json(path: Path, content: Any, indent: int | None = 2) -> None:
    """Writes JSON under a temporary name first: nothing half-written remains."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(content, indent=indent, ensure_ascii=False) + "\n")
    unfinished.rename(path)


def flatten(nested: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} as {"a.b": 1}; lists stay values."""
    flat = {}
    for key, value in nested.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def asked_run(path: str | None) -> Path:
    """The run that a command is for.

    Raises:
        ValueError: the user named none.
    """
    if not path:
        raise ValueError("run=null: must be the folder of a finished run, such as run=outputs/…")
    return Path(path)


def read_run(path: Path) -> Run:
    """Reads a run's folder.

    Raises:
        FileNotFoundError: no such folder.
        UnfinishedRun: a part is missing.
        ValueError: a part is broken, or the provenance names no system or collection.
    """
    path = Path(path)
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: no such run folder")
    for part in PARTS:
        if not (path / part).is_file():
            raise UnfinishedRun(f"{path} is unfinished: it has no {part}")
    return Run(path, read_config(path), read_provenance(path), read_metrics(path))


def find_runs(folder: Path) -> list[Path]:
    """The run folders at or below a folder, finished or not, in the order of their numbers."""
    folder = Path(folder)
    if any((folder / part).is_file() for part in PARTS) or (folder / ".hydra").is_dir():
        return [folder]
    children = [child for child in folder.iterdir() if child.is_dir() and child.name[0] != "."]
    children.sort(key=lambda child: (child.name.isdigit() and int(child.name), child.name))
    return [run for child in children for run in find_runs(child)]
