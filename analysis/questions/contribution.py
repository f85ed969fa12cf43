"""What each token contributes to the relevance: the terms of Eq. 1, summed for each token."""

from collections.abc import Iterator, Sequence

import torch
from pandas import DataFrame
from torch import Tensor

from analysis.questions.analysis import Findings, PairAnalysis
from analysis.questions.tokens import BIN_NAMES, idf_bin
from analysis.statistics import long_frame, mean_table
from gr_mvdr.measures import Metric
from gr_mvdr.options import part
from gr_mvdr.relevance import Explanation, PairAlignment, divide

SIDES = ("document", "query")
DEPTHS = (1, 5, 10)
KINDS = ("special", "punctuation", "stopword", "content")
# Grouping of tokens → its values in the table.
GROUPS = {"top": DEPTHS, "kind": KINDS, "idf": BIN_NAMES}


def contributions(pairs: PairAlignment) -> tuple[Tensor, Tensor]:
    """Σ_hj S A / Z of every document token, Σ_hi S A / Z of every query token (gr_as_mvdr Eq. 1).

    Each of the two sums to the relevance. For the last layer of a generative system this is Eq. 14:
    what the layer's cross-attention adds to the logits.

    Args:
        pairs: B pairs.

    Returns:
        (B, M) and (B, N) fp32, zero at padding.
    """
    terms = (pairs.similarity * pairs.alignment).sum(1)
    normaliser = pairs.normaliser.unsqueeze(1)
    return divide(terms.sum(2), normaliser), divide(terms.sum(1), normaliser)


def top_shares(contribution: Tensor, depths: Sequence[int]) -> Tensor:
    """(B, K) the share of Σ|c| that the k largest |c| of (B, M) carry; NaN if all are zero."""
    ordered = contribution.abs().sort(-1, descending=True).values.cumsum(-1)
    places = torch.tensor([min(k, ordered.shape[-1]) - 1 for k in depths])
    return ordered[..., places] / ordered[..., -1:]


def group_shares(contribution: Tensor, groups: Tensor, count: int) -> Tensor:
    """Computes the share of Σ|c| that each group of tokens carries.

    Args:
        contribution: (B, M) c, zero at padding.
        groups: (B, M) int64, the group of each token, below `count`.

    Returns:
        (B, count) fp32, summing to one; NaN if all contributions are zero.
    """
    size = contribution.abs()
    sums = size.new_zeros(len(size), count).scatter_add_(1, groups, size)
    return sums / size.sum(1, keepdim=True)


@part("analysis")
class Contribution(PairAnalysis):
    """How concentrated is the relevance, and which tokens carry it? (gr_as_mvdr Eq. 1, 14)

    The table holds each group's share of a pair's total absolute contribution in the last layer,
    averaged over pairs, and next to it the group's share of the text's tokens. If the two are
    equal, these tokens matter as much as any others. All real tokens count; special tokens are a
    kind of their own and belong to no IDF bin, since they occur in no document's text.
    """

    name, title = "contribution", "Relevance by token"
    reading = (
        "Which document tokens contribute most to the relevance. Shares are of the sum of the "
        "tokens' absolute contributions, Σ|c|, and not of the relevance itself, in which "
        "contributions of opposite sign cancel."
    )
    metrics = (
        *(
            Metric("top_#", "The share of the k strongest tokens in Σ|c|, the sum of all.").at(k)
            for k in (1, 5)
        ),
        Metric("content_share", "The share of content tokens in the absolute contributions Σ|c|."),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        kinds = self.texts.kinds
        kind = torch.stack([getattr(kinds, name) for name in KINDS]).int().argmax(0)
        # Special tokens get an extra last bin, which the table does not show.
        bins = idf_bin(self.texts.idf).masked_fill(kinds.special, len(BIN_NAMES))
        self.groups = {"kind": kind, "idf": bins}  # (V,) each

    def measure(self, batch: Explanation, first: int) -> Iterator[DataFrame]:
        pairs = batch.layers[-1]
        for side, contribution in zip(SIDES, contributions(pairs), strict=True):
            ids, mask = (getattr(pairs, f"{side}_{part}") for part in ("ids", "mask"))
            both = [self._shares(values, ids) for values in (contribution, mask.float())]
            for group in GROUPS:
                columns = {"share": both[0][group], "tokens": both[1][group]}
                frame = long_frame(first, columns, "value", side=side, group=group, pairs=1)
                yield frame.dropna()  # a pair without a match has no shares

    def _shares(self, values: Tensor, ids: Tensor) -> dict[str, Tensor]:
        """Returns grouping → (B, K) shares of Σ|v|, for (B, M) values v of tokens."""
        found = {"top": top_shares(values, DEPTHS)}
        for group, numbers in self.groups.items():
            count = len(GROUPS[group])
            found[group] = group_shares(values, numbers[ids], count + 1)[:, :count]
        return found

    def summarise(self, frame: DataFrame) -> Findings:
        """Returns the table, and metrics of the most important shares on the document side."""
        table = mean_table(frame, ["side", "group", "value"], ["share", "tokens"], "pairs")
        table["value"] = [GROUPS[g][n - 1] for g, n in zip(table.group, table.value, strict=True)]
        share = table[table.side == "document"].set_index(["group", "value"]).share
        metrics = {f"top_{k}": share["top", k] for k in (1, 5)}
        metrics["content_share"] = share["kind", "content"]
        return self.findings(self.rows(metrics), {"contribution": table.to_dict("records")})
