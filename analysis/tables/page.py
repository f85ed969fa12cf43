"""A comparison as files: `comparison.csv`, `.md` and `.tex`, and the page `comparison.html`."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from analysis.figures import Gallery
from analysis.papers.paper import PaperTable
from analysis.tables import metric_names
from analysis.tables.comparison import (
    MARKS,
    Comparison,
    Section,
    summarise_section,
    tabulate_numbers,
    tabulate_section,
)
from analysis.tables.figures import draw_comparison
from analysis.tables.report import embed_picture, name_splits, write_page
from analysis.tables.rows import (
    Row,
    Table,
    escape_latex,
    escape_markdown,
    format_latex,
    format_markdown,
    write_rows,
)
from analysis.tables.significance import (
    Effectiveness,
    compare_alignments,
    compare_effectiveness,
    explain_tests,
    tabulate_agreement,
    tabulate_differences,
    tabulate_intervals,
    tabulate_pairs,
)
from analysis.viewer.cases import AlignedRun, embed_cases, open_runs
from gr_mvdr.files import write_text

FIGURES = "comparison_figures"


class Form(NamedTuple):
    """How tables and texts are written for people: the head of a file, then what each becomes."""

    head: str
    table: Callable[[Table], list[str]]
    text: Callable[[str], str]
    item: str


FORMS = {
    "md": Form("# Comparison", format_markdown, escape_markdown, "- {}"),
    "tex": Form(r"% \usepackage{booktabs}", format_latex, escape_latex, "{}\n"),
}


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


def examine_comparison(comparison: Comparison, directory: Path) -> list[SectionFindings]:
    """Draws, tests and opens what the runs left behind, section by section.

    Args:
        directory: the comparison's; the figures go into `FIGURES` there.
    """
    several = len(comparison.sections) > 1
    return [
        examine_section(section, directory / FIGURES, f"{number}_" if several else "")
        for number, section in enumerate(comparison.sections, start=1)
    ]


def write_comparison(
    comparison: Comparison,
    found: Sequence[SectionFindings],
    directory: Path,
    papers: Sequence[PaperTable] = (),
) -> dict[str, list[Path]]:
    """Writes all files of a comparison but its figures; earlier ones are replaced.

    Args:
        found: of `examine_comparison`.
        papers: tables of a paper next to ours, which come first on the page.

    Returns:
        {"tables": [csv, those of every two systems], "pages": [html, md, tex]}.
    """
    shown = {"comparison": comparison, "parts": list(map(_show, found)), "papers": papers}
    page = write_page(
        directory / "comparison.html", "comparison.html", name_splits(comparison.runs), **shown
    )
    return {
        "tables": _write_tables(comparison, found, directory),
        "pages": [page, *(_write_form(comparison, found, directory, form) for form in FORMS)],
    }


def examine_section(section: Section, figures: Path, prefix: str = "") -> SectionFindings:
    """Draws, tests and opens what the section's runs left behind.

    Args:
        figures: where the figures go. prefix: of their names.
    """
    # One seed of each system: an alignment is one run's own, not a mean.
    aligned, notes = open_runs([(group.runs[0], group.label) for group in section.groups])
    gallery, tested = draw_comparison(section, figures, prefix), compare_effectiveness(section)
    return SectionFindings(section, gallery, tested, compare_alignments(aligned), aligned, notes)


def _write_tables(
    comparison: Comparison, found: Sequence[SectionFindings], directory: Path
) -> list[Path]:
    """All numbers, and what is said of every two systems: their searches, their alignments."""
    columns, numbers = tabulate_numbers(comparison)
    files = {"comparison": [dict(zip(columns, row, strict=True)) for row in numbers]}
    for name in ("tests", "agreement"):
        rows = files[f"comparison_{name}"] = []
        for findings in found:
            of_pairs = findings.effectiveness.rows() if name == "tests" else findings.agreement
            rows += [{"setting": findings.section.setting} | row for row in of_pairs]
    for name, rows in files.items():
        if rows:
            write_rows(rows, directory / f"{name}.csv")
    return [directory / f"{name}.csv" for name, rows in files.items() if rows]


def _write_form(
    comparison: Comparison, found: Sequence[SectionFindings], directory: Path, form: str
) -> Path:
    """The main table of every section and its tests, in one of `FORMS`."""
    head, table, text, item = FORMS[form]
    lines = [head, ""]
    for findings in found:
        lines += table(summarise_section(findings.section, winners=findings.effectiveness.winners))
        lines += ["", text("Mean ± sample standard deviation over seeds."), ""]
        lines += _format_tests(findings.effectiveness, FORMS[form])
    lines += [item.format(text(note)) for note in comparison.notes]
    write_text(directory / f"comparison.{form}", "\n".join(lines).rstrip() + "\n")
    return directory / f"comparison.{form}"


def _format_tests(tested: Effectiveness, form: Form) -> list[str]:
    """Intervals, and the difference of every two systems with its p-value."""
    if not tested.differences:
        return []
    lines = [*form.table(tabulate_intervals(tested)), ""]
    lines += [*form.table(tabulate_pairs(tested)), "", form.text(explain_tests(tested)), ""]
    return lines + [form.item.format(form.text(note)) for note in tested.notes]


def _show(found: SectionFindings) -> dict[str, Any]:
    """What the page shows of one section."""
    tested, chapters = found.effectiveness, defaultdict(list)
    for table in tabulate_section(found.section, tested.winners):
        chapters[table.chapter].append(table)
    readings = {chapter.title: chapter.reading for chapter in metric_names.all_chapters().values()}
    pictures = map(embed_picture, found.gallery.paths)
    return {
        "section": found.section,
        "marks": MARKS if len(found.section.groups) > 1 else "",
        # One table for searching, reranking, the analysis and the costs: no wider than a page.
        "summaries": [
            _summarise(found.section, group, list(keys), tested.winners)
            for group, keys in groupby(found.section.headlines, key=metric_names.group)
        ],
        "intervals": tabulate_intervals(tested) if tested.statistics else None,
        "differences": tabulate_differences(tested) if tested.differences else [],
        "test_notes": tested.notes if tested.statistics else [],
        "pictures": list(zip(found.gallery.entries, pictures, strict=True)),
        "browser": embed_cases(found.aligned),
        "case_notes": found.notes,
        "agreement": tabulate_agreement(found.agreement) if found.agreement else None,
        # Heading → how to read it, and tables of all metrics.
        "chapters": {name: (readings.get(name, ""), own) for name, own in chapters.items()},
    }


def _summarise(
    section: Section, group: str, keys: list[str], winners: Mapping[str, str]
) -> dict[str, Any]:
    """One table, its rows with their systems; those that a reader sees `first` come unfolded."""
    table = summarise_section(section, keys, winners)
    rows = [(system, cells) for system, (_, cells) in zip(section.groups, table.rows, strict=True)]
    return {"columns": table.columns, "rows": rows, "first": group in ("retrieve", "cost")}
