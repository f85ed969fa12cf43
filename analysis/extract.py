"""Extracts the alignments of any model: one pass over pairs, streamed to disk."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytorch_lightning as pl
import torch

from analysis.alignment_store import AlignmentStore, StoreDescription
from analysis.alignment_writer import AlignmentWriter
from gr_mvdr.batch import PairBatch
from gr_mvdr.progress import track


@torch.inference_mode()
def extract_alignments(
    model: pl.LightningModule,
    batches: Iterable[PairBatch],
    directory: Path,
    pairs: Sequence[tuple[str, str]],
    *,
    system: str,
    collection: str,
    precision: str = "float32",
    overwrite: bool = False,
) -> AlignmentStore:
    """Writes `model.align` of every pair to a store (the tensors of Eq. 1, gr_as_mvdr §7.2).

    Args:
        model: any model with `align(batch) -> PairAlignment` and the class attribute `paradigm`.
        batches: the pairs as padded batches; moved to the model's device here.
        directory: where the store goes, such as `outputs/…/alignments`.
        pairs: (query id, document id) of every pair, in the order of the batches.
        system, collection: names that reports show.
        precision: "float32", or "float16" for half the disk and three digits.
        overwrite: replace a store that exists.

    Returns:
        The finished store, open for reading.

    Raises:
        FileExistsError: the store exists and `overwrite` is false.
        ValueError: an unknown precision or paradigm, or `pairs` and `batches` differ in length.
    """
    description = StoreDescription(system, model.paradigm, collection, precision)
    was_training = model.training
    model.eval()
    try:
        with AlignmentWriter(directory, description, overwrite) as writer:
            for batch in track(batches, f"aligning {system}"):
                named = pairs[len(writer.pairs) : len(writer.pairs) + len(batch)]
                alignment = model.align(batch.to(model.device))
                writer.add(alignment, *_columns(named))
            if len(writer.pairs) != len(pairs):
                raise ValueError(f"{len(pairs)} pairs named, {len(writer.pairs)} in the batches")
    finally:
        model.train(was_training)
    return AlignmentStore(directory)


def _columns(pairs: Sequence[tuple[str, str]]) -> tuple[list[str], list[str]]:
    return [query for query, _ in pairs], [document for _, document in pairs]
