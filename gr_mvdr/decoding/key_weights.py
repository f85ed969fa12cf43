"""What SEAL's keys are worth: how much more probable the query makes an n-gram than the corpus.

A key n of probability p(n|q) weighs max(0, logit p(n|q) − logit p(n))^α, where
p(n) = (count + s) / (tokens + s) and logit x = log x − log(1 − x). A unigram weighs the same
without the exponent (Bevilacqua et al. 2022).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gr_mvdr.decoding.ngram_index import NgramIndex


@dataclass(frozen=True)
class Parameters:
    """What `score_documents` may be told.

    Attributes:
        max_occurrences_1: a key that occurs more often is left to stage 2.
        n_docs_complete_score: so many documents go on to stage 2; the others get no score.
        alpha: exponent of the keys' weights; unigrams have none.
        beta: the part of its weight that a key loses if better keys cover all its tokens.
        smoothing: s, added to the counts of the corpus.
        use_top_k_unigrams: only so many of the most probable unigrams count.
        add_best_unigrams_to_ngrams: makes the best unigrams, as many as there are keys, keys too.
        special_ids: ids that never score as unigrams.
        among: the numbers of the documents that may get a score; None: all.
        document_ids: of the corpus's documents. They choose among equal scores in stage 1, as in
            `gr_mvdr.evaluation.ranking.Ranking`; None: the document numbers do, the first first.
    """

    max_occurrences_1: int = 1500
    n_docs_complete_score: int = 1500
    alpha: float = 2.0
    beta: float = 0.8
    smoothing: float = 5.0
    use_top_k_unigrams: int = 5000
    add_best_unigrams_to_ngrams: bool = False
    special_ids: Sequence[int] = (0, 1, 2)
    among: Collection[int] | None = None
    document_ids: Sequence[str] | None = None


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


def weigh(
    index: NgramIndex,
    keys: Sequence[tuple[Sequence[int], float]],
    unigram_log_probs: Sequence[float] | np.ndarray | None,
    options: Parameters,
) -> tuple[Keys, np.ndarray]:
    """The keys by weight, and the weights of unigrams by token id."""
    log_probs = merge_keys(keys, options.special_ids)
    first = np.asarray(() if unigram_log_probs is None else unigram_log_probs, np.float64)
    excluded = {*options.special_ids, *(ngram[0] for ngram in log_probs if len(ngram) == 1)}
    unigrams = weigh_unigrams(index, first, excluded, options)
    added: dict[tuple[int, ...], float] = {}
    if options.add_best_unigrams_to_ngrams:
        best = np.argsort(-unigrams, kind="stable")[: len(log_probs)].tolist()
        added = {(token,): unigrams[token] for token in best}
    return rank_keys(index, log_probs, added, options), unigrams


def merge_keys(
    keys: Sequence[tuple[Sequence[int], float]], special_ids: Collection[int]
) -> dict[tuple[int, ...], float]:
    """The distinct keys, special ids cut off at their ends, with their greatest log-probability."""
    merged: dict[tuple[int, ...], float] = {}
    for ngram, log_prob in keys:
        if stripped := strip(ngram, special_ids):
            merged[stripped] = max(log_prob, merged.get(stripped, -np.inf))
    return merged


def strip(ngram: Sequence[int], special_ids: Collection[int]) -> tuple[int, ...]:
    """An n-gram without the special ids at its ends."""
    first, last = 0, len(ngram)
    while first < last and ngram[first] in special_ids:
        first += 1
    while first < last and ngram[last - 1] in special_ids:
        last -= 1
    return tuple(ngram[first:last])


def rank_keys(
    index: NgramIndex,
    log_probs: dict[tuple[int, ...], float],
    unigrams: dict[tuple[int, ...], float],
    options: Parameters,
) -> Keys:
    """Weighs keys by their log-probabilities, adds unigrams of known weight, and orders them all.

    Keys that do not occur in the corpus, or that it makes as probable as the query, are dropped.
    """
    ngrams = [*log_probs, *unigrams]
    low, high = index.intervals(ngrams)
    given = np.fromiter(log_probs.values(), np.float64, len(log_probs))
    odds = log_odds(given, (high - low)[: len(given)], len(index), options.smoothing)
    weights = np.array([*odds**options.alpha, *unigrams.values()])
    order = sorted(np.flatnonzero(weights).tolist(), key=lambda i: (-weights[i], ngrams[i]))
    return Keys([ngrams[i] for i in order], weights[order], low[order], high[order])


def weigh_unigrams(
    index: NgramIndex, log_probs: np.ndarray, excluded: Collection[int], options: Parameters
) -> np.ndarray:
    """The weights of the corpus's tokens as unigrams; those of `excluded` tokens are 0.

    Args:
        log_probs: (V,) of the first generated token; only the greatest count, of equal ones those
            with the smaller ids.
    Returns:
        (largest token of the corpus + 2,) float64, by token id; the last one is 0.
    """
    kept = np.full(max(len(log_probs), index.tokens[-1] + 1), -np.inf)
    best = _greatest(log_probs, options.use_top_k_unigrams)
    kept[best] = log_probs[best]
    weights = np.zeros(index.tokens[-1] + 2)
    odds = log_odds(kept[index.tokens], index.token_counts, len(index), options.smoothing)
    weights[index.tokens] = odds
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
    # A count of 0 gives 0 below; 1 instead of it keeps the logarithm finite.
    corpus = np.log((np.maximum(counts, 1) + smoothing) / (n_tokens + smoothing))
    corpus = np.minimum(corpus, -1e-10)
    odds = given - np.log(-np.expm1(given)) - corpus + np.log(-np.expm1(corpus))
    return np.where(counts > 0, np.maximum(odds, 0), 0)
