"""Loss, gradient norm and learning rate over training, from `training/metrics.csv`."""

from collections.abc import Sequence
from math import isfinite, nan
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.analysis import Analysis, Findings, Subject
from analysis.figures import COLOURS, GalleryEntry, legend_below, page_figure, styled
from analysis.tables.rows import read_rows
from gr_mvdr.files import reading
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
Curve = dict[str, np.ndarray]


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
        if not len(curve["step"]):
            return Findings()
        entry = GalleryEntry("training", "Training, step by step", CAPTION)
        return Findings(figures=[(training_figure(curve), entry)])


def read_curve(run: Path) -> Curve:
    """The logged steps of a run's training, see `training_figure`.

    Raises:
        ValueError: a line of the file is no row of numbers.
    """
    with reading(f"{run / CURVES}: must be a table of numbers"):
        steps: dict[int, dict[str, float]] = {}
        for row in read_rows(run / CURVES, run):  # several of one step: a resumed run's, validation
            steps.setdefault(int(row["step"]) + 1, {}).update(row)
        found = {"step": np.array(sorted(steps), dtype=float)}
        logged = {name: f"train/{name}" for name in PANELS} | {"validation_loss": "validation/loss"}
        for name, column in logged.items():
            values = [steps[step].get(column, nan) for step in sorted(steps)]
            found[name] = np.array(values, dtype=float)
    return found


@styled
def training_figure(curve: Curve) -> Figure:
    """Loss, gradient norm and learning rate, a panel each.

    Args:
        curve: (n,) each of "step", from 1, "validation_loss" and the names of `PANELS`; NaN where a
            step has no such value.
    """
    panels = [name for name in PANELS if np.isfinite(curve[name]).any()]
    figure = page_figure()
    for number, (axes, name) in enumerate(
        zip(np.atleast_1d(figure.subplots(1, len(panels) or 1)), panels, strict=False)
    ):
        mean = _draw(axes, curve["step"], curve[name], COLOURS[number])
        if name != "learning_rate" and is_wide(mean):  # a schedule's shape is that of its numbers
            axes.set_yscale("log")
        elif mean.min() >= 0:
            axes.set_ylim(0, None)
        axes.set(title=PANELS[name], xlabel="training step")
        axes.grid(axis="y")
        seen = np.isfinite(curve["validation_loss"])
        if name == "loss" and seen.any():
            style = {"color": COLOURS[5], "marker": "o", "label": "validation loss"}
            axes.plot(curve["step"][seen], curve["validation_loss"][seen], **style)
            legend_below(figure, 1)
    return figure


def _draw(axes: Axes, steps: np.ndarray, values: np.ndarray, colour: str) -> np.ndarray:
    """Means of neighbouring steps, which are returned, over the band of their values."""
    kept = np.isfinite(values)
    parts = [
        part
        for part in np.array_split(np.stack([steps[kept], values[kept]]), BINS, axis=1)
        if part.size
    ]
    x, mean = np.array([part.mean(1) for part in parts]).T
    low, high = np.array([(part[1].min(), part[1].max()) for part in parts]).T
    axes.fill_between(x, low, high, color=colour, alpha=0.25, linewidth=0)
    axes.plot(x, mean, color=colour, marker="" if len(x) > 1 else "o")
    return mean


def is_wide(values: Sequence[float]) -> bool:
    """Whether positive values span so much that only a logarithmic axis shows the small ones."""
    low, high = min(values), max(values)
    return low > 0 and isfinite(high / low) and high / low > LOGARITHMIC
