"""What a generated n-gram is worth as evidence (SEAL, Bevilacqua et al. 2022).

A key n of probability p(n|q) weighs max(0, logit p(n|q) − logit p(n))^α: how much more probable the
query makes it than the corpus, where p(n) = (count + s) / (tokens + s) and
logit x = log x − log(1 − x). A unigram weighs the same without the exponent.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gr_mvdr.decoding.ngram_index import NgramIndex


@dataclass(frozen=True)
class Keys:
    """n-grams of positive weight, the heaviest first (equal weights: in the order of their tokens).

    weights: (n,) float64; low, high: (n,) int64, their intervals in the index.
    """

    ngrams: list[tuple[int, ...]]
    weights: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @cached_property
    def lengths(self) -> np.ndarray:
        """(n,) int64, in tokens."""
        return np.fromiter(map(len, self.ngrams), np.int64, len(self.ngrams))


def merge_keys(
    keys: Sequence[tuple[Sequence[int], float]], special_ids: Collection[int]
) -> dict[tuple[int, ...], float]:
    """The distinct keys, special ids cut off at their ends, with their greatest log-probability."""
    merged: dict[tuple[int, ...], float] = {}
    for ngram, log_prob in keys:
        first, last = 0, len(ngram)
        while first < last and ngram[first] in special_ids:
            first += 1
        while first < last and ngram[last - 1] in special_ids:
            last -= 1
        if first < last:
            stripped = tuple(ngram[first:last])
            merged[stripped] = max(log_prob, merged.get(stripped, -np.inf))
    return merged


def rank_keys(
    index: NgramIndex,
    log_probs: dict[tuple[int, ...], float],
    unigrams: dict[tuple[int, ...], float],
    alpha: float,
    smoothing: float,
) -> Keys:
    """Weighs keys by their log-probabilities, adds unigrams of known weight, and orders them all.

    Keys that do not occur in the corpus, or that it makes as probable as the query, are dropped.
    """
    ngrams = [*log_probs, *unigrams]
    low, high = index.intervals(ngrams)
    given = np.fromiter(log_probs.values(), np.float64, len(log_probs))
    odds = log_odds(given, (high - low)[: len(given)], len(index), smoothing)
    weights = np.array([*odds**alpha, *unigrams.values()])
    order = sorted(np.flatnonzero(weights).tolist(), key=lambda i: (-weights[i], ngrams[i]))
    return Keys([ngrams[i] for i in order], weights[order], low[order], high[order])


def unigram_weights(
    index: NgramIndex,
    log_probs: np.ndarray,
    top_k: int,
    smoothing: float,
    excluded: Collection[int],
) -> np.ndarray:
    """The weights of the corpus's tokens as unigrams; those of `excluded` tokens are 0.

    Args:
        log_probs: (V,) of the first generated token; only the `top_k` greatest count (of equal
            ones those with the smaller ids).
    Returns:
        (largest token of the corpus + 2,) float64, by token id; the last one is 0.
    """
    kept = np.full(max(len(log_probs), index.tokens[-1] + 1), -np.inf)
    best = _greatest(log_probs, top_k)
    kept[best] = log_probs[best]
    weights = np.zeros(index.tokens[-1] + 2)
    weights[index.tokens] = log_odds(kept[index.tokens], index.token_counts, len(index), smoothing)
    weights[[token for token in excluded if token < len(weights)]] = 0
    return weights


def _greatest(values: np.ndarray, k: int) -> np.ndarray:
    """The indices of the k greatest values; of equal ones at the limit the first."""
    if k >= len(values):
        return np.arange(len(values))
    limit = np.partition(values, -k)[-k] if k else np.inf
    above = np.flatnonzero(values > limit)
    return np.append(above, np.flatnonzero(values == limit)[: k - len(above)])


def log_odds(
    log_probs: np.ndarray, counts: np.ndarray, n_tokens: int, smoothing: float
) -> np.ndarray:
    """max(0, logit p(n|q) − logit p(n)); 0 for what does not occur in the corpus."""
    given = np.minimum(log_probs, -1e-10)  # the logit of probability 1 is infinite
    # A count of 0 is answered below; 1 in its place keeps the logarithm finite.
    corpus = np.log((np.maximum(counts, 1) + smoothing) / (n_tokens + smoothing))
    corpus = np.minimum(corpus, -1e-10)
    odds = given - np.log(-np.expm1(given)) - corpus + np.log(-np.expm1(corpus))
    return np.where(counts > 0, np.maximum(odds, 0), 0)
