"""From run folders to a session: which runs are explored, and their retrievers."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.runs.run_folder import Run
from analysis.tables.comparison import Group, compare_runs
from analysis.viewer.known_queries import KnownQueries, read_known_queries
from gr_mvdr.files import describe_error
from gr_mvdr.options import make_printable
from models.retriever import Retriever


@dataclass(frozen=True)
class LoadedSystem:
    """A run that can be searched.

    Attributes:
        label: the system's name, with the choices and the seed that tell it from the others.
    """

    label: str
    run: Run
    retriever: Retriever


def load_systems(paths: Sequence[Path], trust: bool = False) -> list[LoadedSystem]:
    """Loads every finished run at or below some folders; a line says how each went.

    Args:
        trust: whether the runs may name classes that are not this library's (docs/design.md).

    Raises:
        FileNotFoundError: a path does not exist.
        ValueError: no run is finished, runs are over different collections, or none can be loaded.
    """
    comparison = compare_runs(list(paths), mixed=True)
    if len(comparison.sections) > 1:
        names = "; ".join(section.setting for section in comparison.sections)
        raise ValueError(f"runs: must be over one collection and its splits, are over {names}")
    for note in comparison.notes:
        _say(note)
    loaded = []
    for label, run in _labelled(comparison.sections[0].groups):
        started = time.perf_counter()
        try:
            retriever = Retriever.load(run.path, trust=trust)
        except (ValueError, OSError, NotImplementedError) as error:
            fault = describe_error(error)
            _say(f"{label}: left out, {fault}")
            continue
        loaded.append(LoadedSystem(label, run, retriever))
        _say(f"{label}: loaded {run.path} in {time.perf_counter() - started:.1f} s")
    if not loaded:
        raise ValueError(f"runs: none can be explored; {fault}")
    return loaded


def _labelled(groups: Sequence[Group]) -> list[tuple[str, Run]]:
    """Every run with a label of its own: runs of one group differ in their seed."""
    return [
        (f"{group.label}, seed {run.seed}" if len(group.runs) > 1 else group.label, run)
        for group in groups
        for run in group.runs
    ]


def load_known_queries(systems: Sequence[LoadedSystem]) -> KnownQueries:
    """The test queries of the systems' runs; none, and a line why, where they cannot be read."""
    try:
        runs = [system.run for system in systems]
        return read_known_queries(runs, systems[0].retriever.data)
    except (ValueError, OSError) as error:
        _say(f"no known queries: {describe_error(error)}")
        return KnownQueries()


def _say(line: str) -> None:
    print(make_printable(line), flush=True)
