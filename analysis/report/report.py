"""`report.html` of a run: metrics, figures, cases and provenance in one file that opens offline."""

import base64
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from analysis.chapters import of_figure, place, reading, title
from analysis.comparison.comparison import splits_of
from analysis.figures import GalleryEntry, read_gallery
from analysis.report.cases import embed_cases, open_runs
from analysis.run_folder import Run, flatten, read_run
from analysis.tables import list_headlines, tabulate_run
from gr_mvdr.files.writing import write_text

Picture = tuple[GalleryEntry, str]
TEMPLATES = Path(__file__).parent / "templates"


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
    others = [_peer(read, Path(peer)) for peer in peers]
    labelled = zip([read, *others], _labels([read, *others]), strict=True)
    aligned, notes = open_runs(list(labelled))
    browser = embed_cases(aligned, judged=1)
    gallery = _gallery(read.path / "figures")
    tables = tabulate_run(read.metrics)
    return write_page(
        read.path / "report.html",
        "report.html",
        run=read,
        headlines=list_headlines(read.metrics, splits_of(read.metrics)),
        metrics=tables,
        explanations={chapter: reading(chapter) for chapter in tables},
        figures=_chapters([(entry, image) for entry, image in gallery if not entry.case]),
        browser=browser,
        case_notes=notes,
        heatmaps=[] if browser else [(entry, image) for entry, image in gallery if entry.case],
        provenance=_texts(read.provenance),
        configuration=_texts(read.config),
    )


def _peer(run: Run, path: Path) -> Run:
    peer = read_run(path)
    if (peer.setting, peer.fingerprint) != (run.setting, run.fingerprint):
        raise ValueError(
            f"peers={path}: measured on {peer.setting}, data {peer.fingerprint}; must be "
            f"{run.setting}, data {run.fingerprint}, as {run.path}"
        )
    return peer


def _labels(runs: Sequence[Run]) -> list[str]:
    """Systems by name; two runs of one system by their folders as well."""
    systems = [run.system for run in runs]
    return [
        run.system if systems.count(run.system) == 1 else f"{run.system} ({run.path.name})"
        for run in runs
    ]


def _gallery(directory: Path) -> list[Picture]:
    return [
        (entry, embed_picture(directory / f"{entry.name}.png")) for entry in read_gallery(directory)
    ]


def _chapters(gallery: Sequence[Picture]) -> dict[str, list[Picture]]:
    """Figures under the headings of their measurements, in the order of the pages."""
    chapters = defaultdict(list)
    for entry, image in gallery:
        chapters[of_figure(entry.name)].append((entry, image))
    ordered = sorted(chapters, key=place)
    return {title(name): chapters[name] for name in ordered}


def _texts(nested: dict[str, Any]) -> dict[str, str]:
    return {
        key: ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        for key, value in flatten(nested).items()
    }


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
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,  # a forgotten value is an error, not a blank
        trim_blocks=True,
        lstrip_blocks=True,
    )
    write_text(path, environment.get_template(template).render(**values))
    return path
