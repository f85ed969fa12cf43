"""Compares finished runs: ``python -m analysis.compare runs='[outputs/a,outputs/b]'``."""

if __name__ == "__main__":  # before the other imports: errors of the command line need none
    from conf.command import run_command

    run_command("compare", "analysis.compare:main")
    raise SystemExit

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import rich.table
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.text import Text

from analysis.papers.paper import PaperTable, read_paper, write_paper_table
from analysis.papers.place import name_comparison, place_comparison
from analysis.runs.publish import describe_run, find_group, publish_comparison
from analysis.runs.run_folder import named_folders
from analysis.tables.comparison import (
    Comparison,
    Section,
    compare_runs,
    summarise_section,
)
from analysis.tables.metric_names import group
from analysis.tables.page import SectionFindings, examine_comparison, write_comparison
from analysis.tables.rows import Cell, Table
from analysis.tables.significance import (
    PAIRS_AT_MOST,
    Effectiveness,
    explain_tests,
    tabulate_pairs,
)
from gr_mvdr.options import make_printable

COLUMNS_AT_MOST = 6  # systems side by side; more are rows
PLAIN_WIDTH = 200  # where no terminal says how wide it is


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
    found = examine_comparison(comparison, folder)
    files = write_comparison(comparison, found, folder, papers)
    _print_comparison(comparison, found, papers, files["pages"])
    with open_logger(logger, comparison) as opened:
        publish_comparison(opened, comparison, [one.gallery for one in found])
    return comparison


def _print_comparison(
    comparison: Comparison,
    found: Sequence[SectionFindings],
    papers: Sequence[PaperTable],
    pages: Sequence[Path],
) -> None:
    """The tables, with what they leave out, and the files."""
    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
    for findings in found:
        console.print(_printed_summary(findings.section, findings.effectiveness.winners))
        _print_tests(console, findings.effectiveness)
    for table, notes in papers:
        console.print(_printed(table))
        console.print(*map(make_printable, notes), sep="\n", markup=False, highlight=False)
    for note in comparison.notes:
        console.print(make_printable(note), style="yellow", markup=False, highlight=False)
    for path in [*pages, *(path for one in found for path in one.gallery.paths)]:
        console.print(path, soft_wrap=True, markup=False, highlight=False)


def _print_tests(console: Console, tested: Effectiveness) -> None:
    """The difference of every two systems and its p-value, or of the best and every other."""
    notes = [*tested.notes]
    if tested.differences:
        notes.insert(0, explain_tests(tested))
        console.print(_printed(tabulate_pairs(tested, PAIRS_AT_MOST)))
    for note in notes:
        console.print(make_printable(note), markup=False, highlight=False)


def _printed_summary(section: Section, winners: Mapping[str, str]) -> rich.table.Table:
    """Metrics as rows if there are few systems, else systems as rows."""
    table = summarise_section(section, winners=winners)
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
    if table.note:
        printed.caption, printed.caption_justify = Text(make_printable(table.note)), "left"
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
