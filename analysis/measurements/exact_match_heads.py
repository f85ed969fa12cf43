"""Exact match of every head of every decoder layer (gr_as_mvdr §7.2, head by head)."""

from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor

from analysis.analysis import Texts
from analysis.directed_alignment import directed_heads
from analysis.exact_match import DIRECTIONS, MEASURES, exact_match
from analysis.statistics import HeadSample, interval, select
from analysis.tables import Row
from analysis.tokens import BIN_NAMES, idf_bin
from gr_mvdr.relevance import Explanation, PairAlignment


class HeadRates:
    """Running means of the heads' hard and soft exact match, by token type.

    Of document_to_query a head's alignment is its attention itself, of query_to_document the
    attention's columns divided by their sums.

    Args:
        layers, heads: L and H. texts: importance and kinds of the tokens.
        sample: which pairs are looked at.
    """

    def __init__(self, layers: int, heads: int, texts: Texts, sample: HeadSample):
        self.layers, self.heads, self.sample = layers, heads, sample
        self.special, self.bins = texts.kinds.special, idf_bin(texts.idf)
        size = len(texts.idf)
        # float32 counts to 16 million without error, in half the memory.
        self.sums = {
            (direction, measure): torch.zeros(size, layers, heads)
            for direction, measure in product(DIRECTIONS, MEASURES)
        }
        self.occurrences = {direction: torch.zeros(size) for direction in DIRECTIONS}
        self.pairs: dict[str, list[tuple[Tensor, Tensor]]] = {d: [] for d in DIRECTIONS}

    def update(self, batch: Explanation, first: int) -> None:
        """Takes in a padded batch of pairs."""
        rows = self.sample.rows(first, len(batch))
        layers = [select(pairs, rows) for pairs in batch.layers]
        for direction in DIRECTIONS:
            self._add(layers, direction)

    def means(self, measure: str) -> dict[str, Tensor]:
        """{direction: (L, H) the mean over all occurrences}."""
        return {
            d: self.sums[d, measure].double().sum(0) / self.occurrences[d].double().sum()
            for d in DIRECTIONS
        }

    def rows(self) -> Iterator[Row]:
        """For each layer, head and direction a row for all tokens, and one an IDF bin.

        As in `ExactMatchTable.rows`: "all" averages over occurrences and has intervals over
        pairs, a bin averages over its token types. Layers and heads count from 1.
        """
        for direction in DIRECTIONS:
            parts = [*self._all_parts(direction), *self._bin_parts(direction)]
            for layer, head in product(range(self.layers), range(self.heads)):
                names = {"layer": layer + 1, "head": head + 1, "direction": direction}
                for name, occurrences, values in parts:
                    cell = {key: float(value[layer, head]) for key, value in values.items()}
                    yield names | {"idf_bin": name} | cell | {"occurrences": occurrences}

    def _add(self, layers: list[PairAlignment], direction: str) -> None:
        pairs, side = layers[0], int(direction == "query_to_document")
        tokens = (pairs.document_ids, pairs.query_ids)[side]
        counted = (pairs.document_mask, pairs.query_mask)[side] & ~self.special[tokens]
        chosen = tokens[counted]
        self.occurrences[direction].index_add_(0, chosen, torch.ones(len(chosen)))
        totals = []
        for number, layer in enumerate(layers):
            found = _head_matches(layer, direction)
            for measure, values in zip(MEASURES, found, strict=True):
                values = values.float().transpose(1, 2)  # (B, T, H)
                self.sums[direction, measure][:, number].index_add_(0, chosen, values[counted])
            totals.append(torch.stack(found, -1).mul(counted[:, None, :, None]).sum(2))
        self.pairs[direction].append((torch.stack(totals, 1), counted.sum(1)))

    def _all_parts(self, direction: str) -> Iterator[tuple[str, int, dict[str, Tensor]]]:
        sums, counts = (torch.cat(part) for part in zip(*self.pairs[direction], strict=True))
        flat = sums.flatten(1)  # (P, L·H·measures)
        ends = interval(flat, counts[:, None].expand_as(flat))
        shape = self.layers, self.heads, len(MEASURES)
        low, high = (end.reshape(shape) for end in ends)
        values = {measure: self.means(measure)[direction] for measure in MEASURES}
        for number, measure in enumerate(MEASURES):
            values |= {f"{measure}_low": low[..., number], f"{measure}_high": high[..., number]}
        yield "all", int(counts.sum()), values

    def _bin_parts(self, direction: str) -> Iterator[tuple[str, int, dict[str, Tensor]]]:
        occurrences = self.occurrences[direction]
        for number, name in enumerate(BIN_NAMES):
            seen = (self.bins == number) & (occurrences > 0)
            counts = occurrences[seen]
            means = {
                measure: (self.sums[direction, measure][seen] / counts[:, None, None]).mean(0)
                for measure in MEASURES
            }
            yield name, int(counts.sum()), means


def _head_matches(pairs: PairAlignment, direction: str) -> tuple[Tensor, Tensor]:
    """Hard and soft match of each head, (B, H, T) each."""
    ids = pairs.document_ids[:, None], pairs.query_ids[:, None]
    masks = pairs.document_mask[:, None], pairs.query_mask[:, None]
    return exact_match(directed_heads(pairs, direction), *ids, *masks, direction)
