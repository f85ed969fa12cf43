"""The studies of a sweep's runs as one table, with what was swept as further columns."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.comparisons.comparison import Comparison
from analysis.figures import Gallery, GalleryEntry
from analysis.rows import Row
from analysis.run_folder import Run
from analysis.studies.curves import Curves, draw_curves
from analysis.studies.study import (
    TABLE,
    is_measure,
    read_rows,
    study_table,
    write_study,
    write_table,
)

# Columns that every row has anyway, under a name of their own.
_OWN_COLUMNS = ("model", "seed")


def write_sweep_study(
    comparison: Comparison,
    folder: Path,
    swept: Sequence[str],
    choices: Mapping[Path, Mapping[str, str]],
    curves: Sequence[Mapping[str, Any]] = (),
) -> list[Path]:
    """Writes `study.csv` and `study.md` of a sweep, and draws its curves into `figures/`.

    Nothing is written for a sweep whose runs made no study and that asks for no curves.

    Args:
        comparison: the sweep's runs.
        folder: the sweep's.
        swept: keys of the configuration that the sweep varied, groups included.
        choices: run folder → key → the value on its command line, for the groups.
        curves: what to draw, see `Curves`.

    Returns:
        The files for people: the table, then the figures.

    Raises:
        ValueError: curves that the table cannot give.
    """
    drawings = [Curves(**one) for one in curves]
    runs = [(s, run) for s in comparison.sections for group in s.groups for run in group.runs]
    if not drawings and not any((run.path / TABLE).is_file() for _, run in runs):
        return []
    several, rows = len(comparison.sections) > 1, []
    for section, run in runs:
        identity = {"setting": section.setting} if several else {}
        identity |= {"system": run.system}
        identity |= swept_values(run, swept, choices.get(run.path, {})) | {"seed": run.seed}
        rows += [identity | row for row in run_rows(run)]
    title = "; ".join(section.setting for section in comparison.sections)
    write_study(rows, folder / TABLE)
    write_table(study_table(rows, f"{title}; mean ± standard deviation over seeds"), folder)
    return [folder / "study.md", *_draw(drawings, rows, title, folder)]


def _draw(drawings: Sequence[Curves], rows: Sequence[Row], title: str, folder: Path) -> list[Path]:
    gallery = Gallery(folder / "figures")
    for number, drawing in enumerate(drawings, start=1):
        name = "study" if len(drawings) == 1 else f"study_{number}"
        caption = drawing.caption or "Mean over seeds; whiskers are their standard deviation."
        gallery.add(draw_curves(drawing, rows, title), GalleryEntry(name, drawing.title, caption))
    return gallery.paths


def run_rows(run: Run) -> list[Row]:
    """The rows of a run's study; without one, a row of its main metrics and costs."""
    table = run.path / TABLE
    if table.is_file():
        return read_rows(table)
    row = {}
    for key, value in run.metrics.items():
        name = key.removeprefix("retrieve/")
        of_a_split = name.count("/") > 1 or (name != key and "/" in name)
        if is_measure(name) and not (of_a_split and not name.startswith("cost/")):
            row[name] = value
    return [row]


def swept_values(run: Run, swept: Sequence[str], choices: Mapping[str, str]) -> Row:
    """What a run chose of each swept key.

    Args:
        swept: keys such as "model.dimension", or groups such as "salience".
        choices: of the run's command line, key → value.
    """
    row = {}
    for key in (key for key in swept if key not in _OWN_COLUMNS):
        value: Any = None if "@" in key else run.config
        for word in key.split("."):
            value = value.get(word) if isinstance(value, dict) else None
        # A group's content may be anything; its option's name says it in a word.
        if (isinstance(value, dict) and "_target_" not in value) or value is None:
            value = choices.get(key, value)
        row[key] = described(value)
    return row


def described(value: Any) -> Any:
    """A value for a cell: a part by its class and arguments, "FirstTokens(k=28)"."""
    if isinstance(value, dict) and "_target_" in value:
        given = (f"{key}={described(part)}" for key, part in value.items() if key != "_target_")
        return f"{value['_target_'].rpartition('.')[2]}({', '.join(given)})"
    return str(value) if isinstance(value, dict | list) else value
