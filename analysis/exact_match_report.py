"""Exact match of a whole alignment store, by direction and IDF bin (Wu et al. Figures 2 and 3).

One rule for special tokens: an end, padding or sentinel token is never counted as an aligning
token, but stays on the other side as something to align to, since the system sees it there.
"""

import csv
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import product
from math import isfinite
from pathlib import Path

import torch
from torch import Tensor

from analysis.alignment_store import AlignmentStore
from analysis.directed_alignment import directed_alignment
from analysis.exact_match import DIRECTIONS, MEASURES, exact_match
from analysis.inverse_document_frequency import BIN_NAMES, idf_bin
from analysis.token_types import DEFINITIONS, TokenTypeRates
from gr_mvdr.progress import track
from gr_mvdr.relevance import PairAlignment


@dataclass
class ExactMatchReport:
    """Exact-match rates of a system (§7.2).

    Attributes:
        rates: for each direction, the means by token type of the aligning side.
        idf: (V,) the importance of each token type.
    """

    rates: dict[str, TokenTypeRates]
    idf: Tensor

    def by_bin(self, direction: str, measure: str, definition: str) -> list[Tensor]:
        """For each IDF bin the rates of its token types: the boxes of Figures 2 and 3."""
        rates = self.rates[direction].rates(measure, definition)
        seen, bins = rates.isfinite(), idf_bin(self.idf)
        return [rates[seen & (bins == number)] for number in range(len(BIN_NAMES))]

    def rows(self) -> Iterator[dict]:
        """The table: for each direction and definition a row for all tokens and one a bin.

        In a bin, `hard` and `soft` average over token types (a type's mean counts once, as in the
        paper's boxplots); in the row "all" they average over occurrences. NaN where nothing is.
        """
        bins = idf_bin(self.idf)
        for direction, definition in product(DIRECTIONS, DEFINITIONS):
            rates = self.rates[direction]
            occurrences = rates.occurrences[definition]
            means = {measure: rates.mean(measure, definition) for measure in MEASURES}
            yield _row(direction, definition, "all", means, occurrences)
            boxes = {measure: self.by_bin(direction, measure, definition) for measure in MEASURES}
            for number, name in enumerate(BIN_NAMES):
                means = {measure: float(boxes[measure][number].mean()) for measure in MEASURES}
                yield _row(direction, definition, name, means, occurrences[bins == number])

    def metrics(self) -> dict[str, float]:
        """The table, flat, without empty bins.

        "analysis/exact_match/query_to_document/hard" averages over all occurrences,
        ".../hard_matched" over those with a match; ".../hard/idf_2_4" over a bin's token types.
        """
        flat = {}
        for row in self.rows():
            suffix = "" if row["definition"] == "all" else "_matched"
            part = "" if row["idf_bin"] == "all" else "/idf_" + row["idf_bin"].replace("-", "_")
            for measure in MEASURES:
                key = f"analysis/exact_match/{row['direction']}/{measure}{suffix}{part}"
                flat[key] = row[measure]
        return {key: value for key, value in flat.items() if isfinite(value)}

    def write_csv(self, path: Path) -> None:
        """Writes the table; an empty cell where a bin is empty."""
        rows = list(self.rows())
        partial = path.with_suffix(".partial")
        with partial.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            for row in rows:
                writer.writerow({k: "" if v != v else v for k, v in row.items()})
        partial.rename(path)


def _row(direction: str, definition: str, name: str, means: dict, occurrences: Tensor) -> dict:
    counts = {"token_types": int((occurrences > 0).sum()), "occurrences": int(occurrences.sum())}
    return {"direction": direction, "definition": definition, "idf_bin": name} | means | counts


def measure_exact_match(
    store: AlignmentStore, idf: Tensor, special_ids: Collection[int] = (), batch_size: int = 64
) -> ExactMatchReport:
    """Measures the exact match of every pair of a store, in both directions (§7.2).

    Args:
        store: the alignments.
        idf: (V,) of every token id that occurs, from `inverse_document_frequency`.
        special_ids: ids that never count as aligning tokens (end, padding, sentinels).
        batch_size: pairs at a time; changes nothing but speed.
    """
    rates = {direction: TokenTypeRates(len(idf)) for direction in DIRECTIONS}
    special = torch.tensor(sorted(special_ids), dtype=torch.int64)
    total = -(-len(store) // batch_size)
    for pairs in track(store.batches(batch_size), "measuring exact match", total):
        for direction in DIRECTIONS:
            alignment = directed_alignment(pairs, store.description.paradigm, direction)
            _add(rates[direction], pairs, alignment, direction, special)
    return ExactMatchReport(rates, idf)


def _add(
    rates: TokenTypeRates, pairs: PairAlignment, alignment: Tensor, direction: str, special: Tensor
) -> None:
    ids = pairs.document_ids, pairs.query_ids
    masks = pairs.document_mask, pairs.query_mask
    hard, soft = exact_match(alignment, *ids, *masks, direction)
    side = int(direction == "query_to_document")  # 1: the query aligns
    rates.update(ids[side], hard, soft, masks[side] & ~torch.isin(ids[side], special))
