"""How the alignment forms while a system learns: measured after every epoch on the same pairs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from matplotlib.figure import Figure

from analysis.analysis import Analysis, Findings, Subject
from analysis.exact_match import exact_match
from analysis.figures import COLOURS, MARKERS, GalleryEntry, page_panels, styled
from analysis.low_rank import low_rank
from analysis.tables.rows import Row, read_rows, write_rows
from analysis.viewer.directed_alignment import aligning_side, directed_alignment, own_direction
from gr_mvdr.batch import PairBatch
from gr_mvdr.files import reading
from gr_mvdr.options import Count, Text, part
from gr_mvdr.relevance import Explanation
from models.base import System

FILE = "alignment_curve.csv"
PANELS = {
    "relative_error": "relative error of the best equal rows",
    "soft": "soft exact match",
    "hard": "hard exact match",
    "cross_attention": "share of |logit| by cross-attention",
}
CAPTION = (
    "The same pairs after every epoch of training, in the direction in which the system aligns of "
    "its own accord: how far the alignment is from equal rows (0 = every document token looks at "
    "the query alike; Figure 4 over training), and how much of it joins equal tokens"
)


class AlignmentCurve(pl.Callback):
    """Measures some test pairs after every epoch, and logs what it finds.

    Args:
        pairs: (test query, relevant document) pairs; 0 = nothing is measured.
        directory: the run's folder; `alignment_curve.csv` grows there.
    """

    def __init__(self, pairs: Count, directory: Text):
        self.pairs, self.directory = pairs, Path(directory)
        self.rows: list[Row] = []

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows = list(state_dict["rows"])

    def on_train_epoch_end(self, trainer: pl.Trainer, model: System) -> None:
        if not (self.pairs and model.alignable):
            return
        data = trainer.datamodule
        _, batches = data.test_pairs(data.test_splits[0], self.pairs, covers=model.covers)
        if not batches:
            return
        found = _measured(model, batches)
        self.rows.append({"epoch": trainer.current_epoch + 1, "step": trainer.global_step, **found})
        if trainer.is_global_zero:
            write_rows(self.rows, self.directory / FILE)
        for name, value in found.items():
            model.log(f"alignment/{name}", value, batch_size=1, sync_dist=True)


@torch.inference_mode()
def _measured(model: System, batches: Sequence[PairBatch]) -> dict[str, float]:
    was_training = model.training
    model.eval()
    explained = [model.explain(batch.to(model.device)) for batch in batches]
    model.train(was_training)
    found = [_of_batch(explanation, model.paradigm) for explanation in explained]
    return {name: float(torch.cat([values[name] for values in found]).mean()) for name in found[0]}


def _of_batch(explanation: Explanation, paradigm: str) -> dict[str, torch.Tensor]:
    """Values of each pair, or of each of its aligning tokens, of the last layer."""
    pairs = explanation.layers[-1]
    masks, direction = (pairs.document_mask, pairs.query_mask), own_direction(paradigm)
    heads = pairs.alignment.shape[1]
    per_head = [mask.repeat_interleave(heads, 0) for mask in masks]
    errors = low_rank(pairs.alignment.flatten(0, 1), *per_head)
    norms = errors["frobenius"].clamp_min(1e-12)
    sides = directed_alignment(pairs, paradigm, direction), pairs.document_ids, pairs.query_ids
    hard, soft = exact_match(*sides, *masks, direction)
    _, real = aligning_side(pairs, direction)
    found = {
        "relative_error": errors["equal_rows"] / norms,
        "relative_error_rank_one": errors["best_rank_one"] / norms,
        "hard": hard[real].float(),
        "soft": soft[real],
    }
    if explanation.decoder is not None:
        sizes = explanation.decoder.contributions.abs()
        crossed = [n.startswith("cross_attention") for n in explanation.decoder.names]
        share = sizes[:, crossed].sum(1) / sizes.sum(1).clamp_min(1e-12)
        found["cross_attention"] = share[pairs.document_mask]
    return {name: value.cpu() for name, value in found.items()}


@part("analysis")
class Curve(Analysis):
    """What `AlignmentCurve` measured while the run trained, as a figure."""

    name, title = "curve", "The alignment in training"
    reading = "The alignment after every epoch of training."

    def __init__(self, subject: Subject):
        self.path = subject.run / FILE

    def finish(self) -> Findings:
        if not self.path.exists():
            return Findings()
        with reading(f"{self.path}: must be a table of numbers"):
            rows = read_rows(self.path, self.path.parent)
            rows = [{name: float(value) for name, value in row.items()} for row in rows]
        if not rows:
            return Findings()
        crossed = "; and which share of the logits' parts is cross-attention's."
        caption = CAPTION + (crossed if "cross_attention" in rows[0] else ".")
        entry = GalleryEntry("alignment_curve", "The alignment while it is learned", caption)
        return Findings(figures=[(curve_figure(rows), entry)])


@styled
def curve_figure(rows: Sequence[Row]) -> Figure:
    """What was measured after every epoch, one panel a measure."""
    panels = [name for name in PANELS if name in rows[0]]
    figure, drawn = page_panels("", len(panels))
    steps = [row["step"] for row in rows]
    for number, (axes, name) in enumerate(zip(drawn, panels, strict=True)):
        values = [row[name] for row in rows]
        axes.plot(steps, values, color=COLOURS[number], marker=MARKERS[number])
        axes.set_title(PANELS[name])
        axes.set(xlabel="training step", ylim=(0, None))
        axes.grid(axis="y")
    return figure
