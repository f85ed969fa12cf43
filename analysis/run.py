"""Analyses a finished run again, without training: ``python -m analysis.run run=outputs/…``."""

if __name__ == "__main__":  # before the other imports: errors of the command line need none
    from conf.command import run_command

    run_command("analyse", "analysis.run:main")
    raise SystemExit

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from analysis.analyse import analyse_run
from analysis.claim import check_links, claim_folder
from analysis.provenance import VERSION
from analysis.publish import describe_run, find_group, publish_run
from analysis.report.report import write_report
from analysis.run_folder import read_run, require_run
from data_modules.module import RetrievalDataModule
from gr_mvdr.files.reading import reading
from gr_mvdr.files.run_files import check_finite, read_metrics
from gr_mvdr.files.writing import remove_abandoned, temporary_folder, write_json
from gr_mvdr.parts import TARGET, build, find_part
from models.base import System
from models.finished_run import FinishedRun


def analyse_again(
    run: Path | str,
    settings: Mapping[str, Any],
    peers: Sequence[Path | str] = (),
    logger: Any = None,
    trust: bool = False,
) -> dict[str, float]:
    """Measures a run again, writes its report, returns all metrics; the others stay as they were.

    Args:
        run: the folder of a run of `train.py`.
        settings: a file of `conf/analysis`, resolved.
        peers: other runs over the same data, whose alignments the report's cases show, too.
        logger: a Lightning logger, or None.
        trust: whether the run may name classes that are not this library's (docs/security.md).

    Raises:
        FileNotFoundError: there is no such folder, or no checkpoint in it.
        UnfinishedRun: a part of the run is missing.
        ValueError: the run is of a version that this one cannot read, a setting is at fault, or
            the folder holds a link (`check_links`).
    """
    read = read_run(Path(run))
    check_links(read.path)
    model, data = restore_run(read.path, read.provenance.get("version", "0.1"), trust)
    with claim_folder(read.path):
        remove_abandoned(read.path, claimed=True)
        # An index in a folder of its own: the run's stays as it was searched.
        folder = temporary_folder("index")
        with reading(f"run={run}: cannot be indexed"):  # a part of it may be broken
            model.index(data.documents, folder)
        found = analyse_run(model, data, read.path, read.system, settings) | model.statistics()
        shutil.rmtree(folder)
        metrics = check_finite(read_metrics(read.path) | found, read.path / "metrics.json")
        report = write_report(read.path, peers, metrics)
        publish_run(logger, read_run(read.path, metrics))
        write_json(read.path / "metrics.json", metrics)
    print(f"{read.path}: analysed, {report}")
    return metrics


def restore_run(run: Path, version: str, trust: bool = False) -> tuple[System, RetrievalDataModule]:
    """The run's model, as it was after training, and its data.

    Args:
        run: a finished run's folder; version: of this library that made it.
        trust: whether the folder may name classes that are not this library's (docs/security.md).

    Raises:
        FileNotFoundError: a trained system has no checkpoint, or a file of the data is missing.
        ValueError: this version cannot restore the run, or the folder names other code.
    """
    found = "cannot be restored"
    if version != VERSION:
        found = f"made by gr-mvdr {version}, which {VERSION} cannot restore"
    with reading(f"run={run}: {found}"):
        finished = FinishedRun.read("run", run, trust)
        config = finished.config
        with finished.trusting(config):
            _check_weights(finished)
            data = build("data", _at_home(config["data"], trust))
        return finished.load_model(data.documents, data.known_documents), data


def _check_weights(run: FinishedRun) -> None:
    weights = run.path / "checkpoints" / "last.ckpt"
    if find_part("model", run.config["model"].get(TARGET)).trainable and not weights.is_file():
        taken = run.config.get("weights")
        reason = f", as it was searched with weights={taken}: name that run" if taken else ""
        raise FileNotFoundError(
            f"{weights} is missing: a run without a checkpoint cannot be restored{reason}"
        )


def _at_home(settings: dict[str, Any], trust: bool) -> dict[str, Any]:
    """The data's settings; what is built of them goes where the user's own caches are."""
    if trust:
        return settings
    settings = {**settings, "store": None}
    path = settings.get("path")
    if isinstance(path, str) and Path(path).suffix == ".zip":  # it would be unpacked next to itself
        folder = Path(path).expanduser().with_suffix("")
        if not folder.is_dir():
            raise ValueError(f"data.path={path}: must be unpacked first, as {folder}")
        settings["path"] = str(folder)
    return settings


def main(config: DictConfig) -> None:
    settings = OmegaConf.to_container(config.analysis, resolve=True)
    run = require_run(config.run)
    read = read_run(run)
    about = describe_run(config.get("logger"), "analyse", [read.provenance], find_group([read]))
    logger = instantiate(about) or None
    analyse_again(run, settings, list(config.peers), logger, config.trust)
