"""Sends a run's results to its logger (wandb): metrics, tables, figures and files.

The code does not import wandb. A logger receives tables and images if it has `log_table` and
`log_image`, and files if its experiment has `log_artifact`. An offline run keeps everything until
`wandb sync`.
"""

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from pytorch_lightning.loggers import WandbLogger

from analysis.figures import Gallery
from analysis.questions.learning_curves import read_steps
from analysis.runs.run_folder import Run, flatten
from gr_mvdr.files import read_json, write_json
from gr_mvdr.options import make_printable
from models.training import CURVES

# In a run's folder: the `id` of its run in wandb, and whether all of it `arrived` there.
UPLOAD = "upload.json"

# Kind of artefact → patterns of its files in a run's folder.
ARTEFACTS = {
    "ranking": ("*.trec", "*.qrels"),
    "alignments": ("alignments",),
    "report": ("report.html",),
}


class Wandb(WandbLogger):
    """Lightning's logger without its argument `anonymous`, of which wandb warns in every run."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        del self._wandb_init["anonymous"]


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


def begin_upload(settings: Mapping[str, Any] | None, run: Path) -> dict[str, Any]:
    """Returns the settings of a run's logger, and notes in its folder that it must upload the run.

    All commands on a folder continue one run in wandb.
    """
    about = {"name": run.name, "save_dir": str(run), "id": secrets.token_hex(4)}
    if (run / UPLOAD).is_file():
        about["id"] = read_json(run / UPLOAD)["id"]
    described = describe_logger(settings, run.parent, **about)
    if "id" in described:
        write_json(run / UPLOAD, {"id": described["id"], "arrived": False})
    return described


def must_upload(run: Path) -> bool:
    """Returns whether an upload of a finished run was interrupted or failed."""
    return (run / UPLOAD).is_file() and not read_json(run / UPLOAD)["arrived"]


@contextmanager
def tolerating(folder: Path, again: str) -> Iterator[None]:
    """Turns any error of a logger into one line: what a folder holds is whole without it.

    Args:
        again: the command that uploads it again, in words.
    """
    try:
        yield
    except Exception as error:  # of a library, a service or the network
        reason = make_printable(" ".join(f"{type(error).__name__}: {error}".split()))
        print(f"{folder}: is not in wandb ({reason}); {again} uploads it")


def publish_run(logger: Any, run: Run, again: str, curves: bool = False) -> None:
    """Logs a finished run; prints one line if that fails.

    Args:
        logger: a Lightning logger, or None.
        run: as returned by `read_run`.
        again: see `tolerating`.
        curves: whether to log the training curves; a logger that watched the training has them.
    """
    if logger is None:
        return
    named = {key: run.provenance.get(key) for key in ("system", "paradigm", "collection", "seed")}
    with tolerating(run.path, again):
        logger.log_hyperparams(named | {"config": flatten(run.config)})
        if curves and (run.path / CURVES).is_file():
            for row in read_steps(run.path).to_dict("records"):
                logger.log_metrics({k: v for k, v in row.items() if v == v}, int(row["step"]) - 1)
        logger.log_metrics(run.metrics)
        log_tables(logger, run.path.glob("*.csv"))
        log_figures(logger, Gallery(run.path / "figures", keep=True))
        log_artefacts(logger, run.path, ARTEFACTS, run.path.name)
        logger.finalize("success")
        finish(logger)
        if (run.path / UPLOAD).is_file():
            write_json(run.path / UPLOAD, read_json(run.path / UPLOAD) | {"arrived": True})


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
