"""The exact-match rates of a system as a table: by direction, kind of token and IDF bin (§7.2)."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import isfinite

import torch
from torch import Tensor

from analysis.exact_match import DIRECTIONS, MEASURES
from analysis.statistics import interval, spearman
from analysis.tables import Row
from analysis.token_types import DEFINITIONS, TokenTypeRates
from analysis.tokens import BIN_NAMES, idf_bin

TOKENS = ("all", "content")  # of the aligning tokens; special ones are in neither
PREFIX = "analysis/exact_match"
Interval = dict[str, tuple[float, float]]  # of each measure


@dataclass
class ExactMatchTable:
    """Exact-match rates of a system (gr_as_mvdr §7.2).

    Attributes:
        rates: for each direction, the means by token type of the aligning side.
        idf: (V,) the importance of each token type.
        content: (V,) bool, the types that carry content.
        sums: for each direction (P, definitions, tokens, measures), what each pair adds to the
            numerators; counts: (P, definitions, tokens) to the denominators.
    """

    rates: dict[str, TokenTypeRates]
    idf: Tensor
    content: Tensor
    sums: dict[str, Tensor]
    counts: dict[str, Tensor]

    def by_bin(
        self, direction: str, measure: str, definition: str, tokens: str = "all"
    ) -> list[Tensor]:
        """For each IDF bin the rates of its token types: the boxes of Figures 2 and 3."""
        rates, bins = self._type_rates(direction, measure, definition, tokens), idf_bin(self.idf)
        seen = rates.isfinite()
        return [rates[seen & (bins == number)] for number in range(len(BIN_NAMES))]

    def rows(self) -> Iterator[Row]:
        """For each direction, definition and kind of tokens a row for all, and one a bin.

        In a bin, `hard` and `soft` average over token types (a type's mean counts once, as in the
        paper's boxplots), and intervals resample these; in the row "all" they average over
        occurrences, and intervals resample pairs. NaN where nothing is.
        """
        for direction, definition, tokens in product(DIRECTIONS, DEFINITIONS, TOKENS):
            names = {"direction": direction, "definition": definition, "tokens": tokens}
            yield names | self._all_row(direction, definition, tokens)
            for row in self._bin_rows(direction, definition, tokens):
                yield names | row

    def correlation(self, direction: str, measure: str) -> float:
        """Spearman's correlation of the token types' rates with their IDF: the trend."""
        rates = self._type_rates(direction, measure, "all", "all")
        seen = rates.isfinite()
        return spearman(rates[seen], self.idf[seen])

    def _type_rates(self, direction: str, measure: str, definition: str, tokens: str) -> Tensor:
        rates = self.rates[direction].rates(measure, definition)
        return rates if tokens == "all" else rates.where(self.content, torch.nan)

    def _all_row(self, direction: str, definition: str, tokens: str) -> Row:
        where = DEFINITIONS.index(definition), TOKENS.index(tokens)
        sums = self.sums[direction][:, *where]
        counts = self.counts[direction][:, *where, None].expand_as(sums)
        means = sums.sum(0) / counts.sum(0)
        low, high = interval(sums, counts)
        return _row("all", means, low, high, self._occurrences(direction, definition, tokens))

    def _bin_rows(self, direction: str, definition: str, tokens: str) -> Iterator[Row]:
        boxes = [self.by_bin(direction, measure, definition, tokens) for measure in MEASURES]
        occurrences = self._occurrences(direction, definition, tokens)
        bins = idf_bin(self.idf)
        for number, name in enumerate(BIN_NAMES):
            values = torch.stack([box[number] for box in boxes], 1)  # (types, measures)
            low, high = interval(values, torch.ones_like(values))
            yield _row(name, values.mean(0), low, high, occurrences[bins == number])

    def _occurrences(self, direction: str, definition: str, tokens: str) -> Tensor:
        counted = self.rates[direction].occurrences[definition]
        return counted if tokens == "all" else counted * self.content


def _row(name: str, means: Tensor, low: Tensor, high: Tensor, occurrences: Tensor) -> Row:
    row = {"idf_bin": name}
    row |= {measure: float(mean) for measure, mean in zip(MEASURES, means, strict=True)}
    for number, measure in enumerate(MEASURES):
        row |= {f"{measure}_low": float(low[number]), f"{measure}_high": float(high[number])}
    counts = {"token_types": int((occurrences > 0).sum()), "occurrences": int(occurrences.sum())}
    return row | counts


def flat_metrics(table: ExactMatchTable, rows: list[Row]) -> dict[str, float]:
    """The table's metrics, without empty bins.

    "analysis/exact_match/query_to_document/hard" averages over all occurrences (hard_low and
    hard_high are its interval), hard_matched over those with a match, hard_content over those of
    content tokens, hard/idf_2_4 over a bin's token types; hard_idf_correlation is the trend.
    """
    flat = {}
    for row in rows:
        flat |= _row_metrics(row)
    for direction, measure in product(DIRECTIONS, MEASURES):
        key = f"{PREFIX}/{direction}/{measure}_idf_correlation"
        flat[key] = table.correlation(direction, measure)
    return {key: value for key, value in flat.items() if isfinite(value)}


def _row_metrics(row: Row) -> dict[str, float]:
    kinds = row["definition"], row["tokens"]
    if kinds == ("matched", "content") or (kinds == ("all", "content") and row["idf_bin"] != "all"):
        return {}
    suffix = {("all", "all"): "", ("matched", "all"): "_matched", ("all", "content"): "_content"}
    part = "" if row["idf_bin"] == "all" else "/idf_" + row["idf_bin"].replace("-", "_")
    prefix = f"{PREFIX}/{row['direction']}"
    flat = {f"{prefix}/{measure}{suffix[kinds]}{part}": row[measure] for measure in MEASURES}
    if not suffix[kinds] and not part:
        ends = [f"{measure}_{end}" for measure in MEASURES for end in ("low", "high")]
        flat |= {f"{prefix}/{end}": row[end] for end in ends}
    return flat
