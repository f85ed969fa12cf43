"""Extracts the alignments of any model: one pass over pairs, streamed to disk."""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import pytorch_lightning as pl
import torch

from analysis.store.alignment_store import AlignmentStore, StoreDescription
from analysis.store.alignment_writer import AlignmentWriter
from gr_mvdr.batch import PairBatch
from gr_mvdr.progress import track


@torch.inference_mode()
def extract_alignments(
    model: pl.LightningModule,
    batches: Sequence[PairBatch],
    directory: Path,
    pairs: Sequence[tuple[str, str]],
    description: StoreDescription,
) -> AlignmentStore:
    """Writes `model.explain` of every pair to a store (the tensors of Eq. 1, gr_as_mvdr §7.2).

    A finished store of the same description and pairs is kept, another one is replaced; an
    interrupted extraction goes on after its last shard.

    Args:
        model: a `models.base.System`.
        batches: the pairs as padded batches; moved to the model's device here.
        directory: where the store goes, such as `outputs/…/alignments`.
        pairs: (query id, document id) of every pair, in the order of the batches.
        description: names, precision, and what the alignments are made from.

    Returns:
        The finished store, open for reading.

    Raises:
        ValueError: `pairs` and `batches` differ in length.
    """
    ends = list(accumulate(map(len, batches)))
    if len(pairs) != (ends[-1] if ends else 0):
        raise ValueError(f"{len(pairs)} pairs named, {ends[-1] if ends else 0} in the batches")
    if kept := _finished(directory, description, pairs):
        return kept
    was_training = model.training
    model.eval()
    try:
        with AlignmentWriter(directory, description) as writer:
            done = len(writer.pairs)
            if done and (done not in ends or _named(writer.pairs) != pairs[:done]):
                writer.restart()
            first = ends.index(done) + 1 if (done := len(writer.pairs)) else 0
            todo = track(batches[first:], f"aligning {description.system}")
            for batch, end in zip(todo, ends[first:], strict=True):
                queries, documents = zip(*pairs[end - len(batch) : end], strict=True)
                writer.add(model.explain(batch.to(model.device)), queries, documents)
    finally:
        model.train(was_training)
    return AlignmentStore(directory)


def _finished(
    directory: Path, description: StoreDescription, pairs: Sequence[tuple[str, str]]
) -> AlignmentStore | None:
    """The store at a place, if it is whole and what would be written."""
    try:
        store = AlignmentStore(directory)
    except (FileNotFoundError, ValueError):
        return None
    return store if store.holds(description, list(pairs)) else None


def _named(pairs: Sequence[Sequence[str]]) -> list[tuple[str, str]]:
    return [(query, document) for query, document in pairs]
