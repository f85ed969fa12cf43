"""Loss, gradient norm and learning rate over training, from `training/metrics.csv`."""

from pathlib import Path

import numpy as np
import pandas
from matplotlib.figure import Figure
from pandas import DataFrame

from analysis.analysis import Analysis, Findings, Subject
from analysis.figures import COLOURS, GalleryEntry, legend_below, page_panels, styled
from gr_mvdr.files import check_file, reading
from gr_mvdr.options import part
from models.training import CURVES

BINS = 100  # a page's width shows no more steps one by one
LOGARITHMIC = 10  # losses and norms that span more than this factor need a logarithmic axis
PANELS = {"loss": "loss", "gradient_norm": "gradient norm", "learning_rate": "learning rate"}
CAPTION = (
    "The logged steps of training: the line is the mean of neighbouring steps, the band reaches "
    "from the smallest to the largest of them. A loss that still falls asks for more epochs; a "
    "gradient norm that grows, or a loss that jumps, for a smaller learning rate."
)


@part("analysis")
class Training(Analysis):
    """The run's `training/metrics.csv` as a figure."""

    name, title = "training", "Training"
    reading = "Loss, gradient norm before clipping, and learning rate over the steps."

    @classmethod
    def applies(cls, subject: Subject) -> bool:
        return subject.run is not None and (subject.run / CURVES).is_file()

    def __init__(self, subject: Subject):
        self.run = subject.run

    def finish(self) -> Findings:
        curve = read_curve(self.run)
        if curve.empty:
            return Findings()
        entry = GalleryEntry("training", "Training, step by step", CAPTION)
        return Findings(figures=[(training_figure(curve), entry)])


def read_steps(run: Path) -> DataFrame:
    """All that a run's training logged: a row for each `step`, from 1; NaN where it lacks a value.

    Raises:
        ValueError: a line of the file is not a row of numbers.
    """
    with reading(f"{run / CURVES}: must be a table of numbers"):
        table = pandas.read_csv(check_file(run / CURVES, run), dtype=float)
        # A step has several rows: validation's, and one more if a resumed run repeats it.
        return table.assign(step=table["step"] + 1).groupby("step", as_index=False).last()


def read_curve(run: Path) -> DataFrame:
    """`step`, `PANELS` and `validation_loss` of `read_steps`."""
    columns = {f"train/{name}": name for name in PANELS} | {"validation/loss": "validation_loss"}
    return read_steps(run).rename(columns=columns).reindex(columns=["step", *columns.values()])


@styled
def training_figure(curve: DataFrame) -> Figure:
    """Loss, gradient norm and learning rate of `read_curve`, a panel each."""
    curve = curve.replace([float("inf"), float("-inf")], float("nan"))
    names = [name for name in PANELS if curve[name].notna().any()]
    figure, panels = page_panels("", len(names))
    for axes, name, colour in zip(panels, names, COLOURS, strict=False):
        logged = curve[["step", name]].dropna()
        width = -(-len(logged) // BINS)  # neighbouring steps that share a point
        bins = logged.groupby(np.arange(len(logged)) // width)
        means, lows, highs = bins.mean(), bins.min(), bins.max()
        axes.fill_between(means["step"], lows[name], highs[name], color=colour, alpha=0.25)
        axes.plot(means["step"], means[name], color=colour, marker="" if len(means) > 1 else "o")
        low, high = means[name].min(), means[name].max()
        if name != "learning_rate" and 0 < LOGARITHMIC * low < high:  # a schedule stays linear
            axes.set_yscale("log")
        elif low >= 0:
            axes.set_ylim(0, None)
        axes.set(title=PANELS[name], xlabel="training step")
        validated = curve[["step", "validation_loss"]].dropna()
        if name == "loss" and len(validated):
            style = {"color": COLOURS[5], "marker": "o", "label": "validation loss"}
            axes.plot(validated["step"], validated["validation_loss"], **style)
            legend_below(figure, 1)
    return figure
