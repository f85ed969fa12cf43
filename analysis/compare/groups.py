"""Compares runs: groups them over seeds, with a section for each collection and protocol."""

import hashlib
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from pandas import DataFrame

from analysis.runs.numbers import over_seeds
from analysis.runs.run_folder import SWEPT, UNMEASURED, Run, find_runs, read_run
from gr_mvdr.files import CIRCUMSTANCES, UnfinishedRun, read_json, write_json

PARADIGMS = ("lexical", "multi vector", "generative")  # in the order of tables
LEVEL = 0.05  # a difference is significant if its corrected p-value is below this
SHOWN_VALUE = 40  # the most letters of a choice's value in a label
_VAGUE = ("query", "document", "name", "path")  # words that mean little without the one before
# Attributes of runs that one table may mix, with a note.
NOTED = {"commit": "measured at several commits", "sample": "several data.max_rerank_queries"}
SEEDS = 3  # the fewest trainings of a trained system whose differences can be significant
MARK = "†"  # of a system whose seeds were measured at different commits
RECORD = "comparison.json"  # in a comparison's folder: its name and the compared runs
SHOWN_LETTERS = 60  # the most letters of the systems' names in a folder's name


@dataclass
class Group:
    """Runs of one system with the same choices, one for each seed.

    Attributes:
        label: the system's name, with the choices that distinguish the group from its others.
    """

    runs: list[Run]
    label: str = ""

    @cached_property
    def numbers(self) -> DataFrame:
        """Its numbers over the seeds, see `over_seeds`."""
        return over_seeds([run.numbers for run in self.runs])

    @property
    def paradigm(self) -> str:
        return str(self.runs[0].provenance.get("paradigm", "")).replace("_", " ")

    @property
    def seeds(self) -> str:
        return ", ".join(str(run.seed) for run in self.runs) + f" {MARK}" * self.across_commits

    @property
    def is_trained(self) -> bool:
        return any(run.is_trained for run in self.runs)

    @property
    def across_commits(self) -> bool:
        """Whether its seeds were measured at different commits."""
        return len({run.commit for run in self.runs} - {""}) > 1


@dataclass
class Section:
    """Groups measured on the same collection and splits, such as "wtq (dev)"."""

    setting: str
    groups: list[Group]

    def labels_by(self, attribute: str) -> dict[str, str]:
        """Returns each value of an attribute of the runs → the labels of its groups."""
        found: dict[str, dict[str, None]] = defaultdict(dict)
        for group in self.groups:
            for run in group.runs:
                found[getattr(run, attribute)][group.label] = None
        return {value: ", ".join(labels) for value, labels in found.items() if value}

    @property
    def notes(self) -> list[str]:
        """What differs between the runs although they share a table."""
        notes = []
        for attribute, what in NOTED.items():
            if len(found := self.labels_by(attribute)) > 1:
                listed = "; ".join(f"{value} ({labels})" for value, labels in found.items())
                notes.append(f"{self.setting}: {what}: {listed}.")
        if any(group.across_commits for group in self.groups):
            notes.append(f"{MARK}: the seeds of this system were measured at different commits.")
        return notes


@dataclass
class Comparison:
    """Sections of comparable groups, and what was left out.

    Attributes:
        sections: one for each collection, choice of splits and protocol.
        notes: a line for each run that was skipped, and for what differs between runs of a table.
        folder: where its files are; None before they are written.
    """

    sections: list[Section]
    notes: list[str] = field(default_factory=list)
    folder: Path | None = None

    def only_section(self) -> Section:
        """Returns the section of all runs.

        Raises:
            ValueError: the runs are over different collections, splits or protocols.
        """
        if len(self.sections) > 1:
            names = "; ".join(section.setting for section in self.sections)
            raise ValueError(f"runs: must be over one collection and its splits, are over {names}")
        return self.sections[0]

    @property
    def groups(self) -> list[Group]:
        return [group for section in self.sections for group in section.groups]

    @property
    def runs(self) -> list[Run]:
        return [run for group in self.groups for run in group.runs]


def compare_runs(paths: Sequence[Path], labels: Mapping[str, object] | None = None) -> Comparison:
    """Reads runs and groups them by collection, system and every choice but seed and study.

    Args:
        paths: run folders, or folders that hold some.
        labels: the name of a run's folder, or a system's → the label of its groups; by default a
            label is the system's name and the choices that distinguish the group from the system's
            others.

    Raises:
        FileNotFoundError: a path does not exist.
        ValueError: a path holds no run or is an unfinished one, or the labels do not fit.
    """
    runs, notes = read_runs([Path(path) for path in paths])
    if not runs:
        raise ValueError("; ".join(["runs: no finished run to compare", *notes]))
    settings = defaultdict(list)
    for run in runs:
        settings[run.setting, run.protocol].append(run)
    names = []
    for name, protocol in settings:  # equal names get what differs
        rivals = [other for named, other in settings if named == name]
        differing = [one for one in protocol if any(one not in other for other in rivals)]
        names.append(", ".join([name, *differing]))
    sections = [
        Section(name, _group_runs(runs, notes))
        for name, runs in zip(names, settings.values(), strict=True)
    ]
    if labels:
        _name_groups(labels, sections)
    places = {paradigm: place for place, paradigm in enumerate(PARADIGMS)}
    for section in sections:  # the sort is stable: groups of one paradigm stay in their order
        section.groups.sort(key=lambda group: places.get(group.paradigm, len(PARADIGMS)))
    return Comparison(sections, notes + [note for section in sections for note in section.notes])


def read_runs(paths: list[Path]) -> tuple[list[Run], list[str]]:
    """Reads the finished runs at or below the folders, and notes each unfinished one."""
    runs, notes = {}, []
    for path in paths:
        if not path.is_dir():
            raise FileNotFoundError(f"runs={path}: no such folder")
        if not (folders := find_runs(path)):
            raise ValueError(f"runs={path}: holds no run")
        for folder in folders:
            try:
                runs[folder.resolve()] = read_run(folder)
            except UnfinishedRun as unfinished:
                if folder == path:  # the user named this run
                    raise UnfinishedRun(f"runs={unfinished}") from None
                notes.append(f"{unfinished}: skipped")
    return list(runs.values()), notes


def _group_runs(runs: list[Run], notes: list[str]) -> list[Group]:
    """Groups runs by system and choices, and labels the groups.

    A study is made after the ranking and does not change it. Runs that differ
    only in their study form one group, unless two share a seed: these differ in the table of their
    study. An option that is null equals a missing one, which another commit may not have had.
    """
    alike: dict[tuple[str, str], list[tuple[Run, str]]] = defaultdict(list)
    for run in runs:
        chosen = {key: value for key, value in run.choices.items() if value != "None"}
        ranked = {key: v for key, v in chosen.items() if key.split(".")[0] != "study"}
        every = json.dumps(chosen, sort_keys=True)
        alike[run.system, json.dumps(ranked, sort_keys=True)].append((run, every))
    groups: dict[tuple[str, str], dict] = defaultdict(dict)
    for key, same in alike.items():
        apart = len({run.seed for run, _ in same}) < len(same)
        for run, every in same:
            own = (run.system, every) if apart else key
            if run.seed in groups[own]:  # a second run with a seed says nothing about the spread
                kept = groups[own][run.seed].path
                notes.append(f"{kept} has the system and seed of {run.path}: skipped")
            groups[own][run.seed] = run
    found = [Group(list(seeds.values())) for seeds in groups.values()]
    _label_groups(found)
    return found


def _name_groups(labels: Mapping[str, object], sections: Sequence[Section]) -> None:
    """Replaces labels of groups by the user's; a folder's name takes precedence.

    Raises:
        ValueError: a name is neither that of the folder of one group's runs nor a system's, or two
            groups of a section share a label.
    """
    folders: dict[str, list[Group]] = defaultdict(list)
    systems: dict[str, list[Group]] = defaultdict(list)
    for group in (group for section in sections for group in section.groups):
        systems[group.runs[0].system].append(group)
        for name in {run.path.name for run in group.runs}:
            folders[name].append(group)
    named = {name: groups for name, groups in folders.items() if len(groups) == 1}
    for name, label in sorted(labels.items(), key=lambda pair: str(pair[0]) in named):
        if not (groups := named.get(str(name)) or systems.get(str(name))):
            rule = f"must be a folder of one system's runs ({', '.join(folders)}) or a system"
            count = len(folders.get(str(name), []))
            raise ValueError(f"labels.{name}: {rule}, {count} systems have one of this name")
        for group in groups:
            group.label = str(label)
    for section in sections:
        if len({group.label for group in section.groups}) < len(section.groups):
            found = ", ".join(group.label for group in section.groups)
            raise ValueError(f"labels: must tell the systems of a table apart, are {found}")


def _label_groups(groups: Sequence[Group]) -> None:
    """Labels each group by its system and, if there are several of it, what was typed for it alone.

    What all groups of the system were given, such as their data, tells none of them apart.
    """
    typed = {id(group): list_typed(group.runs[0]) for group in groups}
    for group in groups:
        rivals = [g for g in groups if g.runs[0].system == group.runs[0].system]
        shared = set.intersection(*({*typed[id(rival)]} for rival in rivals))
        own = [word for word in typed[id(group)] if word not in shared]
        group.label = group.runs[0].system + (f" ({', '.join(own)})" if own else "")
    for label, count in Counter(group.label for group in groups).items():
        alike = [group for group in groups if group.label == label]
        for number, group in enumerate(alike[1:] if count > 1 else (), start=2):
            group.label = f"{label} #{number}"


def list_typed(run: Run) -> list[str]:
    """Returns the overrides that were typed for a run and are its choices: "k=2", "alignment=…"."""
    words = []
    for key, value in run.typed.items():
        outer, _, last = key.rpartition(".")
        changes_nothing = {key, key.split(".")[0]} & {*CIRCUMSTANCES, *SWEPT, *UNMEASURED}
        if changes_nothing or last in ("seed", "model", "data", "experiment"):
            continue
        name = ".".join(key.split(".")[-2:]) if outer and last in _VAGUE else last
        value = value if len(value) <= SHOWN_VALUE else f"{value[: SHOWN_VALUE - 1]}…"
        words.append(f"{name}={value}" if value else name)
    return list(dict.fromkeys(words))


# Where a comparison goes --------------------------------------------------------------------------


def name_comparison(comparison: Comparison) -> str:
    """Returns `comparison-BM25_T5-SEAL-1a2b3c`: the systems, and a hash of the runs' folders.

    The hash is of paths relative to the runs' common folder: moving it does not change the name.
    """
    systems = sorted({run.system for run in comparison.runs})
    shown = "_".join(re.sub(r"[^A-Za-z0-9.]+", "-", system).strip("-.") for system in systems)
    common = find_common_folder(comparison)
    folders = sorted(run.path.absolute().relative_to(common).as_posix() for run in comparison.runs)
    digest = hashlib.sha256(json.dumps(folders).encode()).hexdigest()
    return f"comparison-{shown[:SHOWN_LETTERS]}-{digest[:6]}"


def find_common_folder(comparison: Comparison) -> Path:
    """Returns the innermost folder that holds all runs."""
    return Path(os.path.commonpath([run.path.absolute().parent for run in comparison.runs]))


def place_comparison(comparison: Comparison, output: Path | None = None) -> Path:
    """Creates the folder of a comparison and writes its record.

    Args:
        output: the folder; None = the folder that holds the runs. A folder named after the runs
            within it is used by default, and if `output` holds a comparison of other runs.
    """
    folder = output or find_common_folder(comparison)
    record = {"name": name_comparison(comparison), "runs": [str(r.path) for r in comparison.runs]}
    kept = folder / RECORD
    if output is None or (kept.is_file() and read_json(kept)["name"] != record["name"]):
        folder /= record["name"]
    folder.mkdir(parents=True, exist_ok=True)
    # Written before all other files: an interrupted comparison is made again in the same folder.
    write_json(folder / RECORD, record)
    return folder
