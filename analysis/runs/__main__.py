"""Lists runs: ``python -m analysis.runs runs=outputs``. Nothing heavy is imported."""

if __name__ == "__main__":  # before the heavy imports: command-line errors come at once
    from conf.command import run_command

    run_command("runs", "analysis.runs.__main__:main")
    raise SystemExit

from collections import Counter
from collections.abc import Mapping, Sequence
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
# Overrides that other columns show, and overrides that change no measured number.
_SHOWN = ("model", "data", "data.path")
_SILENT = ("hydra", *CIRCUMSTANCES)


def list_runs(folders: Sequence[Path]) -> dict[Path, float]:
    """Finds the runs at or below the folders, and when each was last written.

    Returns:
        Run → time of its newest file among `PARTS`, in seconds since 1970; the newest run last.

    Raises:
        ValueError: there are no runs.
    """
    runs = {run.resolve(): run for folder in folders for run in find_runs(folder)}
    if not runs:
        raise ValueError(f"runs=[{', '.join(map(str, folders))}]: there is no run")
    changed = {}
    for run in runs.values():
        times = [(run / part).stat().st_mtime for part in PARTS if (run / part).is_file()]
        changed[run] = max(times, default=run.stat().st_mtime)
    return dict(sorted(changed.items(), key=lambda item: item[1]))


def read_record(run: Path) -> tuple[dict[str, Any], dict[str, float], str]:
    """Reads a run's provenance, its metrics and its state.

    The state is "" for a finished run, "unfinished", or an error message: an unreadable file does
    not keep the other runs from being listed.
    """
    record: dict[str, Any] = {}
    try:
        if (run / PROVENANCE).is_file():
            record = read_provenance(run)
        if not (run / METRICS).is_file():
            return record, {}, "unfinished"
        read_config(run)
        return record, read_metrics(run), ""
    except (OSError, ValueError) as error:
        return record, {}, f"cannot be read: {error}"


def describe_changes(overrides: Sequence[str] | None) -> str:
    """Returns a run's overrides as typed, without those of `_SHOWN` and `_SILENT`.

    Args:
        overrides: of the run's command line; None = the run did not record them.
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


def tabulate_runs(runs: Mapping[Path, float], within: Path | None = None) -> Table:
    """Makes a row for each run, with the two retrieval metrics that most of the runs have.

    Args:
        runs: as returned by `list_runs`.
        within: a folder that holds all runs; their names are then paths relative to it.
    """
    read = {run: read_record(run) for run in runs}
    counts = Counter(
        key
        for _, metrics, _ in read.values()
        for key in metrics
        if key.startswith("retrieve/") and is_metric(key.removeprefix("retrieve/"))
    )
    keys = sorted(counts, key=lambda key: (-counts[key], key not in PREFERRED, order(key)))
    cells = {}
    for run, (record, metrics, state) in read.items():
        found = join_intervals(metrics)
        changes = describe_changes(record.get("overrides")) if record else ""
        row = {
            "system": record.get("system", ""),
            "data": record.get("collection", ""),
            **{label(key): text(key, found.get(key)) for key in keys[:SHOWN_METRICS]},
            "date": datetime.fromtimestamp(runs[run]).strftime("%Y-%m-%d %H:%M"),
            "differs from the defaults": "; ".join(filter(None, [state, changes])),
        }
        path = run.relative_to(within) if within else run
        cells |= {(str(path), column): cell for column, cell in row.items()}
    return pivot(cells, corner=f"run in {within}" if within else "run")


def main(config: DictConfig) -> None:
    for key in ("output", "page"):
        if config[key] is not None:
            raise ValueError(f"{key}={config[key]}: is for python -m analysis.record")
    folders = named_folders(config.runs)
    runs = list_runs(folders)
    within = folders[0] if len(folders) == 1 and folders[0] not in runs else None
    print(*format_text(tabulate_runs(runs, within)), sep="\n")
