"""`report.html` of a run: metrics, figures, cases and provenance in one file that opens offline."""

import base64
import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from analysis.figures import read_gallery
from analysis.questions.token_retrieval import FILE
from analysis.runs.glossary import Glossary, declared_terms
from analysis.runs.numbers import format_value, over_seeds
from analysis.runs.run_folder import flatten, read_kept, read_run
from analysis.runs.tables import tabulate, tabulate_chapters, tabulate_rankings
from analysis.viewer.pairs import embed_cases, open_runs
from gr_mvdr.files import check_file, write_text
from gr_mvdr.measures import RANKED, STUDY

VIEWER = Path(__file__).parents[1] / "viewer"


def write_report(run: Path, finished: bool = True) -> Path:
    """Writes a run's `report.html` from the files in its folder.

    Args:
        run: a folder with `config.yaml`, `provenance.json`, its numbers and, if alignments were
            analysed, `figures/` and `alignments/`.
        finished: see `read_run`.

    Returns:
        The report's path.

    Raises:
        FileNotFoundError, UnfinishedRun, ValueError: as `read_run`.
    """
    read = read_run(run, finished)
    aligned, notes = open_runs([(read, read.system)])
    browser = embed_cases(aligned)
    table = tabulate({read.system: over_seeds([read.numbers])})
    table = table[table["group"] != STUDY.name]
    chapters: dict[str, dict[str, list]] = defaultdict(lambda: {"tables": [], "figures": []})
    for title, tables in tabulate_chapters(table).items():
        chapters[title]["tables"] = tables
    readings = dict(zip(table["chapter"], table["reading"], strict=True))
    for entry in read_gallery(read.path / "figures"):
        title = entry.chapter or entry.title
        chapters[title]["figures"].append(entry)
        readings.setdefault(title, entry.reading)
    ranked = table["group"].isin(RANKED)
    return write_page(
        read.path / "report.html",
        "report.html",
        run=read,
        effectiveness=tabulate_rankings(table),
        cards=table[table["headline"] & ~ranked].to_dict("records"),
        format_value=format_value,
        chapters=chapters,
        readings=readings,
        words=declared_terms(table),
        browser=browser,
        case_notes=notes,
        contexts=read_kept(read.path, FILE),
        facts={"Provenance": flatten(read.provenance), "Configuration": flatten(read.config)},
    )


def embed_picture(path: Path) -> str:
    """Returns a PNG as a data URL, so that the page needs no other file."""
    content = check_file(path, path.parent.parent).read_bytes()
    return "data:image/png;base64," + base64.b64encode(content).decode()


def write_page(path: Path, template: str, words: Mapping[str, str], **values: Any) -> Path:
    """Fills a template and writes it (temporary name, then renamed).

    Args:
        path: where the page goes.
        template: a file of `analysis/viewer/templates`.
        words: terms that the page explains besides those of `glossary.md`.
        values: what the template shows; texts are escaped.
    """
    import jinja2

    known = Glossary(words)
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
        "label": known.mark,
        "link": link,
        "picture": embed_picture,
    }
    write_text(path, environment.get_template(template).render(glossary=known.terms, **values))
    return path
