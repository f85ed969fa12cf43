"""`comparison.html`: systems side by side in one file that opens offline."""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from analysis import measurement_names
from analysis.case_browser import case_browser
from analysis.comparison import Comparison, Group, Section
from analysis.gallery import Gallery, GalleryEntry
from analysis.pages import picture, write_page
from analysis.significance_tables import Effectiveness, difference_tables, interval_table
from analysis.tables import Cell, Table, comparison_tables, summary


@dataclass
class Part:
    """What the page shows of one section.

    Attributes:
        section: its systems.
        paradigms: paradigm → rows of the summary: a system, and its cells.
        columns: of the summary.
        intervals, differences: tables of the tests; none without rankings.
        test_notes, case_notes: what is missing, and why.
        pictures: figures as data. browser: the cases' data, None without alignments.
        chapters: heading → explanation and tables of all metrics.
    """

    section: Section
    paradigms: dict[str, list[tuple[Group, list[Cell]]]]
    columns: list[str]
    intervals: Table | None
    differences: list[Table]
    test_notes: list[str]
    pictures: list[tuple[GalleryEntry, str]]
    browser: Markup | None
    case_notes: list[str]
    chapters: dict[str, tuple[str, list[Table]]]


def write_comparison_page(
    comparison: Comparison,
    galleries: list[Gallery],
    tested: list[Effectiveness],
    directory: Path,
) -> Path:
    """Writes the page.

    Args:
        galleries: the figures of each section. tested: its effectiveness.
        directory: where the page goes.
    """
    parts = [
        _part(section, gallery, found)
        for section, gallery, found in zip(comparison.sections, galleries, tested, strict=True)
    ]
    path = directory / "comparison.html"
    return write_page(path, "comparison.html", comparison=comparison, parts=parts)


def _part(section: Section, gallery: Gallery, found: Effectiveness) -> Part:
    # One seed of each system: their alignments are its own, not a mean.
    browser, notes = case_browser([(group.runs[0], group.label) for group in section.groups])
    short = summary(section)
    paradigms = defaultdict(list)
    for group, (_, cells) in zip(section.groups, short.rows, strict=True):
        paradigms[group.paradigm].append((group, cells))
    several = len(found.statistics) > 1
    return Part(
        section=section,
        paradigms=paradigms,
        columns=short.columns,
        intervals=interval_table(found) if found.statistics else None,
        differences=difference_tables(found) if several else [],
        test_notes=found.notes if found.statistics else [],
        pictures=list(zip(gallery.entries, map(picture, gallery.paths), strict=True)),
        browser=browser,
        case_notes=notes,
        chapters=_chapters(section),
    )


def _chapters(section: Section) -> dict[str, tuple[str, list[Table]]]:
    chapters = defaultdict(list)
    for table in comparison_tables(section):
        chapters[table.chapter].append(table)
    return {
        heading: (measurement_names.explanation(heading), tables)
        for heading, tables in chapters.items()
    }
