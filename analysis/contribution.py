"""What each token adds to the relevance: the terms of Eq. 1, summed by token."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from analysis.analysis import Analysis, Findings, Subject, named
from analysis.tables.metric_names import Metric
from analysis.tables.rows import Row
from analysis.tokens import BIN_NAMES, idf_bin
from gr_mvdr.options import part
from gr_mvdr.relevance import Explanation, PairAlignment, divide

SIDES = ("document", "query")
DEPTHS = (1, 5, 10)
KINDS = ("special", "punctuation", "stopword", "content")
# Name of a group of tokens and its values, as the table shows them.
GROUPS = {"top": DEPTHS, "kind": KINDS, "idf": BIN_NAMES}


def contributions(pairs: PairAlignment) -> tuple[Tensor, Tensor]:
    """Σ_hj S A / Z of every document token, Σ_hi S A / Z of every query token (gr_as_mvdr Eq. 1).

    Both sum to the relevance. Of a generative system's last layer this is Eq. 14: what its
    cross-attention adds to the logits.

    Args:
        pairs: B pairs.

    Returns:
        (B, M) and (B, N) fp32, zero at padding.
    """
    terms = (pairs.similarity * pairs.alignment).sum(1)
    normaliser = pairs.normaliser.unsqueeze(1)
    return divide(terms.sum(2), normaliser), divide(terms.sum(1), normaliser)


def top_shares(contribution: Tensor, depths: Sequence[int]) -> Tensor:
    """The share of Σ|c| that the k largest |c| carry.

    Args:
        contribution: (..., M) c, zero at padding; depths: values of k.

    Returns:
        (..., K) fp32; NaN where everything is zero.
    """
    ordered = contribution.abs().sort(-1, descending=True).values.cumsum(-1)
    places = torch.tensor([min(k, ordered.shape[-1]) - 1 for k in depths])
    return ordered[..., places] / ordered[..., -1:]


def group_shares(contribution: Tensor, groups: Tensor, count: int) -> Tensor:
    """The share of Σ|c| that each group of tokens carries.

    Args:
        contribution: (B, M) c, zero at padding.
        groups: (B, M) int64, the group of each token, below `count`.

    Returns:
        (B, count) fp32, summing to one; NaN where everything is zero.
    """
    size = contribution.abs()
    sums = size.new_zeros(len(size), count).scatter_add_(1, groups, size)
    return sums / size.sum(1, keepdim=True)


@part("analysis")
class Contribution(Analysis):
    """How concentrated is the relevance, and which tokens carry it? (gr_as_mvdr Eq. 1, 14)

    Shares of a pair's total absolute contribution in the last layer, means over pairs; with each,
    what part of the text's tokens it is carried by: equal numbers mean that these tokens matter as
    much as any others. All real tokens count, special ones too; they have a kind of their own and
    are in no IDF bin, since no document's text holds them.
    """

    name, title = "contribution", "Relevance by token"
    reading = (
        "Which share the strongest tokens of the document, and its content tokens, have in the "
        "absolute contributions Σ|c| to a pair's relevance. It is no share of the relevance "
        "itself, in which contributions of both signs cancel."
    )
    metrics = (
        Metric("top_#", "The share of the absolute contributions that the strongest tokens have."),
        Metric("content_share", "The share of content tokens in the absolute contributions."),
    )

    def __init__(self, subject: Subject):
        texts = subject.texts
        kinds = torch.stack([getattr(texts.kinds, name) for name in KINDS])
        self.kind = kinds.int().argmax(0)  # (V,)
        # (V,), special tokens in a bin behind the others, which is left out.
        self.bin = idf_bin(texts.idf).masked_fill(texts.kinds.special, len(BIN_NAMES))
        self.sums = {(side, group): 0.0 for side in SIDES for group in GROUPS}
        self.n_pairs = dict.fromkeys(SIDES, 0)

    def update(self, batch: Explanation, first: int) -> None:
        pairs = batch.layers[-1]
        for side, contribution in zip(SIDES, contributions(pairs), strict=True):
            some = contribution.abs().sum(1) > 0  # a pair without a match has no shares
            ids, mask = (getattr(pairs, f"{side}_{part}")[some] for part in ("ids", "mask"))
            self._add(side, contribution[some], ids, mask)

    def _add(self, side: str, contribution: Tensor, ids: Tensor, mask: Tensor) -> None:
        self.n_pairs[side] += len(ids)
        lengths = mask.sum(1, keepdim=True)
        depths = torch.tensor(DEPTHS)
        found = {"top": (top_shares(contribution, DEPTHS), depths.clamp(max=lengths) / lengths)}
        for group, numbers in (("kind", self.kind[ids]), ("idf", self.bin[ids])):
            count = len(GROUPS[group])
            shares = (group_shares(c, numbers, count + 1) for c in (contribution, mask.float()))
            found[group] = tuple(share[:, :count] for share in shares)
        for group, shares in found.items():
            self.sums[side, group] += torch.stack(shares).double().sum(1)  # (2, values)

    def finish(self) -> Findings:
        """The table, and of documents the shares that matter most; nothing without relevance."""
        rows = list(self._rows())
        if not rows:
            return Findings()
        share = {(row["group"], row["value"]): row["share"] for row in reversed(rows)}
        metrics = {f"top_{k}": share["top", k] for k in (1, 5)}
        metrics["content_share"] = share["kind", "content"]
        return Findings(named(self.name, metrics), {"contribution": rows})

    def _rows(self) -> Iterator[Row]:
        for (side, group), sums in self.sums.items():
            if not self.n_pairs[side]:
                continue
            shares, tokens = (sums / self.n_pairs[side]).tolist()
            for value, share, count in zip(GROUPS[group], shares, tokens, strict=True):
                row = {"side": side, "group": group, "value": value}
                yield row | {"share": share, "tokens": count, "pairs": self.n_pairs[side]}
