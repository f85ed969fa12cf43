"""A comparison as files: `comparison.csv`, `comparison.md`, `comparison.html`, and its figures."""

import csv
from collections.abc import Sequence
from pathlib import Path

from analysis import metric_names
from analysis.comparisons.comparison import Comparison
from analysis.comparisons.comparison_page import Findings, find_out, write_comparison_page
from analysis.comparisons.paper_table import PaperTable
from analysis.rows import write_rows
from analysis.tables import markdown, summary
from gr_mvdr.files.writing import new_file, write_text

FIGURES = "comparison_figures"
IDENTITY = ("setting", "system", "paradigm", "seeds")


def write_comparison(
    comparison: Comparison, directory: Path, papers: Sequence[PaperTable] = ()
) -> dict[str, list[Path]]:
    """Writes all files of a comparison; earlier ones are replaced.

    Args:
        papers: tables of a paper beside ours, which come first on the page.

    Returns:
        {"tables": [csv, those of every two systems, md], "pages": [html], "figures": [png, …]}.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    several = len(comparison.sections) > 1
    found = [
        find_out(section, directory / FIGURES, f"{number}_" if several else "")
        for number, section in enumerate(comparison.sections, start=1)
    ]
    tables = [
        _write_csv(comparison, directory),
        *_write_tests(found, directory),
        _write_markdown(comparison, directory),
    ]
    pages = [write_comparison_page(comparison, found, directory, papers)]
    figures = [path for findings in found for path in findings.gallery.paths]
    return {"tables": tables, "pages": pages, "figures": figures}


def numbers(comparison: Comparison) -> tuple[list[str], list[list]]:
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


def _write_csv(comparison: Comparison, directory: Path) -> Path:
    path, (columns, rows) = directory / "comparison.csv", numbers(comparison)
    with new_file(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


def _write_tests(found: list[Findings], directory: Path) -> list[Path]:
    """What is said of every two systems: are their searches different, do they align alike?"""
    files = {
        "comparison_tests.csv": [(f.section.setting, f.effectiveness.rows()) for f in found],
        "comparison_agreement.csv": [(f.section.setting, f.agreement) for f in found],
    }
    paths = []
    for name, parts in files.items():
        rows = [{"setting": setting} | row for setting, rows in parts for row in rows]
        if rows:
            write_rows(rows, directory / name)
            paths.append(directory / name)
    return paths


def _write_markdown(comparison: Comparison, directory: Path) -> Path:
    lines = ["# Comparison", ""]
    for section in comparison.sections:
        lines += markdown(summary(section))
        lines += ["", "Mean ± sample standard deviation over seeds.", ""]
    lines += [f"- {note}" for note in comparison.notes]
    write_text(directory / "comparison.md", "\n".join(lines).rstrip() + "\n")
    return directory / "comparison.md"
