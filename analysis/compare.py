"""Compares finished runs: ``python -m analysis.compare runs='[outputs/a,outputs/b]'``."""

if __name__ == "__main__":  # before the other imports: errors of the command line need none
    from conf.command import run_command

    run_command("compare", "analysis.compare:main")
    raise SystemExit

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from analysis.runs.publish import describe_run, find_group, publish_comparison
from analysis.runs.run_folder import named_folders
from analysis.tables.comparison import Comparison, compare_runs, name_comparison, place_comparison
from analysis.tables.page import examine_comparison, write_comparison
from analysis.tables.paper import read_paper, write_paper_table
from analysis.tables.rows import print_tables


def compare(
    runs: Sequence[Path | str],
    output: Path | str | None = None,
    mixed: bool = False,
    logger: Any = None,
    paper: str | Path | None = None,
    labels: Sequence[object] = (),
    make_way: bool = False,
) -> Comparison:
    """Compares runs, writes the comparison's files, prints the tables and where the files are.

    Args:
        runs: run folders, or folders that hold some (a sweep's).
        output: where the files go; by default a folder named after the runs, next to them.
        mixed: show different collections or splits apart instead of refusing them.
        logger: a Lightning logger, or the settings of one (conf/logger): a run of its own then.
        paper: a paper's table to compare ours with, as `read_paper` takes it.
        labels: what the systems are called, in the order of their runs.
        make_way: where `output` holds a comparison of other runs, go into a folder within it;
            otherwise that is an error.

    Returns:
        What was compared, with its `folder`.

    Raises:
        FileNotFoundError, ValueError: as `compare_runs`, `read_paper` and `place_comparison`.
    """
    reproduced = None if paper is None else read_paper(paper)
    comparison = compare_runs([Path(run) for run in runs], mixed, labels)
    folder = place_comparison(comparison, Path(output) if output else None, make_way)
    comparison.folder = folder
    papers = [] if reproduced is None else write_paper_table(comparison, reproduced, folder)
    findings = examine_comparison(comparison, folder)
    pages = write_comparison(comparison, findings, folder, papers)
    for one in findings:
        print_tables([one.summary, *one.effectiveness.blocks])
    for table, notes in papers:
        print_tables([table, *notes])
    figures = [path for one in findings for path in one.gallery.paths]
    print_tables([*comparison.notes, *map(str, (*pages, *figures))])
    with open_logger(logger, comparison) as opened:
        publish_comparison(opened, comparison, [one.gallery for one in findings])
    return comparison


@contextmanager
def open_logger(logger: Any, comparison: Comparison) -> Iterator[Any]:
    """A logger as it is; from settings one with a run for the comparison, in its runs' group."""
    if not isinstance(logger, Mapping):
        yield logger
        return
    about = {"name": name_comparison(comparison), "save_dir": str(comparison.folder)}
    records = [run.provenance for run in comparison.runs]
    settings = describe_run(logger, "compare", records, find_group(comparison.runs))
    logger = instantiate(settings | {key: settings.get(key) or about[key] for key in about})
    yield logger
    if hasattr(logger.experiment, "finish"):  # wandb uploads at the end of a run
        logger.experiment.finish()


def main(config: DictConfig) -> None:
    settings = OmegaConf.to_container(config.logger, resolve=True) if config.get("logger") else None
    labels = [] if config.labels is None else list(config.labels)
    runs = named_folders(config.runs)
    compare(runs, config.output, config.mixed, settings, config.get("paper"), labels)
