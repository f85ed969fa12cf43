"""How concentrated is the relevance, and which tokens carry it? A whole store, last layer."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from analysis.analysis import Findings, Texts
from analysis.contribution import contributions, group_shares, top_shares
from analysis.tables import Row
from analysis.tokens import BIN_NAMES, idf_bin
from gr_mvdr.parts import part
from gr_mvdr.relevance import Explanation

PREFIX = "analysis/contribution/"
SIDES = ("document", "query")
DEPTHS = (1, 5, 10)
KINDS = ("special", "punctuation", "stopword", "content")
# Name of a group of tokens and its values, as the table shows them.
GROUPS = {"top": DEPTHS, "kind": KINDS, "idf": BIN_NAMES}


@part("measurement")
class Contribution:
    """Shares of a pair's total absolute contribution, means over pairs (gr_as_mvdr Eq. 1, 14).

    Beside each share stands what part of the text's tokens it is carried by: equal numbers mean
    that these tokens matter as much as any others. All real tokens count, special ones too; they
    have a kind of their own and stand in no IDF bin, since no document's text holds them.
    """

    def __init__(self, store: Any, texts: Texts):
        kinds = torch.stack([getattr(texts.kinds, name) for name in KINDS])
        self._kind = kinds.int().argmax(0)  # (V,)
        # (V,), special tokens in a bin behind the others, which is left out.
        self._bin = idf_bin(texts.idf).masked_fill(texts.kinds.special, len(BIN_NAMES))
        self._sums = {(side, group): 0.0 for side in SIDES for group in GROUPS}
        self._n_pairs = dict.fromkeys(SIDES, 0)

    def update(self, batch: Explanation, first: int) -> None:
        """Takes in a padded batch of the store's pairs."""
        pairs = batch.layers[-1]
        for side, contribution in zip(SIDES, contributions(pairs), strict=True):
            some = contribution.abs().sum(1) > 0  # a pair without a match has no shares
            ids, mask = (getattr(pairs, f"{side}_{part}")[some] for part in ("ids", "mask"))
            self._add(side, contribution[some], ids, mask)

    def _add(self, side: str, contribution: Tensor, ids: Tensor, mask: Tensor) -> None:
        self._n_pairs[side] += len(ids)
        lengths = mask.sum(1, keepdim=True)
        depths = torch.tensor(DEPTHS)
        found = {"top": (top_shares(contribution, DEPTHS), depths.clamp(max=lengths) / lengths)}
        for group, numbers in (("kind", self._kind[ids]), ("idf", self._bin[ids])):
            count = len(GROUPS[group])
            shares = (group_shares(c, numbers, count + 1) for c in (contribution, mask.float()))
            found[group] = tuple(share[:, :count] for share in shares)
        for group, shares in found.items():
            self._sums[side, group] += torch.stack(shares).double().sum(1)  # (2, values)

    def result(self) -> Findings:
        """The table, and of documents the shares that matter most; nothing without relevance."""
        rows = list(self._rows())
        if not rows:
            return Findings()
        share = {(row["group"], row["value"]): row["share"] for row in reversed(rows)}
        metrics = {f"top_{k}": share["top", k] for k in (1, 5)}
        metrics["content_share"] = share["kind", "content"]
        return Findings({PREFIX + k: v for k, v in metrics.items()}, {"contribution": rows})

    def _rows(self) -> Iterator[Row]:
        for (side, group), sums in self._sums.items():
            if not self._n_pairs[side]:
                continue
            shares, tokens = (sums / self._n_pairs[side]).tolist()
            for value, share, count in zip(GROUPS[group], shares, tokens, strict=True):
                row = {"side": side, "group": group, "value": value}
                yield row | {"share": share, "tokens": count, "pairs": self._n_pairs[side]}
