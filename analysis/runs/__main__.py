"""Lists runs: ``python -m analysis.runs runs=outputs``. Nothing heavy is imported."""

if __name__ == "__main__":  # before the heavy imports: command-line errors come at once
    from conf.command import run_command

    run_command("runs", "analysis.runs.__main__:main")
    raise SystemExit

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from pandas import DataFrame

from analysis.runs.numbers import find, format_value, make_frame
from analysis.runs.run_folder import find_runs, named_folders, print_command, read_run
from analysis.runs.tables import Table, format_text, pivot
from gr_mvdr.evaluation.metrics import ranking_metric
from gr_mvdr.files import METRICS_FILE, PROVENANCE, UnfinishedRun, read_provenance
from gr_mvdr.measures import RETRIEVE

SHOWN = ("mrr@10", "recall@10")


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
        record, numbers, state = read_record(run)
        shown = {name: find(numbers, RETRIEVE.name, name) for name in SHOWN}
        command = print_command(record["overrides"]) if "overrides" in record else ""
        row = {
            "system": record.get("system", ""),
            "data": record.get("collection", ""),
            **{ranking_metric(name).label: format_value(row) for name, row in shown.items()},
            "commit": record.get("git", ""),
            "command": "; ".join(filter(None, [state, command])),
        }
        cells |= {(str(run), column): cell for column, cell in row.items()}
    return pivot(cells, corner="run")


def _written(run: Path) -> float:
    """Returns when a run was finished, or begun if it is unfinished, in seconds since 1970."""
    finished = run / METRICS_FILE
    return (finished if finished.is_file() else run).stat().st_mtime


def read_record(run: Path) -> tuple[dict[str, Any], DataFrame, str]:
    """Reads a run's provenance, its numbers and its state.

    The state is "" for a finished run, "unfinished", or an error message: an unreadable file does
    not keep the other runs from being listed.
    """
    record: dict[str, Any] = {}
    try:
        if (run / PROVENANCE).is_file():
            record = read_provenance(run)
        found = read_run(run)
        if found.is_trained and "validation" not in found.config:  # made before there was any
            record["overrides"] = [*record.get("overrides", ()), "data.validation_split=null"]
        return record, found.numbers, ""
    except UnfinishedRun:
        return record, make_frame([]), "unfinished"
    except (OSError, ValueError) as error:
        return record, make_frame([]), f"cannot be read: {error}"


def main(config: DictConfig) -> None:
    print(*format_text(tabulate_runs(named_folders(config.runs))), sep="\n")
