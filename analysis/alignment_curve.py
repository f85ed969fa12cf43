"""How the alignment forms while a system learns: measured after every epoch on the same pairs."""

from collections.abc import Sequence

import pytorch_lightning as pl
import torch
from matplotlib.figure import Figure
from pandas import DataFrame

from analysis.analysis import Findings
from analysis.exact_match import exact_match
from analysis.figures import COLOURS, MARKERS, GalleryEntry, page_panels, styled
from analysis.low_rank import low_rank
from analysis.training_curve import Training, read_steps
from analysis.viewer.directed_alignment import aligning_side, directed_alignment, own_direction
from gr_mvdr.batch import PairBatch
from gr_mvdr.options import Count, part
from gr_mvdr.relevance import Explanation
from models.base import System

# Columns of the training curves → titles of the panels.
PANELS = {
    "alignment/relative_error": "relative error of the best equal rows",
    "alignment/soft": "soft exact match",
    "alignment/hard": "hard exact match",
    "alignment/cross_attention": "share of |logit| by cross-attention",
}
CAPTION = (
    "The same pairs after every epoch of training, in the direction in which the system aligns: "
    "how far the alignment is from equal rows (0 = every document token looks at the query alike; "
    "Figure 4 over training), how much of it joins equal tokens, and for a generative system the "
    "share of the logits' parts that is cross-attention's."
)


class AlignmentCurve(pl.Callback):
    """Measures some test pairs after every epoch and logs the means as "alignment/…".

    Args:
        pairs: (test query, relevant document) pairs; 0 = nothing is measured.
    """

    def __init__(self, pairs: Count):
        self.pairs = pairs

    def on_train_epoch_end(self, trainer: pl.Trainer, model: System) -> None:
        if not (self.pairs and model.alignable):
            return
        data = trainer.datamodule
        _, batches = data.test_pairs(data.test_splits[0], self.pairs, covers=model.covers)
        for name, value in _measure(model, batches).items() if batches else ():
            model.log(f"alignment/{name}", value, batch_size=1, sync_dist=True)


@torch.inference_mode()
def _measure(model: System, batches: Sequence[PairBatch]) -> dict[str, float]:
    was_training = model.training
    model.eval()
    explained = [model.explain(batch.to(model.device)) for batch in batches]
    model.train(was_training)
    found = [_measure_batch(explanation, model.paradigm) for explanation in explained]
    return {name: float(torch.cat([values[name] for values in found]).mean()) for name in found[0]}


def _measure_batch(explanation: Explanation, paradigm: str) -> dict[str, torch.Tensor]:
    """Values of each head, or of each aligning token, in the last layer."""
    pairs = explanation.layers[-1]
    masks, direction = (pairs.document_mask, pairs.query_mask), own_direction(paradigm)
    errors = low_rank(pairs.alignment, *(mask[:, None] for mask in masks))
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
    return {name: value.flatten().cpu() for name, value in found.items()}


@part("analysis")
class Curve(Training):
    """What `AlignmentCurve` measured while the run trained, as a figure."""

    name, title = "curve", "The alignment in training"
    reading = "The alignment after every epoch of training."

    def finish(self) -> Findings:
        rows = read_steps(self.run).filter(["step", *PANELS])
        if "alignment/soft" not in rows:
            return Findings()
        entry = GalleryEntry("alignment_curve", "The alignment while it is learned", CAPTION)
        return Findings(figures=[(curve_figure(rows.dropna()), entry)])


@styled
def curve_figure(rows: DataFrame) -> Figure:
    """What was measured after every epoch, one panel a measure."""
    panels = [name for name in PANELS if name in rows]
    figure, drawn = page_panels("", len(panels))
    for axes, name, colour, marker in zip(drawn, panels, COLOURS, MARKERS, strict=False):
        axes.plot(rows["step"], rows[name], color=colour, marker=marker)
        axes.set(title=PANELS[name], xlabel="training step", ylim=(0, None))
    return figure
