"""Alignments on disk: ragged safetensors shards and a small manifest, read as a stream.

A shard holds whole pairs, one flat tensor for each field, cut to the real tokens; lengths say
where a pair ends. Neither writer nor reader ever holds more than one shard.

    alignments/manifest.json            system, paradigm, collection, the ids of every pair, shards
    alignments/shard-00000.safetensors  similarity, alignment, token ids, lengths, scores
"""

import json
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from analysis.directed_alignment import own_direction
from gr_mvdr.relevance import PairAlignment

FORMAT = 1
PRECISIONS = {"float32": torch.float32, "float16": torch.float16}
MATRICES = ("similarity", "alignment")
SCALARS = ("normaliser", "relevance", "score")


@dataclass(frozen=True)
class StoreDescription:
    """What a store holds: the header of its manifest."""

    system: str
    paradigm: str
    collection: str
    precision: str = "float32"

    def __post_init__(self):
        own_direction(self.paradigm)
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision={self.precision}: must be one of {', '.join(PRECISIONS)}")


class AlignmentStore:
    """Reads alignments back, pair by pair or in padded batches.

    Attributes:
        description: system, paradigm, collection, precision.
        pairs: (query id, document id) of every pair, in the order of writing.
        heads: H.

    Raises:
        FileNotFoundError: no manifest, or a shard is missing.
        ValueError: a broken manifest, another format, or a shard of the wrong size.
    """

    def __init__(self, directory: Path):
        self.directory = Path(directory)
        manifest = _read_manifest(self.directory)
        names = ("system", "paradigm", "collection", "precision")
        self.description = StoreDescription(**{name: manifest[name] for name in names})
        self.pairs = [(query, document) for query, document in manifest["pairs"]]
        self.heads: int = manifest["heads"]
        self._files = [self.directory / shard["file"] for shard in manifest["shards"]]
        sizes = [shard["pairs"] for shard in manifest["shards"]]
        self._starts = [0, *accumulate(sizes)]  # the number of each shard's first pair
        self._loaded: tuple[int, list[dict[str, Tensor]]] | None = None

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, number: int) -> PairAlignment:
        """The pair of this number, as a batch of one; without padding."""
        if not 0 <= number < len(self):
            raise IndexError(f"pair {number}: the store holds {len(self)}")
        return _batch([self._pair(number)])

    def batches(self, size: int) -> Iterator[PairAlignment]:
        """All pairs in order, padded to the longest of each batch of at most `size`."""
        for start in range(0, len(self), size):
            yield _batch([self._pair(n) for n in range(start, min(start + size, len(self)))])

    def _pair(self, number: int) -> dict[str, Tensor]:
        shard = bisect_right(self._starts, number) - 1
        if self._loaded is None or self._loaded[0] != shard:
            self._loaded = shard, _split(load_file(self._files[shard]), self.heads)
        return self._loaded[1][number - self._starts[shard]]


def _read_manifest(directory: Path) -> dict:
    path = directory / "manifest.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing: no alignments, or their writing was interrupted"
        )
    try:
        manifest = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}:{error.lineno}: not valid JSON ({error.msg})") from None
    if manifest.get("format") != FORMAT:
        raise ValueError(f"{path}: format {manifest.get('format')}, this version reads {FORMAT}")
    for shard in manifest["shards"]:
        file = directory / shard["file"]
        if not file.is_file():
            raise FileNotFoundError(f"{file} is missing: the alignment store is incomplete")
        if file.stat().st_size != shard["bytes"]:
            raise ValueError(
                f"{file} is truncated: {file.stat().st_size} bytes, expected {shard['bytes']}"
            )
    return manifest


def _split(tensors: dict[str, Tensor], heads: int) -> list[dict[str, Tensor]]:
    """A shard's flat tensors as views, one dict for each pair."""
    rows, columns = tensors["document_lengths"].tolist(), tensors["query_lengths"].tolist()
    cells = [heads * m * n for m, n in zip(rows, columns, strict=True)]
    lengths = {"document_tokens": rows, "query_tokens": columns}
    lengths |= dict.fromkeys(MATRICES, cells) | dict.fromkeys(SCALARS, [1] * len(rows))
    parts = {name: tensors[name].split(length) for name, length in lengths.items()}
    pairs = [dict(zip(parts, values, strict=True)) for values in zip(*parts.values(), strict=True)]
    for pair, m, n in zip(pairs, rows, columns, strict=True):
        pair |= {name: pair[name].view(heads, m, n) for name in MATRICES}
    return pairs


def _batch(pairs: list[dict[str, Tensor]]) -> PairAlignment:
    """Pads pairs into one batch; matrices are zero at padding."""
    tokens = {
        side: pad_sequence([pair[f"{side}_tokens"].long() for pair in pairs], batch_first=True)
        for side in ("document", "query")
    }
    masks = {
        side: pad_sequence(
            [torch.ones_like(pair[f"{side}_tokens"], dtype=torch.bool) for pair in pairs],
            batch_first=True,
        )
        for side in ("document", "query")
    }
    shape = len(pairs), len(pairs[0]["similarity"]), *(ids.shape[1] for ids in tokens.values())
    matrices = {name: torch.zeros(shape) for name in MATRICES}
    for number, pair in enumerate(pairs):
        _, m, n = pair["similarity"].shape
        for name, matrix in matrices.items():
            matrix[number, :, :m, :n] = pair[name]
    return PairAlignment(
        **matrices,
        **{name: torch.cat([pair[name] for pair in pairs]) for name in SCALARS},
        **{f"{side}_ids": ids for side, ids in tokens.items()},
        **{f"{side}_mask": mask for side, mask in masks.items()},
    )
