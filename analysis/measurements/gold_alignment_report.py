"""Do alignments find the tokens that answer the question? A whole store against its gold.

Special tokens never count here, on neither side: an end token that all look at says nothing about
where the answer stands. Where a system's document is not the text itself (a docid, pooled vectors)
it has no tokens to compare, and its pairs are left out.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from analysis.analysis import Findings, GoldTokens, Texts
from analysis.directed_alignment import directed_alignment, normalised
from analysis.exact_match import DIRECTIONS
from analysis.figures import GalleryEntry
from analysis.gold_alignment import MEASURES, at_thresholds, at_top, measure, strength
from analysis.measurements.gold_alignment_figure import CAPTION, gold_figure
from analysis.statistics import select
from analysis.tables import Row
from gr_mvdr.parts import part
from gr_mvdr.relevance import Explanation, PairAlignment

# A softmax over a long text spreads thin, cross-attention does not: from one end to the other.
THRESHOLDS = (0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
DEPTHS = (1, 2, 3, 5, 10, 20)
SELECTIONS = [*(("threshold", value) for value in THRESHOLDS), *(("top", k) for k in DEPTHS)]
PREFIX = "analysis/gold/"

Key = tuple[str, str, int]  # alignment ("own", "softmax", "random"), direction, layer
# Strengths of 1 all over: the k strongest are a random choice, at any threshold all are aligned.
CONSTANT: Key = ("random", "", 0)


@part("measurement")
class GoldAlignment:
    """Precision, recall and alignment error rate (Och and Ney 2003), means over pairs with gold.

    A precision averages over those of them in which something is aligned. Of every layer and
    direction, heads averaged and one by one. A multi-vector or lexical system is read as the
    softmax of its similarity, and by its own A with columns that sum to one.

    The metric `aer` is that of the best threshold, cross-fitted: on the pairs with even numbers in
    the store it is measured at the threshold that is best for those with odd numbers, and the
    reverse; one half alone has none. `align_all_aer` is what takes no alignment: every token that
    counts is aligned.
    """

    def __init__(self, store: Any, texts: Texts):
        self._description, self._pairs = store.description, store.pairs
        self._gold, self._special = texts.gold, texts.kinds.special
        self._sums: dict[Key, Tensor] = {}  # (2, heads, selections, measures)
        self._counts: dict[Key, Tensor] = {}  # the same shape, pairs with a value
        self._n_pairs = 0

    def update(self, batch: Explanation, first: int) -> None:
        """Takes in a padded batch of the store's pairs."""
        last = batch.layers[-1]
        real = last.document_mask & ~self._special[last.document_ids]
        answer, evidence = self._gold_of(last, first)
        rows = (answer & real).any(1).nonzero()[:, 0]
        if not len(rows):
            return
        self._n_pairs += len(rows)
        gold = real[rows], (answer & real)[rows], (evidence & real)[rows]
        odd = (first + rows) % 2
        self._add(CONSTANT, odd, torch.ones(len(rows), 1, real.shape[1]), *gold)
        for number, layer in enumerate(batch.layers, start=1):
            pairs = select(layer, rows)
            for alignment, direction, strengths in self._strengths(pairs):
                self._add((alignment, direction, number), odd, strengths, *gold)

    def _gold_of(self, pairs: PairAlignment, first: int) -> tuple[Tensor, Tensor]:
        """Answer and evidence (B, M) bool; no token of a pair without gold of its length."""
        answer, evidence = torch.zeros(2, *pairs.document_ids.shape, dtype=torch.bool)
        for row, length in enumerate(pairs.document_mask.sum(1).tolist()):
            gold: GoldTokens | None = self._gold.get(tuple(self._pairs[first + row]))
            if gold is not None and len(gold.answer) == length:
                answer[row, :length], evidence[row, :length] = gold.answer, gold.evidence
        return answer, evidence

    def _strengths(self, pairs: PairAlignment) -> Iterator[tuple[str, str, Tensor]]:
        """Alignment, direction and strengths (B, heads, M); the heads' average comes first."""
        paradigm = self._description.paradigm
        counted = (pairs.query_mask & ~self._special[pairs.query_ids]).unsqueeze(1)
        generative = paradigm == "generative"
        for direction in DIRECTIONS:
            mean = directed_alignment(pairs, paradigm, direction).unsqueeze(1)
            found = strength(mean, counted)
            if generative and pairs.alignment.shape[1] > 1:
                heads = normalised(pairs.alignment, direction)
                found = torch.cat([found, strength(heads, counted)], 1)
            yield "own" if generative else "softmax", direction, found
        if not generative:
            own = normalised(pairs.alignment, "query_to_document")
            yield "own", "query_to_document", strength(own, counted)

    def _add(
        self,
        key: Key,
        odd: Tensor,
        strengths: Tensor,
        real: Tensor,
        answer: Tensor,
        evidence: Tensor,
    ) -> None:
        """Adds (B, heads, M) strengths to the half of each pair, `odd` (B,) 0 or 1."""
        mask, answer, evidence = real[:, None], answer[:, None], evidence[:, None]
        chosen = at_thresholds(strengths, mask, THRESHOLDS), at_top(strengths, mask, DEPTHS)
        values = measure(torch.cat(chosen, -2), answer, evidence).double()
        seen = values.isfinite()
        none = values.new_zeros(2, *values.shape[1:])
        sums = none.index_add(0, odd, values.nan_to_num(0.0))
        self._sums[key] = self._sums.get(key, 0) + sums
        self._counts[key] = self._counts.get(key, 0) + none.index_add(0, odd, seen.double())

    def result(self) -> Findings:
        """Metrics of the last layer, the table, the curves; nothing without gold."""
        if not self._n_pairs:
            return Findings()
        rows = list(self._rows())
        title = f"{self._description.title}: alignments against {self._n_pairs:,} gold pairs"
        entry = GalleryEntry("gold_alignment", "Alignments against the answer's tokens", CAPTION)
        figures = [(gold_figure(rows, title), entry)]
        return Findings(self._metrics(), {"gold_alignment": rows}, figures)

    def _means(self, key: Key) -> Tensor:
        """(heads, selections, measures) over all pairs."""
        return self._sums[key].sum(0) / self._counts[key].sum(0)

    def _rows(self) -> Iterator[Row]:
        for key in self._sums:
            alignment, direction, layer = key
            for head, table in enumerate(self._means(key)):
                place = {"alignment": alignment, "direction": direction, "layer": layer or ""}
                place["head"] = head or "mean"
                for (selection, value), means in zip(SELECTIONS, table.tolist(), strict=True):
                    if key == CONSTANT and selection == "threshold":
                        continue
                    chosen = {"selection": selection, "value": value}
                    measures = dict(zip(MEASURES, means, strict=True))
                    yield place | chosen | measures | {"pairs": self._n_pairs}
        place = {"alignment": "all", "direction": "", "layer": "", "head": "mean"}
        everything = self._head(CONSTANT)["threshold", THRESHOLDS[0]]
        place |= {"selection": "all", "value": ""}
        yield place | everything | {"pairs": self._n_pairs}

    def _metrics(self) -> dict[str, float]:
        """Of the last layer, heads averaged."""
        alignment = "own" if self._description.paradigm == "generative" else "softmax"
        last = max(layer for _, _, layer in self._sums)
        random, flat = self._head(CONSTANT), {}
        for direction in DIRECTIONS:
            found = self._head((alignment, direction, last))
            values = {
                "precision@1": found["top", 1]["precision"],
                "recall@5": found["top", 5]["recall"],
                "possible_precision@1": found["top", 1]["possible_precision"],
                "aer": self._fitted_error((alignment, direction, last)),
                "align_all_aer": random["threshold", THRESHOLDS[0]]["aer"],
                "random_precision": random["top", 1]["precision"],
                "random_possible_precision": random["top", 1]["possible_precision"],
            }
            flat |= {f"{PREFIX}{direction}/{name}": value for name, value in values.items()}
        return {key: value for key, value in flat.items() if value == value}

    def _fitted_error(self, key: Key) -> float:
        """The heads' average's AER, each half at the other's best threshold; NaN of one half."""
        errors = slice(len(THRESHOLDS)), MEASURES.index("aer")
        sums, pairs = (part[key][:, 0, *errors] for part in (self._sums, self._counts))
        means = (sums / pairs).tolist()
        best = [min(range(len(THRESHOLDS)), key=half.__getitem__) for half in means]
        fitted = sums[0, best[1]] + sums[1, best[0]]
        return float(fitted / pairs[:, 0].sum()) if pairs.all() else float("nan")

    def _head(self, key: Key) -> dict[tuple[str, float], dict[str, float]]:
        """The heads' average at every selection."""
        means = self._means(key)[0].tolist()
        named = (dict(zip(MEASURES, values, strict=True)) for values in means)
        return dict(zip(SELECTIONS, named, strict=True))
