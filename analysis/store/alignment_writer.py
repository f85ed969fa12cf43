"""Writes the alignment store: a stream of explanations in, a folder of shards out."""

import shutil
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow
import torch
from safetensors.torch import save

from analysis.store.alignment_store import (
    CODEC,
    MATRICES,
    PRECISIONS,
    AlignmentStore,
    Fields,
    StoreDescription,
    cut,
    describe,
    lengths,
)
from gr_mvdr.batch import PairBatch
from gr_mvdr.files import VERSION, checksum, move_into_place, new_file, read_json, write_json
from gr_mvdr.progress import track
from gr_mvdr.relevance import Explanation
from models.base import System

SHARD_VALUES = 2**23  # similarity values in a shard: 32 MB of fp32
PROGRESS = "progress.json"
SHAPE = ("layers", "heads", "path_names", "projection_norms")


class AlignmentWriter:
    """Writes a stream of alignments; the folder appears only when the stream has ended well.

        with AlignmentWriter(directory, description) as writer:
            writer.add(model.explain(batch), query_ids, document_ids)

    An interrupted stream leaves its finished shards in `<directory>.partial`, from which a writer
    of the same description goes on: `pairs` then holds what need not be added again.

    Args:
        directory: the store's folder; a store that exists is replaced at the end.
        description: system, paradigm, collection, precision and what it is made from.
    """

    def __init__(self, directory: Path, description: StoreDescription):
        self.directory, self.description = Path(directory), description
        self.partial = self.directory.with_name(self.directory.name + ".partial")
        self.pairs: list[list[str]] = []
        self.shards: list[dict[str, Any]] = []
        self.shape: dict[str, Any] = {}
        self.largest = 0  # similarity values of a pair at most
        self._open: list[Fields] = []
        self._values = 0

    def __enter__(self) -> "AlignmentWriter":
        progress = self.partial / PROGRESS
        try:
            known = read_json(progress) if progress.is_file() else {}
            header = describe(self.description)
            if {key: known.get(key) for key in header} != header:
                self.restart()
                return self
            self.pairs, self.shards = known["pairs"], known["shards"]
            self.shape = {key: known[key] for key in SHAPE}
            self.largest = known["largest"]
        except (KeyError, ValueError):  # it was cut short, or is of another version
            self.restart()
        return self

    def restart(self) -> None:
        """Forgets what an interrupted stream left."""
        shutil.rmtree(self.partial, ignore_errors=True)
        self.partial.mkdir(parents=True)
        self.pairs, self.shards, self.shape, self.largest = [], [], {}, 0

    def resume(self, pairs: Sequence[tuple[str, str]], ends: Sequence[int]) -> int:
        """How many batches are written already; none, and a fresh start, where others were.

        Args:
            pairs: that will be added; ends: how many with each batch and those before it.
        """
        done = len(self.pairs)
        if done and (done not in ends or [*map(tuple, self.pairs)] != list(pairs[:done])):
            self.restart()
        return ends.index(done) + 1 if self.pairs else 0

    def __exit__(self, error_type, error, traceback) -> None:
        if error_type is None:
            self._finish()
        elif not self.shards:
            shutil.rmtree(self.partial, ignore_errors=True)

    def add(
        self, explanation: Explanation, query_ids: Sequence[str], document_ids: Sequence[str]
    ) -> None:
        """Append B pairs, with the id of the query and of the document of each.

        Raises:
            ValueError: a count or the number of layers or heads differs, or a value overflows fp16.
        """
        batch = len(explanation)
        if not len(query_ids) == len(document_ids) == batch:
            raise ValueError(
                f"{batch} alignments for {len(query_ids)} query "
                f"and {len(document_ids)} document ids"
            )
        self._check_shape(explanation)
        for number in range(batch):
            self._open.append(self._cut(explanation, number))
            self.pairs.append([query_ids[number], document_ids[number]])
            size = self._open[-1]["similarity"].numel()
            self._values, self.largest = self._values + size, max(self.largest, size)
        # Only between batches: a writer that goes on begins with a whole one.
        if self._values >= SHARD_VALUES:
            self._write_shard()

    def _check_shape(self, explanation: Explanation) -> None:
        decoder, heads = explanation.decoder, explanation.layers[-1].similarity.shape[1]
        found = {
            "layers": len(explanation.layers),
            "heads": heads,
            "path_names": list(decoder.names) if decoder else [],
        }
        for key, value in found.items():
            if self.shape.get(key, value) != value:
                raise ValueError(f"{key} {value} in a store of {self.shape[key]}")
        norms = decoder.projection_norms.tolist() if decoder else []
        self.shape = found | {"projection_norms": norms}

    def _cut(self, explanation: Explanation, number: int) -> Fields:
        fields = cut(explanation, number)
        for name in MATRICES:
            fields[name] = fields[name].to(PRECISIONS[self.description.precision])
            if not fields[name].isfinite().all():
                raise ValueError(
                    f"pair {len(self.pairs)}: {name} is not finite as {self.description.precision}"
                )
        return fields

    def _write_shard(self) -> None:
        if not self._open:
            return
        tensors = {
            name: torch.cat([pair[name].flatten() for pair in self._open]) for name in self._open[0]
        }
        path = self.partial / f"shard-{len(self.shards):05d}.safetensors.zst"
        with (
            new_file(path) as partial,
            pyarrow.output_stream(str(partial), compression=CODEC) as stream,
        ):
            stream.write(save(tensors | lengths(self._open)))
        shard = {"file": path.name, "pairs": len(self._open), **checksum(path)}
        self.shards.append(shard)
        self._open, self._values = [], 0
        write_json(self.partial / PROGRESS, self._manifest(), indent=None)

    def _manifest(self) -> dict[str, Any]:
        content = {"version": VERSION, "largest": self.largest}
        content |= {"shards": self.shards, "pairs": self.pairs}
        return describe(self.description) | self.shape | content

    def _finish(self) -> None:
        self._write_shard()
        (self.partial / PROGRESS).unlink(missing_ok=True)
        write_json(self.partial / "manifest.json", self._manifest())
        move_into_place(self.partial, self.directory)


@torch.inference_mode()
def extract_alignments(
    model: System,
    batches: Sequence[PairBatch],
    directory: Path,
    pairs: Sequence[tuple[str, str]],
    description: StoreDescription,
) -> AlignmentStore:
    """Writes `model.explain` of every pair to a store (the tensors of Eq. 1, gr_as_mvdr §7.2).

    A finished store of the same description and pairs is kept, another one is replaced; an
    interrupted extraction goes on after its last shard.

    Args:
        batches: the pairs as padded batches; moved to the model's device here.
        directory: where the store goes, such as `outputs/…/alignments`.
        pairs: (query id, document id) of every pair, in the order of the batches.
        description: names, precision, and what the alignments are made from.

    Raises:
        ValueError: `pairs` and `batches` differ in length.
    """
    ends = list(accumulate(map(len, batches)))
    if len(pairs) != sum(map(len, batches)):
        raise ValueError(f"{len(pairs)} pairs named, {sum(map(len, batches))} in the batches")
    with suppress(FileNotFoundError, ValueError):  # none, or a broken one
        store = AlignmentStore(directory)
        if store.description == description and store.pairs == list(pairs):
            return store
    was_training = model.training
    model.eval()
    try:
        with AlignmentWriter(directory, description) as writer:
            first = writer.resume(pairs, ends)
            todo = track(batches[first:], f"aligning {description.system}")
            for batch, end in zip(todo, ends[first:], strict=True):
                queries, documents = zip(*pairs[end - len(batch) : end], strict=True)
                writer.add(model.explain(batch.to(model.device)), queries, documents)
    finally:
        model.train(was_training)
    return AlignmentStore(directory)
