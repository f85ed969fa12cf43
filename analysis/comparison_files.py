"""A comparison as files: `comparison.csv`, `comparison.md`, `comparison.html`, and its figures."""

import csv
from dataclasses import fields
from pathlib import Path

from analysis import metric_names
from analysis.comparison import Comparison
from analysis.comparison_figures import draw_comparison
from analysis.comparison_page import write_comparison_page
from analysis.gallery import Gallery
from analysis.rows import write_rows
from analysis.significance_tables import Difference, Effectiveness, effectiveness
from analysis.tables import markdown, summary

FIGURES = "comparison_figures"
IDENTITY = ("setting", "system", "paradigm", "seeds")


def write_comparison(comparison: Comparison, directory: Path) -> dict[str, list[Path]]:
    """Writes all files of a comparison; earlier ones are replaced.

    Returns:
        {"tables": [csv, csv of the tests, md], "pages": [html], "figures": [png, …]}.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    galleries = _draw(comparison, directory / FIGURES)
    tested = [effectiveness(section) for section in comparison.sections]
    tables = [
        _write_csv(comparison, directory),
        _write_tests(comparison, tested, directory),
        _write_markdown(comparison, directory),
    ]
    pages = [write_comparison_page(comparison, galleries, tested, directory)]
    figures = [path for gallery in galleries for path in gallery.paths]
    return {"tables": tables, "pages": pages, "figures": figures}


def _draw(comparison: Comparison, directory: Path) -> list[Gallery]:
    several = len(comparison.sections) > 1
    return [
        draw_comparison(section, directory, f"{number}_" if several else "")
        for number, section in enumerate(comparison.sections, start=1)
    ]


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
    partial = directory / "comparison.csv.partial"
    columns, rows = numbers(comparison)
    with partial.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *rows])
    return partial.rename(directory / "comparison.csv")


def _write_tests(comparison: Comparison, tested: list[Effectiveness], directory: Path) -> Path:
    """Every pair of systems: difference, p-value, and that corrected for the number of pairs."""
    rows = [
        {"setting": section.setting} | row
        for section, found in zip(comparison.sections, tested, strict=True)
        for row in found.rows()
    ]
    path = directory / "comparison_tests.csv"
    write_rows(rows, path, ["setting", *(field.name for field in fields(Difference))])
    return path


def _write_markdown(comparison: Comparison, directory: Path) -> Path:
    lines = ["# Comparison", ""]
    for section in comparison.sections:
        lines += markdown(summary(section))
        lines += ["", "Mean ± sample standard deviation over seeds.", ""]
    lines += [f"- {note}" for note in comparison.notes]
    partial = directory / "comparison.md.partial"
    partial.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    return partial.rename(directory / "comparison.md")
