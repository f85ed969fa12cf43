"""The browsable cases of a page: alignments of one or several runs as JSON within its HTML."""

import json
from collections.abc import Sequence

from markupsafe import Markup

from analysis.pages.cases import AlignedRun, aligned_run, cases_of
from analysis.run_folder import Run


def open_runs(runs: Sequence[tuple[Run, str]]) -> tuple[list[AlignedRun], list[str]]:
    """Opens the alignments of runs with their labels.

    Returns:
        Those that have some (a cross-encoder has none), and a line for each whose alignments
        cannot be read: a damaged store costs a page its cases, no more.
    """
    opened, notes = [], []
    for run, label in runs:
        try:
            opened.append(aligned_run(run, label))
        except (FileNotFoundError, ValueError) as error:
            notes.append(f"{label}: its alignments cannot be shown. {error}")
    return [run for run in opened if run is not None and len(run.store)], notes


def case_browser(runs: Sequence[AlignedRun], judged: int | None = None) -> Markup | None:
    """The data of `templates/cases.html`, safe within a script element; None without runs.

    Args:
        runs: over the same collection. judged: see `analysis.pages.cases.cases_of`.
    """
    return as_script(cases_of(runs, judged)) if runs else None


def as_script(data: dict) -> Markup:
    """JSON that cannot end the script element around it, whatever the texts say."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))
