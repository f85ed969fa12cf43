"""`report.html` of a run: metrics, figures, cases and provenance in one file that opens offline."""

import base64
import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pandas import DataFrame

from analysis.figures import read_gallery
from analysis.questions.token_retrieval import FILE
from analysis.runs.run_folder import Run, flatten, read_kept, read_run
from analysis.tables.glossary import glossary, mark_terms
from analysis.tables.metric_names import (
    RANKED,
    all_chapters,
    find_figures_chapter,
    join_intervals,
)
from analysis.tables.rows import Table, format_text, select, tabulate, tabulate_chapters
from analysis.viewer.pairs import embed_cases, open_runs
from gr_mvdr.files import check_file, write_text
from gr_mvdr.options import make_printable

VIEWER = Path(__file__).parents[1] / "viewer"


def write_report(run: Path, metrics: Mapping[str, float] | None = None) -> Path:
    """Writes a run's `report.html` from the files in its folder.

    Args:
        run: a folder with `config.yaml`, `provenance.json`, `metrics.json` and, if alignments were
            analysed, `figures/` and `alignments/`.
        metrics: see `read_run`.

    Returns:
        The report's path.

    Raises:
        FileNotFoundError, UnfinishedRun, ValueError: as `read_run`.
    """
    read = read_run(run, metrics)
    aligned, notes = open_runs([(read, read.system)])
    browser = embed_cases(aligned)
    table = tabulate({read.system: join_intervals(read.metrics)})
    chapters: dict[str, dict[str, list]] = defaultdict(lambda: {"tables": [], "figures": []})
    for title in ("Retrieve", "Rerank", *find_readings()):
        chapters[title]  # creates the entry, so that chapters are in the pages' order
    for title, tables in tabulate_chapters(table).items():
        chapters[title]["tables"] = tables
    for entry in read_gallery(read.path / "figures"):
        chapters[find_figures_chapter(entry.name).title]["figures"].append(entry)
    ranked = table["group"].isin(RANKED)
    return write_page(
        read.path / "report.html",
        "report.html",
        run=read,
        effectiveness=tabulate_rankings(table),
        cards=table[table["headline"] & ~ranked].to_dict("records"),
        chapters={title: shown for title, shown in chapters.items() if any(shown.values())},
        browser=browser,
        case_notes=notes,
        contexts=read_kept(read.path, FILE),
        facts={"Provenance": flatten(read.provenance), "Configuration": flatten(read.config)},
    )


def tabulate_rankings(table: DataFrame) -> Table | None:
    """Tabulates search and reranking, a row for each split and form; None without rankings."""
    ranked = table[table["group"].isin(RANKED)]
    return select(ranked, "section", "label", corner="") if len(ranked) else None


def summarise_run(run: Run) -> str:
    """Summarises a run in a few lines: rankings, main costs and identifiers.

    Args:
        run: finished, or with all of its metrics measured.
    """
    table = tabulate({run.system: join_intervals(run.metrics)})
    named = table["key"].str.startswith("analysis/identifiers/")
    lines = [f"{run.system} on {run.setting}, seed {run.seed}"]
    if rankings := tabulate_rankings(table):
        lines += format_text(rankings)
    costs = table["group"] == "cost"
    for part in (table[costs & table["headline"]], table[named & table["whole"]]):
        values = zip(part["label"], part["cell"], strict=True)
        lines.append("; ".join(f"{label} {cell.text}" for label, cell in values))
    if len(part := table[named & ~table["whole"]]):
        lines += format_text(select(part, "section", "label", corner=""))
    return "\n".join(make_printable(line) for line in lines if line)


def find_readings() -> dict[str, str]:
    """Returns a chapter's title → how to read it, in the pages' order."""
    return {chapter.title: chapter.reading for chapter in all_chapters().values()}


def embed_picture(path: Path) -> str:
    """Returns a PNG as a data URL, so that the page needs no other file."""
    content = check_file(path, path.parent.parent).read_bytes()
    return "data:image/png;base64," + base64.b64encode(content).decode()


def write_page(path: Path, template: str, **values: Any) -> Path:
    """Fills a template and writes it (temporary name, then renamed).

    Args:
        path: where the page goes.
        template: a file of `analysis/viewer/templates`.
        values: what the template shows; texts are escaped.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([VIEWER / "templates", VIEWER / "static"]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,  # a forgotten value is an error, not a blank
        trim_blocks=True,
        lstrip_blocks=True,
    )

    def link(file: str | Path) -> str:
        """Returns a path as a link's address, of which no part reads as a scheme or a query."""
        if isinstance(file, Path):  # it may be in another folder: relative to the page's
            file = Path(os.path.relpath(file.absolute(), path.absolute().parent)).as_posix()
        return "./" + quote(file)

    environment.filters |= {
        "label": mark_terms,
        "link": link,
        "picture": embed_picture,
    }
    known = {"glossary": glossary(), "readings": find_readings()}
    write_text(path, environment.get_template(template).render(**known, **values))
    return path
