"""Writes the alignment store: a stream of `PairAlignment` batches in, a folder of shards out."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from analysis.alignment_store import FORMAT, MATRICES, PRECISIONS, SCALARS, StoreDescription
from gr_mvdr.relevance import PairAlignment

SHARD_VALUES = 2**23  # similarity values in a shard: 32 MB of fp32


class AlignmentWriter:
    """Writes a stream of alignments; the folder appears only when the stream has ended well.

        with AlignmentWriter(directory, description) as writer:
            writer.add(model.align(batch), query_ids, document_ids)

    Args:
        directory: the store's folder.
        description: system, paradigm, collection and precision (fp16 halves the size and keeps
            three digits).
        overwrite: replace a store that exists.

    Raises:
        FileExistsError: the folder exists and `overwrite` is false.
    """

    def __init__(self, directory: Path, description: StoreDescription, overwrite: bool = False):
        self.directory, self.description = Path(directory), description
        if self.directory.exists() and not overwrite:
            raise FileExistsError(f"{self.directory} exists: alignments are not overwritten")
        self.partial = self.directory.with_name(self.directory.name + ".partial")
        self.pairs: list[list[str]] = []
        self.shards: list[dict] = []
        self.heads: int | None = None
        self._open: list[dict[str, Tensor]] = []
        self._values = 0

    def __enter__(self) -> "AlignmentWriter":
        shutil.rmtree(self.partial, ignore_errors=True)
        self.partial.mkdir(parents=True)
        return self

    def __exit__(self, error_type, error, traceback) -> None:
        if error_type is None:
            self._finish()
        else:
            shutil.rmtree(self.partial, ignore_errors=True)

    def add(
        self, pairs: PairAlignment, query_ids: Sequence[str], document_ids: Sequence[str]
    ) -> None:
        """Append B pairs, with the id of the query and of the document of each.

        Raises:
            ValueError: a count or the number of heads differs, or a value overflows fp16.
        """
        batch, heads = pairs.similarity.shape[:2]
        if not len(query_ids) == len(document_ids) == batch:
            raise ValueError(
                f"{batch} alignments for {len(query_ids)} query "
                f"and {len(document_ids)} document ids"
            )
        if self.heads not in (None, heads):
            raise ValueError(f"an alignment of {heads} heads in a store of {self.heads}")
        self.heads = heads
        for number in range(batch):
            self._open.append(self._cut(pairs, number))
            self.pairs.append([query_ids[number], document_ids[number]])
            self._values += self._open[-1]["similarity"].numel()
            if self._values >= SHARD_VALUES:
                self._write_shard()

    def _cut(self, pairs: PairAlignment, number: int) -> dict[str, Tensor]:
        """One pair without its padding, on the CPU."""
        document_mask, query_mask = pairs.document_mask[number], pairs.query_mask[number]
        dtype = PRECISIONS[self.description.precision]
        cut = {
            name: getattr(pairs, name)[number][:, document_mask][:, :, query_mask].to("cpu", dtype)
            for name in MATRICES
        }
        if not all(matrix.isfinite().all() for matrix in cut.values()):
            raise ValueError(
                f"pair {len(self.pairs)}: a similarity or alignment is not finite "
                f"as {self.description.precision}"
            )
        cut["document_tokens"] = pairs.document_ids[number][document_mask].cpu().int()
        cut["query_tokens"] = pairs.query_ids[number][query_mask].cpu().int()
        return cut | {name: getattr(pairs, name)[number].cpu().float()[None] for name in SCALARS}

    def _write_shard(self) -> None:
        if not self._open:
            return
        tensors = {
            name: torch.cat([pair[name].flatten() for pair in self._open]) for name in self._open[0]
        }
        for side in ("document", "query"):
            lengths = [len(pair[f"{side}_tokens"]) for pair in self._open]
            tensors[f"{side}_lengths"] = torch.tensor(lengths, dtype=torch.int32)
        path = self.partial / f"shard-{len(self.shards):05d}.safetensors"
        save_file(tensors, path)
        size = {"file": path.name, "pairs": len(self._open), "bytes": path.stat().st_size}
        self.shards.append(size)
        self._open, self._values = [], 0

    def _finish(self) -> None:
        self._write_shard()
        manifest = {"format": FORMAT, **vars(self.description), "heads": self.heads}
        manifest |= {"shards": self.shards, "pairs": self.pairs}
        (self.partial / "manifest.json").write_text(json.dumps(manifest))
        shutil.rmtree(self.directory, ignore_errors=True)
        self.partial.rename(self.directory)
