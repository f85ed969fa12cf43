"""A comparison of finished runs: tables (`comparison.csv`, `.md`, `.tex`), figures and a page."""

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

from analysis.compare.groups import (
    LEVEL,
    SEEDS,
    Comparison,
    Section,
    compare_runs,
    find_common_folder,
    name_comparison,
    place_comparison,
)
from analysis.compare.paper import read_paper, write_paper_table
from analysis.compare.significance import TESTED, Effectiveness, compare_effectiveness
from analysis.figures import Gallery, GalleryEntry, draw_lines, forest_figure
from analysis.questions.tokens import BIN_NAMES
from analysis.runs.glossary import declared_terms
from analysis.runs.numbers import DIRECTIONS, PLACE, describe, find
from analysis.runs.publish import (
    describe_logger,
    finish,
    log_artefacts,
    log_figures,
    log_tables,
    tolerating,
)
from analysis.runs.report import write_page
from analysis.runs.run_folder import named_folders
from analysis.runs.tables import (
    BOLD,
    Cell,
    Table,
    pivot,
    print_tables,
    select,
    tabulate,
    tabulate_chapters,
    write_csv,
    write_tables,
)
from analysis.viewer.pairs import embed_cases, open_runs
from gr_mvdr.evaluation.metrics import find_metric, name_metric, ranking_metric
from gr_mvdr.measures import RANKED, RETRIEVE, STUDY
from gr_mvdr.options import name_some

FIGURES = "comparison_figures"
BUDGET, QUALITY = ("cost", "train_flops"), "mrr@10"
# Columns of `comparison.csv`.
NUMBERS = ["setting", "system", "key", *PLACE, "value", "std", "low", "high", "seeds", "n"]
# Patterns of files in a comparison's folder: its tables, and its artefacts by kind.
TABLES = ("comparison*.csv", "paper_table.csv")
COMPARED = {"comparison": ("comparison.*", "comparison_*.csv", "paper_table.*")}
COLUMNS_AT_MOST = 6  # systems shown as columns of a summary; more are shown as rows
SPREAD = (
    "Mean ± sample standard deviation over seeds; brackets hold 95 % intervals over queries and "
    "seeds."
)
MARKS = (
    BOLD
    + "*: significantly better than every other system (corrected p < {}, at least {} seeds of "
    "every trained system); only {} of the search {} tested. Without a star, the lead may be "
    "chance."
)
EXACT_MATCH = (
    "How often a token aligns to an equal token, averaged over the token types of each IDF range; "
    "rarer tokens are on the right. Hard: its strongest partner is the same token. Soft: the share "
    "of its alignment that falls on equal tokens."
)
MATCHES = ("hard", "soft")


def compare(
    runs: Sequence[Path | str],
    output: Path | str | None = None,
    logger: Mapping[str, Any] | None = None,
    paper: str | Path | None = None,
    labels: Mapping[str, object] | None = None,
    metrics: Sequence[str] | None = None,
    tested: Sequence[str] = TESTED,
    baseline: str | None = None,
) -> Comparison:
    """Compares runs, writes the comparison's files, and prints the tables and the files' paths.

    Args:
        runs: run folders, or folders that contain some (a sweep's).
        output: where the files go; by default a folder named after the runs, next to them. If it
            holds a comparison of other runs, they go into a folder named after the runs in it.
        logger: the settings of a Lightning logger (conf/logger); None = none.
        paper: a paper's table to compare with, as `read_paper` takes it.
        labels: see `compare_runs`.
        metrics: the metrics that the summary shows, by name; None = the usual ones.
        tested: the metrics of the search whose differences are tested.
        baseline: the label of the system that all others are tested against; None = each with each.

    Returns:
        What was compared, with its `folder`.

    Raises:
        FileNotFoundError, ValueError: as `compare_runs` and `read_paper`; or no run has a metric,
            no section the baseline.
    """
    reproduced = None if paper is None else read_paper(paper)
    comparison = compare_runs([Path(run) for run in runs], labels)
    known = {metric for run in comparison.runs for metric in run.numbers["metric"]}
    for name in metrics or ():
        if (find_metric(name) or name) not in known:
            raise ValueError(f"metrics={name}: no run has it, they have {name_some(sorted(known))}")
    systems = {group.label: None for group in comparison.groups}  # of every section
    if baseline is not None and baseline not in systems:
        raise ValueError(f"baseline={baseline}: must be one of {', '.join(systems)}")
    folder = place_comparison(comparison, Path(output) if output else None)
    comparison.folder = folder
    papers = [] if reproduced is None else write_paper_table(comparison, reproduced, folder)
    findings = examine_comparison(comparison, folder, metrics, tested, baseline)
    pages = write_comparison(comparison, findings, papers)
    for one in findings:
        print_tables(one.blocks)
    print_tables(papers)
    figures = [path for one in findings for path in one.gallery.paths]
    print_tables([*comparison.notes, *map(str, (*pages, *figures))])
    about = {"name": name_comparison(comparison), "save_dir": str(folder)}
    described = describe_logger(logger, find_common_folder(comparison), **about)
    opened = instantiate(described) or None
    with tolerating(folder, "the same comparison again"):
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
    metrics: Sequence[str] | None = None
    tested: Sequence[str] = TESTED

    @cached_property
    def table(self) -> DataFrame:
        """The long table of its systems."""
        systems = {group.label: group.numbers for group in self.section.groups}
        return tabulate(systems, self.effectiveness.winners)

    @property
    def note(self) -> str:
        if self.effectiveness.baseline is not None:  # then no system is tested against all
            return BOLD + SPREAD
        names = [ranking_metric(name_metric(name)).label for name in self.tested]
        are = "are" if len(names) > 1 else "is"
        return f"{SPREAD} {MARKS.format(LEVEL, SEEDS, ' and '.join(names), are)}"

    @property
    def search(self) -> Table:
        """The metrics of the search, a row for each system."""
        place = self.table[PLACE[:3]] == [RETRIEVE.name, "", ""]
        searched = self.table[place.all(axis=1)]
        if self.metrics is not None:
            searched = searched[searched["metric"].isin(self.metrics)]
        return select(searched, "system", "label", note=self.note)

    @property
    def summary(self) -> Table:
        """The headline metrics of every system; systems are columns unless there are too many."""
        shown = self.table[self.table["group"] != STUDY.name]  # its settings have their own table
        is_asked = shown["headline"]
        if self.metrics is not None:
            is_asked = shown["metric"].isin(self.metrics)
        shown = shown[is_asked]
        places = zip(shown["name"], shown["system"], strict=True)
        cells: dict[tuple[str, str], Cell | str] = {}
        for group in self.section.groups:
            cells["paradigm", group.label] = group.paradigm
            cells["seeds", group.label] = group.seeds
        cells |= zip(places, shown["cell"], strict=True)
        found = pivot(cells, self.section.setting, corner="", note=self.note)
        return found if len(found.cells.columns) <= COLUMNS_AT_MOST else found.turned()

    @property
    def blocks(self) -> list[Table | str]:
        """The tables of the terminal, of Markdown and of LaTeX, and the notes on them."""
        return [self.summary, *self.effectiveness.blocks]


def examine_comparison(
    comparison: Comparison,
    directory: Path,
    metrics: Sequence[str] | None = None,
    tested: Sequence[str] = TESTED,
    baseline: str | None = None,
) -> list[SectionFindings]:
    """Tests the runs' rankings and draws figures, section by section.

    Args:
        directory: the comparison's folder; the figures go into its subfolder `FIGURES`.
        metrics, tested, baseline: see `compare`.
    """
    metrics = metrics and [find_metric(name) or name for name in metrics]
    several, findings = len(comparison.sections) > 1, []
    for number, section in enumerate(comparison.sections, start=1):
        effect = compare_effectiveness(section, tested, baseline)
        gallery = draw_comparison(section, directory / FIGURES, f"{number}_" if several else "")
        findings.append(SectionFindings(section, effect, gallery, metrics, tested))
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
                "chapters": tabulate_chapters(one.table[one.table["group"] != STUDY.name]),
            }
        )
    every = concat([one.table for one in findings])
    page = write_page(
        directory / "comparison.html",
        "comparison.html",
        comparison=comparison,
        parts=parts,
        papers=papers,
        words=declared_terms(every),
        readings=dict(zip(every["chapter"], every["reading"], strict=True)),
    )
    settings = [one.section.setting for one in findings]
    numbers = concat([one.table for one in findings], keys=settings, names=["setting", "row"])
    write_csv(numbers.reset_index()[NUMBERS], directory / "comparison.csv")
    tests = {one.section.setting: one.effectiveness.differences for one in findings}
    if tested := {setting: table for setting, table in tests.items() if len(table)}:
        table = concat(tested, names=["setting", "row"]).reset_index("setting")
        write_csv(table, directory / "comparison_tests.csv")
    blocks = [block for one in findings for block in one.blocks] + comparison.notes
    forms = (directory / f"comparison.{form}" for form in ("md", "tex"))
    return [page, *(write_tables(path, "Comparison", blocks) for path in forms)]


def draw_comparison(section: Section, directory: Path, prefix: str = "") -> Gallery:
    """Draws MRR@10 by ranking and against the budget of training, and exact match by IDF.

    Args:
        directory: where the PNG and PDF files go.
        prefix: of the file names, to tell several sections apart.
    """
    gallery = Gallery(directory)
    parts = [run.numbers.assign(system=g.label) for g in section.groups for run in g.runs]
    table = describe(concat(parts, ignore_index=True)) if parts else DataFrame()
    bars = table[table["group"].isin(RANKED) & (table["metric"] == QUALITY)]
    systems = bars.groupby("section")["system"].transform("nunique")
    count = len(section.groups)
    bars = bars[systems >= max(min(2, count), count / 2)]  # the tables have rankings of few systems
    if len(bars):
        caption = "Mean over seeds; bars are the standard deviation of two or more seeds."
        entry = GalleryEntry(f"{prefix}mrr", "MRR@10, searching and reranking", caption)
        gallery.add(draw_effectiveness(bars, section.setting), entry)
    points = [
        {"line": run.system, "x": budget.value / 1e12, "y": quality.value, "panel": ""}
        for group in section.groups
        for run in group.runs
        if (budget := find(group.numbers, *BUDGET))
        and (quality := find(run.numbers, RETRIEVE.name, QUALITY))
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
    curves = table[(table["group"] == "exact_match") & table["metric"].isin(MATCHES)]
    curves = curves[(curves["part"] != "") & curves["place"].isin(DIRECTIONS)]
    if len(curves):
        entry = GalleryEntry(f"{prefix}exact_match", "Exact match by IDF", EXACT_MATCH)
        gallery.add(draw_exact_match(curves, section.setting), entry)
    return gallery


def draw_effectiveness(table: DataFrame, title: str) -> Figure:
    """Draws mean and deviation of MRR@10: a panel for each ranking, a row for each system.

    Args:
        table: a row for each seed: `system`, `section`, `value`.
    """
    groups = table.groupby(["section", "system"], sort=False)["value"]
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
        table: a row for each seed and range: `system`, `value`, `metric`, `place`, `label`.
    """
    # Ordered by rarity: a docid system's document tokens have the rarest range alone.
    names = {f"IDF {name}": name for name in BIN_NAMES}
    idf = Categorical(table["label"].map(names), BIN_NAMES)
    panels = table["metric"] + ", " + table["place"].map(DIRECTIONS)
    points = table.assign(x=idf, panel=panels).rename(columns={"value": "y", "system": "line"})
    figure = draw_lines(points, title, "IDF of the aligning token", "exact match", shared=False)
    for axes in figure.axes:
        axes.set_ylim(0, None)
    return figure


def publish_comparison(
    logger: Any, comparison: Comparison, galleries: Sequence[Gallery] = ()
) -> None:
    """Logs a comparison: the names of its runs, its tables and figures, and its files as artefacts.

    Args:
        logger: a Lightning logger, or None.
        comparison: already written, so that its `folder` is set.
        galleries: its figures, one gallery for each section.
    """
    if logger is None:
        return
    folder, runs = comparison.folder, [str(run.path) for run in comparison.runs]
    labels = [group.label for group in comparison.groups]
    settings = [section.setting for section in comparison.sections]
    logger.log_hyperparams({"runs": runs, "systems": labels, "collections": settings})
    log_tables(logger, [path for pattern in TABLES for path in folder.glob(pattern)])
    for gallery in galleries:
        log_figures(logger, gallery)
    log_artefacts(logger, folder, COMPARED, name_comparison(comparison))
    finish(logger)


def main(config: DictConfig) -> None:
    runs = named_folders(config.runs)
    options = {key: config[key] for key in ("paper", "labels", "metrics", "tested", "baseline")}
    compare(runs, config.output, config.logger, **options)
