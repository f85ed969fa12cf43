"""Compares finished runs: ``python -m analysis.compare runs='[outputs/a,outputs/b]'``."""

if __name__ == "__main__":  # before the other imports: errors of the command line need none
    from conf.command import run_command

    run_command("compare", "analysis.compare:main")
    raise SystemExit

import os
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import rich.table
from hydra.utils import instantiate
from omegaconf import DictConfig
from rich.console import Console
from rich.text import Text

from analysis.claim import check_links
from analysis.comparison.comparison import (
    Comparison,
    Section,
    compare_runs,
    summarise_section,
)
from analysis.comparison.page import write_comparison
from analysis.comparison.paper import read_paper, write_paper_table
from analysis.metric_names import group
from analysis.publish import publish_comparison
from analysis.tables import Cell, Table
from gr_mvdr.files.reading import make_printable

COLUMNS_AT_MOST = 6  # systems side by side; more are rows
WRITTEN = ("comparison*", "paper_table*")  # files in the comparison's folder
PLAIN_WIDTH = 200  # where no terminal says how wide it is


def compare(
    runs: Sequence[Path | str],
    output: Path | str | None = None,
    mixed: bool = False,
    logger: Any = None,
    paper: str | Path | None = None,
) -> Comparison:
    """Compares runs, writes the comparison's files, prints one table and where the files are.

    Args:
        runs: run folders, or folders that hold some (a sweep's).
        output: where the files go; by default the folder that holds all the runs.
        mixed: show different collections or splits apart instead of refusing them.
        logger: a Lightning logger; if it takes tables and images (wandb's does) they go there.
        paper: a paper's table to compare ours with, as `read_paper` takes it.

    Returns:
        What was compared.

    Raises:
        FileNotFoundError, ValueError: as `compare_runs` and `read_paper`.
    """
    reproduced = None if paper is None else read_paper(paper)
    comparison = compare_runs([Path(run) for run in runs], mixed)
    folder = Path(output) if output else _common_folder(comparison)
    check_links(folder, WRITTEN)
    papers = [] if reproduced is None else write_paper_table(comparison, reproduced, folder)
    files = write_comparison(comparison, folder, papers)
    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
    for section in comparison.sections:
        console.print(_printed_summary(section))
    for table, notes in papers:
        console.print(_printed(table))
        console.print(*map(make_printable, notes), sep="\n", markup=False, highlight=False)
    for note in comparison.notes:
        console.print(make_printable(note), style="yellow", markup=False, highlight=False)
    for path in [*files["pages"], *files["figures"]]:
        console.print(path, soft_wrap=True, markup=False, highlight=False)
    publish_comparison(logger, comparison, [table for table, _ in papers], files["figures"], folder)
    return comparison


def _common_folder(comparison: Comparison) -> Path:
    paths = [run.path for section in comparison.sections for g in section.groups for run in g.runs]
    return Path(os.path.commonpath([path.absolute().parent for path in paths]))


def _printed_summary(section: Section) -> rich.table.Table:
    """Metrics as rows if there are few systems, else systems as rows."""
    table = summarise_section(section)
    upright = len(table.rows) <= COLUMNS_AT_MOST
    return _printed(table, upright, _ends(section.headlines) if upright else ())


def _printed(table: Table, upright: bool = False, ends: Collection[int] = ()) -> rich.table.Table:
    """A table for the terminal.

    Args:
        upright: columns and rows exchanged.
        ends: numbers of the rows below which a line is drawn.
    """
    grid = [list(map(Cell, ["", *table.columns]))]
    grid += [[Cell(name), *cells] for name, cells in table.rows]
    header, *rows = zip(*grid, strict=True) if upright else grid
    printed = rich.table.Table(title=Text(make_printable(table.heading)), title_justify="left")
    for number, cell in enumerate(header):
        printed.add_column(_styled(cell), justify="right" if number else "left")
    for number, row in enumerate(rows):
        printed.add_row(*map(_styled, row), end_section=number in ends)
    return printed


def _ends(keys: Sequence[str]) -> set[int]:
    """The numbers of the metrics that end their group: a line is drawn below them."""
    return {number for number, (a, b) in enumerate(pairwise(keys)) if group(a) != group(b)}


def _styled(cell: Cell) -> Text:
    return Text(make_printable(cell.text), style="bold green" if cell.best else "")


@contextmanager
def open_logger(config: DictConfig, folder: Path | str = ".") -> Iterator[Any]:
    """The configuration's logger with a run of its own for the comparison; None without one."""
    if not config.get("logger"):
        yield None
        return
    logger = instantiate(config.logger, name="comparison", save_dir=str(folder))
    yield logger
    if hasattr(logger.experiment, "finish"):  # wandb uploads at the end of a run
        logger.experiment.finish()


def main(config: DictConfig) -> None:
    runs = [config.runs] if isinstance(config.runs, str) else list(config.runs)
    with open_logger(config, config.output or ".") as logger:
        compare(runs, config.output, config.mixed, logger, config.get("paper"))
