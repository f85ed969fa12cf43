"""Curves over training: loss, gradient norm, learning rate, and the alignment."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas
import pytorch_lightning as pl
import torch
from matplotlib.figure import Figure
from pandas import DataFrame
from torch import Tensor

from analysis.exact_match import exact_match
from analysis.figures import GalleryEntry, draw_lines
from analysis.low_rank import low_rank
from analysis.questions.analysis import Analysis, Findings, Subject
from analysis.viewer.directed_alignment import aligning_side, directed_alignment, own_direction
from gr_mvdr.batch import PairBatch
from gr_mvdr.files import check_file, reading
from gr_mvdr.options import Count, part
from gr_mvdr.relevance import Explanation
from models.base import System
from models.training import CURVES

LOGARITHMIC = 10  # losses and norms that span more than this factor get a logarithmic axis
# Columns of the training curves → titles of the panels.
TRAINED = {"loss": "loss", "gradient_norm": "gradient norm", "learning_rate": "learning rate"}
VALIDATED = "validation/"  # columns of metrics of the validation's rankings begin with it
ALIGNED = {
    "alignment/relative_error": "relative error of the best equal rows",
    "alignment/soft": "soft exact match",
    "alignment/hard": "hard exact match",
    "alignment/cross_attention": "share of |logit| by cross-attention",
}


def read_steps(run: Path) -> DataFrame:
    """Reads what a run's training logged: a row per `step`, from 1; missing values are NaN.

    Raises:
        ValueError: a line of the file is not a row of numbers.
    """
    with reading(f"{run / CURVES}: must be a table of numbers"):
        table = pandas.read_csv(check_file(run / CURVES, run), dtype=float)
        # A step may have several rows: one for validation, and one if a resumed run repeats it.
        return table.assign(step=table["step"] + 1).groupby("step", as_index=False).last()


def read_curve(run: Path) -> DataFrame:
    """Reads the columns `step`, `TRAINED`, `validation_loss` and `VALIDATED` of `read_steps`."""
    columns = {f"train/{name}": name for name in TRAINED} | {"validation/loss": "validation_loss"}
    steps = read_steps(run).rename(columns=columns)
    found = [name for name in steps if name.startswith(VALIDATED)]
    return steps.reindex(columns=["step", *columns.values(), *found])


class AlignmentCurve(pl.Callback):
    """Measures some test pairs after every epoch and logs the means as "alignment/…".

    Args:
        pairs: the number of (test query, relevant document) pairs; 0 disables the measurement.
    """

    def __init__(self, pairs: Count):
        self.pairs = pairs

    def on_train_epoch_end(self, trainer: pl.Trainer, model: System) -> None:
        if not (self.pairs and model.alignable):
            return
        data = trainer.datamodule
        _, batches = data.evaluation.test_pairs(
            data.evaluation.test_splits[0], self.pairs, covers=model.covers
        )
        for name, value in _measure(model, batches).items() if batches else ():
            model.log(f"alignment/{name}", value, batch_size=1, sync_dist=True)


@torch.inference_mode()
def _measure(model: System, batches: Sequence[PairBatch]) -> dict[str, float]:
    was_training = model.training
    model.eval()
    explained = [model.explain(batch.to(model.device)) for batch in batches]
    model.train(was_training)
    parts = [_measure_batch(explanation, model.paradigm) for explanation in explained]
    return {name: float(torch.cat([part[name] for part in parts]).mean()) for name in parts[0]}


def _measure_batch(explanation: Explanation, paradigm: str) -> dict[str, Tensor]:
    """Measures each head, or each aligning token, of the last layer."""
    pairs = explanation.layers[-1]
    masks, direction = (pairs.document_mask, pairs.query_mask), own_direction(paradigm)
    errors = low_rank(pairs.alignment.cpu(), *(mask[:, None].cpu() for mask in masks))
    norms = errors["frobenius"].clamp_min(1e-12)
    sides = directed_alignment(pairs, paradigm, direction), pairs.document_ids, pairs.query_ids
    hard, soft = exact_match(*sides, *masks, direction)
    _, real = aligning_side(pairs, direction)
    measures = {
        "relative_error": errors["equal_rows"] / norms,
        "relative_error_rank_one": errors["best_rank_one"] / norms,
        "hard": hard[real].float(),
        "soft": soft[real],
    }
    if explanation.decoder is not None:
        sizes = explanation.decoder.contributions.abs()
        crossed = [n.startswith("cross_attention") for n in explanation.decoder.names]
        share = sizes[:, crossed].sum(1) / sizes.sum(1).clamp_min(1e-12)
        measures["cross_attention"] = share[pairs.document_mask]
    return {name: value.flatten().cpu() for name, value in measures.items()}


@part("analysis")
class Training(Analysis):
    """Draws the run's `training/metrics.csv`."""

    name, title = "training", "Training"
    reading = (
        "Loss, gradient norm before clipping, learning rate, and rankings of the validation split. "
        "Where a pool of documents is searched, they are higher than in a search of all."
    )

    @classmethod
    def applies(cls, subject: Subject) -> bool:
        return subject.run is not None and (subject.run / CURVES).is_file()

    def finish(self) -> Findings:
        curve = read_curve(self.subject.run)
        if not np.isfinite(curve.drop(columns="step")).any(axis=None):
            return Findings()
        entry = GalleryEntry("training", "Training, step by step", STEPS)
        return Findings(figures=[(training_figure(curve), entry)])


@part("analysis")
class Curve(Training):
    """Draws what `AlignmentCurve` measured during training."""

    name, title = "alignment_curve", "The alignment in training"
    reading = "The alignment of the same pairs after every epoch of training."

    def finish(self) -> Findings:
        rows = read_steps(self.subject.run).filter(["step", *ALIGNED]).dropna()
        if "alignment/soft" not in rows or rows.empty:
            return Findings()
        entry = GalleryEntry(self.name, "The alignment while it is learned", EPOCHS)
        return Findings(figures=[(alignment_figure(rows), entry)])


STEPS = (
    "If the loss still falls at the end, train for more epochs. If the gradient norm "
    "grows or the loss jumps, lower the learning rate."
)


def training_figure(curve: DataFrame) -> Figure:
    """Plots loss, gradient norm, learning rate and rankings of `read_curve`, a panel each."""
    curve = curve.replace([float("inf"), float("-inf")], float("nan"))
    points = []
    for name, title in TRAINED.items():
        logged = curve[["step", name]].dropna().set_axis(["x", "y"], axis=1)
        points.append(logged.assign(panel=title, line="training"))
    validated = curve[["step", "validation_loss"]].dropna().set_axis(["x", "y"], axis=1)
    points.append(validated.assign(panel=TRAINED["loss"], line="validation"))
    for name in (name for name in curve if name.startswith(VALIDATED)):
        found = curve[["step", name]].dropna().set_axis(["x", "y"], axis=1)
        points.append(found.assign(panel=VALIDATED[:-1], line=name.removeprefix(VALIDATED)))
    points = pandas.concat(points)
    figure = draw_lines(points, "", "training step", "", None, shared=False, band=True)
    for axes, (title, drawn) in zip(figure.axes, points.groupby("panel", sort=False), strict=True):
        low, high = drawn["y"].min(), drawn["y"].max()
        if title != TRAINED["learning_rate"] and 0 < LOGARITHMIC * low < high:
            axes.set_yscale("log")
        elif low >= 0:
            axes.set_ylim(0, None)
    return figure


EPOCHS = (
    "The alignment in the system's own direction: its relative distance from a matrix of equal "
    "rows (0 if all document tokens have the same weights over the query; Figure 4 over training), "
    "its weight on equal tokens and, for a generative system, the share of cross-attention in the "
    "absolute sizes of a logit's parts."
)


def alignment_figure(rows: DataFrame) -> Figure:
    """Plots the measurements after every epoch, a panel per measure."""
    points = rows.rename(columns={"step": "x", **ALIGNED}).melt(
        "x", var_name="panel", value_name="y"
    )
    figure = draw_lines(points.assign(line=""), "", "training step", "", shared=False)
    for axes in figure.axes:
        axes.set_ylim(0, None)
    return figure
