"""`report.html` of a run: metrics, figures, cases and provenance in one file that opens offline."""

import base64
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from analysis import chapters, metric_names
from analysis.figures import GalleryEntry, read_gallery
from analysis.metric_names import Statistic
from analysis.report.cases import embed_cases, open_runs
from analysis.run_folder import Run, flatten, read_run
from analysis.tables import Cell, Table
from gr_mvdr.files.writing import write_text

Picture = tuple[GalleryEntry, str]

TEMPLATES = Path(__file__).parent / "templates"
MANY_COLUMNS = 8  # more than these do not fit on a page


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
    tables = tabulate_run(read.metrics)
    return write_page(
        read.path / "report.html",
        "report.html",
        run=read,
        headlines=list_headlines(read.metrics),
        metrics=tables,
        explanations={heading: chapters.reading(heading) for heading in tables},
        figures=_order_figures([(entry, image) for entry, image in gallery if not entry.case]),
        browser=browser,
        case_notes=notes,
        heatmaps=[] if browser else [(entry, image) for entry, image in gallery if entry.case],
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


def _order_figures(gallery: Sequence[Picture]) -> dict[str, list[Picture]]:
    """Figures under the headings of their chapters, in the order of the pages."""
    found = defaultdict(list)
    for entry, image in gallery:
        found[chapters.of_figure(entry.name)].append((entry, image))
    return {chapters.title(name): found[name] for name in sorted(found, key=chapters.place)}


def _to_texts(nested: dict[str, Any]) -> dict[str, str]:
    return {
        key: ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        for key, value in flatten(nested).items()
    }


def list_headlines(metrics: Mapping[str, float]) -> list[tuple[str, str]]:
    """The metrics of one run that matter: name and value."""
    found = metric_names.join_intervals(metrics)
    ordered = sorted(found, key=metric_names.order)
    keys = metric_names.headlines(ordered, metric_names.find_splits(metrics))
    return [(metric_names.full_label(key), metric_names.text(key, found[key])) for key in keys]


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
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


def write_page(path: Path, template: str, **values: Any) -> Path:
    """Fills a template and writes it (temporary name, then renamed).

    Args:
        path: where the page goes.
        template: a file of `analysis/report/templates`.
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
    write_text(path, environment.get_template(template).render(**values))
    return path
