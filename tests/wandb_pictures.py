"""Draws the pictures of docs/using.md: `python -m tests.wandb_pictures outputs/small docs/figures`.

They show what the offline runs below a folder hold, as `wandb sync` would send it; wandb's own page
draws the same rows in its own way.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from analysis.figures import COLOURS, PAGE_WIDTH, styled
from gr_mvdr.files import new_file
from tests.offline_run import OfflineRun, read_offline_runs

CURVES = ("train/loss", "train/learning_rate", "train/gradient_norm", "alignment/hard")
ALIGNMENT = "figures/alignment_case_1"
DOTS = 130  # an inch
LETTERS = 130  # of a table's row, in the largest type
SIZE, COLOUR_COUNT = (760, 760), 64  # of a logged picture
# Of the comparison's many columns.
COLUMNS = ("system", "paradigm", "retrieve/recall@1", "retrieve/mrr@10", "rerank/mrr@10")
TESTED = ("metric", "first", "second", "difference", "corrected")


def read_runs(folder: Path) -> list[OfflineRun]:
    """The newest offline run of each name, trained before compared."""
    runs = {run.name: run for run in read_offline_runs(folder)}
    return sorted(runs.values(), key=lambda run: (run.job_type == "compare", run.name))


@styled
def draw_curves(runs: Sequence[OfflineRun], keys: Sequence[str] = CURVES) -> Figure:
    """A panel for each key that was logged: its values of every run over the trainer's steps."""
    keys = [key for key in keys if any(run.values(key) for run in runs)]
    figure = Figure(figsize=(PAGE_WIDTH, 1.9), layout="constrained")
    for axes, key in zip(figure.subplots(1, len(keys), squeeze=False).flat, keys, strict=True):
        for colour, run in zip(COLOURS, runs, strict=False):
            if points := run.values(key):
                axes.plot(*zip(*points, strict=True), color=colour, label=run.tags[0])
        axes.set_title(key)
        axes.set_xlabel("trainer/global_step")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


@styled
def draw_tables(tables: Sequence[tuple[str, Sequence[str], Sequence[Sequence[Any]]]]) -> Figure:
    """Tables below each other: each a title, columns, rows."""
    heights = [1.6 + len(rows) for _, _, rows in tables]
    figure = Figure(figsize=(PAGE_WIDTH, 0.22 * sum(heights)), layout="constrained")
    panels = figure.subplots(len(tables), 1, height_ratios=heights, squeeze=False).flat
    for axes, table in zip(panels, tables, strict=True):
        _draw_table(axes, *table)
    return figure


def _draw_table(axes: Axes, title: str, columns: Sequence[str], rows: Sequence[Any]) -> None:
    axes.axis("off")
    axes.set_title(title, loc="left", pad=2)
    texts = [[_format(value) for value in row] for row in rows]
    widths = [2 + max(map(len, column)) for column in zip(columns, *texts, strict=True)]
    share = [width / sum(widths) for width in widths]
    table = axes.table(texts, colLabels=columns, colWidths=share, bbox=(0, 0, 1, 1), cellLoc="left")
    table.auto_set_font_size(False)
    table.set_fontsize(min(6.5, 6.5 * LETTERS / sum(widths)))
    for (row, _), cell in table.get_celld().items():
        cell.set_edgecolor("#dddddd")
        cell.set_facecolor("#f4f4f4" if row == 0 else "white")
        cell.get_text().set_parse_math(False)


def _format(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)


def draw_runs(runs: Sequence[OfflineRun]) -> Figure:
    """The list of runs, as the workspace groups it."""
    rows = [[run.group, run.job_type, run.name, run.tags] for run in runs]
    return draw_tables([("runs", ["group", "job type", "name", "tags"], rows)])


def draw_comparison(run: OfflineRun) -> Figure:
    """Two of the tables of a comparison, some of their columns."""
    chosen = ("tables/comparison", COLUMNS), ("tables/comparison_tests", TESTED)
    return draw_tables([(key, columns, select(run, key, columns)) for key, columns in chosen])


def select(run: OfflineRun, key: str, wanted: Sequence[str]) -> list[list[Any]]:
    """The rows of a logged table, of some of its columns."""
    columns, rows = run.table(key)
    places = [columns.index(column) for column in wanted]
    return [[row[place] for place in places] for row in rows]


def draw_all(folder: Path, output: Path) -> list[Path]:
    """Writes the four pictures; returns their files."""
    runs = read_runs(folder)
    (compared,) = [run for run in runs if run.job_type == "compare"]
    trained = [run for run in runs if run.values(CURVES[0])]
    figures = {
        "wandb_runs": draw_runs(runs),
        "wandb_curves": draw_curves(trained),
        "wandb_comparison": draw_comparison(compared),
    }
    for name, figure in figures.items():
        with new_file(output / f"{name}.png") as partial:
            figure.savefig(partial, format="png", dpi=DOTS)
    with new_file(output / "wandb_alignment.png") as partial:
        shrink_picture(trained[0].picture(ALIGNMENT), partial)
    return [output / f"{name}.png" for name in (*figures, "wandb_alignment")]


def shrink_picture(file: Path, smaller: Path) -> None:
    """Writes a logged picture in fewer dots and colours."""
    picture = Image.open(file).convert("RGB")
    picture.thumbnail(SIZE)
    picture.quantize(COLOUR_COUNT).save(smaller, format="PNG", optimize=True)


if __name__ == "__main__":
    print(*draw_all(Path(sys.argv[1]), Path(sys.argv[2])), sep="\n")
