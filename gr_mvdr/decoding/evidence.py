"""SEAL's intersective scorer: from generated n-grams to document scores (Bevilacqua et al. 2022).

A key n of probability p(n|q) weighs max(0, logit p(n|q) − logit p(n))^α, where
p(n) = (count + s) / (tokens + s) and logit x = log x − log(1 − x). A unigram weighs the same
without the exponent. A document's score is the sum of the weights of the keys that occur in it
without overlapping, computed in two stages:

1. The keys that are rare enough to visit all their places score every document that they reach.
2. The best of these documents are scored again, on their own text and with the frequent keys too;
   then the places that no key has taken receive unigram weights.

Both work on all documents at once; Python loops over the keys alone.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gr_mvdr.batch import ragged_range
from gr_mvdr.decoding.ngram_index import NgramIndex
from gr_mvdr.evaluation.ranking import best_places
from gr_mvdr.options import Count, Fraction, NonNegative, Positive


@dataclass(frozen=True)
class EvidenceOptions:
    """The options of `score_documents`.

    Attributes:
        max_occurrences_1: a key that occurs more often waits for stage 2.
        n_docs_complete_score: the number of documents in stage 2; the others get no score.
        alpha: exponent of the keys' weights; unigrams have none.
        beta: the part of its weight that a key loses if better keys cover all its tokens.
        smoothing: s, added to the counts of the corpus.
        use_top_k_unigrams: the number of unigrams that count, the most probable ones.
        add_best_unigrams_to_ngrams: makes the best unigrams, as many as there are keys, keys too.
        special_ids: ids that never score as unigrams.
        among: the numbers of the documents that may get a score; None: all.
        document_ids: of the corpus's documents. They break ties in stage 1, as in
            `gr_mvdr.evaluation.ranking.Ranking`; None: ties go to the lowest document number.
    """

    max_occurrences_1: Count = 1500
    n_docs_complete_score: Count = 1500
    alpha: Positive = 2.0
    beta: Fraction = 0.8
    smoothing: NonNegative = 5.0
    use_top_k_unigrams: Count = 5000
    add_best_unigrams_to_ngrams: bool = False
    special_ids: Sequence[Count] = (0, 1, 2)
    among: Collection[int] | None = None
    document_ids: Sequence[str] | None = None


def score_documents(
    index: NgramIndex,
    keys: Sequence[tuple[Sequence[int], float]],
    unigram_log_probs: Sequence[float] | np.ndarray | None = None,
    **parameters: Any,
) -> dict[int, float]:
    """Scores the documents that hold a query's n-grams (SEAL's intersective score).

    Args:
        index: the corpus.
        keys: token ids and log p(n|q). Special ids are cut off at a key's ends; of equal keys the
            most probable counts.
        unigram_log_probs: (V,) log-probabilities of the first generated token; None: no unigrams.
        parameters: of `EvidenceOptions`.
    Returns:
        {document number: score}, the best first.
    Raises:
        ValueError: a key is longer than the index is deep.
    """
    options = EvidenceOptions(**parameters)
    ranked, unigrams = weigh(index, keys, unigram_log_probs, options)
    chosen = _best_documents(index, ranked, options)
    evidence, free = _complete_evidence(index, ranked, chosen, unigrams, options.beta)
    scores = evidence.scores + np.bincount(free.document, free.weight, minlength=len(chosen))
    order = np.argsort(-scores, kind="stable")
    return dict(zip(chosen[order].tolist(), scores[order].tolist(), strict=True))


def share_scores(
    index: NgramIndex,
    keys: Sequence[tuple[Sequence[int], float]],
    unigram_log_probs: Sequence[float] | np.ndarray | None,
    documents: Sequence[int],
    **parameters: Any,
) -> dict[int, list[tuple[tuple[int, ...], float]]]:
    """What each key and each unigram adds to the scores that `score_documents` gives documents.

    Args:
        documents: numbers of documents that have a score; the rest: see `score_documents`.
    Returns:
        {document number: (token ids, part of the score), the greatest first}.
    """
    options = EvidenceOptions(**parameters)
    ranked, unigrams = weigh(index, keys, unigram_log_probs, options)
    chosen = np.array(documents, np.int64)
    evidence, free = _complete_evidence(index, ranked, chosen, unigrams, options.beta)
    shares: dict[int, list[tuple[tuple[int, ...], float]]] = {number: [] for number in documents}
    for parts, ngrams in ((evidence.parts, ranked.ngrams), (free, None)):
        columns = chosen[parts.document].tolist(), parts.what.tolist(), parts.weight.tolist()
        for number, what, weight in zip(*columns, strict=True):
            shares[number].append(((what,) if ngrams is None else ngrams[what], weight))
    return {n: sorted(parts, key=lambda part: -part[1]) for n, parts in shares.items()}


# Where keys occur, and what they add to documents -----------------------------------------------


@dataclass(frozen=True)
class WeighedKeys:
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


@dataclass(frozen=True)
class Matches:
    """Where keys occur in D documents of T places in all, ordered by key, then by place.

    key, place, document: (m,) int64; document counts from 0 to D − 1, ascending with the place.
    """

    key: np.ndarray
    place: np.ndarray
    document: np.ndarray
    n_documents: int
    n_places: int


@dataclass(frozen=True)
class Parts:
    """What is added to documents, by whom: (n,) each, document and what int64, weight float64."""

    document: np.ndarray
    what: np.ndarray
    weight: np.ndarray


@dataclass(frozen=True)
class Evidence:
    """What the keys add to D documents.

    parts: of each counted key in each document; scores: (D,) float64, their sums;
    taken: (T,) bool, places that belong to a counted key;
    document, token: (c,) int64, the distinct tokens that the counted keys cover in each document.
    """

    parts: Parts
    scores: np.ndarray
    taken: np.ndarray
    document: np.ndarray
    token: np.ndarray


def gather_evidence(keys: WeighedKeys, matches: Matches, beta: float) -> Evidence:
    """Adds up the weights of the keys that occur in each document.

    The keys claim places in descending order of weight; a match that overlaps a claimed place
    counts for nothing. A key counts once a document, however often it occurs, and takes every place
    it can. Its weight is multiplied by
    1 − β + β · (its tokens that no better key has covered / its distinct tokens).
    """
    counted, taken = _without_overlap(keys, matches)
    key, document = matches.key[counted], matches.document[counted]
    new = np.ones(len(key), bool)
    new[1:] = (key[1:] != key[:-1]) | (document[1:] != document[:-1])
    key, document = key[new], document[new]
    types = [sorted(set(ngram)) for ngram in keys.ngrams]
    n_types = np.fromiter(map(len, types), np.int64, len(types))
    flat = np.array([token for row in types for token in row], np.int64)
    vocabulary, column = np.unique(flat, return_inverse=True)
    first = np.cumsum(n_types) - n_types
    pair, entry = ragged_range(first[key], first[key] + n_types[key])
    cell = document[pair] * len(vocabulary) + column[entry]
    # Which pair of key and document covers a token first: written in reverse, so that the first
    # stays. Only cells that were written are read, so the table need not be filled.
    covered_by = np.empty(matches.n_documents * len(vocabulary), np.int32)
    covered_by[cell[::-1]] = pair[::-1]
    fresh = covered_by[cell] == pair
    share = np.bincount(pair[fresh], minlength=len(key)) / n_types[key]
    weights = keys.weights[key] * (1 - beta + beta * share)
    scores = np.bincount(document, weights, minlength=matches.n_documents)
    parts = Parts(document, key, weights)
    return Evidence(parts, scores, taken, document[pair[fresh]], flat[entry[fresh]])


def _without_overlap(keys: WeighedKeys, matches: Matches) -> tuple[np.ndarray, np.ndarray]:
    """Lets the keys, the best first, take the places that are still free.

    Returns:
        counted (m,) bool, the matches that overlap no better key and no earlier match of their own;
        taken (T,) bool, the places they take.
    """
    key, place = matches.key, matches.place
    taken, counted = np.zeros(matches.n_places, bool), np.zeros(len(key), bool)
    close = (key[1:] == key[:-1]) & (np.diff(place) < keys.lengths[key[1:]])
    overlaps_itself = set(key[1:][close].tolist())
    bounds = np.searchsorted(key, np.arange(len(keys.ngrams) + 1)).tolist()
    for k, length in enumerate(keys.lengths.tolist()):
        places = place[bounds[k] : bounds[k + 1]]
        if not len(places):
            continue
        window = places[:, None] + np.arange(length)
        free = ~taken[window].any(1)
        if k in overlaps_itself:
            free = _leftmost(places, free, length)
        taken[window[free]] = True
        counted[bounds[k] : bounds[k + 1]] = free
    return counted, taken


def _leftmost(places: np.ndarray, free: np.ndarray, length: int) -> np.ndarray:
    """One key's free matches without overlap, taken from left to right."""
    chosen, end = np.zeros(len(places), bool), -1
    for i in np.flatnonzero(free).tolist():
        if places[i] >= end:
            chosen[i], end = True, places[i] + length
    return chosen


# The two stages ---------------------------------------------------------------------------------


def _best_documents(index: NgramIndex, keys: WeighedKeys, options: EvidenceOptions) -> np.ndarray:
    """Stage 1: the numbers of the documents that the rare keys score best, ascending."""
    rare = np.flatnonzero(keys.high - keys.low <= options.max_occurrences_1)
    row, entry = ragged_range(keys.low[rare], keys.high[rare])
    both = np.sort((rare[row] << 32) | index.suffixes[entry])
    key, place = both >> 32, both & 0xFFFFFFFF
    document = index.documents_at(place)
    reached = np.flatnonzero(np.bincount(document, minlength=index.n_documents))
    number_of = np.empty(index.n_documents, np.int64)  # among those reached
    number_of[reached] = np.arange(len(reached))
    matches = Matches(key, place, number_of[document], len(reached), len(index.text))
    scores = gather_evidence(keys, matches, options.beta).scores
    if options.among is not None:
        scores = np.where(np.isin(reached, list(options.among)), scores, -np.inf)

    def id_of(place: int) -> Any:  # without ids, names that fall as the numbers rise
        number = reached[place]
        return -number if options.document_ids is None else options.document_ids[number]

    return np.sort(reached[best_places(scores, options.n_docs_complete_score, id_of)])


def _complete_evidence(
    index: NgramIndex, keys: WeighedKeys, chosen: np.ndarray, unigrams: np.ndarray, beta: float
) -> tuple[Evidence, Parts]:
    """Stage 2: what all keys add to the chosen documents on their own text, and then unigrams."""
    bounds = zip(index.starts[chosen].tolist(), index.starts[chosen + 1].tolist(), strict=True)
    tokens = np.concatenate([index.text[:0], *(index.text[start:end] for start, end in bounds)])
    # The terminator becomes the corpus's largest token + 1, which no key has.
    tokens = np.minimum(tokens, tokens.dtype.type(index.tokens[-1] + 1))
    document = np.repeat(np.arange(len(chosen)), np.diff(index.starts)[chosen])
    key, place = _find(keys.ngrams, tokens)
    matches = Matches(key, place, document[place], len(chosen), len(tokens))
    evidence = gather_evidence(keys, matches, beta)
    return evidence, _free_unigrams(tokens, document, evidence, unigrams, beta)


def _find(ngrams: list[tuple[int, ...]], tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every place of n-grams in a text: their numbers and the places, n-gram after n-gram."""
    firsts, group_of_ngram = np.unique(
        np.array([ngram[0] for ngram in ngrams], np.int64), return_inverse=True
    )
    group_of = np.full(
        max(tokens.max(initial=0), firsts.max(initial=0)) + 1, len(firsts), np.uint16
    )
    group_of[firsts] = np.arange(len(firsts))
    group = group_of[tokens]
    starts = np.flatnonzero(group < len(firsts))
    starts = starts[np.argsort(group[starts], kind="stable")]
    bounds = np.searchsorted(group[starts], np.arange(len(firsts) + 1))
    every = [np.empty(0, np.int64)]
    for ngram, g in zip(ngrams, group_of_ngram, strict=True):
        places = starts[bounds[g] : bounds[g + 1]]
        for t, token in enumerate(ngram[1:], start=1):
            places = places[tokens[places + t] == token]
        every.append(places)
    counts = [len(places) for places in every[1:]]
    return np.repeat(np.arange(len(ngrams)), counts), np.concatenate(every)


def _free_unigrams(
    tokens: np.ndarray,
    document_of: np.ndarray,
    evidence: Evidence,
    unigrams: np.ndarray,
    beta: float,
) -> Parts:
    """What free places add: each token type once a document, reduced if a key has covered it."""
    types = np.flatnonzero(unigrams)
    column_of = np.full(len(unigrams), -1)
    column_of[types] = np.arange(len(types))
    free = np.flatnonzero((unigrams > 0)[tokens] & ~evidence.taken)
    present = np.zeros(len(evidence.scores) * len(types), bool)
    present[document_of[free] * len(types) + column_of[tokens[free]]] = True
    covered = np.zeros_like(present)
    known = unigrams[evidence.token] > 0
    covered[evidence.document[known] * len(types) + column_of[evidence.token[known]]] = True
    cells = np.flatnonzero(present)
    document, column = np.divmod(cells, max(1, len(types)))
    token = types[column]
    return Parts(document, token, unigrams[token] * np.where(covered[cells], 1 - beta, 1))


# What keys weigh ----------------------------------------------------------------------------------


def weigh(
    index: NgramIndex,
    keys: Sequence[tuple[Sequence[int], float]],
    unigram_log_probs: Sequence[float] | np.ndarray | None,
    options: EvidenceOptions,
) -> tuple[WeighedKeys, np.ndarray]:
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
    options: EvidenceOptions,
) -> WeighedKeys:
    """Weighs keys by their log-probabilities, adds unigrams of known weight, and orders them all.

    Drops keys that do not occur in the corpus, or that it makes as probable as the query does.
    """
    ngrams = [*log_probs, *unigrams]
    low, high = index.intervals(ngrams)
    given = np.fromiter(log_probs.values(), np.float64, len(log_probs))
    odds = log_odds(given, (high - low)[: len(given)], len(index), options.smoothing)
    weights = np.array([*odds**options.alpha, *unigrams.values()])
    order = sorted(np.flatnonzero(weights).tolist(), key=lambda i: (-weights[i], ngrams[i]))
    return WeighedKeys([ngrams[i] for i in order], weights[order], low[order], high[order])


def weigh_unigrams(
    index: NgramIndex, log_probs: np.ndarray, excluded: Collection[int], options: EvidenceOptions
) -> np.ndarray:
    """The weights of the corpus's tokens as unigrams; those of `excluded` tokens are 0.

    Args:
        log_probs: (V,) of the first generated token; only the greatest count, ties go to the
            lowest id.
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
    """The indices of the k greatest values; ties go to the lowest index."""
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
