"""The browsable cases of a page: alignments of one or several runs as JSON within its HTML."""

import json
from collections.abc import Sequence

from markupsafe import Markup

from analysis.cases import aligned_run, cases_of
from analysis.run_folder import Run


def case_browser(
    runs: Sequence[tuple[Run, str]], judged: int | None = None
) -> tuple[Markup | None, list[str]]:
    """What `templates/cases.html` shows.

    Args:
        runs: runs over the same collection with their labels; those without alignments, such as
            a cross-encoder's, take no part.
        judged: see `analysis.cases.cases_of`.

    Returns:
        The data, safe within a script element, or None where there is no case to show; and a line
        for each run whose alignments cannot be shown.
    """
    opened, notes = [], []
    for run, label in runs:
        try:
            opened.append(aligned_run(run, label))
        except (FileNotFoundError, ValueError) as error:  # a damaged store costs its cases only
            notes.append(f"{label}: its cases cannot be shown. {error}")
    shown = [run for run in opened if run is not None and len(run.store)]
    return (as_script(cases_of(shown, judged)) if shown else None), notes


def as_script(data: dict) -> Markup:
    """JSON that cannot end the script element around it, whatever the texts say."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))
