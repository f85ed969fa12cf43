"""Runs compared: grouped over seeds, refused where they were not measured on the same thing."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from analysis.runs.run_folder import Run, find_runs, read_run
from analysis.tables import metric_names
from analysis.tables.labels import check_labels, label_groups
from analysis.tables.metric_names import Statistic
from analysis.tables.rows import Cell, Table
from gr_mvdr.files import UnfinishedRun

PARADIGMS = ("lexical", "multi_vector", "generative")  # in the order of tables
LEVEL = 0.05  # a difference is significant whose corrected p-value is below it
MARKS = (
    f"Bold: the best value of a metric. *: it is better than every other system's, p < {LEVEL}; "
    "only MRR@10 and R@10 of the search are tested. Without a star the lead may be chance."
)
NO_WINNERS: Mapping[str, str] = MappingProxyType({})
IDENTITY = ("setting", "system", "paradigm", "seeds")


@dataclass
class Group:
    """Runs of one system and the same choices, one of each seed.

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
        first = metric_names.join_intervals(self.runs[0].metrics) if len(self.runs) == 1 else {}
        return {key: first.get(key) or Statistic.over(seeds) for key, seeds in values.items()}

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
        setting: the collection and its splits: "wtq (dev)".
        groups: the systems.
    """

    setting: str
    groups: list[Group]

    @property
    def keys(self) -> list[str]:
        """All metrics of any group in reading order, those of intervals left out."""
        found = {key for group in self.groups for key in group.statistics}
        return sorted(metric_names.drop_bounds(found), key=metric_names.order)

    @property
    def headlines(self) -> list[str]:
        """The metrics of the summary."""
        return metric_names.headlines(self.keys, self.splits)

    @property
    def splits(self) -> set[str]:
        """The names of further test splits."""
        return metric_names.find_splits(self.keys)

    def best(self, key: str) -> float | None:
        """The best mean of a metric; None where no value is better than another."""
        means = [g.statistics[key].mean for g in self.groups if key in g.statistics]
        return metric_names.best(key, means)


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
        """The groups of all sections."""
        return [group for section in self.sections for group in section.groups]

    @property
    def runs(self) -> list[Run]:
        """The runs that were compared, without those that were skipped."""
        return [run for group in self.groups for run in group.runs]


def compare_runs(
    paths: Sequence[Path], mixed: bool = False, labels: Sequence[object] = ()
) -> Comparison:
    """Reads runs and groups them by collection, system and every choice but seed and study.

    Args:
        paths: run folders, or folders that hold some.
        mixed: show runs over different collections or splits apart instead of refusing them.
        labels: of the groups, in the order of their runs; by default each is called after its
            system and what tells it from that system's others.

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
    groups = [_group_runs(runs, notes) for runs in settings.values()]
    sections = list(map(Section, names, groups))
    _label_groups(sections, labels, notes)
    places = {paradigm.replace("_", " "): place for place, paradigm in enumerate(PARADIGMS)}
    for section in sections:  # within a paradigm they stay as given
        section.groups.sort(key=lambda group: places.get(group.paradigm, len(PARADIGMS)))
    return Comparison(sections, notes)


def _read_runs(paths: list[Path]) -> tuple[list[Run], list[str]]:
    """The finished runs at or below some folders, and a note on each that is not finished."""
    runs, notes = {}, []
    for path in paths:
        if not path.is_dir():
            raise FileNotFoundError(f"runs={path}: no such folder")
        if not (found := find_runs(path)):
            raise ValueError(f"runs={path}: holds no run")
        for folder in found:
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
    """Runs of one system and the same choices.

    A study comes after the ranking and changes nothing of it: it tells runs apart only where they
    have the same seed, and then each has another table.
    """
    alike: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        ranked = {key: v for key, v in run.choices.items() if key.split(".")[0] != "study"}
        alike[run.system, json.dumps(ranked, sort_keys=True)].append(run)
    groups: dict[tuple[str, str], dict] = defaultdict(dict)
    for key, found in alike.items():
        apart = len({run.seed for run in found}) < len(found)
        for run in found:
            own = (run.system, json.dumps(run.choices, sort_keys=True)) if apart else key
            if run.seed in groups[own]:  # a second run of a seed says nothing about the spread
                kept = groups[own][run.seed].path
                notes.append(f"{kept} has the system and seed of {run.path}: skipped")
            groups[own][run.seed] = run
    return [Group(list(seeds.values())) for seeds in groups.values()]


def _label_groups(sections: Sequence[Section], labels: Sequence[object], notes: list[str]) -> None:
    """Gives every group its label, the user's or its own."""
    own = []
    for section in sections:
        first = [group.runs[0] for group in section.groups]
        own.append(label_groups([run.system for run in first], [run.choices for run in first]))
    if labels:
        chosen = check_labels(labels, [names for names, _ in own])
    else:
        chosen = [name for names, _ in own for name in names]
        notes += [line for _, unclear in own for line in unclear]
    groups = [group for section in sections for group in section.groups]
    for group, label in zip(groups, chosen, strict=True):
        group.label = label


def summarise_section(
    section: Section, keys: Sequence[str] | None = None, winners: Mapping[str, str] = NO_WINNERS
) -> Table:
    """The metrics that matter: a row for each system, a column for each metric.

    Args:
        keys: which; by default the section's headlines.
        winners: see `Effectiveness.winners`: their best values get a star.
    """
    keys = section.headlines if keys is None else keys
    best = {key: section.best(key) for key in keys}
    rows = []
    for group in section.groups:
        found = [(key, group.statistics.get(key)) for key in keys]
        cells = [_format_cell(key, value, best[key], group, winners) for key, value in found]
        rows.append((group.label, cells))
    columns = [metric_names.full_label(key) for key in keys]
    note = MARKS if any(cell.best for _, cells in rows for cell in cells) else ""
    return Table(section.setting, columns, rows, note=note)


def _format_cell(
    key: str,
    value: Statistic | None,
    best: float | None,
    group: Group,
    winners: Mapping[str, str],
) -> Cell:
    """A value, bold if it is the best, with a star if its system is better than every other."""
    is_best = value is not None and value.mean == best
    star = " *" if is_best and winners.get(key) == group.label else ""
    return Cell(metric_names.text(key, value) + star, is_best)


def tabulate_section(section: Section, winners: Mapping[str, str] = NO_WINNERS) -> list[Table]:
    """Every metric of a comparison: rows are systems, and where they rerank in several forms,
    one for each form, since all of them order the same candidates; `winners`: as of
    `summarise_section`."""
    keys = defaultdict(lambda: defaultdict(dict))
    for key in section.keys:
        heading, form = metric_names.heading(key, section.splits)
        keys[metric_names.chapter(key), heading][form][metric_names.label(key)] = key
    return [_tabulate_forms(section, *place, forms, winners) for place, forms in keys.items()]


def _tabulate_forms(
    section: Section,
    chapter: str,
    heading: str,
    forms: dict[str, dict[str, str]],
    winners: Mapping[str, str],
) -> Table:
    """One table; forms: name of a form of reranking, or "" → column → metric."""
    columns = list(dict.fromkeys(label for labels in forms.values() for label in labels))
    rows = {}
    for group in section.groups:
        for form, labels in forms.items():
            keys = [labels.get(column, "") for column in columns]
            row = [(key, group.statistics.get(key)) for key in keys]
            if any(value for _, value in row):
                rows[f"{group.label}, {form}" if form else group.label] = (group, row)
    best = []
    for column in zip(*(row for _, row in rows.values()), strict=True):
        means = [value.mean for _, value in column if value]
        key = next((key for key, value in column if value), "")
        best.append(metric_names.best(key, means))
    cells = [
        (name, [_format_cell(*cell, b, group, winners) for cell, b in zip(row, best, strict=True)])
        for name, (group, row) in rows.items()
    ]
    return Table(heading, columns, cells, chapter=chapter)


def tabulate_numbers(comparison: Comparison) -> tuple[list[str], list[list]]:
    """Columns and rows with plain numbers: a metric and, with several seeds, its "…/std"."""
    statistics = [g.statistics for s in comparison.sections for g in s.groups]
    keys = sorted({key for values in statistics for key in values}, key=metric_names.order)
    spread = {k for values in statistics for k, s in values.items() if s.std is not None}
    columns = [name for k in keys for name in ((k, f"{k}/std") if k in spread else (k,))]
    rows = []
    for section in comparison.sections:
        for group in section.groups:
            values = {key: value.mean for key, value in group.statistics.items()}
            values |= {f"{key}/std": value.std for key, value in group.statistics.items()}
            identity = [section.setting, group.label, group.paradigm, group.seeds]
            rows.append(identity + [values.get(column) for column in columns])
    return [*IDENTITY, *columns], rows
