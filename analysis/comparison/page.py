"""A comparison as files: `comparison.csv`, `comparison.md` and the page `comparison.html`."""

import csv
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from markupsafe import Markup

from analysis import metric_names
from analysis.chapters import reading
from analysis.comparison.agreement import compare_alignments, tabulate_agreement
from analysis.comparison.comparison import Comparison, Group, Section
from analysis.comparison.figures import draw_comparison
from analysis.comparison.paper import PaperTable
from analysis.comparison.significance import (
    Effectiveness,
    compare_effectiveness,
    tabulate_differences,
    tabulate_intervals,
)
from analysis.figures import Gallery, GalleryEntry
from analysis.report.cases import AlignedRun, embed_cases, open_runs
from analysis.report.report import embed_picture, write_page
from analysis.tables import (
    Cell,
    Row,
    Table,
    format_markdown,
    summarise_section,
    tabulate_section,
    write_rows,
)
from gr_mvdr.files.writing import new_file, write_text

FIGURES = "comparison_figures"
IDENTITY = ("setting", "system", "paradigm", "seeds")


@dataclass
class SectionFindings:
    """What was found out about the systems of a section beyond their metrics.

    Attributes:
        section: the systems. gallery: its figures.
        effectiveness: intervals and tests. agreement: of every two systems' alignments.
        aligned: the runs whose cases can be shown. notes: why one cannot.
    """

    section: Section
    gallery: Gallery
    effectiveness: Effectiveness
    agreement: list[Row]
    aligned: list[AlignedRun]
    notes: list[str]


def examine_section(section: Section, figures: Path, prefix: str = "") -> SectionFindings:
    """Draws, tests and opens what the section's runs left behind.

    Args:
        figures: where the figures go. prefix: of their names.
    """
    # One seed of each system: an alignment is one run's own, not a mean.
    aligned, notes = open_runs([(group.runs[0], group.label) for group in section.groups])
    gallery = draw_comparison(section, figures, prefix)
    return SectionFindings(
        section,
        gallery,
        compare_effectiveness(section),
        compare_alignments(aligned),
        aligned,
        notes,
    )


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
        examine_section(section, directory / FIGURES, f"{number}_" if several else "")
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


def tabulate_numbers(comparison: Comparison) -> tuple[list[str], list[list]]:
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
    path, (columns, rows) = directory / "comparison.csv", tabulate_numbers(comparison)
    with new_file(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


def _write_tests(found: list[SectionFindings], directory: Path) -> list[Path]:
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
        lines += format_markdown(summarise_section(section))
        lines += ["", "Mean ± sample standard deviation over seeds.", ""]
    lines += [f"- {note}" for note in comparison.notes]
    write_text(directory / "comparison.md", "\n".join(lines).rstrip() + "\n")
    return directory / "comparison.md"


@dataclass(frozen=True)
class Summary:
    """One table: `paradigms` are paradigm → rows, a system and its cells."""

    columns: list[str]
    paradigms: dict[str, list[tuple[Group, list[Cell]]]]


@dataclass
class Part:
    """What the page shows of one section.

    Attributes:
        section: its systems.
        summaries: the metrics that matter, one table for each group of them.
        intervals, differences: tables of the tests; none without rankings.
        test_notes, case_notes: what is missing, and why.
        pictures: figures as data. browser: the cases' data, None without alignments.
        agreement: table of every two systems' alignments; None where there are not two.
        chapters: heading → explanation and tables of all metrics.
    """

    section: Section
    summaries: list[Summary]
    intervals: Table | None
    differences: list[Table]
    test_notes: list[str]
    pictures: list[tuple[GalleryEntry, str]]
    browser: Markup | None
    case_notes: list[str]
    agreement: Table | None
    chapters: dict[str, tuple[str, list[Table]]]


def write_comparison_page(
    comparison: Comparison,
    found: Sequence[SectionFindings],
    directory: Path,
    papers: Sequence[PaperTable] = (),
) -> Path:
    """Writes the page.

    Args:
        found: of each section. directory: where the page goes.
        papers: tables of a paper beside ours.
    """
    path, parts = directory / "comparison.html", list(map(_part, found))
    shown = {"comparison": comparison, "parts": parts, "papers": papers}
    return write_page(path, "comparison.html", **shown)


def _part(found: SectionFindings) -> Part:
    tested = found.effectiveness
    return Part(
        section=found.section,
        summaries=_summaries(found.section),
        intervals=tabulate_intervals(tested) if tested.statistics else None,
        differences=tabulate_differences(tested) if tested.differences else [],
        test_notes=tested.notes if tested.statistics else [],
        pictures=list(
            zip(found.gallery.entries, map(embed_picture, found.gallery.paths), strict=True)
        ),
        browser=embed_cases(found.aligned),
        case_notes=found.notes,
        agreement=tabulate_agreement(found.agreement) if found.agreement else None,
        chapters=_chapters(found.section),
    )


def _summaries(section: Section) -> list[Summary]:
    """One table for searching, reranking, the analysis and the costs: no wider than a page."""
    parts = groupby(section.headlines, key=metric_names.group)
    return [_summary(section, list(keys)) for _, keys in parts]


def _summary(section: Section, keys: list[str]) -> Summary:
    table, paradigms = summarise_section(section, keys), defaultdict(list)
    for group, (_, cells) in zip(section.groups, table.rows, strict=True):
        paradigms[group.paradigm].append((group, cells))
    return Summary(table.columns, paradigms)


def _chapters(section: Section) -> dict[str, tuple[str, list[Table]]]:
    chapters = defaultdict(list)
    for table in tabulate_section(section):
        chapters[table.chapter].append(table)
    return {heading: (reading(heading), tables) for heading, tables in chapters.items()}
