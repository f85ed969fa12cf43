"""Sparsity and shape of a whole store's alignments (gr_as_mvdr §5.2.2 and §5.2.3)."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from analysis.analysis import Findings, Texts
from analysis.directed_alignment import directed_alignment, directed_heads, own_direction
from analysis.exact_match import DIRECTIONS
from analysis.figures import GalleryEntry
from analysis.measurements.shape_figure import CAPTION, shape_figure
from analysis.shape import entropy, largest_entropy, links_returned, support, top_mass
from analysis.statistics import HeadSample, select
from analysis.tables import Row
from gr_mvdr.parts import part
from gr_mvdr.relevance import Explanation, PairAlignment

PREFIX = "analysis/shape/"
DEPTHS = (1, 2, 5)
MEASURES = ("entropy", "relative_entropy", *(f"top_{k}" for k in DEPTHS), "support")
HEADLINES = ("entropy", "top_1", "support")
DIRECTED, OWN = "directed", "own"

Key = tuple[str, int, str]  # "directed" or "own", layer, direction


@part("measurement")
class Shape:
    """How sharp are alignments, and do both directions agree?

    "directed" is the alignment as all systems are compared, `directed_alignment`; "own" the
    system's A itself: the attention of every head in both directions, or of other systems the
    sparse A, each query token's weights divided by their sum. Special tokens do not align; a token
    that is aligned to nothing has no shape, and only the share `aligned` tells of it.

    Args:
        store: the alignments, an `AlignmentStore`. texts: the kinds of its tokens.
    """

    def __init__(self, store: Any, texts: Texts):
        self._description, self._special = store.description, texts.kinds.special
        self._sample = HeadSample(len(store), store.layers * store.heads)
        self._sums: dict[Key, Tensor] = {}  # (heads, measures)
        self._aligned: dict[Key, Tensor] = {}  # (heads,) tokens with a partner
        self._tokens: dict[Key, int] = {}
        self._returned = torch.zeros(2, dtype=torch.float64)  # links returned, links

    def update(self, batch: Explanation, first: int) -> None:
        """Takes in a padded batch of pairs."""
        paradigm = self._description.paradigm
        rows = self._sample.rows(first, len(batch))
        own = DIRECTIONS if paradigm == "generative" else (own_direction(paradigm),)
        for number, pairs in enumerate(batch.layers, start=1):
            both = {d: directed_alignment(pairs, paradigm, d) for d in DIRECTIONS}
            for direction, alignment in both.items():
                self._add((DIRECTED, number, direction), pairs, alignment[:, None])
            sampled = select(pairs, rows)
            for direction in own if len(rows) else ():
                alignment = directed_heads(sampled, direction)
                self._add((OWN, number, direction), sampled, alignment)
        self._add_links(batch.layers[-1], both)

    def result(self) -> Findings:
        """Metrics of the last layer, the table `shape` and its figure."""
        if not self._sums:
            return Findings()
        rows = list(self._rows())
        figure = shape_figure(rows, self._description.title)
        entry = GalleryEntry("shape", "Sparsity of the alignment", CAPTION)
        return Findings(self._metrics(), {"shape": rows}, [(figure, entry)])

    def _counted(self, pairs: PairAlignment, direction: str) -> Tensor:
        side = int(direction == "query_to_document")  # 1: the query aligns
        mask = (pairs.document_mask, pairs.query_mask)[side]
        return mask & ~self._special[(pairs.document_ids, pairs.query_ids)[side]]

    def _add(self, key: Key, pairs: PairAlignment, alignment: Tensor) -> None:
        direction = key[-1]
        masks = pairs.document_mask[:, None], pairs.query_mask[:, None]
        counted = self._counted(pairs, direction)[:, None]
        found, largest = entropy(alignment, direction), largest_entropy(*masks, direction)
        # Against a text of one token there is no choice: 0 of 0.
        relative = torch.where(largest > 0, found / largest, 0.0)
        columns = [found, relative, *top_mass(alignment, DEPTHS, direction).unbind(-1)]
        values = torch.stack([*columns, support(alignment, direction)], -1)  # (B, H, T, measures)
        aligned = counted & (values[..., MEASURES.index("top_1")] > 0)
        sums = (values * aligned[..., None]).sum((0, 2), dtype=torch.float64)
        self._sums[key] = self._sums.get(key, 0) + sums
        self._aligned[key] = self._aligned.get(key, 0) + aligned.sum((0, 2))
        self._tokens[key] = self._tokens.get(key, 0) + int(counted.sum())

    def _add_links(self, pairs: PairAlignment, both: dict[str, Tensor]) -> None:
        masks = pairs.document_mask, pairs.query_mask
        returned = links_returned(both["query_to_document"], both["document_to_query"], *masks)
        counted = self._counted(pairs, "query_to_document")
        self._returned += torch.stack([(returned & counted).sum(), counted.sum()])

    def _means(self, key: Key) -> Tensor:
        """(heads, measures) over the tokens that are aligned."""
        return self._sums[key] / self._aligned[key][:, None]

    def _metrics(self) -> dict[str, float]:
        last = max(layer for _, layer, _ in self._sums)
        own = own_direction(self._description.paradigm)
        keys = {direction: (DIRECTED, last, direction) for direction in DIRECTIONS}
        flat = {}
        for name, key in (keys | {OWN: (OWN, last, own)}).items():
            means = self._means(key).mean(0)
            flat |= {
                f"{PREFIX}{name}/{measure}": float(means[MEASURES.index(measure)])
                for measure in HEADLINES
            }
        flat[f"{PREFIX}directions_agree"] = float(self._returned[0] / self._returned[1])
        return {key: value for key, value in flat.items() if value == value}

    def _rows(self) -> Iterator[Row]:
        """For each alignment, layer, direction and head a row of means over tokens."""
        for key in sorted(self._sums):
            alignment, layer, direction = key
            shares = self._aligned[key] / max(1, self._tokens[key])
            for number, means in enumerate(self._means(key).tolist()):
                head = number + 1 if alignment == OWN else "mean"
                row: Row = {"alignment": alignment, "layer": layer, "head": head}
                row |= {"direction": direction} | dict(zip(MEASURES, means, strict=True))
                yield row | {"aligned": float(shares[number]), "tokens": self._tokens[key]}
