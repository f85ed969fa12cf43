"""A run's folder: one command at a time writes to it; others read it once it is finished."""

import hashlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout
from omegaconf import DictConfig, OmegaConf
from pandas import DataFrame

from analysis.runs.numbers import NUMBERS, find, flatten_rows, over_seeds, read_numbers
from analysis.runs.tables import format_text, select, tabulate, tabulate_rankings
from gr_mvdr.files import (
    CHECKPOINT,
    CIRCUMSTANCES,
    CONFIG,
    METRICS_FILE,
    PARTS,
    PROVENANCE,
    check_file,
    check_finished,
    read_config,
    read_json,
    read_provenance,
    read_yaml,
    remove_abandoned,
    write_json,
    write_text,
)
from gr_mvdr.measures import COST, IDENTIFIED
from gr_mvdr.options import make_printable, name_some, show

REPORT = "report.html"
STUDY = "study.csv"  # in the folder of a run or a sweep that made a study
LOCK = ".lock"
# Keys of lists that a sweep goes through; each of its runs uses one value of each list.
SWEPT = ("collections", "batches", "k_trains", "sizes", "trainings")
# Groups of overrides that change no measured number.
_SILENT = ("hydra", *CIRCUMSTANCES)
# Keys that decide what a ranking's metrics mean: runs that differ in them share no table.
PROTOCOL = (
    *("retrieval_depth", "data.max_test_queries", "data.new_documents", "data.drop_identical"),
    *("data.candidates", "data.candidates_run", "data.add_relevant", "data.relevance_level"),
)
# Keys that say where data lie, how a run is watched and what is analysed: they change no ranking.
UNMEASURED = (
    *("data.path", "data.store", "data.num_workers", "experiments", "analysis"),
    *("trainer.log_every_n_steps", "trainer.default_root_dir", "trainer.enable_progress_bar"),
)


@dataclass(frozen=True, eq=False)
class Run:
    """A run as reports and comparisons see it.

    Attributes:
        path: its folder.
        config: the resolved configuration, nested.
        provenance: has "system" and "collection" and, if known, "seed", "paradigm", "splits" and
            "sources" (what the data were made from).
        numbers: the table of its numbers (`analysis.runs.numbers`).
    """

    path: Path
    config: dict[str, Any]
    provenance: dict[str, Any]
    numbers: DataFrame

    @cached_property
    def metrics(self) -> dict[str, float]:
        """Its numbers as in `metrics.json`, flat, such as "retrieve/recall@1"."""
        return flatten_rows(self.numbers)

    def __fspath__(self) -> str:
        """Returns the folder, so that a run can stand for a path, as in `Path(run)`."""
        return str(self.path)

    def __repr__(self) -> str:
        return f"{self.summary}\n{self.path}"

    @property
    def summary(self) -> str:
        """A few lines: rankings, main costs and identifiers."""
        table = tabulate({self.system: over_seeds([self.numbers])})
        lines = [f"{self.system} on {self.setting}, seed {self.seed}"]
        if rankings := tabulate_rankings(table):
            lines += format_text(rankings)
        named, whole = table["group"] == IDENTIFIED.name, table["place"] == ""
        costs = (table["group"] == COST.name) & table["headline"]
        for part in (table[costs], table[named & whole]):
            values = zip(part["label"], part["cell"], strict=True)
            lines.append("; ".join(f"{label} {cell.text}" for label, cell in values))
        if len(part := table[named & ~whole]):
            lines += format_text(select(part, "section", "label", corner=""))
        return "\n".join(make_printable(line) for line in lines if line)

    @property
    def system(self) -> str:
        return str(self.provenance["system"])

    @property
    def seed(self) -> Any:
        return self.provenance.get("seed", self.config.get("seed"))

    @property
    def is_trained(self) -> bool:
        """Whether weights were trained, by this run or by one that it took them from.

        A pipeline or a fusion counts as trained: one of its systems nearly always is.
        """
        trained_here = find(self.numbers, COST.name, "train_seconds") is not None
        is_combined = self.provenance.get("paradigm") == "pipeline"
        return trained_here or is_combined or bool(self.provenance.get("training_sources"))

    @property
    def setting(self) -> str:
        """What the run was measured on: "wtq (dev)"."""
        names = ", ".join(self.splits)
        return self.provenance["collection"] + (f" ({names})" if names else "")

    @property
    def splits(self) -> list[str]:
        """The names of the test splits, the main one first."""
        splits = self.provenance.get("splits", look_up(self.config, "data.test_split")) or []
        splits = list(splits.values()) if isinstance(splits, dict) else splits
        return list(map(str, splits if isinstance(splits, list) else [splits]))

    @property
    def fingerprint(self) -> str:
        """A hash of the data's contents: collections of equal name may have different files."""
        sources = self.provenance.get("sources", {})
        # A file's name, not its path: a copy elsewhere holds the same data.
        contents = sorted((Path(name).name, str(value)) for name, value in sources.items())
        return hashlib.sha256(json.dumps(contents).encode()).hexdigest()[:8]

    @property
    def typed(self) -> dict[str, str]:
        """What was typed for it: key → value, "" for a key that was taken away (`~study`)."""
        typed = self.provenance.get("overrides") or []
        pairs = (override.lstrip("+~").partition("=") for override in typed)
        return {key: value for key, _, value in pairs}

    @property
    def protocol(self) -> tuple[str, ...]:
        """What runs that share a table must agree in: the data, and the keys of `PROTOCOL`."""
        asked = [f"{k.split('.')[-1]}={show(look_up(self.config, k))}" for k in PROTOCOL]
        return (f"data {self.fingerprint}", *asked)

    @property
    def commit(self) -> str:
        """The commit of the code; "" if it was not recorded."""
        return str(self.provenance.get("git", ""))

    @property
    def hardware(self) -> str:
        """The machine: "Intel Xeon, 2 cores, NVIDIA H100"; "" if it was not recorded."""
        hardware = self.provenance.get("hardware", {})
        # Linux names the processor "Intel(R) Xeon(R) Processor".
        parts = [re.sub(r"\((R|TM)\)| Processor$", "", hardware.get("processor") or "")]
        parts += [f"{hardware['cores']} cores"] if hardware.get("cores") else []
        return ", ".join(filter(None, [*parts, *hardware.get("gpus", ())]))

    @property
    def sample(self) -> str:
        """The limit on reranked queries: "200", "all" (no limit); "" if it was not recorded."""
        data = self.config.get("data", {})
        return str(data["max_rerank_queries"] or "all") if "max_rerank_queries" in data else ""

    @property
    def choices(self) -> dict[str, str]:
        """The flat configuration without the seed, the folder and keys that change no ranking.

        Two runs with equal choices differ only in their seed and in values that contain it, such
        as `initial=…-seed1`. The data's path is left out: `fingerprint` compares the data.
        """
        flat = flatten(self.config)
        if callbacks := flat.get("trainer.callbacks"):
            flat["trainer.callbacks"] = [one for one in callbacks if not _only_watches(one)]
        seed, folder = self.config.get("seed"), self.config.get("run")
        left_out, texts = (*CIRCUMSTANCES, *SWEPT, *UNMEASURED, "seed"), {}
        for key, value in flat.items():
            is_seed = key.split(".")[-1] == "seed" and value == seed
            if not (is_seed or key in left_out or key.split(".")[0] in left_out):
                text = str(value).replace(str(folder), "") if folder else str(value)
                texts[key] = text.replace(f"seed{seed}", "seed")
        return texts


def _only_watches(callback: Any) -> bool:
    return isinstance(callback, dict) and str(callback.get("_target_")).startswith("analysis.")


@contextmanager
def claim_folder(folder: Path) -> Iterator[None]:
    """Keeps other commands out of a folder until the block ends, however it ends.

    The operating system locks the file `.lock` until the process ends. The file of a killed process
    is therefore taken over. The folder is created, and removed again if it is empty at the end.

    Raises:
        ValueError: another process works in the folder.
        OSError: the folder cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise ValueError(f"run={folder}: another process works in it") from None
    try:
        yield
    finally:
        (folder / LOCK).unlink(missing_ok=True)
        lock.release()
        with suppress(OSError):
            folder.rmdir()  # if it is empty


@contextmanager
def open_run(config: DictConfig) -> Iterator[tuple[Path, list[str]]]:
    """Calls `find_run` and, if a part is missing, claims the folder until the block ends.

    Rank 0 claims it, and removes temporary files that a killed process left.

    Raises: as `find_run`, and ValueError if another command works in the folder.
    """
    from gr_mvdr.ranks import rank, rank_zero_first  # imports torch, which listing runs avoids

    with ExitStack() as held:
        with rank_zero_first():
            run, missing = find_run(config)
            if missing and rank() == 0:
                held.enter_context(claim_folder(run))
                run, missing = find_run(config)  # again: another command may just have finished
                remove_abandoned(run)
        yield run, missing


def find_run(config: DictConfig) -> tuple[Path, list[str]]:
    """Returns a run's folder and the files that it lacks; a finished run lacks none.

    `metrics.json` is written last: a run that has it is finished.

    Args:
        config: with `run`, the folder, and `resume`.

    Raises:
        FileExistsError: the folder holds a run and `resume` is false.
        FileNotFoundError, ValueError: the folder holds a run of another configuration, or its
            `config.yaml` is missing or damaged.
    """
    run = Path(config.run)
    if not any((run / part).exists() for part in (CONFIG, CHECKPOINT)):
        return run, [CONFIG]
    if not config.resume:
        raise FileExistsError(
            f"run={run}: the folder exists; pass resume=true to continue or keep it, "
            "or another name=…"
        )
    # Through YAML, as the file was written.
    asked = yaml.safe_load(OmegaConf.to_yaml(config, resolve=True))
    made, asked = _identify(read_yaml(run / CONFIG)), _identify(asked)
    if made != asked:
        made, asked, none = flatten(made), flatten(asked), "missing"
        pairs = {key: (asked.get(key, none), made.get(key, none)) for key in {**asked, **made}}
        differ = [f"{k}={show(a)} (was {show(b)})" for k, (a, b) in pairs.items() if a != b]
        said = f"cannot resume, it was made with another config.yaml: {name_some(differ)}"
        raise ValueError(f"run={run}: {said}")
    return run, [name for name in (PROVENANCE, METRICS_FILE, REPORT) if not (run / name).is_file()]


def _identify(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings that a resumed run must share."""
    return {k: v for k, v in settings.items() if k not in (*CIRCUMSTANCES, *SWEPT)}


def start_run(config: DictConfig, record: dict[str, Any]) -> None:
    """Creates a run's folder with the resolved configuration and the provenance.

    It is called after all of the user's choices have been read: a typing error leaves no folder.
    """
    run = Path(config.run)
    run.mkdir(parents=True, exist_ok=True)
    write_json(run / "provenance.json", record)
    write_text(run / "config.yaml", OmegaConf.to_yaml(config, resolve=True))


def ranking_file(*place: str, ending: str = "trec") -> str:
    """Returns the name of a ranking's file: "rerank-document_to_query-test_unseen.trec".

    Args:
        place: "retrieve" or "rerank", then a form of reranking and a further test split, as in the
            keys of the ranking's metrics; empty strings are left out.
        ending: "qrels" for the file of its judgements, which all forms of reranking share.
    """
    return f"{'-'.join(filter(None, place))}.{ending}"


def flatten(nested: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens a nested dict: {"a": {"b": 1}} becomes {"a.b": 1}; lists stay values."""
    flat = {}
    for key, value in nested.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def look_up(config: Mapping[str, Any], key: str) -> Any:
    """Returns the value of a dotted key in a nested configuration; None if it is missing."""
    step = lambda node, word: node.get(word) if isinstance(node, Mapping) else None  # noqa: E731
    return reduce(step, key.split("."), config)


def read_run(path: Path, finished: bool = True) -> Run:
    """Reads a run's folder.

    Args:
        finished: False = a run that has yet to write its `metrics.json`.

    Raises:
        FileNotFoundError: no such folder.
        UnfinishedRun: a part is missing.
        ValueError: a part is broken, the provenance names no system or collection, or an older
            version made the run.
    """
    path = Path(path)
    check_finished(str(path), path, PARTS if finished else PARTS[:-1])
    provenance = read_provenance(path)
    if not (path / NUMBERS).exists():
        command = print_command(provenance.get("overrides") or [])
        raise ValueError(
            f"{path}: was made by an older version (no {NUMBERS}); run {command} again"
        )
    return Run(path, read_config(path), provenance, read_numbers(path))


def print_command(overrides: Sequence[str]) -> str:
    """Returns the command of a run as typed, without what changes no measured number."""
    typed = [word for word in overrides if re.split("[.=]", word.lstrip("+"))[0] not in _SILENT]
    return shlex.join(["python", "train.py", *typed])


def read_kept(run: Path, name: str) -> dict[str, Any]:
    """Reads what an analysis kept for each query in `NAME.json`; {} if there is no such file."""
    path = run / f"{name}.json"
    return read_json(check_file(path, run)) if path.exists() else {}


def named_folders(runs: str | Sequence[str]) -> list[Path]:
    """Returns the folders that `runs=` names on the command line: one, or a list."""
    return [Path(runs)] if isinstance(runs, str) else list(map(Path, runs))


def find_runs(folder: Path) -> list[Path]:
    """Finds the run folders at or below a folder, finished or not; numbered ones by number."""
    folder = Path(folder)
    if any((folder / part).is_file() for part in PARTS):
        return [folder]
    children = [child for child in folder.iterdir() if child.is_dir() and child.name[0] != "."]
    children.sort(key=lambda child: (child.name.isdigit() and int(child.name), child.name))
    return [run for child in children for run in find_runs(child)]
