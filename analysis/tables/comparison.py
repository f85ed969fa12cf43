"""Runs compared: grouped over seeds, refused where they were not measured on the same thing."""

import hashlib
import json
import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from analysis.runs.run_folder import Run, check_links, find_runs, read_run
from analysis.tables.metric_names import Statistic, find_splits, join_intervals
from gr_mvdr.files import UnfinishedRun, read_json, write_json
from gr_mvdr.options import make_printable

PARADIGMS = ("lexical", "multi vector", "generative")  # in the order of tables
LEVEL = 0.05  # a difference is significant whose corrected p-value is below it
SHOWN_CHOICES = 3  # more differences than these do not fit a label
SHOWN_VALUE = 40  # letters of a choice's value in a label
_VAGUE = ("query", "document", "name", "path")  # words that say nothing without the one before
_TARGET = "._target_"
# Of a comparison's folder. The record says which runs it was made of, each as a path from that
# folder, so that a comparison that is moved with its runs keeps its place.
RECORD = "comparison.json"
WRITTEN = ("comparison.*", "comparison_*", "paper_table*", "study.*")  # files of its folder
SHOWN_LETTERS = 60  # of the systems' names in a folder's name
SHOWN_RUNS = 3  # in an error


@dataclass
class Group:
    """Runs of one system and the same choices, one of each seed.

    Attributes:
        label: the system, with the choices that distinguish it from its other groups.
    """

    runs: list[Run]
    label: str = ""

    @cached_property
    def statistics(self) -> dict[str, Statistic]:
        """Mean and, over two or more seeds, sample standard deviation of every metric.

        An interval is one run's: with several seeds the deviation says more.
        """
        if len(self.runs) == 1:
            return join_intervals(self.runs[0].metrics)
        values = defaultdict(list)
        for run in self.runs:
            for key in join_intervals(run.metrics):
                values[key].append(run.metrics[key])
        return {key: Statistic.over(seeds) for key, seeds in values.items()}

    @property
    def paradigm(self) -> str:
        return str(self.runs[0].provenance.get("paradigm", "")).replace("_", " ")

    @property
    def seeds(self) -> str:
        return ", ".join(str(run.seed) for run in self.runs)


@dataclass
class Section:
    """Groups measured on the same collection and splits, such as "wtq (dev)"."""

    setting: str
    groups: list[Group]

    @property
    def splits(self) -> set[str]:
        """The names of further test splits."""
        return find_splits(key for group in self.groups for key in group.statistics)


@dataclass
class Comparison:
    """Sections of comparable groups, and what was left out.

    Attributes:
        sections: usually one; several when collections or splits are mixed.
        notes: a line for each run that was skipped.
        folder: where its files are; None before they are written.
    """

    sections: list[Section]
    notes: list[str] = field(default_factory=list)
    folder: Path | None = None

    @property
    def groups(self) -> list[Group]:
        return [group for section in self.sections for group in section.groups]

    @property
    def runs(self) -> list[Run]:
        return [run for group in self.groups for run in group.runs]


def compare_runs(
    paths: Sequence[Path], mixed: bool = False, labels: Sequence[object] = ()
) -> Comparison:
    """Reads runs and groups them by collection, system and every choice but seed and study.

    Args:
        paths: run folders, or folders that hold some.
        mixed: show runs over different collections or splits apart instead of refusing them.
        labels: of the groups, in the order of their runs; by default each is called after its
            system and what distinguishes it from that system's others.

    Raises:
        FileNotFoundError: a path does not exist.
        ValueError: no run at a path, an unfinished one, one twice; different collections or splits
            without `mixed`; labels that do not fit.
    """
    runs, notes = _read_runs([Path(path) for path in paths])
    if not runs:
        raise ValueError("; ".join(["runs: no finished run to compare", *notes]))
    settings = defaultdict(list)
    for run in runs:
        settings[run.setting, run.fingerprint].append(run)
    named = [name for name, _ in settings]
    names = [  # equal names of different data get a fingerprint
        name if named.count(name) == 1 else f"{name}, data {fingerprint}"
        for name, fingerprint in settings
    ]
    if len(settings) > 1 and not mixed:
        raise ValueError(
            f"runs over different collections or splits cannot be compared: "
            f"{'; '.join(names)}. mixed=true shows them apart"
        )
    sections = [
        Section(name, _group_runs(runs, notes))
        for name, runs in zip(names, settings.values(), strict=True)
    ]
    if labels:
        _name_groups(list(map(str, labels)), sections)
    places = {paradigm: place for place, paradigm in enumerate(PARADIGMS)}
    for section in sections:  # within a paradigm they stay as given
        section.groups.sort(key=lambda group: places.get(group.paradigm, len(PARADIGMS)))
    return Comparison(sections, notes)


def _read_runs(paths: list[Path]) -> tuple[list[Run], list[str]]:
    """The finished runs at or below some folders, and a note on each that is not finished."""
    runs, notes = {}, []
    for path in paths:
        if not path.is_dir():
            raise FileNotFoundError(f"runs={path}: no such folder")
        if not (folders := find_runs(path)):
            raise ValueError(f"runs={path}: holds no run")
        for folder in folders:
            if folder.resolve() in runs:
                what = "" if folder == path else f"the run {folder} "
                raise ValueError(f"runs={path}: {what}is named twice")
            try:
                runs[folder.resolve()] = read_run(folder)
            except UnfinishedRun as unfinished:
                if folder == path:  # it was asked for
                    raise UnfinishedRun(f"runs={unfinished}") from None
                notes.append(f"{unfinished}: skipped")
    return list(runs.values()), notes


def _group_runs(runs: list[Run], notes: list[str]) -> list[Group]:
    """Runs of one system and the same choices, with their labels.

    A study comes after the ranking and does not change it: it separates runs only where they have
    the same seed, and then each has another table.
    """
    alike: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        ranked = {key: v for key, v in run.choices.items() if key.split(".")[0] != "study"}
        alike[run.system, json.dumps(ranked, sort_keys=True)].append(run)
    groups: dict[tuple[str, str], dict] = defaultdict(dict)
    for key, same in alike.items():
        apart = len({run.seed for run in same}) < len(same)
        for run in same:
            own = (run.system, json.dumps(run.choices, sort_keys=True)) if apart else key
            if run.seed in groups[own]:  # a second run of a seed says nothing about the spread
                kept = groups[own][run.seed].path
                notes.append(f"{kept} has the system and seed of {run.path}: skipped")
            groups[own][run.seed] = run
    found = [Group(list(seeds.values())) for seeds in groups.values()]
    first = [group.runs[0] for group in found]
    labels = label_groups([run.system for run in first], [run.choices for run in first])
    for group, label in zip(found, labels, strict=True):
        group.label = label
    return found


def _name_groups(labels: Sequence[str], sections: Sequence[Section]) -> None:
    """Calls the groups as the user does.

    Raises:
        ValueError: not a label for each group, or two groups of a section with the same.
    """
    typed, groups = f"labels=[{', '.join(labels)}]", [g for s in sections for g in s.groups]
    if len(labels) != len(groups):
        raise ValueError(
            f"{typed}: must be {len(groups)}, one for each of the runs (seeds of one system are "
            f"one): {', '.join(group.label for group in groups)}"
        )
    for group, label in zip(groups, labels, strict=True):
        group.label = label
    for section in sections:
        if len({group.label for group in section.groups}) < len(section.groups):
            raise ValueError(f"{typed}: must be distinct")


def label_groups(systems: Sequence[str], choices: Sequence[Mapping[str, str]]) -> list[str]:
    """A distinct label for each group of runs: "t5_colbert (alignment=softmax)".

    Args:
        systems: of each group. choices: of each group, as `Run.choices`.
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
    """What each of some runs chose and most others did not: `["alignment=softmax"]`.

    Keys are as short as they can be; a choice that several keys repeat is named once. Options that
    only some runs have (those of a part) are compared among these.
    """
    differing: dict[str, list[str | None]] = {}  # name → the value of each run
    keys = {key: None for choices in rivals for key in choices}
    for key in sorted(keys, key=lambda key: key.removesuffix(_TARGET).count(".")):
        option = key.removesuffix(_TARGET)
        absent = None if key == option else "None"  # a part that a run does without is null
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
    """A value as YAML has it, cut; a class as its group has it: "max_sim" for "…MaxSim"."""
    if is_class and "." in value:
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", value.rpartition(".")[2]).lower()
        kind = next(part for part in reversed(option.split(".")) if part not in _VAGUE)
        return "plain" if name == kind else name.removesuffix(f"_{kind}")
    value = {"None": "null", "True": "true", "False": "false"}.get(value, value)
    return value if len(value) <= SHOWN_VALUE else f"{value[: SHOWN_VALUE - 1]}…"


# Where a comparison goes --------------------------------------------------------------------------


def name_comparison(comparison: Comparison) -> str:
    """`comparison-BM25_T5-SEAL-1a2b3c`: the systems, and a hash of the runs' folders.

    The same runs have the same name, wherever the folder that holds them all is.
    """
    systems = sorted({run.system for run in comparison.runs})
    shown = "_".join(re.sub(r"[^A-Za-z0-9.]+", "-", system).strip("-.") for system in systems)
    folders = sorted(_locate_runs(comparison, find_common_folder(comparison)))
    digest = hashlib.sha256(json.dumps(folders).encode()).hexdigest()
    return f"comparison-{shown[:SHOWN_LETTERS]}-{digest[:6]}"


def find_common_folder(comparison: Comparison) -> Path:
    """The innermost folder that holds all runs."""
    return Path(os.path.commonpath([run.path.absolute().parent for run in comparison.runs]))


def place_tables(comparison: Comparison, kind: str, output: str | None) -> Path:
    """The folder of other tables of runs: the user's, or `KIND-SYSTEMS-…` next to the runs."""
    name = name_comparison(comparison).replace("comparison", kind, 1)
    return Path(output) if output else find_common_folder(comparison) / name


def _locate_runs(of: Comparison | Group, folder: Path) -> list[str]:
    """The runs' folders as paths from a folder."""
    start = folder.resolve()
    return [Path(os.path.relpath(run.path.resolve(), start)).as_posix() for run in of.runs]


def place_comparison(
    comparison: Comparison, output: Path | None = None, make_way: bool = False
) -> Path:
    """Makes the folder of a comparison and writes its record.

    Args:
        output: the folder; None: one named after the runs, in the folder that holds them.
        make_way: where `output` holds a comparison of other runs, take a folder in it that is
            named after the runs; otherwise such an `output` is refused.

    Raises:
        ValueError: the folder holds a comparison of other runs, or a link.
    """
    folder = output or find_common_folder(comparison)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"output={folder}: must be a folder, is a file")
    if not output or (make_way and _find_others(comparison, folder)):
        check_links(folder, [name_comparison(comparison)])
        folder /= name_comparison(comparison)
    if others := _find_others(comparison, folder):
        raise ValueError(
            f"output={folder}: holds a comparison of other runs ({others}), which stays: name "
            "another folder, or remove that one"
        )
    check_links(folder, WRITTEN)
    folder.mkdir(parents=True, exist_ok=True)
    runs = [
        {"folder": place, "system": run.system, "seed": run.seed, "label": group.label}
        for group in comparison.groups
        for place, run in zip(_locate_runs(group, folder), group.runs, strict=True)
    ]
    # First of all files: a comparison that is interrupted is made again in its place.
    write_json(folder / RECORD, {"runs": runs})
    return folder


def _find_others(comparison: Comparison, folder: Path) -> str:
    """The runs of another comparison in a folder; "" without one, or if it is of our runs."""
    if not (folder / RECORD).is_file():
        return ""
    try:
        places = sorted(str(run["folder"]) for run in read_json(folder / RECORD)["runs"])
    except (ValueError, KeyError, TypeError):
        return f"{RECORD} is damaged"
    if places == sorted(_locate_runs(comparison, folder)):
        return ""
    names = [make_printable(Path(place).name) for place in places[:SHOWN_RUNS]]
    return ", ".join(names + ["…"] * (len(places) > SHOWN_RUNS))
