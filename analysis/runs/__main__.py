"""Lists runs: ``python -m analysis.runs runs=outputs``. Nothing heavy is imported."""

if __name__ == "__main__":  # before the heavy imports: command-line errors come at once
    from conf.command import run_command

    run_command("runs", "analysis.runs.__main__:main")
    raise SystemExit

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from analysis.runs.run_folder import find_runs, named_folders, read_run
from analysis.tables.metric_names import Statistic, format_value, join_intervals, read_key
from analysis.tables.rows import Table, format_text, pivot
from gr_mvdr.files import (
    CIRCUMSTANCES,
    METRICS_FILE,
    PROVENANCE,
    UnfinishedRun,
    read_provenance,
)

SHOWN = ("retrieve/mrr@10", "retrieve/recall@10")
# Groups of overrides that change no measured number.
_SILENT = ("hydra", *CIRCUMSTANCES)


def tabulate_runs(folders: Sequence[Path]) -> Table:
    """Makes a row for each run at or below the folders, the newest run last.

    Raises:
        ValueError: there are no runs.
    """
    runs = {run.resolve(): run for folder in folders for run in find_runs(folder)}
    if not runs:
        raise ValueError(f"runs=[{', '.join(map(str, folders))}]: there is no run")
    cells = {}
    for run in sorted(runs.values(), key=_written):
        record, metrics, state = read_record(run)
        command = print_command(record["overrides"]) if "overrides" in record else ""
        row = {
            "system": record.get("system", ""),
            "data": record.get("collection", ""),
            **{read_key(key).label: format_value(key, metrics.get(key)) for key in SHOWN},
            "commit": record.get("git", ""),
            "command": "; ".join(filter(None, [state, command])),
        }
        cells |= {(str(run), column): cell for column, cell in row.items()}
    return pivot(cells, corner="run")


def _written(run: Path) -> float:
    """Returns when a run was finished, or begun if it is unfinished, in seconds since 1970."""
    finished = run / METRICS_FILE
    return (finished if finished.is_file() else run).stat().st_mtime


def read_record(run: Path) -> tuple[dict[str, Any], dict[str, Statistic], str]:
    """Reads a run's provenance, its metrics and its state.

    The state is "" for a finished run, "unfinished", or an error message: an unreadable file does
    not keep the other runs from being listed.
    """
    record: dict[str, Any] = {}
    try:
        if (run / PROVENANCE).is_file():
            record = read_provenance(run)
        return record, join_intervals(read_run(run).metrics), ""
    except UnfinishedRun:
        return record, {}, "unfinished"
    except (OSError, ValueError) as error:
        return record, {}, f"cannot be read: {error}"


def print_command(overrides: Sequence[str]) -> str:
    """Returns the command of a run as typed, without what changes no measured number."""
    keys = [word.lstrip("+").partition("=")[0].split(".")[0] for word in overrides]
    typed = [word for key, word in zip(keys, overrides, strict=True) if key not in _SILENT]
    return shlex.join(["python", "train.py", *typed])


def main(config: DictConfig) -> None:
    print(*format_text(tabulate_runs(named_folders(config.runs))), sep="\n")
