"""What a run found, sent to its logger (wandb): metrics, tables, figures and files.

Nothing here knows wandb: a logger takes tables and images if it has `log_table` and `log_image`,
and keeps files if its experiment has `log_artifact`. An offline run keeps all of them until
`wandb sync`.
"""

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.comparison.comparison import Comparison, tabulate_numbers
from analysis.figures import read_gallery
from analysis.run_folder import Run, flatten
from analysis.tables import Table

# What a run leaves behind, by the kind of artefact: patterns in its folder.
ARTEFACTS = {
    "ranking": ("*.trec", "*.qrels"),
    "alignments": ("alignments",),
    "report": ("report.html",),
}


def publish_run(logger: Any, run: Run) -> None:
    """Logs a finished run.

    Args:
        logger: a Lightning logger, or None.
        run: its folder, read back.
    """
    if logger is None:
        return
    named = {key: run.provenance.get(key) for key in ("system", "paradigm", "collection", "seed")}
    logger.log_hyperparams(named | {"config": flatten(run.config)})
    logger.log_metrics(run.metrics)
    if hasattr(logger, "log_table"):
        for path in sorted(run.path.glob("*.csv")):
            _log_table(logger, path)
    if hasattr(logger, "log_image"):
        for entry in read_gallery(run.path / "figures"):
            path = run.path / "figures" / f"{entry.name}.png"
            logger.log_image(f"figures/{entry.name}", [str(path)], caption=[entry.title])
    log_artefacts(logger, run.path, ARTEFACTS, run.path.name)
    logger.finalize("success")
    if hasattr(logger.experiment, "finish"):  # wandb uploads at the end of a run
        logger.experiment.finish()


def publish_comparison(
    logger: Any,
    comparison: Comparison,
    papers: Sequence[Table],
    figures: Sequence[Path],
    folder: Path,
) -> None:
    """Logs a comparison: a table for each collection, its rows grouped by paradigm.

    Args:
        logger: a Lightning logger, or None.
        papers: a paper's numbers and ours.
        figures: PNGs. folder: where the comparison's files lie.
    """
    if logger is None:
        return
    if hasattr(logger, "log_table"):
        several = len(comparison.sections) > 1
        for section in comparison.sections:
            columns, rows = tabulate_numbers(Comparison([section]))
            rows.sort(key=lambda row: row[columns.index("paradigm")])
            name = f"comparison/{section.setting}" if several else "comparison"
            logger.log_table(name, columns=columns, data=rows)
        for table in papers:
            rows = [[name, *(cell.text for cell in cells)] for name, cells in table.rows]
            logger.log_table("paper_table", columns=["system", *table.columns], data=rows)
    if figures and hasattr(logger, "log_image"):
        logger.log_image("comparison/figures", [str(path) for path in figures])
    log_artefacts(logger, folder, {"report": ("comparison*.*",)}, "comparison")


def _log_table(logger: Any, path: Path) -> None:
    with path.open(newline="", encoding="utf-8") as file:
        columns, *rows = csv.reader(file)
    cells = [_column(texts) for texts in zip(*rows, strict=True)]
    data = [list(row) for row in zip(*cells, strict=True)]
    logger.log_table(f"tables/{path.stem}", columns=columns, data=data)


def _column(texts: Sequence[str]) -> list[float | str | None]:
    """A column of one type, as wandb asks: numbers if all are, None where a cell is empty."""
    try:
        return [float(text) if text else None for text in texts]
    except ValueError:
        return [text or None for text in texts]


def log_artefacts(
    logger: Any, folder: Path, patterns: dict[str, tuple[str, ...]], name: str
) -> None:
    """Keeps files and folders as the run's artefacts, named `<name>-<file>`.

    Args:
        patterns: kind of artefact → patterns of its files in the folder.
    """
    if not hasattr(getattr(logger, "experiment", None), "log_artifact"):
        return
    for kind, wanted in patterns.items():
        for path in (found for pattern in wanted for found in sorted(folder.glob(pattern))):
            # What wandb allows in a name; a comparison is several files of one stem.
            title = re.sub(r"[^\w.-]", "-", f"{name}-{path.name}")
            logger.experiment.log_artifact(str(path), name=title, type=kind)
