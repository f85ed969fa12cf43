"""SEAL's intersective scorer: from generated n-grams to document scores (Bevilacqua et al. 2022).

A key is a generated n-gram n. Its weight is max(0, logit p(n|q) − logit p(n))^α, where
p(n) = (count + s) / (tokens + s) and logit x = log x − log(1 − x). The weight of a unigram is the
same without the exponent. A document's score is the sum of the weights of the keys that occur in it
without overlapping, computed in two stages:

1. Rare keys, all of whose occurrences can be visited, score every document that holds them.
2. The best of these documents are scored again on their own text, now with the frequent keys too;
   then the places that no key has taken receive unigram weights.

A match is a key at a place of a text. Both stages process the matches of all documents at once;
Python loops only over the keys.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gr_mvdr.batch import ragged_range
from gr_mvdr.decoding.ngram_index import NgramIndex
from gr_mvdr.evaluation.ranking import best_places
from gr_mvdr.options import Count, Fraction, NonNegative, Positive


@dataclass(frozen=True)
class EvidenceOptions:
    """The options of `score_documents`.

    Attributes:
        max_occurrences_1: a key that occurs more often is used in stage 2 only.
        n_docs_complete_score: the number of documents in stage 2; the others get no score.
        alpha: exponent of the keys' weights; unigrams have none.
        beta: the fraction of its weight that a key loses if better keys cover all its tokens.
        smoothing: s, added to the counts of the corpus.
        use_top_k_unigrams: only this many unigrams, the most probable ones, count.
        add_best_unigrams_to_ngrams: whether the best unigrams become keys too, as many as there are
            keys.
        special_ids: ids that are stripped from the ends of keys and never score as unigrams.
        among: the numbers of the documents that may get a score; None = all.
        document_ids: the ids of the corpus's documents, which break ties in stage 1 as in
            `gr_mvdr.evaluation.ranking.Ranking`; None = ties go to the lowest document number.
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
        keys: token ids and log p(n|q). Special ids are stripped from both ends of a key; among
            equal keys only the most probable one counts.
        unigram_log_probs: (V,) log-probabilities of the first generated token; None = no unigrams.
        parameters: the options of `EvidenceOptions`.

    Returns:
        {document number: score}, the best first.

    Raises:
        ValueError: a key is longer than the depth of the index.
    """
    options = EvidenceOptions(**parameters)
    weighed = weigh(index, keys, unigram_log_probs, options)
    chosen = _best_documents(index, weighed, options)
    document, _, weight = _find_parts(index, weighed, chosen, options.beta)
    scores = np.bincount(document, weight, minlength=len(chosen))
    order = np.argsort(-scores, kind="stable")
    return dict(zip(chosen[order].tolist(), scores[order].tolist(), strict=True))


def share_scores(
    index: NgramIndex,
    keys: Sequence[tuple[Sequence[int], float]],
    unigram_log_probs: Sequence[float] | np.ndarray | None,
    documents: Sequence[int],
    **parameters: Any,
) -> dict[int, list[tuple[tuple[int, ...], float]]]:
    """Splits the scores of `score_documents` into the contributions of keys and unigrams.

    Args:
        index, keys, unigram_log_probs, parameters: see `score_documents`.
        documents: numbers of documents that have a score.

    Returns:
        {document number: [(token ids, contribution), …]}, the greatest contribution first.
    """
    options = EvidenceOptions(**parameters)
    weighed = weigh(index, keys, unigram_log_probs, options)
    parts = _find_parts(index, weighed, np.array(documents, np.int64), options.beta)
    shares: dict[int, list[tuple[tuple[int, ...], float]]] = {number: [] for number in documents}
    n_keys = len(weighed.ngrams)
    for row, what, weight in zip(*(column.tolist() for column in parts), strict=True):
        tokens = weighed.ngrams[what] if what < n_keys else (what - n_keys,)
        shares[documents[row]].append((tokens, weight))
    return {number: sorted(own, key=lambda share: -share[1]) for number, own in shares.items()}


# Weights of keys ----------------------------------------------------------------------------------


class WeighedKeys(NamedTuple):
    """n-grams with positive weight, the heaviest first; ties are ordered by tokens.

    Attributes:
        weights: (n,) float64.
        low, high: (n,) int64, the n-grams' intervals in the index.
        unigrams: (largest token of the corpus + 2,) float64, each token's weight as a unigram; the
            last one, for the terminator, is 0.
    """

    ngrams: list[tuple[int, ...]]
    weights: np.ndarray
    low: np.ndarray
    high: np.ndarray
    unigrams: np.ndarray


def weigh(
    index: NgramIndex,
    keys: Sequence[tuple[Sequence[int], float]],
    unigram_log_probs: Sequence[float] | np.ndarray | None,
    options: EvidenceOptions,
) -> WeighedKeys:
    """Computes the weights of keys and unigrams; drops keys of weight 0."""
    merged: dict[tuple[int, ...], float] = {}
    for ngram, log_prob in keys:
        if stripped := strip(ngram, options.special_ids):
            merged[stripped] = max(log_prob, merged.get(stripped, -np.inf))
    first = np.asarray(() if unigram_log_probs is None else unigram_log_probs, np.float64)
    given = np.full(max(len(first), index.tokens[-1] + 1), -np.inf)
    if k := min(options.use_top_k_unigrams, len(first)):
        limit = np.partition(first, -k)[-k]
        above, ties = np.flatnonzero(first > limit), np.flatnonzero(first == limit)
        best = np.append(above, ties[: k - len(above)])  # ties go to the lowest id
        given[best] = first[best]
    unigrams = np.zeros(index.tokens[-1] + 2)
    corpus = len(index), options.smoothing
    unigrams[index.tokens] = log_odds(given[index.tokens], index.token_counts, *corpus)
    excluded = [*options.special_ids, *(ngram[0] for ngram in merged if len(ngram) == 1)]
    unigrams[[token for token in excluded if token < len(unigrams)]] = 0
    added: list[int] = []
    if options.add_best_unigrams_to_ngrams:
        added = np.argsort(-unigrams, kind="stable")[: len(merged)].tolist()
    ngrams = [*merged, *((token,) for token in added)]
    low, high = index.intervals(ngrams)
    log_probs = np.fromiter(merged.values(), np.float64, len(merged))
    odds = log_odds(log_probs, (high - low)[: len(merged)], *corpus)
    weights = np.append(odds**options.alpha, unigrams[added])
    order = sorted(np.flatnonzero(weights).tolist(), key=lambda i: (-weights[i], ngrams[i]))
    ngrams = [ngrams[i] for i in order]
    return WeighedKeys(ngrams, weights[order], low[order], high[order], unigrams)


def strip(ngram: Sequence[int], special_ids: Collection[int]) -> tuple[int, ...]:
    """Returns an n-gram without the special ids at its ends."""
    kept = [place for place, token in enumerate(ngram) if token not in special_ids]
    return tuple(ngram[kept[0] : kept[-1] + 1]) if kept else ()


def log_odds(
    log_probs: np.ndarray, counts: np.ndarray, n_tokens: int, smoothing: float
) -> np.ndarray:
    """Computes max(0, logit p(n|q) − logit p(n)); 0 for n-grams that the corpus lacks."""
    # A count of 0 gives 0 below; replacing it by 1 keeps the logarithm finite.
    corpus = np.log((np.maximum(counts, 1) + smoothing) / (n_tokens + smoothing))
    # The logit of probability 1 is infinite.
    given, corpus = np.minimum(log_probs, -1e-10), np.minimum(corpus, -1e-10)
    odds = given - np.log(-np.expm1(given)) - corpus + np.log(-np.expm1(corpus))
    return np.where(counts > 0, np.maximum(odds, 0), 0)


# The two stages ---------------------------------------------------------------------------------


def _best_documents(index: NgramIndex, keys: WeighedKeys, options: EvidenceOptions) -> np.ndarray:
    """Stage 1: returns the numbers of the documents that rare keys score best, ascending."""
    rare = np.flatnonzero(keys.high - keys.low <= options.max_occurrences_1)
    row, entry = ragged_range(keys.low[rare], keys.high[rare])
    both = np.sort((rare[row] << 32) | index.suffixes[entry])
    key, place = both >> 32, both & 0xFFFFFFFF
    document = index.documents_at(place)
    reached = np.flatnonzero(np.bincount(document, minlength=index.n_documents))
    number_of = np.empty(index.n_documents, np.int64)  # position in `reached`
    number_of[reached] = np.arange(len(reached))
    matches, taken = (key, place, number_of[document]), np.zeros(len(index.text), bool)
    (document, _, weight), _ = _add_up(keys, matches, taken, len(reached), options.beta)
    scores = np.bincount(document, weight, minlength=len(reached))
    if options.among is not None:
        scores = np.where(np.isin(reached, list(options.among)), scores, -np.inf)

    def id_of(place: int) -> Any:  # without ids, the negative number: ties go to the lowest number
        number = reached[place]
        return -number if options.document_ids is None else options.document_ids[number]

    return np.sort(reached[best_places(scores, options.n_docs_complete_score, id_of)])


def _find_parts(
    index: NgramIndex, keys: WeighedKeys, chosen: np.ndarray, beta: float
) -> tuple[np.ndarray, ...]:
    """Stage 2: computes what all keys, and then unigrams, add to the chosen documents' scores.

    Returns:
        Three arrays (n,): the document's place in `chosen`; the key's number, or for a unigram its
        token + the number of keys; and the contribution.
    """
    bounds = zip(index.starts[chosen].tolist(), index.starts[chosen + 1].tolist(), strict=True)
    tokens = np.concatenate([index.text[:0], *(index.text[start:end] for start, end in bounds)])
    # The terminator becomes the corpus's largest token + 1, which no key contains.
    tokens = np.minimum(tokens, tokens.dtype.type(index.tokens[-1] + 1))
    document = np.repeat(np.arange(len(chosen)), np.diff(index.starts)[chosen])
    taken, (key, place) = np.zeros(len(tokens), bool), _find(keys, tokens)
    matches = key, place, document[place]
    parts, covered = _add_up(keys, matches, taken, len(chosen), beta)
    # Free places: each distinct token counts once per document, and less if a key has covered it.
    types = np.flatnonzero(keys.unigrams)
    column_of = np.full(len(keys.unigrams), -1)
    column_of[types] = np.arange(len(types))
    present, known = np.zeros((2, len(chosen) * len(types)), bool)
    free = np.flatnonzero((keys.unigrams > 0)[tokens] & ~taken)
    present[document[free] * len(types) + column_of[tokens[free]]] = True
    row, token = covered[:, keys.unigrams[covered[1]] > 0]
    known[row * len(types) + column_of[token]] = True
    cells = np.flatnonzero(present)
    row, column = np.divmod(cells, max(1, len(types)))
    weight = keys.unigrams[types[column]] * np.where(known[cells], 1 - beta, 1)
    unigrams = row, types[column] + len(keys.ngrams), weight
    return tuple(np.append(*both) for both in zip(parts, unigrams, strict=True))


def _find(keys: WeighedKeys, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Finds all matches of keys in a text: the key (m,) and place (m,), ordered by key."""
    firsts = np.unique(np.array([ngram[0] for ngram in keys.ngrams], np.int64))
    group_of = np.full(len(keys.unigrams), len(firsts), np.uint16)  # by token
    group_of[firsts] = np.arange(len(firsts))
    group = group_of[tokens]
    starts = np.flatnonzero(group < len(firsts))
    starts = starts[np.argsort(group[starts], kind="stable")]
    bounds = np.searchsorted(group[starts], np.arange(len(firsts) + 1))
    every = [starts[:0]]
    for ngram in keys.ngrams:
        begin = group_of[ngram[0]]
        places = starts[slice(*bounds[begin : begin + 2])]
        for t, token in enumerate(ngram[1:], start=1):
            places = places[tokens[places + t] == token]
        every.append(places)
    counts = [len(places) for places in every[1:]]
    return np.repeat(np.arange(len(counts)), counts), np.concatenate(every)


# Keys that claim places ---------------------------------------------------------------------------


def _add_up(
    keys: WeighedKeys,
    matches: tuple[np.ndarray, np.ndarray, np.ndarray],
    taken: np.ndarray,
    n_documents: int,
    beta: float,
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Computes the weights of the keys that occur in D documents.

    The keys claim places in descending order of weight; a match that overlaps a claimed place does
    not count. A key counts once per document, however often it occurs, but claims every place it
    can. Its weight is multiplied by
    1 − β + β · (its distinct tokens that no better key covers / its distinct tokens).

    Args:
        matches: the key, place and document of each match, (m,) int64, ordered by key, then by
            place; documents are numbered from 0 to D − 1.
        taken: (places,) bool, all False; set to True where a key claims a place.

    Returns:
        The document, key and weight (n,) of each key that counts in a document; and the distinct
        tokens that these keys cover, (2, c) documents and tokens.
    """
    counted = _claim_places(keys, *matches[:2], taken)
    key, document = matches[0][counted], matches[2][counted]
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
    # The first (key, document) pair that covers each token: writing in reverse order leaves the
    # first. Only cells that were written are read, so the table need not be initialised.
    covered_by = np.empty(n_documents * len(vocabulary), np.int32)
    covered_by[cell[::-1]] = pair[::-1]
    fresh = covered_by[cell] == pair
    share = np.bincount(pair[fresh], minlength=len(key)) / n_types[key]
    weight = keys.weights[key] * (1 - beta + beta * share)
    return (document, key, weight), np.stack([document[pair[fresh]], flat[entry[fresh]]])


def _claim_places(
    keys: WeighedKeys, key: np.ndarray, place: np.ndarray, taken: np.ndarray
) -> np.ndarray:
    """Returns (m,) bool: matches that overlap no better key and no earlier match of their key."""
    counted, lengths = np.zeros(len(key), bool), np.array([len(n) for n in keys.ngrams], np.int64)
    close = (key[1:] == key[:-1]) & (np.diff(place) < lengths[key[1:]])
    overlaps_itself = set(key[1:][close].tolist())
    bounds = np.searchsorted(key, np.arange(len(lengths) + 1)).tolist()
    for k, length in enumerate(lengths.tolist()):
        places = place[bounds[k] : bounds[k + 1]]
        if not len(places):
            continue
        window = places[:, None] + np.arange(length)
        free = ~taken[window].any(1)
        if k in overlaps_itself:  # claims its places from left to right
            end = -1
            for i in np.flatnonzero(free).tolist():
                free[i] = places[i] >= end
                end = places[i] + length if free[i] else end
        taken[window[free]] = True
        counted[bounds[k] : bounds[k + 1]] = free
    return counted
