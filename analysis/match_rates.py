"""Exact term match of tokens, counted by token type, by pair and by head (gr_as_mvdr §7.2)."""

from collections.abc import Iterator, Sequence
from itertools import product

import torch
from torch import Tensor

from analysis.analysis import Texts
from analysis.directed_alignment import aligning_side, directed_heads
from analysis.statistics import interval, spearman
from analysis.tables import Row
from analysis.tokens import BIN_NAMES, idf_bin
from gr_mvdr.alignment import other_side, pair_mask
from gr_mvdr.relevance import PairAlignment

MEASURES = ("hard", "soft")
# Two public definitions exist: over every occurrence of a token, and only over those that have an
# equal token to match, which is where the soft value is above HAS_MATCH.
DEFINITIONS = {"all": "all occurrences", "matched": "only where an equal token exists"}
HAS_MATCH = 1e-6
TOKENS = ("all", "content")  # of the aligning tokens; special ones are in neither


def exact_match(
    alignment: Tensor,
    document_ids: Tensor,
    query_ids: Tensor,
    document_mask: Tensor,
    query_mask: Tensor,
    direction: str,
) -> tuple[Tensor, Tensor]:
    """Hard and soft exact match of every token of the aligning side (Wu et al. §7.2).

    Leading axes broadcast, so that one set of ids may serve many heads: give ids and masks an
    axis of size 1 there. A token that is aligned to nothing (a row of zeros) matches nothing.

    Args:
        alignment: (..., M, N), any float type, already normalised over the other side.
        document_ids: (..., M) int64.
        query_ids: (..., N) int64.
        document_mask: (..., M) bool, True = real token.
        query_mask: (..., N) bool, True = real token.
        direction: "query_to_document" gives one value for each query token,
            "document_to_query" one for each document token.

    Returns:
        hard: (..., N) or (..., M) bool, the aligned token (argmax) has the same id.
        soft: the same shape, fp32, the sum of the alignment at equal ids, between 0 and 1.
        Both are False / 0 at padding.

    Raises:
        ValueError: an unknown direction.
    """
    axis = other_side(direction)
    real = pair_mask(document_mask, query_mask)
    same = (document_ids[..., :, None] == query_ids[..., None, :]) & real
    alignment, same, real = torch.broadcast_tensors(alignment.float(), same, real)
    soft = alignment.masked_fill(~same, 0).sum(axis)
    strength, partner = alignment.masked_fill(~real, -torch.inf).max(axis)
    hard = same.gather(axis, partner.unsqueeze(axis)).squeeze(axis) & (strength > 0)
    return hard, soft


class ExactMatchRates:
    """Exact match of one direction over a whole store, by token type and by pair (§7.2).

    Special tokens never align, but stay on the other side as something to align to.
    """

    def __init__(self, texts: Texts, measures: Sequence[str] = MEASURES):
        self.idf, self.kinds, self.bins = texts.idf, texts.kinds, idf_bin(texts.idf)
        size, self.measures = len(texts.idf), list(measures)
        self.occurrences = torch.zeros(len(DEFINITIONS), size, dtype=torch.float64)
        self.sums = torch.zeros(len(DEFINITIONS), len(measures), size, dtype=torch.float64)
        # Of each batch its units, what they add to the sums, and their counts.
        self.pairs: list[tuple[Tensor, Tensor, Tensor]] = []

    def update(
        self, tokens: Tensor, mask: Tensor, *match: Tensor, units: Tensor | None = None
    ) -> None:
        """Takes in (B, T) ids of the aligning side, their mask, and their match.

        Args:
            match: (B, T) of each measure. units: (B,) int64, the unit of each pair that intervals
                resample, such as its query; None = each is one.

        Raises:
            ValueError: a real token's id is outside the vocabulary.
        """
        size = len(self.idf)
        if mask.any() and int(tokens[mask].max()) >= size:
            raise ValueError(
                f"token id {int(tokens[mask].max())} is outside the vocabulary of the "
                f"document frequencies ({size} ids)"
            )
        counted = mask & ~self.kinds.special[tokens]
        values = torch.stack([one.double() for one in match], -1)  # (B, T, measures)
        definitions = counted, counted & (match[1] > HAS_MATCH)
        for number, chosen in enumerate(definitions):
            ids = tokens[chosen]
            self.occurrences[number] += torch.bincount(ids, minlength=size)
            for measure, weights in enumerate(values[chosen].unbind(-1)):
                self.sums[number, measure] += torch.bincount(ids, weights, minlength=size)
        content = self.kinds.content[tokens]
        chosen = torch.stack([torch.stack([one, one & content], 1) for one in definitions], 1)
        # (B, definitions, tokens, measures), and (B, definitions, tokens) that are counted
        sums = torch.einsum("bdkt,btm->bdkm", chosen.double(), values)
        if units is None:
            units = torch.arange(len(tokens)) + sum(len(batch[0]) for batch in self.pairs)
        self.pairs.append((units, sums, chosen.sum(-1).double()))

    def rates(self, measure: str, definition: str, tokens: str = "all") -> Tensor:
        """(V,) fp64: the mean over a type's occurrences; NaN of types that never occurred."""
        number = list(DEFINITIONS).index(definition)
        rates = self.sums[number, self.measures.index(measure)] / self.occurrences[number]
        return rates if tokens == "all" else rates.where(self.kinds.content, torch.nan)

    def by_bin(self, measure: str, definition: str, tokens: str = "all") -> list[Tensor]:
        """For each IDF bin the rates of its token types: the boxes of Figures 2 and 3."""
        rates = self.rates(measure, definition, tokens)
        seen = rates.isfinite()
        return [rates[seen & (self.bins == number)] for number in range(len(BIN_NAMES))]

    def trend(self, measure: str) -> float:
        """Spearman's correlation of the token types' rates with their IDF."""
        rates = self.rates(measure, "all")
        seen = rates.isfinite()
        return spearman(rates[seen], self.idf[seen])

    def rows(self) -> Iterator[Row]:
        """For each definition and kind of tokens a row for all, and one a bin.

        In a bin, `hard` and `soft` average over token types (a type's mean counts once, as in the
        paper's boxplots), and intervals resample these; in the row "all" they average over
        occurrences, and intervals resample units. NaN where nothing is.
        """
        named, *parts = (torch.cat(one) for one in zip(*self.pairs, strict=True))
        found, units = named.unique(return_inverse=True)
        sums, counts = (
            part.new_zeros(len(found), *part.shape[1:]).index_add_(0, units, part) for part in parts
        )
        for (d, definition), (k, tokens) in product(enumerate(DEFINITIONS), enumerate(TOKENS)):
            names = {"definition": definition, "tokens": tokens}
            seen = self.occurrences[d] * (self.kinds.content if tokens == "content" else 1)
            both = sums[:, d, k], counts[:, d, k, None].expand(-1, len(self.measures))
            means = both[0].sum(0) / both[1].sum(0)
            yield names | self._row("all", means, interval(*both), seen)
            boxes = [self.by_bin(measure, definition, tokens) for measure in self.measures]
            for number, name in enumerate(BIN_NAMES):
                values = torch.stack([box[number] for box in boxes], 1)  # (types, measures)
                ends = interval(values, torch.ones_like(values))
                yield names | self._row(name, values.mean(0), ends, seen[self.bins == number])

    def _row(self, name: str, means: Tensor, ends: tuple[Tensor, Tensor], seen: Tensor) -> Row:
        row = {"idf_bin": name} | dict(zip(self.measures, means.tolist(), strict=True))
        for measure, low, high in zip(self.measures, *ends, strict=True):
            row |= {f"{measure}_low": float(low), f"{measure}_high": float(high)}
        return row | {"token_types": int((seen > 0).sum()), "occurrences": int(seen.sum())}


class HeadRates:
    """Exact match of one direction by decoder layer and head (§7.2, head by head).

    Of document_to_query a head's alignment is its attention itself, of query_to_document the
    attention's columns divided by their sums.
    """

    def __init__(self, direction: str, layers: int, heads: int, texts: Texts):
        self.direction, self.special, self.bins = direction, texts.kinds.special, idf_bin(texts.idf)
        # By token type; float32 counts to 16 million without error, in half the memory.
        self.sums = torch.zeros(len(texts.idf), layers, heads, len(MEASURES))
        self.occurrences = torch.zeros(len(texts.idf))
        self.pairs: list[tuple[Tensor, Tensor]] = []  # (B, L, H, measures) and (B,) tokens

    def update(self, layers: Sequence[PairAlignment]) -> None:
        """Takes in every layer of B pairs."""
        tokens, mask = aligning_side(layers[0], self.direction)
        counted = mask & ~self.special[tokens]
        found = torch.stack([self._matches(pairs) for pairs in layers], 2)  # (B, T, L, H, measures)
        self.occurrences.index_add_(0, tokens[counted], torch.ones(int(counted.sum())))
        self.sums.index_add_(0, tokens[counted], found[counted])
        self.pairs.append(((found * counted[..., None, None, None]).sum(1), counted.sum(1)))

    def _matches(self, pairs: PairAlignment) -> Tensor:
        """(B, T, H, measures)"""
        ids = pairs.document_ids[:, None], pairs.query_ids[:, None]
        masks = pairs.document_mask[:, None], pairs.query_mask[:, None]
        heads = directed_heads(pairs, self.direction)
        found = exact_match(heads, *ids, *masks, self.direction)
        return torch.stack([values.float() for values in found], -1).transpose(1, 2)

    def means(self) -> Tensor:
        """(L, H, measures) the means over all occurrences."""
        return self.sums.double().sum(0) / self.occurrences.double().sum()

    def rows(self) -> Iterator[Row]:
        """For each layer and head a row for all tokens, and one an IDF bin.

        As in `ExactMatchRates.rows`. Layers and heads count from 1.
        """
        parts = [("all", *self._all())]
        for number, name in enumerate(BIN_NAMES):
            seen = (self.bins == number) & (self.occurrences > 0)
            counts = self.occurrences[seen]
            means = (self.sums[seen] / counts[:, None, None, None]).mean(0)
            parts.append(
                (name, int(counts.sum()), dict(zip(MEASURES, means.unbind(-1), strict=True)))
            )
        for layer, head in product(*map(range, self.sums.shape[1:3])):
            place = {"layer": layer + 1, "head": head + 1, "direction": self.direction}
            for name, occurrences, values in parts:
                cell = {key: float(value[layer, head]) for key, value in values.items()}
                yield place | {"idf_bin": name} | cell | {"occurrences": occurrences}

    def _all(self) -> tuple[int, dict[str, Tensor]]:
        sums, counts = (torch.cat(one) for one in zip(*self.pairs, strict=True))
        flat = sums.flatten(1)
        ends = interval(flat, counts[:, None].expand_as(flat))
        low, high = (end.view(sums.shape[1:]) for end in ends)
        values = dict(zip(MEASURES, self.means().unbind(-1), strict=True))
        for number, measure in enumerate(MEASURES):
            values |= {f"{measure}_low": low[..., number], f"{measure}_high": high[..., number]}
        return int(counts.sum()), values
