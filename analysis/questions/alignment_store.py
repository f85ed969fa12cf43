"""Alignments on disk: a compressed table with a row for each pair, written and read as a stream.

A row holds one list for each field (`FIELDS`), without padding; a batch of pairs is a row group,
and writer and reader hold one at a time. The manifest also stores the string of each token id, so
that pages need no tokeniser.

    alignments/manifest.json     names, the ids of every pair, sizes, token strings
    alignments/pairs.parquet     a row for each pair
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow
import torch
from pyarrow.parquet import ParquetFile, ParquetWriter
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from analysis.viewer.directed_alignment import own_direction
from gr_mvdr.files import VERSION, check_file, new_folder, read_json, reading, write_json
from gr_mvdr.progress import track
from gr_mvdr.relevance import DecoderPaths, Explanation, PairAlignment

# The fields stored for each pair. Axes: l layers, h heads, p paths of the decoder, m document
# tokens, n query tokens.
MATRICES = {"similarity": "lhmn", "alignment": "lhmn"}
DECODER = {
    **{"contributions": "pm", "logits": "m", "log_probs": "m"},
    **{"document_norms": "l", "query_norms": "l"},
}
TOKENS = {"document_tokens": "m", "query_tokens": "n"}
LAYERS = {**MATRICES, "normaliser": "l", "relevance": "l"}
FIELDS = LAYERS | {"pairwise": "mn"} | DECODER | TOKENS | {"score": ""}

Fields = dict[str, Tensor]

FORMAT = 5
MANIFEST, TABLE = "manifest.json", "pairs.parquet"


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
        FileNotFoundError: the manifest or the table is missing.
        ValueError: one of them is broken, or the format is unknown.
    """

    def __init__(self, directory: Path):
        self.directory = Path(directory)
        path, run = self.directory / MANIFEST, self.directory.parent
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing: no alignments")
        with reading(f"{path}"):
            manifest = read_json(check_file(path, run))
            if manifest["format"] != FORMAT:
                raise ValueError(
                    f"format {manifest['format']}, this version reads {FORMAT}: "
                    "python -m analysis.run run=… writes the alignments again"
                )
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
        table = check_file(self.directory / TABLE, run)
        with reading(f"{table}: is damaged"):
            self._table = ParquetFile(table, page_checksum_verification=True)
        about = self._table.metadata
        sizes = [about.row_group(number).num_rows for number in range(about.num_row_groups)]
        self._starts = [0, *accumulate(sizes)]  # the number of each group's first pair
        self._loaded: tuple[int, pyarrow.Table] | None = None

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
        group = bisect_right(self._starts, number) - 1
        if self._loaded is None or self._loaded[0] != group:
            self._loaded = None  # frees the old group before the next one is read
            try:
                self._loaded = group, self._table.read_row_group(group)
            except OSError as error:
                raise ValueError(f"{self.directory / TABLE}: is damaged ({error})") from None
        row = self._loaded[1].slice(number - self._starts[group], 1)
        values = {
            name: torch.tensor(row[name].combine_chunks().flatten().to_numpy())
            for name in row.column_names
        }
        sizes = {"l": self.layers, "h": self.heads, "p": len(self.path_names)}
        sizes |= {"m": len(values["document_tokens"]), "n": len(values["query_tokens"])}
        return {name: flat.view([sizes[a] for a in FIELDS[name]]) for name, flat in values.items()}


def _padded(
    pairs: Sequence[Fields], path_names: tuple[str, ...], projection_norms: Tensor
) -> Explanation:
    """Joins pairs into one batch, padded on the right; matrices are zero at padding.

    Args:
        path_names, projection_norms: the decoder's, which are the same for all pairs.
    """
    names = [name for name in pairs[0] if name not in TOKENS]
    fields = {name: _stacked([pair[name].float() for pair in pairs]) for name in names}
    sides = {}
    for side in ("document", "query"):
        tokens = [pair[f"{side}_tokens"].long() for pair in pairs]
        real = [torch.ones(len(ids), dtype=torch.bool) for ids in tokens]
        sides[f"{side}_ids"] = pad_sequence(tokens, batch_first=True)
        sides[f"{side}_mask"] = pad_sequence(real, batch_first=True)
    layers = [
        PairAlignment(**{n: fields[n][:, layer] for n in LAYERS}, score=fields["score"], **sides)
        for layer in range(fields["similarity"].shape[1])
    ]
    decoder = {name: fields[name] for name in DECODER if name in fields}
    return Explanation(
        layers,
        DecoderPaths(path_names, **decoder, projection_norms=projection_norms) if decoder else None,
        fields["pairwise"].unsqueeze(1) if "pairwise" in fields else None,
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
    batches: Sequence[Any],
    explain: Callable[[Any], Explanation],
    strings: Callable[[list[int]], Sequence[str]],
    special: Collection[int] = (),
) -> AlignmentStore:
    """Writes the explanation of every pair to a store (the tensors of Eq. 1, gr_as_mvdr §7.2).

    If the directory already holds a finished store with the same description and pairs, it is
    kept; any other store is replaced once the new one is complete.

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
    manifest = {"format": FORMAT, "version": VERSION, **asdict(description), "largest": 1}
    manifest["pairs"], seen = list(map(list, pairs)), set()
    with new_folder(directory, replace=True) as partial, ExitStack() as opened:
        writer = None
        for batch in track(batches, f"aligning {description.system}"):
            explanation = explain(batch)
            cut = [_cut(explanation, row, description.precision) for row in range(len(explanation))]
            flat = {name: [pair[name].flatten().numpy() for pair in cut] for name in cut[0]}
            table = pyarrow.table(flat)
            if writer is None:
                settings = {"compression": "zstd", "write_page_checksum": True}
                writer = ParquetWriter(partial / TABLE, table.schema, **settings)
                opened.enter_context(writer)
            writer.write_table(table)
            seen.update(*(tokens.tolist() for name in TOKENS for tokens in flat[name]))
            sizes = [pair["similarity"].numel() for pair in cut]
            manifest["largest"] = max(manifest["largest"], *sizes)
        decoder, tokens = explanation.decoder, sorted(seen)
        manifest |= {
            "layers": len(explanation.layers),
            "heads": explanation.layers[-1].similarity.shape[1],
            "path_names": list(decoder.names) if decoder else [],
            "projection_norms": decoder.projection_norms.tolist() if decoder else [],
            "tokens": dict(zip(tokens, map(str, strings(tokens)), strict=True)),
            "special": sorted(seen.intersection(special)),
        }
        write_json(partial / MANIFEST, manifest)
    return AlignmentStore(directory)


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
