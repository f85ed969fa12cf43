"""A run's folder: opened for a new run, read back when finished, kept for one command at a time."""

import fcntl
import hashlib
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from gr_mvdr.distributed.ranks import rank, rank_zero_first
from gr_mvdr.files.reading import read_yaml
from gr_mvdr.files.run_files import PARTS, check_finite, read_config, read_metrics, read_provenance
from gr_mvdr.files.writing import (
    is_running,
    machine_id,
    name_errors,
    process_start,
    remove_abandoned,
    write_json,
    write_text,
)

CHECKPOINT, FIGURES = "checkpoints/last.ckpt", "figures/figures.json"
STUDY = "study.csv"  # of a run or a sweep, where one was made

# Keys of the configuration that say where or how a run was made, not what was run. The data's
# contents are compared by their hashes.
CIRCUMSTANCES = ("seed", "output", "name", "run", "resume", "logger", "data.path")
LOCK = ".lock"
_PATIENCE = 5.0  # seconds
_held: set[int] = set()  # handles, which end with this process: no child keeps them
# Of a run: only read once it is finished, so that they may lie on another disk.
READ_ONLY = ("checkpoints", "index", "identifiers", "tokenizer")
# wandb writes into a new folder there each time; in those of before its own links lead to its logs.
LOGS = "wandb"


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


@contextmanager
def open_run(config: DictConfig) -> Iterator[tuple[Path, list[str]]]:
    """`find_run`; where something is missing, the folder is this command's until the block ends.

    Of several ranks the first claims it, and sweeps away what a killed process left in it.

    Raises: as `find_run`, and ValueError where another command works in the folder.
    """
    with ExitStack() as held:
        with rank_zero_first():
            run, missing = find_run(config)
            if missing and rank() == 0:
                check_links(run)
                held.enter_context(claim_folder(run))
                run, missing = find_run(config)  # as the command before this one left it
                remove_abandoned(run, claimed=True)
        yield run, missing


def find_run(config: DictConfig) -> tuple[Path, list[str]]:
    """Where a run's folder is, and which of its parts are missing: none of a finished run.

    A run is finished when `metrics.json` is there, which is written last; a part that was lost
    afterwards is made again.

    Args:
        config: with `run`, the folder, and `resume`.

    Raises:
        FileExistsError: the folder holds a run and `resume` is false.
        ValueError: it holds a run of another configuration, or one that cannot be told.
    """
    run = Path(config.run)
    path = run / "config.yaml"
    has_more = any((run / part).exists() for part in (CHECKPOINT, "metrics.json"))
    if not path.is_file() and not has_more:
        return run, [path.name]
    if not config.resume:
        raise FileExistsError(
            f"run={run}: the folder exists; pass resume=true to continue or keep it, "
            "or another name=…"
        )
    found = _choices(path)
    if found is None and has_more:
        raise ValueError(
            f"{path}: is missing or damaged, so that it cannot be told which run this is: name=… "
            "makes another one"
        )
    if found not in (None, _choices(config)):
        raise ValueError(f"run={run}: cannot resume, it was made with another config.yaml")
    return run, find_missing_parts(run)


def start_run(config: DictConfig, record: dict[str, Any]) -> None:
    """Makes a run's folder with the resolved configuration and the provenance.

    Called once everything that the user chose has been read: a typing error leaves no folder.
    """
    run = Path(config.run)
    run.mkdir(parents=True, exist_ok=True)
    write_json(run / "provenance.json", record)
    write_text(run / "config.yaml", OmegaConf.to_yaml(config, resolve=True))


def find_missing_parts(run: Path) -> list[str]:
    """The parts of a run's folder that it lacks or that cannot be read, by what its metrics say.

    Not `checkpoints/`: a finished run may do without.
    """
    found = {part: _object(run / part) for part in ("provenance.json", "metrics.json")}
    missing = [part for part, content in found.items() if content is None]
    metrics = found["metrics.json"] or {}
    # "rerank/xtr/test_unseen/mrr@10" was measured on rerank-xtr-test_unseen.trec
    searched = [key.split("/")[:-1] for key in metrics if "@" in key]
    names = {"-".join(parts) for parts in searched if parts and parts[0] in ("retrieve", "rerank")}
    wanted = {f"{name}.trec" for name in names} | {"report.html"}
    wanted |= {"index"} if metrics.get("cost/index_bytes") else set()
    entries = [e for e in _object(run / FIGURES, list) or [] if isinstance(e, dict) and "name" in e]
    wanted |= {f"figures/{entry['name']}.{kind}" for entry in entries for kind in ("png", "pdf")}
    return missing + sorted(name for name in wanted if not (run / name).exists())


def _object(path: Path, kind: type = dict) -> Any:
    """What a JSON file holds; None where it is missing, cut or of another kind."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, kind) else None


def _choices(config: Path | DictConfig) -> dict[str, Any] | None:
    """A configuration without what may differ in a resumed run; what sweeps go through, too.

    None for a file that is cut or damaged.
    """
    try:
        if isinstance(config, Path):
            content = read_yaml(config)
        else:  # by way of YAML, as the file was made
            content = yaml.safe_load(OmegaConf.to_yaml(config, resolve=True))
    except (ValueError, FileNotFoundError):
        return None
    if "seed" not in content:
        return None
    left_out = ("resume", "logger", "collections", "batches", "k_trains")
    return {key: value for key, value in content.items() if key not in left_out}


def flatten(nested: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} as {"a.b": 1}; lists stay values."""
    flat = {}
    for key, value in nested.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def require_run(path: str | None) -> Path:
    """The run that a command is for.

    Raises:
        ValueError: the user named none.
    """
    if not path:
        raise ValueError("run=null: must be the folder of a finished run, such as run=outputs/…")
    return Path(path)


def read_run(path: Path, metrics: Mapping[str, float] | None = None) -> Run:
    """Reads a run's folder.

    Args:
        metrics: of a run that is about to be finished; None = its `metrics.json`.

    Raises:
        FileNotFoundError: no such folder.
        UnfinishedRun: a part is missing.
        ValueError: a part is broken, the provenance names no system or collection, or a metric is
            not finite.
    """
    path = Path(path)
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: no such run folder")
    for part in PARTS if metrics is None else PARTS[:-1]:
        if not (path / part).is_file():
            raise UnfinishedRun(f"{path} is unfinished: it has no {part}")
    found = read_metrics(path) if metrics is None else check_finite(metrics, path / "metrics.json")
    return Run(path, read_config(path), read_provenance(path), found)


def find_runs(folder: Path) -> list[Path]:
    """The run folders at or below a folder, finished or not, in the order of their numbers."""
    folder = Path(folder)
    if any((folder / part).is_file() for part in PARTS) or (folder / ".hydra").is_dir():
        return [folder]
    children = [child for child in folder.iterdir() if child.is_dir() and child.name[0] != "."]
    children.sort(key=lambda child: (child.name.isdigit() and int(child.name), child.name))
    return [run for child in children for run in find_runs(child)]


@contextmanager
def claim_folder(folder: Path) -> Iterator[None]:
    """Keeps other commands out of a folder until the block ends, however it ends.

    `.lock` in it names the process, its host and its start. The system's lock on that file ends
    with the process, so that what a killed one left is taken over. Network file systems do not all
    pass that lock on: a file of another machine counts, locked or not. The folder is made, and
    removed again if nothing has come into it.

    Raises:
        ValueError: another process has the folder; the message names it.
        OSError: the folder cannot be written to.
    """
    path, process = folder / LOCK, os.getpid()
    with name_errors(path):
        handle = _opened(path)
    _held.add(handle)
    try:
        try:
            _take(handle, path)
        except OSError:  # a full disk
            path.unlink(missing_ok=True)
            raise
        try:
            yield
        finally:
            if os.getpid() == process:
                path.unlink(missing_ok=True)
    finally:
        if handle in _held:
            _held.remove(handle)
            os.close(handle)
            with suppress(OSError):
                folder.rmdir()  # if it is empty


def _opened(path: Path) -> int:
    """The lock's file, not one that has just been removed."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # its folder has just been removed
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            with suppress(OSError):  # held, or a file system without locks
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_there(handle, path):
                return handle
            os.close(handle)


def _is_there(handle: int, path: Path) -> bool:
    """Whether the open file still has its name: its owner removes it in the end."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(handle), path.stat())
    return False


def _take(handle: int, path: Path) -> None:
    """Writes this process into the file, or refuses."""
    deadline = time.monotonic() + _PATIENCE
    while (owner := _owner(handle)) is None and not _is_free(handle):
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)  # it is about to write its name
    host, now = socket.gethostname(), datetime.now().astimezone().isoformat(timespec="seconds")
    if owner is not None or not _is_free(handle):
        owner = owner or {"pid": "?", "host": host, "since": now, "machine": machine_id()}
        is_here = machine_id() == owner["machine"] or _installation() == owner.get("installation")
        if not (is_here and _is_free(handle) and not _is_alive(owner)):
            hint = "" if is_here else f"; if it has ended, remove {path}"
            raise ValueError(
                f"run={path.parent}: process {owner.get('pid')} on {owner.get('host')} works in "
                f"it since {owner.get('since')}{hint}"
            )
    if not _is_there(handle, path):
        raise ValueError(f"run={path.parent}: another command has just left it, try again")
    own = {"pid": os.getpid(), "start": process_start(os.getpid()), "machine": machine_id()}
    own |= {"installation": _installation(), "host": host, "since": now}
    text = json.dumps(own) + "\n"
    with name_errors(path):
        os.ftruncate(handle, 0)
        os.pwrite(handle, text.encode(), 0)
        os.fsync(handle)


def _is_free(handle: int) -> bool:
    """Whether nobody else has the system's lock; True on a file system that knows none."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _is_alive(owner: dict[str, Any]) -> bool:
    """Whether an owner of this machine still runs, as far as its file can tell."""
    if owner["machine"] != machine_id():
        return False  # from before this machine started
    return is_running(owner["pid"], owner["start"])


def _owner(handle: int) -> dict[str, Any] | None:
    """What the file says; None where it is empty, as a killed process may leave it."""
    try:
        found = json.loads(os.pread(handle, 4096, 0))
    except (ValueError, RecursionError):
        return None
    kinds = {"pid": int, "start": int, "machine": str}
    fits = isinstance(found, dict) and all(isinstance(found.get(k), t) for k, t in kinds.items())
    return found if fits else None


def _installation() -> str:
    """This machine before and after a restart; equal host names may be of different machines."""
    with suppress(OSError):
        return f"{socket.gethostname()} {Path('/etc/machine-id').read_text().strip()}"
    return f"{socket.gethostname()} {machine_id()}"


def _let_go() -> None:
    """In a forked child: closing its copy of a handle does not end the parent's lock."""
    for handle in _held:
        with suppress(OSError):
            os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)


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
