"""`report.html` of a run: metrics, figures, cases and provenance in one file that opens offline."""

import base64
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup, escape

from analysis.figures import GalleryEntry, read_gallery
from analysis.runs.run_folder import Run, flatten, read_run
from analysis.tables import metric_names
from analysis.tables.glossary import find_terms, glossary
from analysis.tables.metric_names import Statistic
from analysis.tables.rows import Cell, Table
from analysis.token_retrieval import read_token_contexts
from analysis.viewer.cases import embed_cases, open_runs
from gr_mvdr.files import check_file, write_text

Picture = tuple[GalleryEntry, str]

TEMPLATES = Path(__file__).parents[1] / "viewer" / "templates"
RANKED = ("retrieve", "rerank")
_PICTURE = 2**26  # bytes of a picture in a page
MANY_COLUMNS = 8  # more than these do not fit on a page
# What a report links to, in the run's folder.
SHOWN_FILES = (
    "config.yaml",
    "provenance.json",
    "*.trec",
    "*.qrels",
    "*.csv",
    "alignments",
    "figures",
)


def write_report(
    run: Path, peers: Sequence[Path | str] = (), metrics: Mapping[str, float] | None = None
) -> Path:
    """Writes `report.html` into a run's folder, from what already lies there.

    Args:
        run: a folder with `config.yaml`, `provenance.json`, `metrics.json` and, where alignments
            were analysed, `figures/` and `alignments/`.
        peers: folders of other runs over the same data: the cases show their alignments, too, and
            where generative and multi-vector systems disagree.
        metrics: see `read_run`.

    Returns:
        The report's path.

    Raises:
        FileNotFoundError, UnfinishedRun, ValueError: as `read_run`, also for a peer, and where a
            peer was measured on something else.
    """
    read = read_run(run, metrics)
    aligned, notes = open_runs(_label_runs([read, *(_read_peer(read, Path(p)) for p in peers)]))
    browser = embed_cases(aligned, judged=1)
    figures = read.path / "figures"
    gallery = [(e, embed_picture(figures / f"{e.name}.png")) for e in read_gallery(figures)]
    return write_page(
        read.path / "report.html",
        "report.html",
        name_splits([read]),
        run=read,
        **_summarise(read.metrics),
        chapters=_join_chapters(read.metrics, [(e, i) for e, i in gallery if not e.case]),
        browser=browser,
        compared=len(aligned) > 1,
        case_notes=notes,
        heatmaps=[] if browser else [(e, image) for e, image in gallery if e.case],
        contexts=read_token_contexts(read.path),
        files=_list_files(read.path),
        provenance=_to_texts(read.provenance),
        configuration=_to_texts(read.config),
    )


def _read_peer(run: Run, path: Path) -> Run:
    peer = read_run(path)
    if (peer.setting, peer.fingerprint) != (run.setting, run.fingerprint):
        raise ValueError(
            f"peers={path}: measured on {peer.setting}, data {peer.fingerprint}; must be "
            f"{run.setting}, data {run.fingerprint}, as {run.path}"
        )
    return peer


def _label_runs(runs: Sequence[Run]) -> list[tuple[Run, str]]:
    """Runs with their systems' names; two runs of one system with their folders' as well."""
    systems = [run.system for run in runs]
    return [
        (run, run.system if systems.count(run.system) == 1 else f"{run.system} ({run.path.name})")
        for run in runs
    ]


@dataclass(frozen=True)
class Chapter:
    """What a report shows under one heading: how to read it, pictures, tables."""

    title: str
    reading: str
    pictures: list[Picture]
    tables: list[Table]


def _join_chapters(metrics: Mapping[str, float], gallery: Sequence[Picture]) -> list[Chapter]:
    """Figures and tables under the headings that they share, in the order of the pages."""
    tables, pictures = tabulate_run(metrics), defaultdict(list)
    for entry, image in gallery:
        title = metric_names.find_figures_chapter(entry.name).title
        pictures[title].append((entry, image))
    readings = {chapter.title: chapter.reading for chapter in metric_names.all_chapters().values()}
    titles = list(readings)

    def place(title: str) -> tuple[int, int]:
        known = dict.fromkeys(map(str.capitalize, metric_names.GROUPS))
        group = list(known).index(title if title in known else "Analysis")
        return group, titles.index(title) if title in titles else len(titles)

    found = sorted(dict.fromkeys([*tables, *pictures]), key=place)
    return [
        Chapter(title, readings.get(title, ""), pictures[title], tables.get(title, []))
        for title in found
    ]


def _list_files(run: Path) -> list[str]:
    """What a reader may open of a run's folder, folders with a slash at their end."""
    found = [path for pattern in SHOWN_FILES for path in sorted(run.glob(pattern))]
    # The metrics are written after the report.
    return ["metrics.json", *(f"{path.name}/" if path.is_dir() else path.name for path in found)]


def _to_texts(nested: dict[str, Any]) -> dict[str, str]:
    return {
        key: ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        for key, value in flatten(nested).items()
    }


def _summarise(metrics: Mapping[str, float]) -> dict[str, Any]:
    """The metrics of one run that matter: a table of effectiveness, cards of the rest."""
    found = metric_names.join_intervals(metrics)
    ordered = sorted(found, key=metric_names.order)
    keys = metric_names.headlines(ordered, metric_names.find_splits(metrics))
    columns = {metric_names.label(k) for k in keys if metric_names.group(k) in RANKED}
    # A row shows every value that the run has in these columns, headline or not.
    quality = [
        key
        for key in ordered
        if metric_names.group(key) in RANKED and metric_names.label(key) in columns
    ]
    cards = {
        name: [_card(key, found[key]) for key in keys if metric_names.group(key) == name]
        for name in ("cost", "analysis")
    }
    return {
        "effectiveness": tabulate_sections("", found, quality) if quality else None,
        "headlines": list(filter(None, cards.values())),
        "intervals": any(statistic.low is not None for statistic in found.values()),
    }


def _card(key: str, statistic: Statistic) -> tuple[str, str, str]:
    """Name, value, and the interval where there is one."""
    value, _, interval = metric_names.text(key, statistic).partition(" [")
    return metric_names.full_label(key), value, interval and f"[{interval}"


def tabulate_run(metrics: Mapping[str, float]) -> dict[str, list[Table]]:
    """The metrics of one run, chapter by chapter; IDF bins have a table of their own."""
    statistics = metric_names.join_intervals(metrics)
    keys = sorted(statistics, key=metric_names.order)
    tables = defaultdict(list)
    for _, inside in groupby(keys, metric_names.table):
        inside = list(inside)
        chapter = metric_names.chapter(inside[0])
        tables[chapter].append(_turn_if_wide(tabulate_sections(chapter, statistics, inside)))
    return tables


def tabulate_sections(
    heading: str, statistics: Mapping[str, Statistic], keys: Sequence[str], corner: str = "system"
) -> Table:
    """Metrics, with their sections as rows and their labels as columns, in their first order."""
    cells: dict[str, dict[str, Cell]] = {}
    for key in keys:
        value = Cell(metric_names.text(key, statistics[key]))
        cells.setdefault(metric_names.section(key), {})[metric_names.label(key)] = value
    columns = list(dict.fromkeys(map(metric_names.label, keys)))
    missing = Cell(metric_names.MISSING)
    rows = [(name, [row.get(column, missing) for column in columns]) for name, row in cells.items()]
    return Table(heading, columns, rows, corner)


def _turn_if_wide(table: Table) -> Table:
    if len(table.columns) <= max(MANY_COLUMNS, len(table.rows)):
        return table
    turned = zip(*(cells for _, cells in table.rows), strict=True)
    rows = [(column, list(cells)) for column, cells in zip(table.columns, turned, strict=True)]
    return Table(table.heading, [name for name, _ in table.rows], rows, table.corner)


def embed_picture(path: Path) -> str:
    """A PNG as a data URL, so that the page needs no other file."""
    content = check_file(path, path.parent.parent, _PICTURE).read_bytes()
    return "data:image/png;base64," + base64.b64encode(content).decode()


def name_splits(runs: Iterable[Run]) -> dict[str, str]:
    """The names of further test splits, which pages show as they are typed, and what they are."""
    names = {}
    for run in runs:
        data = run.config.get("data")
        new = data.get("new_documents") if isinstance(data, dict) else None
        for split in metric_names.find_splits(run.metrics):
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
        names: what the page's glossary explains besides its own terms.
        values: what the template shows; texts are escaped.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,  # a forgotten value is an error, not a blank
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "label": partial(mark_terms, label=True, names=tuple(names)),
        "prose": partial(mark_terms, label=False, names=tuple(names)),
        "link": link,
        "folder_of": lambda folder: link(_relative(folder, path) + "/"),
        "report_of": lambda folder: link(_relative(folder, path) + "/report.html"),
    }
    page = environment.get_template(template).render(glossary=glossary(names), **values)
    write_text(path, page)
    return path


def mark_terms(text: str, label: bool, names: Sequence[str]) -> Markup:
    """A text for a page, in which the glossary's terms can be pointed at.

    Args:
        label, names: see `find_terms`; in a sentence the first occurrence of each is marked.
    """
    parts, end, seen = [], 0, set()
    for found in find_terms(text, label, names):
        if label or found.term not in seen:
            seen.add(found.term)
            term = Markup('<span class="term" tabindex="0" data-term="{}">{}</span>').format(
                found.term, text[found.start : found.end]
            )
            parts += [escape(text[end : found.start]), term]
            end = found.end
    return Markup("").join([*parts, escape(text[end:])])


def link(path: str) -> str:
    """A relative path as the address of a link: no part of it is taken for a scheme or a query."""
    return "./" + quote(path)


def _relative(folder: Path, page: Path) -> str:
    return Path(os.path.relpath(folder.absolute(), page.absolute().parent)).as_posix()
