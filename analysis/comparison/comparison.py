"""Runs compared: grouped over seeds, refused where they were not measured on the same thing."""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev

from analysis.metric_names import (
    Statistic,
    best,
    drop_bounds,
    headlines,
    join_intervals,
    order,
)
from analysis.run_folder import Run, UnfinishedRun, find_runs, read_run

SHOWN_CHOICES = 3  # more differences than these do not fit a label
SHOWN_VALUE = 40  # letters of a choice's value in a label
PARADIGMS = ("lexical", "multi_vector", "generative")  # in the order of tables


@dataclass
class Group:
    """Runs that differ in their seed only.

    Attributes:
        runs: one for each seed.
        label: the system, with the choices that tell it from other groups of the same system.
    """

    runs: list[Run]
    label: str = ""

    @cached_property
    def statistics(self) -> dict[str, Statistic]:
        """Mean and, over two or more seeds, sample standard deviation of every metric."""
        values = defaultdict(list)
        for run in self.runs:
            for key, value in run.metrics.items():
                values[key].append(value)
        # An interval is of one run: over seeds the deviation tells more.
        first = join_intervals(self.runs[0].metrics) if len(self.runs) == 1 else {}
        return {
            key: first.get(key) or Statistic(fmean(seeds), stdev(seeds) if len(seeds) > 1 else None)
            for key, seeds in values.items()
        }

    @property
    def paradigm(self) -> str:
        return str(self.runs[0].provenance.get("paradigm", "")).replace("_", " ")

    @property
    def seeds(self) -> str:
        return ", ".join(str(run.seed) for run in self.runs)


@dataclass
class Section:
    """Groups measured on the same collection and splits.

    Attributes:
        setting: the collection and its splits, in a line.
        groups: the systems.
    """

    setting: str
    groups: list[Group]

    @property
    def keys(self) -> list[str]:
        """All metrics of any group, in reading order; an interval stands with its metric."""
        found = {key for group in self.groups for key in group.statistics}
        return sorted(drop_bounds(found), key=order)

    @property
    def headlines(self) -> list[str]:
        """The metrics of the summary."""
        return headlines(self.keys, self.splits)

    @property
    def splits(self) -> set[str]:
        """The names of further test splits."""
        return splits_of(self.keys)

    def best(self, key: str) -> float | None:
        """The best mean of a metric; None where no value is better than another."""
        return best(key, [g.statistics[key].mean for g in self.groups if key in g.statistics])


def splits_of(keys: Iterable[str]) -> set[str]:
    """The names of further test splits, which stand in the middle of their metrics' keys."""
    return {k.split("/")[1] for k in keys if k.startswith("retrieve/") and k.count("/") == 2}


@dataclass
class Comparison:
    """Sections of comparable groups, and what was left out.

    Attributes:
        sections: usually one; several when collections or splits are mixed.
        notes: a line for each run that was skipped.
    """

    sections: list[Section]
    notes: list[str] = field(default_factory=list)


def compare_runs(paths: list[Path], mixed: bool = False) -> Comparison:
    """Reads runs and groups them by collection, system and every choice but the seed.

    Args:
        paths: run folders, or folders that hold some.
        mixed: show runs over different collections or splits apart instead of refusing them.

    Raises:
        FileNotFoundError: a path does not exist.
        ValueError: no finished run, or different collections or splits without `mixed`.
    """
    runs, notes = _read(paths)
    if not runs:
        raise ValueError("; ".join(["runs: no finished run to compare", *notes]))
    settings = defaultdict(list)
    for run in runs:
        settings[run.setting, run.fingerprint].append(run)
    if len(settings) > 1 and not mixed:
        raise ValueError(
            f"runs over different collections or splits cannot be compared: "
            f"{'; '.join(_setting_names(settings))}. mixed=true shows them apart"
        )
    names = _setting_names(settings)
    sections = [
        Section(name, _groups(runs, notes))
        for name, runs in zip(names, settings.values(), strict=True)
    ]
    return Comparison(sections, notes)


def _read(paths: list[Path]) -> tuple[list[Run], list[str]]:
    runs, notes = [], []
    for path in map(Path, paths):
        if not path.is_dir():
            raise FileNotFoundError(f"runs={path}: no such folder")
        found = find_runs(path)
        if not found:
            notes.append(f"{path} holds no run: skipped")
        for folder in found:
            try:
                runs.append(read_run(folder))
            except UnfinishedRun as unfinished:
                notes.append(f"{unfinished}: skipped")
    return runs, notes


def _setting_names(settings: dict[tuple[str, str], list[Run]]) -> list[str]:
    """The setting of each section; equal names of different data are told apart."""
    names = [name for name, _ in settings]
    return [
        name if names.count(name) == 1 else f"{name}, data {fingerprint}"
        for name, fingerprint in settings
    ]


def _groups(runs: list[Run], notes: list[str]) -> list[Group]:
    groups: dict[tuple[str, str], dict] = defaultdict(dict)
    for run in runs:
        seeds = groups[run.system, json.dumps(run.choices, sort_keys=True)]
        if run.seed in seeds:  # a second run of the same seed says nothing about the spread
            notes.append(f"{seeds[run.seed].path} has the system and seed of {run.path}: skipped")
        seeds[run.seed] = run
    result = [Group(list(seeds.values())) for seeds in groups.values()]
    result.sort(key=_paradigm_place)  # stable: as given within a paradigm
    _label(result)
    return result


def _paradigm_place(group: Group) -> int:
    paradigm = group.runs[0].provenance.get("paradigm")
    return PARADIGMS.index(paradigm) if paradigm in PARADIGMS else len(PARADIGMS)


def _label(groups: list[Group]) -> None:
    """Names each group by its system and what tells it from the same system's other groups."""
    taken: dict[str, int] = defaultdict(int)
    for group in groups:
        system, choices = group.runs[0].system, group.runs[0].choices
        rivals = [g.runs[0].choices for g in groups if g.runs[0].system == system]
        telling = [
            f"{key}={_shortened(choices[key])}"
            for key in choices
            if any(rival.get(key) != choices[key] for rival in rivals)
        ]
        more = ["…"] if len(telling) > SHOWN_CHOICES else []
        details = ", ".join(telling[:SHOWN_CHOICES] + more)
        label = f"{system} ({details})" if details else system
        taken[label] += 1
        group.label = label if taken[label] == 1 else f"{label} #{taken[label]}"


def _shortened(value: str) -> str:
    """A long value, such as a list of stages, by its beginning."""
    return value if len(value) <= SHOWN_VALUE else f"{value[: SHOWN_VALUE - 1]}…"
