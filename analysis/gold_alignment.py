"""An alignment against the tokens that answer the question: precision, recall, error rate.

A document token is aligned if its strength, the largest A_ij over the query's tokens, reaches a
threshold, or is among the k largest. Tokens of equal strength share the places that are left to
them, so that every number is the expectation over their order: constant strengths are a random
choice. Och and Ney (2003): S, the sure tokens, answer the question; P, the possible ones, also
those that state what it gives.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

MEASURES = ("precision", "recall", "possible_precision", "possible_recall", "aer", "aligned")


def strength(alignment: Tensor, query_mask: Tensor) -> Tensor:
    """max_j A_ij, how strongly the query's tokens align each document token.

    Args:
        alignment: (..., M, N), not negative.
        query_mask: (..., N) bool, the query tokens that count.

    Returns:
        (..., M).
    """
    return (alignment * query_mask.unsqueeze(-2)).amax(-1)


def at_thresholds(strengths: Tensor, mask: Tensor, thresholds: Sequence[float]) -> Tensor:
    """Which document tokens are aligned at each of T thresholds θ: strength ≥ θ.

    Args:
        strengths: (..., M); mask: (..., M) bool, the document tokens that count.

    Returns:
        (..., T, M) fp32, 1 where aligned.
    """
    least = torch.tensor(thresholds, dtype=strengths.dtype, device=strengths.device)
    return ((strengths.unsqueeze(-2) >= least.unsqueeze(-1)) & mask.unsqueeze(-2)).float()


def at_top(strengths: Tensor, mask: Tensor, depths: Sequence[int]) -> Tensor:
    """How likely each document token is among the k strongest, ties in random order.

    Args:
        strengths: (..., M); mask: (..., M) bool, the document tokens that count.
        depths: T values of k; a document with fewer tokens aligns them all.

    Returns:
        (..., T, M) fp32 from 0 to 1, summing to min(k, number of tokens).
    """
    values = strengths.masked_fill(~mask, -torch.inf)
    places = torch.tensor(depths, device=values.device)
    ordered = values.sort(-1, descending=True).values
    last = ordered[..., (places - 1).clamp(max=values.shape[-1] - 1)].unsqueeze(-1)
    above = (values.unsqueeze(-2) > last).float()
    tied = ((values.unsqueeze(-2) == last) & mask.unsqueeze(-2)).float()
    left = places.unsqueeze(-1) - above.sum(-1, keepdim=True)
    share = (left / tied.sum(-1, keepdim=True).clamp(min=1)).clamp(max=1)
    return above + tied * share


def measure(aligned: Tensor, answer: Tensor, evidence: Tensor) -> Tensor:
    """Precision, recall and alignment error rate of aligned tokens A (Och and Ney 2003).

    precision |A∩S| / |A| and recall |A∩S| / |S|, of the answer; possible_precision |A∩P| / |A| and
    possible_recall |A∩P| / |P|; a precision is NaN if nothing is aligned.
    AER = 1 − (|A∩S| + |A∩P|) / (|A| + |S|), which is 0 for any A between S and P.

    Args:
        aligned: (..., T, M) from 0 to 1, zero at tokens that do not count.
        answer: (..., M) bool, S, at least one token of each; evidence: (..., M) bool.

    Returns:
        (..., T, 6) fp32 in the order of `MEASURES`; the last is |A|.
    """
    golden = torch.stack([answer, answer | evidence, torch.ones_like(answer)], -1).float()
    sure, possible, total = (aligned @ golden).unbind(-1)
    sizes = golden.sum(-2, keepdim=True)
    n_sure, n_possible = sizes[..., 0], sizes[..., 1]
    error = 1 - (sure + possible) / (total + n_sure)
    answered = sure / total, sure / n_sure
    return torch.stack([*answered, possible / total, possible / n_possible, error, total], -1)
