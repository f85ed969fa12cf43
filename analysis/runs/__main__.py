"""Lists runs: ``python -m analysis.runs outputs``. Nothing heavy is imported."""

if __name__ == "__main__":  # before the other imports: errors of the command line need none
    import sys

    from conf.command import run_command

    # A bare folder is one of runs=[…]; what follows an option is its value ("--cfg job").
    pairs = zip(sys.argv, sys.argv[1:], strict=False)
    folders = [w for before, w in pairs if "=" not in w and "-" not in (w[:1], before[:1])]
    if folders:
        quoted = ("'" + folder.replace("'", r"\'") + "'" for folder in folders)
        sys.argv[1:] = [word for word in sys.argv[1:] if word not in folders]
        sys.argv.append(f"runs=[{','.join(quoted)}]")
    run_command("runs", "analysis.runs.__main__:main")
    raise SystemExit

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from analysis.runs.run_folder import find_runs, named_folders
from analysis.tables.metric_names import join_intervals, label, order, text
from analysis.tables.rows import Table, format_text, pivot
from gr_mvdr.evaluation.metrics import is_metric
from gr_mvdr.files import (
    CIRCUMSTANCES,
    METRICS,
    PARTS,
    PROVENANCE,
    read_config,
    read_metrics,
    read_provenance,
)

SHOWN_METRICS = 2
PREFERRED = ("retrieve/mrr@10", "retrieve/recall@10")
# What the other columns show, or what changes nothing that is measured.
_SHOWN = ("model", "data", "data.path")
_SILENT = ("hydra", *CIRCUMSTANCES)


@dataclass
class Line:
    """A run as the list shows it.

    Attributes:
        changed: when its newest file of `PARTS` was written, in seconds since 1970.
        record: its provenance; {} where it cannot be read yet. metrics: flat; {} if unfinished.
        state: "", "unfinished", or what is wrong with its files.
    """

    path: Path
    changed: float
    record: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    state: str = ""


def list_runs(folders: Sequence[Path]) -> list[Line]:
    """The runs at or below some folders, the newest last.

    Raises:
        ValueError: there are no runs.
    """
    runs = {run.resolve(): run for folder in folders for run in find_runs(folder)}
    if not runs:
        raise ValueError(f"runs=[{', '.join(map(str, folders))}]: there is no run")
    return sorted(map(read_line, runs.values()), key=lambda line: line.changed)


def read_line(run: Path) -> Line:
    """One run; files that cannot be read are its state, so that one of them hides no other run."""
    times = [(run / part).stat().st_mtime for part in PARTS if (run / part).is_file()]
    line = Line(run, max(times, default=run.stat().st_mtime))
    try:
        if (run / PROVENANCE).is_file():
            line.record = read_provenance(run)
        if (run / METRICS).is_file():
            read_config(run)
            line.metrics = read_metrics(run)
        else:
            line.state = "unfinished"
    except (OSError, ValueError) as error:
        line.state = f"cannot be read: {error}"
    return line


def describe_changes(overrides: Sequence[str] | None) -> str:
    """What differs from the defaults, as it was typed.

    Args:
        overrides: of the run's command line; None = the run is older than their record.
    """
    if overrides is None:
        return "not recorded"
    words = [word.lstrip("+") for word in overrides]
    keys = [word.partition("=")[0] for word in words]
    return " ".join(
        word
        for key, word in zip(keys, words, strict=True)
        if key not in _SHOWN and key.split(".")[0] not in _SILENT
    )


def tabulate_runs(lines: Sequence[Line], within: Path | None = None) -> Table:
    """A row for each run, with the two metrics of the search that most of the runs have.

    Args:
        within: the folder that all of them are in, which their names then leave out.
    """
    counts = Counter(
        key
        for line in lines
        for key in line.metrics
        if key.startswith("retrieve/") and is_metric(key.removeprefix("retrieve/"))
    )
    keys = sorted(counts, key=lambda key: (-counts[key], key not in PREFERRED, order(key)))
    cells = {}
    for line in lines:
        found = join_intervals(line.metrics)
        changes = describe_changes(line.record.get("overrides")) if line.record else ""
        row = {
            "system": line.record.get("system", ""),
            "data": line.record.get("collection", ""),
            **{label(key): text(key, found.get(key)) for key in keys[:SHOWN_METRICS]},
            "date": datetime.fromtimestamp(line.changed).strftime("%Y-%m-%d %H:%M"),
            "differs from the defaults": "; ".join(filter(None, [line.state, changes])),
        }
        path = line.path.relative_to(within) if within else line.path
        cells |= {(str(path), column): cell for column, cell in row.items()}
    return pivot(cells, corner=f"run in {within}" if within else "run")


def main(config: DictConfig) -> None:
    folders = named_folders(config.runs)
    lines = list_runs(folders)
    within = folders[0] if len(folders) == 1 and lines[0].path != folders[0] else None
    print(*format_text(tabulate_runs(lines, within)), sep="\n")
