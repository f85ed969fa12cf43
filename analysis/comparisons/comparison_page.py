"""`comparison.html`: systems side by side in one file that opens offline."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from markupsafe import Markup

from analysis import metric_names
from analysis.chapters import reading
from analysis.comparisons.agreement_table import agreement_rows, agreement_table
from analysis.comparisons.comparison import Comparison, Group, Section
from analysis.comparisons.comparison_figures import draw_comparison
from analysis.comparisons.paper_table import PaperTable
from analysis.comparisons.significance_tables import (
    Effectiveness,
    difference_tables,
    effectiveness,
    interval_table,
)
from analysis.figures import Gallery, GalleryEntry
from analysis.pages.case_browser import case_browser, open_runs
from analysis.pages.cases import AlignedRun
from analysis.pages.page import picture, write_page
from analysis.rows import Row
from analysis.tables import Cell, Table, comparison_tables, summary


@dataclass
class Findings:
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


def find_out(section: Section, figures: Path, prefix: str = "") -> Findings:
    """Draws, tests and opens what the section's runs left behind.

    Args:
        figures: where the figures go. prefix: of their names.
    """
    # One seed of each system: an alignment is one run's own, not a mean.
    aligned, notes = open_runs([(group.runs[0], group.label) for group in section.groups])
    gallery = draw_comparison(section, figures, prefix)
    return Findings(
        section, gallery, effectiveness(section), agreement_rows(aligned), aligned, notes
    )


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
    found: Sequence[Findings],
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


def _part(found: Findings) -> Part:
    tested = found.effectiveness
    return Part(
        section=found.section,
        summaries=_summaries(found.section),
        intervals=interval_table(tested) if tested.statistics else None,
        differences=difference_tables(tested) if tested.differences else [],
        test_notes=tested.notes if tested.statistics else [],
        pictures=list(zip(found.gallery.entries, map(picture, found.gallery.paths), strict=True)),
        browser=case_browser(found.aligned),
        case_notes=found.notes,
        agreement=agreement_table(found.agreement) if found.agreement else None,
        chapters=_chapters(found.section),
    )


def _summaries(section: Section) -> list[Summary]:
    """One table for searching, reranking, the analysis and the costs: no wider than a page."""
    parts = groupby(section.headlines, key=metric_names.group)
    return [_summary(section, list(keys)) for _, keys in parts]


def _summary(section: Section, keys: list[str]) -> Summary:
    table, paradigms = summary(section, keys), defaultdict(list)
    for group, (_, cells) in zip(section.groups, table.rows, strict=True):
        paradigms[group.paradigm].append((group, cells))
    return Summary(table.columns, paradigms)


def _chapters(section: Section) -> dict[str, tuple[str, list[Table]]]:
    chapters = defaultdict(list)
    for table in comparison_tables(section):
        chapters[table.chapter].append(table)
    return {heading: (reading(heading), tables) for heading, tables in chapters.items()}
