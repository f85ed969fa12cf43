"""`report.html` of a run: metrics, provenance, figures and cases in one file that opens offline."""

from pathlib import Path
from typing import Any

from analysis.gallery import read_gallery
from analysis.metric_names import of_search
from analysis.pages import picture, write_page
from analysis.run_folder import flatten, read_run
from analysis.tables import run_tables


def write_report(run: Path) -> Path:
    """Writes `report.html` into a run's folder, from what already lies there.

    Args:
        run: a folder with `config.yaml`, `provenance.json`, `metrics.json` and, where alignments
            were analysed, `figures/`.

    Returns:
        The report's path.

    Raises:
        FileNotFoundError, UnfinishedRun, ValueError: as `read_run`.
    """
    read = read_run(run)
    gallery = [
        (entry, picture(read.path / "figures" / f"{entry.name}.png"))
        for entry in read_gallery(read.path / "figures")
    ]
    return write_page(
        read.path / "report.html",
        "report.html",
        run=read,
        metrics=run_tables(read.metrics),
        searched=any(map(of_search, read.metrics)),
        measurements=[(entry, image) for entry, image in gallery if not entry.case],
        cases=[(entry, image) for entry, image in gallery if entry.case],
        provenance=_texts(read.provenance),
        configuration=_texts(read.config),
    )


def _texts(nested: dict[str, Any]) -> dict[str, str]:
    return {
        key: ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        for key, value in flatten(nested).items()
    }
