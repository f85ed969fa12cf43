"""Exact match of a whole alignment store, by direction and IDF bin (gr_as_mvdr Figures 2 and 3).

Which tokens count is `analysis.tokens`' rule: special tokens never align, but stay on the
other side as something to align to.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from analysis.analysis import Findings, Texts
from analysis.directed_alignment import directed_alignment
from analysis.exact_match import DIRECTIONS, exact_match
from analysis.figures import GalleryEntry
from analysis.measurements.exact_match_figures import exact_match_boxes, head_map
from analysis.measurements.exact_match_heads import HeadRates
from analysis.measurements.exact_match_table import ExactMatchTable, flat_metrics
from analysis.statistics import HeadSample
from analysis.token_types import HAS_MATCH, TokenTypeRates
from gr_mvdr.parts import part
from gr_mvdr.relevance import Explanation, PairAlignment

PAPERS_FIGURE = {"query_to_document": "Figure 2", "document_to_query": "Figure 3"}
BOXES = (
    "One value for each token type of the aligning side: how often its strongest partner is "
    "the same token (hard), and how much of its alignment falls on equal tokens (soft). Boxes "
    "span the quartiles, the line is the median, the diamond the mean; rarer tokens stand to "
    "the right. Blue counts every occurrence, orange (hatched) only those that have an equal "
    "token to match."
)
GENERATIVE = (
    " The paper shows only the soft rate of generative retrieval, since cross-attention "
    "is not trained to choose one token; the hard rate here is that of its largest weight."
)
HEADS = (
    "Each cell is one head of the decoder's cross-attention: how much of its alignment falls on "
    "equal tokens, averaged over the tokens of the aligning side. A dark cell is a head that "
    "copies; the two panels read the same attention in both directions."
)


@part("measurement")
class ExactMatch:
    """How often do tokens align to themselves? (gr_as_mvdr §7.2)

    Args:
        store: the alignments, an `AlignmentStore`.
        texts: importance and kinds of its tokens.
    """

    def __init__(self, store: Any, texts: Texts):
        self.store, self.texts = store, texts
        self.paradigm = store.description.paradigm
        self.rates = {direction: TokenTypeRates(len(texts.idf)) for direction in DIRECTIONS}
        self.parts: dict[str, list[tuple[Tensor, Tensor]]] = {d: [] for d in DIRECTIONS}
        self.heads = None
        if self.paradigm == "generative":
            sample = HeadSample(len(store), store.layers * store.heads)
            self.heads = HeadRates(store.layers, store.heads, texts, sample)

    def update(self, batch: Explanation, first: int) -> None:
        """Takes in a padded batch of pairs."""
        for direction in DIRECTIONS:
            self._add(batch.layers[-1], direction)
        if self.heads:
            self.heads.update(batch, first)

    def table(self) -> ExactMatchTable:
        """The rates so far."""
        parts = {
            d: [torch.cat(part) for part in zip(*self.parts[d], strict=True)] for d in DIRECTIONS
        }
        sums, counts = ({d: parts[d][part] for d in DIRECTIONS} for part in (0, 1))
        return ExactMatchTable(self.rates, self.texts.idf, self.texts.kinds.content, sums, counts)

    def result(self) -> Findings:
        """Tables `exact_match` and, of a generative system, `exact_match_heads`; their figures."""
        if not self.parts[DIRECTIONS[0]]:
            return Findings()
        table = self.table()
        rows = list(table.rows())
        measured = Findings(flat_metrics(table, rows), {"exact_match": rows})
        measured.figures += [self._boxes(table, direction) for direction in DIRECTIONS]
        if self.heads:
            measured.tables["exact_match_heads"] = list(self.heads.rows())
            measured.figures.append(self._head_map())
        return measured

    def _add(self, pairs: PairAlignment, direction: str) -> None:
        alignment = directed_alignment(pairs, self.paradigm, direction)
        ids, masks = (
            (pairs.document_ids, pairs.query_ids),
            (pairs.document_mask, pairs.query_mask),
        )
        hard, soft = exact_match(alignment, *ids, *masks, direction)
        side = int(direction == "query_to_document")  # 1: the query aligns
        kinds, tokens = self.texts.kinds, ids[side]
        self.rates[direction].check(tokens[masks[side]])
        counted = masks[side] & ~kinds.special[tokens]
        self.rates[direction].update(tokens, hard, soft, counted)
        self.parts[direction].append(pair_sums(hard, soft, counted, kinds.content[tokens]))

    def _boxes(self, table: ExactMatchTable, direction: str) -> tuple:
        title, reading = self.store.description.title, direction.replace("_", " ")
        figure = exact_match_boxes(table, direction, f"{title}: {reading}")
        heading = f"Exact match, {reading} (the paper's {PAPERS_FIGURE[direction]})"
        caption = BOXES + (GENERATIVE if self.heads else "")
        return figure, GalleryEntry(f"exact_match_{direction}", heading, caption)

    def _head_map(self) -> tuple:
        figure = head_map(self.heads.means("soft"), self.store.description.title)
        return figure, GalleryEntry("exact_match_heads", "Exact match by layer and head", HEADS)


def pair_sums(
    hard: Tensor, soft: Tensor, counted: Tensor, content: Tensor
) -> tuple[Tensor, Tensor]:
    """What each pair adds to the rates' numerators and denominators.

    Args:
        hard, soft: (B, T) values of the aligning tokens. counted, content: (B, T) bool.

    Returns:
        (B, definitions, tokens, measures) and (B, definitions, tokens), float64, in the order of
        DEFINITIONS, TOKENS and MEASURES.
    """
    definitions: Sequence[Tensor] = (counted, counted & (soft > HAS_MATCH))
    chosen = torch.stack([torch.stack([mask, mask & content], 1) for mask in definitions], 1)
    values = torch.stack([hard.double(), soft.double()], -1)  # (B, T, measures)
    return torch.einsum("bdkt,btm->bdkm", chosen.double(), values), chosen.sum(-1).double()
