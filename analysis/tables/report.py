"""`report.html` of a run: metrics, figures, cases and provenance in one file that opens offline."""

import base64
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pandas import DataFrame

from analysis.figures import read_gallery
from analysis.runs.run_folder import Run, flatten, read_kept, read_run
from analysis.tables.glossary import glossary, mark_terms
from analysis.tables.metric_names import (
    RANKED,
    all_chapters,
    find_figures_chapter,
    find_splits,
    join_intervals,
)
from analysis.tables.rows import Table, format_text, select, tabulate, tabulate_chapters
from analysis.token_retrieval import FILE
from analysis.viewer.cases import embed_cases, open_runs
from gr_mvdr.files import check_file, write_text
from gr_mvdr.options import make_printable

VIEWER = Path(__file__).parents[1] / "viewer"
_PICTURE = 2**26  # the most bytes of a picture in a page
# Files in the run's folder that a report links to.
SHOWN_FILES = (
    "config.yaml",
    "provenance.json",
    "*.trec",
    "*.qrels",
    "*.parquet",
    "*.csv",
    "alignments",
    "figures",
)


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
    chapters: dict[str, dict[str, list]] = defaultdict(lambda: {"tables": [], "pictures": []})
    for title in ("Retrieve", "Rerank", *find_readings()):
        chapters[title]  # creates the entry, so that chapters are in the pages' order
    for title, tables in tabulate_chapters(table).items():
        chapters[title]["tables"] = tables
    heatmaps = []
    for entry in read_gallery(read.path / "figures"):
        picture = entry, embed_picture(read.path / "figures" / f"{entry.name}.png")
        title = find_figures_chapter(entry.name).title
        (heatmaps if entry.case else chapters[title]["pictures"]).append(picture)
    ranked = table["group"].isin(RANKED)
    return write_page(
        read.path / "report.html",
        "report.html",
        name_splits([read]),
        run=read,
        effectiveness=tabulate_rankings(table),
        cards=table[table["headline"] & ~ranked].to_dict("records"),
        chapters={title: shown for title, shown in chapters.items() if any(shown.values())},
        readings=find_readings(),
        browser=browser,
        case_notes=notes,
        heatmaps=[] if browser else heatmaps,
        contexts=read_kept(read.path, FILE),
        files=_list_files(read.path),
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


def _list_files(run: Path) -> list[str]:
    """Lists what a reader may open in a run's folder; folders end with a slash."""
    paths = [path for pattern in SHOWN_FILES for path in sorted(run.glob(pattern))]
    # The metrics do not exist yet: they are written after the report.
    return ["metrics.json", *(f"{path.name}/" if path.is_dir() else path.name for path in paths)]


def embed_picture(path: Path) -> str:
    """Returns a PNG as a data URL, so that the page needs no other file."""
    content = check_file(path, path.parent.parent, _PICTURE).read_bytes()
    return "data:image/png;base64," + base64.b64encode(content).decode()


def name_splits(runs: Iterable[Run]) -> dict[str, str]:
    """Returns the names of further test splits → an explanation; pages show the names as typed."""
    names = {}
    for run in runs:
        data = run.config.get("data")
        new = data.get("new_documents") if isinstance(data, dict) else None
        for split in find_splits(run.metrics):
            arrived = split in ([new] if isinstance(new, str) else new or ())
            names[split] = f"A further test split of the collection, “{split}”" + (
                ": its documents arrived after training, with the index." if arrived else "."
            )
    return names


def write_page(path: Path, template: str, names: Mapping[str, str], **values: Any) -> Path:
    """Fills a template and writes it (temporary name, then renamed).

    Args:
        path: where the page goes.
        template: a file of `analysis/viewer/templates`.
        names: further terms of the page's glossary → their explanations.
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
        "label": partial(mark_terms, label=True, names=tuple(names)),
        "prose": partial(mark_terms, names=tuple(names)),
        "link": link,
    }
    page = environment.get_template(template).render(glossary=glossary(names), **values)
    write_text(path, page)
    return path
