"""Alignments on disk: ragged, compressed shards and a small manifest, written and read as a stream.

A shard holds whole pairs: one flat tensor for each field (`FIELDS`), without padding, and the
lengths that separate the pairs. Writer and reader hold at most one shard in memory. The manifest
also stores the string of each token id, so that pages need no tokeniser.

    alignments/manifest.json                names, the ids of every pair, the shards, token strings
    alignments/shard-00000.safetensors.zst  safetensors under Zstandard (`zstd -d` unpacks it)
"""

import math
import shutil
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Sized
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow
import torch
from safetensors.torch import load, save
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from analysis.viewer.directed_alignment import own_direction
from gr_mvdr.files import (
    VERSION,
    check_file,
    checksum,
    move_into_place,
    new_file,
    read_json,
    reading,
    verify,
    write_json,
)
from gr_mvdr.progress import track
from gr_mvdr.relevance import DecoderPaths, Explanation, PairAlignment

# The fields stored for each pair. Axes: l layers, h heads, p paths of the decoder, m document
# tokens, n query tokens.
MATRICES = {"similarity": "lhmn", "alignment": "lhmn"}
DECODER = {
    **{"contributions": "pm", "logits": "m", "log_probs": "m"},
    **{"document_norms": "l", "query_norms": ""},
}
TOKENS = {"document_tokens": "m", "query_tokens": "n"}
LAYERS = {**MATRICES, "normaliser": "l", "relevance": "l"}
FIELDS = LAYERS | {"pairwise": "mn"} | DECODER | TOKENS | {"score": ""}

Fields = dict[str, Tensor]

FORMAT = 3
CODEC = "zstd"
MANIFEST = "manifest.json"
SHARD_VALUES = 2**23  # similarity values in a shard: 32 MB of fp32


@dataclass(frozen=True)
class StoreDescription:
    """The header of a store's manifest.

    Attributes:
        system, collection: names that reports show.
        paradigm: the system's paradigm.
        precision: dtype of the matrices: "float32", or "float16" for half the disk space and three
            significant digits.
        made_from: identifies everything besides the pairs that determines the alignments, such as
            a hash of the weights.
    """

    system: str
    paradigm: str
    collection: str
    precision: str = "float32"
    made_from: str = ""

    def __post_init__(self):
        own_direction(self.paradigm)  # raises for an unknown paradigm

    @property
    def title(self) -> str:
        """The title of the store's figures."""
        return f"{self.system} on {self.collection}"


class AlignmentStore:
    """Reads stored alignments, pair by pair or in padded batches.

    Attributes:
        description: system, paradigm, collection, precision.
        pairs: (query id, document id) of every pair, in the order of writing.
        layers, heads: L and H.
        path_names: P names of the decoder's paths; empty unless the system is generative.
        strings: token id → the tokeniser's own string, with its word-initial mark.
        special: ids of special tokens, such as end, padding and sentinels.

    Raises:
        FileNotFoundError: the manifest or a shard is missing.
        ValueError: the manifest is broken, the format is unknown, or a shard has the wrong size.
    """

    def __init__(self, directory: Path):
        self.directory = Path(directory)
        with reading(f"{self.directory / MANIFEST}"):
            manifest = _read_manifest(self.directory)
            names = StoreDescription.__dataclass_fields__
            self.description = StoreDescription(**{name: manifest[name] for name in names})
            self.pairs = [(str(query), str(document)) for query, document in manifest["pairs"]]
            self.layers: int = manifest["layers"]
            self.heads: int = manifest["heads"]
            self.path_names = tuple(manifest["path_names"])
            self.strings = {int(token): str(text) for token, text in manifest["tokens"].items()}
            self.special = frozenset(manifest["special"])
            self._largest: int = manifest["largest"]
            self._projection_norms = torch.tensor(manifest["projection_norms"])
            self._shards = manifest["shards"]
            sizes = [shard["pairs"] for shard in self._shards]
            self._starts = [0, *accumulate(sizes)]  # index of each shard's first pair
        self._loaded: tuple[int, list[Fields]] | None = None

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, number: int) -> PairAlignment:
        """The last layer's alignment of one pair, as a batch of size 1 without padding."""
        return self.explain(number).layers[-1]

    def explain(self, number: int) -> Explanation:
        """Everything stored for one pair, as a batch of size 1 without padding."""
        if not 0 <= number < len(self):
            raise IndexError(f"pair {number}: the store holds {len(self)}")
        return self._padded([number])

    def explanations(self, size: int) -> Iterator[Explanation]:
        """Yields all pairs in order, in batches of at most `size`, each padded to its longest."""
        for start in range(0, len(self), size):
            yield self._padded(range(start, min(start + size, len(self))))

    def batch_size(self, values: int, most: int) -> int:
        """How many pairs, 1 to `most`, fit into a padded batch of `values` similarity values."""
        return max(1, min(most, values // self._largest))

    def _padded(self, numbers: Iterable[int]) -> Explanation:
        pairs = [self._pair(number) for number in numbers]
        return _padded(pairs, self.path_names, self._projection_norms)

    def _pair(self, number: int) -> Fields:
        shard = bisect_right(self._starts, number) - 1
        with reading(f"{self.directory}: a shard is damaged"):
            if self._loaded is None or self._loaded[0] != shard:
                self._loaded = None  # frees the old shard before the next one is read
                sizes = {"l": self.layers, "h": self.heads, "p": len(self.path_names)}
                path = self.directory / self._shards[shard]["file"]
                verify(path, self._shards[shard])
                with pyarrow.input_stream(str(path), compression=CODEC) as stream:
                    self._loaded = shard, _split(load(stream.read()), sizes)
            return self._loaded[1][number - self._starts[shard]]


def _read_manifest(directory: Path) -> dict[str, Any]:
    path = directory / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing: no alignments, or their writing was interrupted"
        )
    manifest = read_json(check_file(path, directory.parent))
    if manifest.get("format") != FORMAT:
        raise ValueError(
            f"{path}: format {manifest.get('format')}, written by gr-mvdr "
            f"{manifest.get('version', '0.1')}; this version reads {FORMAT}: "
            "python -m analysis.run run=… writes the alignments again"
        )
    for shard in manifest["shards"]:
        shard["file"] = Path(shard["file"]).name  # drops any folder that the manifest names
        file = check_file(directory / shard["file"], directory.parent)
        if file.stat().st_size != shard["bytes"]:
            raise ValueError(
                f"{file} is truncated: {file.stat().st_size} bytes, expected {shard['bytes']}"
            )
    return manifest


def _split(tensors: Fields, sizes: dict[str, int]) -> list[Fields]:
    """Splits a shard's flat tensors into views, one dict for each pair."""
    lengths = zip(tensors.pop("document_lengths"), tensors.pop("query_lengths"), strict=True)
    every = [sizes | {"m": int(m), "n": int(n)} for m, n in lengths]
    shapes = {name: [[pair[a] for a in FIELDS[name]] for pair in every] for name in tensors}
    parts = {
        name: tensors[name].split([math.prod(shape) for shape in found])
        for name, found in shapes.items()
    }
    return [
        {name: parts[name][number].view(shapes[name][number]) for name in parts}
        for number in range(len(every))
    ]


def _padded(
    pairs: Sequence[Fields], path_names: tuple[str, ...], projection_norms: Tensor
) -> Explanation:
    """Joins pairs into one batch, padded on the right; matrices are zero at padding.

    Args:
        path_names, projection_norms: the decoder's, which are the same for all pairs.
    """
    names = [name for name in pairs[0] if name not in TOKENS]
    found = {name: _stacked([pair[name].float() for pair in pairs]) for name in names}
    sides = {}
    for side in ("document", "query"):
        tokens = [pair[f"{side}_tokens"].long() for pair in pairs]
        real = [torch.ones(len(ids), dtype=torch.bool) for ids in tokens]
        sides[f"{side}_ids"] = pad_sequence(tokens, batch_first=True)
        sides[f"{side}_mask"] = pad_sequence(real, batch_first=True)
    layers = [
        PairAlignment(**{n: found[n][:, layer] for n in LAYERS}, score=found["score"], **sides)
        for layer in range(found["similarity"].shape[1])
    ]
    decoder = {name: found[name] for name in DECODER if name in found}
    return Explanation(
        layers,
        DecoderPaths(path_names, **decoder, projection_norms=projection_norms) if decoder else None,
        found["pairwise"].unsqueeze(1) if "pairwise" in found else None,
    )


def _stacked(values: Sequence[Tensor]) -> Tensor:
    """Stacks tensors of different sizes into one, zero at padding."""
    shape = [max(sizes) for sizes in zip(*(value.shape for value in values), strict=True)]
    batch = torch.zeros(len(values), *shape)
    for row, value in zip(batch, values, strict=True):
        row[tuple(map(slice, value.shape))] = value
    return batch


def write_alignments(
    directory: Path,
    description: StoreDescription,
    pairs: Sequence[tuple[str, str]],
    batches: Sequence[Sized],
    explain: Callable[[Any], Explanation],
    strings: Callable[[list[int]], Sequence[str]],
    special: Collection[int] = (),
) -> AlignmentStore:
    """Writes the explanation of every pair to a store (the tensors of Eq. 1, gr_as_mvdr §7.2).

    If the directory already holds a finished store with the same description and pairs, it is
    kept; any other store is replaced once the new one is complete. An interrupted call leaves
    `<directory>.partial` with the finished shards and their manifest; a later call for the same
    pairs in the same batches resumes after them.

    Args:
        directory: where the store goes, such as `outputs/…/alignments`.
        description: names, precision, and what the alignments are made from.
        pairs: (query id, document id) of every pair, in the order of the batches.
        batches: the pairs, in batches.
        explain: computes the explanation of one batch.
        strings: converts token ids to strings, such as `tokenizer.convert_ids_to_tokens`.
        special: ids of special tokens.

    Raises:
        ValueError: a value overflows fp16.
    """
    with suppress(FileNotFoundError, ValueError):  # no store, or a broken one
        store = AlignmentStore(directory)
        if store.description == description and store.pairs == list(pairs):
            return store
    partial = directory.with_name(directory.name + ".partial")
    header = {"format": FORMAT, "version": VERSION, **asdict(description)}
    header |= {"pairs": list(map(list, pairs)), "batches": list(map(len, batches))}
    manifest = header | {"largest": 1, "shards": [], "tokens": {}, "special": []}
    with suppress(FileNotFoundError, ValueError):  # no manifest, or a truncated one
        known = read_json(check_file(partial / MANIFEST))
        if {key: known.get(key) for key in header} == header:
            manifest = known
    if not manifest["shards"]:
        shutil.rmtree(partial, ignore_errors=True)
    held: list[Fields] = []
    done = first = sum(shard["batches"] for shard in manifest["shards"])
    for number in track(range(first, len(batches)), f"aligning {description.system}"):
        explanation = explain(batches[number])
        decoder = explanation.decoder
        manifest |= {
            "layers": len(explanation.layers),
            "heads": explanation.layers[-1].similarity.shape[1],
            "path_names": list(decoder.names) if decoder else [],
            "projection_norms": decoder.projection_norms.tolist() if decoder else [],
        }
        held += [_cut(explanation, row, description.precision) for row in range(len(explanation))]
        sizes = [pair["similarity"].numel() for pair in held]
        # Shards end between batches, since a resumed call begins with a whole batch.
        if sum(sizes) >= SHARD_VALUES or number + 1 == len(batches):
            tokens = torch.cat([pair[name] for pair in held for name in TOKENS]).unique().tolist()
            names = zip(tokens, strings(tokens), strict=True)
            manifest["tokens"] |= {str(token): str(name) for token, name in names}
            manifest["special"] = sorted({*manifest["special"], *set(special).intersection(tokens)})
            manifest["largest"] = max(manifest["largest"], *sizes)
            _write_shard(partial, manifest, held, number + 1 - done)
            held, done = [], number + 1
    move_into_place(partial, directory)
    return AlignmentStore(directory)


def _write_shard(
    partial: Path, manifest: dict[str, Any], pairs: Sequence[Fields], batches: int
) -> None:
    """Writes the next shard, then the manifest that lists it."""
    tensors = {name: torch.cat([pair[name].flatten() for pair in pairs]) for name in pairs[0]}
    for side in ("document", "query"):
        lengths = [len(pair[f"{side}_tokens"]) for pair in pairs]
        tensors[f"{side}_lengths"] = torch.tensor(lengths).int()
    partial.mkdir(parents=True, exist_ok=True)
    path = partial / f"shard-{len(manifest['shards']):05d}.safetensors.zst"
    with new_file(path) as file, pyarrow.output_stream(str(file), compression=CODEC) as stream:
        stream.write(save(tensors))
    shard = {"file": path.name, "batches": batches, "pairs": len(pairs), **checksum(path)}
    manifest["shards"].append(shard)
    write_json(partial / MANIFEST, manifest)


def _cut(explanation: Explanation, number: int, precision: str) -> Fields:
    """Extracts one pair of a batch, without padding, on the CPU; axes as in `FIELDS`."""
    last = explanation.layers[-1]
    fields = {
        name: torch.stack([getattr(layer, name)[number] for layer in explanation.layers])
        for name in LAYERS
    }
    fields["score"] = last.score[number]
    fields["document_tokens"] = last.document_ids[number].int()
    fields["query_tokens"] = last.query_ids[number].int()
    if explanation.pairwise is not None:
        fields["pairwise"] = explanation.pairwise[number, 0]
    if explanation.decoder is not None:
        fields |= {name: getattr(explanation.decoder, name)[number] for name in DECODER}
    masks = {"m": last.document_mask[number], "n": last.query_mask[number]}
    real = {axis: mask.nonzero()[:, 0] for axis, mask in masks.items()}
    for name, value in fields.items():
        for place, axis in enumerate(FIELDS[name]):
            value = value.index_select(place, real[axis]) if axis in real else value
        fields[name] = value.cpu()
    for name in MATRICES:
        fields[name] = fields[name].to(getattr(torch, precision))
        if not fields[name].isfinite().all():
            raise ValueError(f"analysis.precision={precision}: {name} of a pair is not finite")
    return fields
