"""Compares finished runs: ``python -m analysis.compare runs='[outputs/a,outputs/b]'``.

Writes tables as `comparison.csv`, `.md` and `.tex`, figures, and the page `comparison.html`.
"""

if __name__ == "__main__":  # before the heavy imports: command-line errors appear at once
    from conf.command import run_command

    run_command("compare", "analysis.compare:main")
    raise SystemExit

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter
from omegaconf import DictConfig
from pandas import Categorical, DataFrame, concat

from analysis.figures import Gallery, GalleryEntry, draw_lines, forest_figure
from analysis.questions.tokens import BIN_NAMES
from analysis.runs.publish import describe_logger, publish_comparison
from analysis.runs.run_folder import named_folders
from analysis.tables.comparison import (
    LEVEL,
    Comparison,
    Section,
    compare_runs,
    find_common_folder,
    name_comparison,
    place_comparison,
)
from analysis.tables.metric_names import DIRECTIONS, read_key
from analysis.tables.paper import read_paper, write_paper_table
from analysis.tables.report import write_page
from analysis.tables.rows import (
    BOLD,
    Cell,
    Table,
    pivot,
    print_tables,
    select,
    tabulate,
    tabulate_chapters,
    write_rows,
    write_tables,
)
from analysis.tables.significance import Effectiveness, compare_effectiveness
from analysis.viewer.pairs import embed_cases, open_runs

FIGURES = "comparison_figures"
BUDGET = "cost/train_flops"
NUMBERS = ["setting", "system", "key", "mean", "std", "low", "high", "n"]  # of `comparison.csv`
COLUMNS_AT_MOST = 6  # systems shown as columns of a summary; more are shown as rows
SEEDS = (
    "Mean ± sample standard deviation over seeds; brackets hold 95 % intervals over queries and "
    "seeds."
)
MARKS = (
    f"{BOLD}*: significantly better than every other system (corrected p < {LEVEL}); only MRR@10 "
    "and R@10 of the search are tested. Without a star, the lead may be due to chance."
)
EXACT_MATCH = (
    "How often a token aligns to an equal token, averaged over the token types of each IDF range; "
    "rarer tokens are on the right. Hard: its strongest partner is the same token. Soft: the share "
    "of its alignment that falls on equal tokens."
)
IDF_KEY = r"^analysis/exact_match/(?P<direction>\w+)/(?P<measure>hard|soft)/idf_(?P<idf>\w+)$"


def compare(
    runs: Sequence[Path | str],
    output: Path | str | None = None,
    logger: Mapping[str, Any] | None = None,
    paper: str | Path | None = None,
    labels: Mapping[str, object] | None = None,
) -> Comparison:
    """Compares runs, writes the comparison's files, and prints the tables and the files' paths.

    Args:
        runs: run folders, or folders that contain some (a sweep's).
        output: where the files go; by default a folder named after the runs, next to them. If it
            holds a comparison of other runs, they go into a folder named after the runs in it.
        logger: the settings of a Lightning logger (conf/logger); None = none.
        paper: a paper's table to compare with, as `read_paper` takes it.
        labels: see `compare_runs`.

    Returns:
        What was compared, with its `folder`.

    Raises:
        FileNotFoundError, ValueError: as `compare_runs` and `read_paper`.
    """
    reproduced = None if paper is None else read_paper(paper)
    comparison = compare_runs([Path(run) for run in runs], labels)
    folder = place_comparison(comparison, Path(output) if output else None)
    comparison.folder = folder
    papers = [] if reproduced is None else write_paper_table(comparison, reproduced, folder)
    findings = examine_comparison(comparison, folder)
    pages = write_comparison(comparison, findings, papers)
    for one in findings:
        print_tables(one.blocks)
    print_tables(papers)
    figures = [path for one in findings for path in one.gallery.paths]
    print_tables([*comparison.notes, *map(str, (*pages, *figures))])
    about = {"name": name_comparison(comparison), "save_dir": str(folder)}
    described = describe_logger(logger, find_common_folder(comparison), **about)
    opened = instantiate(described) or None
    publish_comparison(opened, comparison, [one.gallery for one in findings])
    return comparison


@dataclass
class SectionFindings:
    """The results of comparing the runs of one section.

    Attributes:
        effectiveness: intervals and tests.
        gallery: its figures.
    """

    section: Section
    effectiveness: Effectiveness
    gallery: Gallery

    @cached_property
    def table(self) -> DataFrame:
        """The long table of its systems."""
        systems = {group.label: group.statistics for group in self.section.groups}
        return tabulate(systems, self.effectiveness.winners)

    @property
    def search(self) -> Table:
        """The metrics of the search, a row for each system."""
        searched = self.table[self.table["section"] == "retrieve"]
        return select(searched, "system", "label", note=f"{SEEDS} {MARKS}")

    @property
    def summary(self) -> Table:
        """The headline metrics of every system; systems are columns unless there are too many."""
        shown = self.table[self.table["headline"]]
        places = zip(shown["name"], shown["system"], strict=True)
        cells: dict[tuple[str, str], Cell | str] = {}
        for group in self.section.groups:
            cells["paradigm", group.label] = group.paradigm
            cells["seeds", group.label] = group.seeds
        cells |= zip(places, shown["cell"], strict=True)
        found = pivot(cells, self.section.setting, corner="", note=f"{SEEDS} {MARKS}")
        return found if len(found.columns) <= COLUMNS_AT_MOST else found.turned()

    @property
    def blocks(self) -> list[Table | str]:
        """The tables of the terminal, of Markdown and of LaTeX, and the notes on them."""
        return [self.summary, *self.effectiveness.blocks]


def examine_comparison(comparison: Comparison, directory: Path) -> list[SectionFindings]:
    """Tests the runs' rankings and draws figures, section by section.

    Args:
        directory: the comparison's folder; the figures go into its subfolder `FIGURES`.
    """
    several, findings = len(comparison.sections) > 1, []
    for number, section in enumerate(comparison.sections, start=1):
        tested = compare_effectiveness(section)
        gallery = draw_comparison(section, directory / FIGURES, f"{number}_" if several else "")
        findings.append(SectionFindings(section, tested, gallery))
    return findings


def write_comparison(
    comparison: Comparison,
    findings: Sequence[SectionFindings],
    papers: Sequence[Table | str] = (),
) -> list[Path]:
    """Writes all files of a comparison except its figures; earlier files are replaced.

    Args:
        comparison: its `folder` is set.
        findings: as `examine_comparison` returns them.
        papers: the tables of `write_paper_table`, which come first on the page.

    Returns:
        The paths of the page and of the tables in Markdown and LaTeX.
    """
    directory, parts = comparison.folder, []
    for one in findings:
        # One seed of each system, since alignments of different runs are not averaged.
        runs = [(group.runs[0], group.label) for group in one.section.groups]
        aligned, notes = open_runs(runs)
        parts.append(
            {
                "found": one,
                "reports": {label: run.path / "report.html" for run, label in runs},
                "browser": embed_cases(aligned),
                "case_notes": notes,
                "chapters": tabulate_chapters(one.table),
            }
        )
    page = write_page(
        directory / "comparison.html",
        "comparison.html",
        comparison=comparison,
        parts=parts,
        papers=papers,
    )
    settings = [one.section.setting for one in findings]
    numbers = concat([one.table for one in findings], keys=settings, names=["setting", "row"])
    write_rows(numbers.reset_index()[NUMBERS].to_dict("records"), directory / "comparison.csv")
    tests = [
        {"setting": one.section.setting} | row
        for one in findings
        for row in one.effectiveness.differences
    ]
    if tests:
        write_rows(tests, directory / "comparison_tests.csv")
    blocks = [block for one in findings for block in one.blocks] + comparison.notes
    forms = (directory / f"comparison.{form}" for form in ("md", "tex"))
    return [page, *(write_tables(path, "Comparison", blocks) for path in forms)]


def draw_comparison(section: Section, directory: Path, prefix: str = "") -> Gallery:
    """Draws MRR@10 by ranking and against the budget of training, and exact match by IDF.

    Args:
        directory: where the PNG and PDF files go.
        prefix: of the file names, to tell several sections apart.
    """
    rows = [
        {"system": group.label, "key": key, "value": value}
        for group in section.groups
        for run in group.runs
        for key, value in run.metrics.items()
    ]
    table, gallery = DataFrame(rows, columns=["system", "key", "value"]), Gallery(directory)
    bars = table[table["key"].str.fullmatch(r"(retrieve|rerank)/(.*/)?mrr@10")]
    systems = bars.groupby("key")["system"].transform("nunique")
    count = len(section.groups)
    bars = bars[systems >= max(min(2, count), count / 2)]  # the tables have rankings of few systems
    if len(bars):
        caption = "Mean over seeds; bars are the standard deviation of two or more seeds."
        entry = GalleryEntry(f"{prefix}mrr", "MRR@10, searching and reranking", caption)
        gallery.add(draw_effectiveness(bars, section.setting), entry)
    points = [
        {"line": run.system, "x": group.statistics[BUDGET].mean / 1e12, "y": value, "panel": ""}
        for group in section.groups
        for run in group.runs
        if BUDGET in group.statistics and (value := run.metrics.get("retrieve/mrr@10")) is not None
    ]
    if len(points) > 1:
        labels = ("operations of training (TFLOPs)", "MRR@10 of the search")
        figure = draw_lines(DataFrame(points), section.setting, *labels)
        figure.axes[0].set_xscale("log")
        plain = {"major_formatter": "{x:g}", "minor_formatter": LogFormatter()}
        figure.axes[0].xaxis.set(**plain)
        caption = (
            "A point is the mean over the seeds of a configuration, its bar their standard "
            "deviation. A line joins the configurations of a system."
        )
        gallery.add(figure, GalleryEntry(f"{prefix}budget", "Quality by training budget", caption))
    places = table["key"].str.extract(IDF_KEY)
    if len(curves := table.join(places).dropna()):
        entry = GalleryEntry(f"{prefix}exact_match", "Exact match by IDF", EXACT_MATCH)
        gallery.add(draw_exact_match(curves, section.setting), entry)
    return gallery


def draw_effectiveness(table: DataFrame, title: str) -> Figure:
    """Draws mean and deviation of MRR@10: a panel for each ranking, a row for each system.

    Args:
        table: a row for each seed: `system`, `key`, `value`.
    """
    rankings = table["key"].map(lambda key: read_key(key).section)
    groups = table.groupby([rankings, "system"], sort=False)["value"]
    marks = groups.agg(["mean", "std"]).fillna(0).rename_axis(["place", "name"]).reset_index()
    marks = marks.assign(low=marks["mean"] - marks["std"], high=marks["mean"] + marks["std"])
    figure = forest_figure(marks.rename(columns={"mean": "value"}), title, axis="MRR@10")
    for axes in figure.axes:
        axes.set_xlim(0, 1.02)  # the same for all rankings
    return figure


def draw_exact_match(table: DataFrame, title: str) -> Figure:
    """Plots exact-match rates of all systems against IDF, hard and soft, in both directions.

    These are Figures 2 and 3 of Wu et al. (§7.2), with all systems in each panel.

    Args:
        table: a row for each seed: `system`, `value` and the groups of `IDF_KEY`.
    """
    # Ordered by rarity: a docid system's document tokens have the rarest range alone.
    idf = Categorical(table["idf"].str.replace("_", "-"), BIN_NAMES)
    panels = table["measure"] + ", " + table["direction"].map(DIRECTIONS)
    points = table.assign(x=idf, panel=panels).rename(columns={"value": "y", "system": "line"})
    figure = draw_lines(points, title, "IDF of the aligning token", "exact match", shared=False)
    for axes in figure.axes:
        axes.set_ylim(0, None)
    return figure


def main(config: DictConfig) -> None:
    runs = named_folders(config.runs)
    compare(runs, config.output, config.logger, config.paper, config.labels)
