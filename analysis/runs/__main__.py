"""Lists runs: ``python -m analysis.runs outputs``. Nothing heavy is imported."""

if __name__ == "__main__":  # before the other imports: errors of the command line need none
    import sys

    from conf.command import run_command

    # A bare folder is one of runs=[…].
    folders = [word for word in sys.argv[1:] if "=" not in word and word[0] != "-"]
    if folders:
        quoted = ("'" + folder.replace("'", r"\'") + "'" for folder in folders)
        sys.argv[1:] = [word for word in sys.argv[1:] if word not in folders]
        sys.argv.append(f"runs=[{','.join(quoted)}]")
    run_command("runs", "analysis.runs.__main__:main")
    raise SystemExit

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import rich.table
from omegaconf import DictConfig
from rich.console import Console
from rich.text import Text

from analysis.runs.run_folder import find_runs, named_folders
from analysis.tables import metric_names
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
from gr_mvdr.options import make_printable

SHOWN_METRICS = 2
PREFERRED = ("retrieve/mrr@10", "retrieve/recall@10")
UNFINISHED = "unfinished"
PLAIN_WIDTH = 1000  # in a file or a pipe, where lines may be as long as they need
# What the other columns show, or what changes nothing that is measured.
_SHOWN = ("model", "data", "data.path", "hydra", *CIRCUMSTANCES)


@dataclass(frozen=True)
class Line:
    """A run as the list shows it.

    Attributes:
        path: its folder. system, data: names, "" where they are not known yet.
        metrics: flat; empty if the run is unfinished.
        changes: what was typed on its command line, in short.
        changed: when its newest file of `PARTS` was written, in seconds since 1970.
        state: "", "unfinished", or what is wrong with its files.
    """

    path: Path
    system: str
    data: str
    metrics: dict[str, float]
    changes: str
    changed: float
    state: str = ""


def list_runs(folders: Sequence[Path]) -> list[Line]:
    """The runs at or below some folders, the newest last.

    Raises:
        ValueError: there are no runs.
    """
    found = {run.resolve(): run for folder in folders for run in find_runs(folder)}
    if not found:
        raise ValueError(f"runs=[{', '.join(map(str, folders))}]: there is no run")
    return sorted(map(read_line, found.values()), key=lambda line: line.changed)


def read_line(run: Path) -> Line:
    """One run; files that cannot be read are its state, so that one of them hides no other run."""
    times = [(run / part).stat().st_mtime for part in PARTS if (run / part).is_file()]
    changed = max(times, default=run.stat().st_mtime)
    try:
        if not (run / PROVENANCE).is_file():
            return Line(run, "", "", {}, "", changed, UNFINISHED)
        record = read_provenance(run)
        system, data = record["system"], record["collection"]
        changes = describe_changes(record.get("overrides"))
        if not (run / METRICS).is_file():
            return Line(run, system, data, {}, changes, changed, UNFINISHED)
        read_config(run)
        return Line(run, system, data, read_metrics(run), changes, changed)
    except (OSError, ValueError) as error:
        return Line(run, "", "", {}, "", changed, f"cannot be read: {error}")


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
        if key not in _SHOWN and key.split(".")[0] not in _SHOWN[3:]
    )


def choose_metrics(lines: Sequence[Line]) -> list[str]:
    """The metrics of the main ranking that most of the runs have, recall@10 and MRR@10 first."""
    counts = Counter(
        key
        for line in lines
        for key in line.metrics
        if key.startswith("retrieve/") and key.count("/") == 1 and is_metric(key.split("/")[1])
    )
    known = sorted(
        counts, key=lambda key: (-counts[key], key not in PREFERRED, metric_names.order(key))
    )
    return known[:SHOWN_METRICS]


def tabulate_runs(lines: Sequence[Line], within: Path | None = None) -> rich.table.Table:
    """A row for each run.

    Args:
        within: the folder that all of them are in, which their names then leave out.
    """
    keys = choose_metrics(lines)
    table = rich.table.Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(f"run in {within}" if within else "run", overflow="fold")
    table.add_column("system")
    table.add_column("data")
    for key in keys:
        table.add_column(metric_names.label(key), justify="right", no_wrap=True)
    table.add_column("date", no_wrap=True)
    table.add_column("differs from the defaults", no_wrap=True, overflow="ellipsis")
    for line in lines:
        path = line.path.relative_to(within) if within else line.path
        values = [f"{line.metrics[key]:.3f}" if key in line.metrics else "–" for key in keys]
        date = datetime.fromtimestamp(line.changed).strftime("%Y-%m-%d %H:%M")
        about = "; ".join(filter(None, [line.state, line.changes]))
        cells = [str(path), line.system, line.data, *values, date, about]
        style = "dim" if line.state else ""
        table.add_row(*(Text(make_printable(cell), style=style) for cell in cells))
    return table


def main(config: DictConfig) -> None:
    folders = named_folders(config.runs)
    lines = list_runs(folders)
    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH)
    within = folders[0] if len(folders) == 1 and lines[0].path != folders[0] else None
    console.print(tabulate_runs(lines, within))
