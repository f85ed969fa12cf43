"""Analyses a finished run again, without training: ``python -m analysis.run run=outputs/…``."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from analysis.analyse import analyse_run
from analysis.claim import claimed
from analysis.own_folder import check_links
from analysis.pages.report import write_report
from analysis.publish import publish_run
from analysis.restore import restored
from analysis.run_folder import asked_run, finite, read_run
from conf.command import command
from gr_mvdr.files.reading import reading
from gr_mvdr.files.run_files import read_metrics
from gr_mvdr.files.writing import sweep, temporary_folder, write_json


def analyse_again(
    run: Path | str,
    settings: Mapping[str, Any],
    peers: Sequence[Path | str] = (),
    logger: Any = None,
    trust: bool = False,
) -> dict[str, float]:
    """Measures a run again: metrics, tables and figures of what is asked, and the report.

    What is not asked for stays as it was.

    Args:
        run: the folder of a run of `train.py`.
        settings: a file of `conf/analysis`, resolved.
        peers: other runs over the same data, shown beside it in the report's cases.
        logger: a Lightning logger, or None.
        trust: whether the run may name classes that are not this library's (docs/security.md).

    Returns:
        All metrics of the run.

    Raises:
        FileNotFoundError: there is no such folder, or no checkpoint in it.
        UnfinishedRun: a part of the run is missing.
        ValueError: the run is of a version that this one cannot read, a setting is at fault, or
            the folder holds a link (`check_links`).
    """
    read = read_run(Path(run))
    check_links(read.path)
    version = read.provenance.get("version", "0.1")
    model, data = restored(read.path, version, trust)
    # An index in a folder of its own: the run's stays as it was searched.
    with claimed(read.path):
        sweep(read.path, claimed=True)
        folder = temporary_folder("index")
        with reading(f"run={run}: cannot be indexed"):  # a part of it may be broken
            model.index(data.documents, folder)
        found = analyse_run(model, data, read.path, read.system, settings) | model.statistics()
        shutil.rmtree(folder)
        metrics = finite(read_metrics(read.path) | found, read.path / "metrics.json")
        report = write_report(read.path, peers, metrics)
        publish_run(logger, read_run(read.path, metrics))
        write_json(read.path / "metrics.json", metrics)
    print(f"{read.path}: analysed, {report}")
    return metrics


@command("analyse")
def main(config: DictConfig) -> None:
    settings = OmegaConf.to_container(config.analysis, resolve=True)
    run = asked_run(config.run)
    logger = instantiate(config.logger) if config.get("logger") else None
    analyse_again(run, settings, list(config.peers), logger, config.trust)


if __name__ == "__main__":
    main()
