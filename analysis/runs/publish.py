"""Sends a run's results to its logger (wandb): metrics, tables, figures and files.

The code does not import wandb. A logger receives tables and images if it has `log_table` and
`log_image`, and files if its experiment has `log_artifact`. An offline run keeps everything until
`wandb sync`.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from analysis.figures import Gallery
from analysis.runs.run_folder import Run, flatten

# Kind of artefact → patterns of its files in a run's folder.
ARTEFACTS = {
    "ranking": ("*.trec", "*.qrels"),
    "alignments": ("alignments",),
    "report": ("report.html",),
}


def describe_logger(
    settings: Mapping[str, Any] | None, folder: Path, **about: Any
) -> dict[str, Any]:
    """Returns the settings of a run's logger, complete; {} without settings.

    Args:
        settings: as in conf/logger.
        folder: the folder that holds the run or the compared runs; it names their group.
        about: further arguments; they and the group replace the arguments that are null.
    """
    if OmegaConf.is_config(settings):
        settings = OmegaConf.to_container(settings, resolve=True)
    about |= {"group": folder.absolute().name}
    return {k: about.get(k) if value is None else value for k, value in (settings or {}).items()}


def publish_run(logger: Any, run: Run) -> None:
    """Logs a finished run.

    Args:
        logger: a Lightning logger, or None.
        run: as returned by `read_run`.
    """
    if logger is None:
        return
    named = {key: run.provenance.get(key) for key in ("system", "paradigm", "collection", "seed")}
    logger.log_hyperparams(named | {"config": flatten(run.config)})
    logger.log_metrics(run.metrics)
    log_tables(logger, run.path.glob("*.csv"))
    log_figures(logger, Gallery(run.path / "figures", keep=True))
    log_artefacts(logger, run.path, ARTEFACTS, run.path.name)
    logger.finalize("success")
    finish(logger)


def finish(logger: Any) -> None:
    if hasattr(logger.experiment, "finish"):  # wandb uploads at the end of a run
        logger.experiment.finish()


def log_tables(logger: Any, paths: Iterable[Path]) -> None:
    """Logs CSV files as tables; pandas gives each column one type, as wandb requires."""
    if not hasattr(logger, "log_table"):
        return
    from pandas import read_csv

    for path in sorted(paths):
        frame = read_csv(path).astype(object)
        rows = frame.where(frame.notna(), None).values.tolist()
        logger.log_table(f"tables/{path.stem}", columns=list(frame), data=rows)


def log_figures(logger: Any, gallery: Gallery) -> None:
    if hasattr(logger, "log_image"):
        for entry, path in zip(gallery.entries, gallery.paths, strict=True):
            logger.log_image(f"figures/{entry.name}", [str(path)], caption=[entry.title])


def log_artefacts(
    logger: Any, folder: Path, patterns: dict[str, tuple[str, ...]], name: str
) -> None:
    """Logs files and folders as artefacts named `<name>-<file>`.

    Args:
        patterns: kind of artefact → patterns of its files in the folder.
    """
    if not hasattr(getattr(logger, "experiment", None), "log_artifact"):
        return
    for kind, wanted in patterns.items():
        for path in (found for pattern in wanted for found in sorted(folder.glob(pattern))):
            # Characters that wandb allows; suffixes tell a comparison's files of one stem apart.
            title = re.sub(r"[^\w.-]", "-", f"{name}-{path.name}")
            logger.experiment.log_artifact(str(path), name=title, type=kind)
