"""Compares runs: groups them over seeds, with a section for each collection and protocol."""

import hashlib
import json
import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from analysis.runs.run_folder import Run, find_runs, read_run
from analysis.tables.metric_names import Statistic, join_intervals
from gr_mvdr.files import UnfinishedRun, read_json, write_json

PARADIGMS = ("lexical", "multi vector", "generative")  # in the order of tables
LEVEL = 0.05  # a difference is significant if its corrected p-value is below this
SHOWN_CHOICES = 3  # the most choices that fit in a label
SHOWN_VALUE = 40  # the most letters of a choice's value in a label
_VAGUE = ("query", "document", "name", "path")  # words that mean little without the one before
_TARGET = "._target_"
# Attributes of runs that one table may mix, with a note.
NOTED = {"commit": "measured at several commits", "sample": "several data.max_rerank_queries"}
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
    def statistics(self) -> dict[str, Statistic]:
        """Mean and, over two or more seeds, sample standard deviation of every metric.

        Only a single run has intervals: over several seeds the deviation says more. A metric that
        some of the runs lack is a mean over fewer seeds than the group has.
        """
        if len(self.runs) == 1:
            return join_intervals(self.runs[0].metrics)
        values = defaultdict(list)
        for run in self.runs:
            for key in join_intervals(run.metrics):
                values[key].append(run.metrics[key])
        return {key: Statistic.over(seeds, len(self.runs)) for key, seeds in values.items()}

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
    first = [group.runs[0] for group in found]
    labels = label_groups([run.system for run in first], [run.choices for run in first])
    for group, label in zip(found, labels, strict=True):
        group.label = label
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


def label_groups(systems: Sequence[str], choices: Sequence[Mapping[str, str]]) -> list[str]:
    """Returns a distinct label for each group of runs: "t5_colbert (alignment=softmax)".

    Args:
        systems: the system of each group.
        choices: the `Run.choices` of each group.
    """
    labels: list[str] = []
    for number, system in enumerate(systems):
        rivals = [n for n, other in enumerate(systems) if other == system]
        chosen = describe_choices([choices[n] for n in rivals])[rivals.index(number)]
        label = named = f"{system} ({', '.join(chosen)})" if chosen else system
        count = 1
        while label in labels:
            label = f"{named} #{(count := count + 1)}"
        labels.append(label)
    return labels


def describe_choices(rivals: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """Returns, for each run, its choices that at most half of the runs share.

    A choice is written as "alignment=softmax", with the shortest key that is unique. A choice that
    several keys repeat is named once. Options that only some runs have, such as the arguments of a
    part, are compared among those runs.
    """
    differing: dict[str, list[str | None]] = {}  # name → the value of each run
    keys = {key: None for choices in rivals for key in choices}
    for key in sorted(keys, key=lambda key: key.removesuffix(_TARGET).count(".")):
        option = key.removesuffix(_TARGET)
        absent = None if key == option else "None"  # a part that a run lacks is null
        values = [choices.get(key, choices.get(option, absent)) for choices in rivals]
        if len({*values} - {None}) < 2:
            continue
        parts = option.split(".")
        least = 2 if parts[-1] in _VAGUE else 1
        names = (".".join(parts[-length:]) for length in range(least, len(parts) + 1))
        shown = [value and _show_choice(option, value, key != option) for value in values]
        name = next((n for n in names if differing.get(n, shown) == shown), key)
        differing[name] = shown
    described = []
    for number in range(len(rivals)):
        own = [
            f"{name}={values[number]}"
            for name, values in differing.items()
            if values[number] and 2 * values.count(values[number]) <= len(rivals)
        ]
        described.append(own[:SHOWN_CHOICES] + ["…"] * (len(own) > SHOWN_CHOICES))
    return described


def _show_choice(option: str, value: str, is_class: bool) -> str:
    """Formats a value as in YAML, cut; a class as its option: "max_sim" for "…MaxSim"."""
    if is_class and "." in value:
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", value.rpartition(".")[2]).lower()
        kind = next(part for part in reversed(option.split(".")) if part not in _VAGUE)
        return "plain" if name == kind else name.removesuffix(f"_{kind}")
    value = {"None": "null", "True": "true", "False": "false"}.get(value, value)
    return value if len(value) <= SHOWN_VALUE else f"{value[: SHOWN_VALUE - 1]}…"


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
