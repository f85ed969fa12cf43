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
from analysis.runs.folder_lock import check_links, claim_folder
from analysis.runs.publish import describe_run, find_group, publish_run
from analysis.runs.run_folder import read_run, require_run
from analysis.tables.report import write_report
from gr_mvdr.files import (
    check_finite,
    read_metrics,
    reading,
    remove_abandoned,
    temporary_folder,
    write_json,
)
from models.finished_run import restore_run


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
        trust: whether the run may name classes that are not this library's (docs/design.md).

    Raises:
        FileNotFoundError: there is no such folder, or no checkpoint in it.
        UnfinishedRun: a part of the run is missing.
        ValueError: the run is of a version that this one cannot read, a setting is at fault, or
            the folder holds a link (`check_links`).
    """
    read = read_run(Path(run))
    check_links(read.path)
    model, data = restore_run(read.path, trust=trust)
    with claim_folder(read.path):
        remove_abandoned(read.path)
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


def main(config: DictConfig) -> None:
    settings = OmegaConf.to_container(config.analysis, resolve=True)
    run = require_run(config.run)
    read = read_run(run)
    about = describe_run(config.get("logger"), "analyse", [read.provenance], find_group([read]))
    logger = instantiate(about) or None
    analyse_again(run, settings, list(config.peers), logger, config.trust)
