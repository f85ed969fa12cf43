"""SEAL's intersective scorer: from generated n-grams to document scores (Bevilacqua et al. 2022).

A document's score is the sum of the weights (`key_weights`) of the keys that occur in it without
overlapping (`key_matches`). It is found in two stages:

1. The keys that are rare enough to visit all their places score every document that they reach.
2. The best of these documents are scored again, on their own text and with the frequent keys too;
   then the places that no key has taken receive unigram weights.

Both work on all documents at once; Python loops over the keys alone.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gr_mvdr.decoding.constraint import ragged_range
from gr_mvdr.decoding.key_matches import Evidence, Matches, gather_evidence
from gr_mvdr.decoding.key_weights import Keys, merge_keys, rank_keys, unigram_weights
from gr_mvdr.decoding.ngram_index import NgramIndex
from gr_mvdr.evaluation.ranking import best_places


def score_documents(
    index: NgramIndex,
    keys: Sequence[tuple[Sequence[int], float]],
    unigram_log_probs: Sequence[float] | np.ndarray | None = None,
    *,
    max_occurrences_1: int = 1500,
    n_docs_complete_score: int = 1500,
    alpha: float = 2.0,
    beta: float = 0.8,
    smoothing: float = 5.0,
    use_top_k_unigrams: int = 5000,
    add_best_unigrams_to_ngrams: bool = False,
    special_ids: Sequence[int] = (0, 1, 2),
    document_ids: Sequence[str] | None = None,
) -> dict[int, float]:
    """Scores the documents that hold a query's n-grams (SEAL's intersective score).

    Args:
        index: the corpus.
        keys: token ids and log p(n|q). Special ids are cut off at a key's ends; of equal keys the
            most probable counts.
        unigram_log_probs: (V,) log-probabilities of the first generated token; None: no unigrams.
        max_occurrences_1: a key that occurs more often is left to stage 2.
        n_docs_complete_score: so many documents go on to stage 2; the others get no score.
        alpha: exponent of the keys' weights; unigrams have none.
        beta: the part of its weight that a key loses if better keys cover all its tokens.
        smoothing: s, added to the counts of the corpus.
        use_top_k_unigrams: only so many of the most probable unigrams count.
        add_best_unigrams_to_ngrams: makes the best unigrams, as many as there are keys, keys too.
        special_ids: ids that never score as unigrams.
        document_ids: of the corpus's documents. They choose among equal scores in stage 1, as in
            `gr_mvdr.evaluation.ranking.Ranking`; None: the document numbers do, the first first.
    Returns:
        {document number: score}, the best first.
    Raises:
        ValueError: a key is longer than the index is deep.
    """
    log_probs = merge_keys(keys, special_ids)
    excluded = {*special_ids, *(ngram[0] for ngram in log_probs if len(ngram) == 1)}
    unigrams = unigram_weights(
        index,
        np.asarray(() if unigram_log_probs is None else unigram_log_probs, np.float64),
        use_top_k_unigrams,
        smoothing,
        excluded,
    )
    added = {}
    if add_best_unigrams_to_ngrams:
        best = np.argsort(-unigrams, kind="stable")[: len(log_probs)].tolist()
        added = {(token,): unigrams[token] for token in best}
    ranked = rank_keys(index, log_probs, added, alpha, smoothing)
    is_rare = ranked.high - ranked.low <= max_occurrences_1
    rare = _rare_matches(index, ranked, np.flatnonzero(is_rare))
    # Without ids, names that fall as the numbers rise.
    id_of = (lambda number: -number) if document_ids is None else document_ids.__getitem__
    chosen = _best_documents(ranked, rare, n_docs_complete_score, beta, id_of)
    scores = _complete_scores(index, ranked, is_rare, rare, chosen, unigrams, beta)
    order = np.argsort(-scores, kind="stable")
    return dict(zip(chosen[order].tolist(), scores[order].tolist(), strict=True))


# Stage 1: the documents that rare keys reach ---------------------------------------------------


def _rare_matches(index: NgramIndex, keys: Keys, rare: np.ndarray) -> Matches:
    """Every place of the rare keys in the whole corpus."""
    row, entry = ragged_range(keys.low[rare], keys.high[rare])
    both = np.sort((rare[row] << 32) | index.suffixes[entry])
    key, place = both >> 32, both & 0xFFFFFFFF
    return Matches(key, place, index.documents_at(place), index.n_documents, len(index.text))


def _best_documents(
    keys: Keys, rare: Matches, n_best: int, beta: float, id_of: Callable[[int], Any]
) -> np.ndarray:
    """The numbers of the documents that the rare keys score best, ascending."""
    reached, document = _renumber(rare.document, rare.n_documents)
    matches = Matches(rare.key, rare.place, document, len(reached), rare.n_places)
    scores = gather_evidence(keys, matches, beta).scores
    return np.sort(reached[best_places(scores, n_best, lambda place: id_of(reached[place]))])


def _renumber(numbers: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The distinct numbers (all below n), ascending, and each one's place among them."""
    distinct = np.flatnonzero(np.bincount(numbers, minlength=n))
    place = np.empty(n, np.int64)
    place[distinct] = np.arange(len(distinct))
    return distinct, place[numbers]


# Stage 2: the complete score of the chosen documents -------------------------------------------


def _complete_scores(
    index: NgramIndex,
    keys: Keys,
    is_rare: np.ndarray,
    rare: Matches,
    chosen: np.ndarray,
    unigrams: np.ndarray,
    beta: float,
) -> np.ndarray:
    """The chosen documents' scores, (D,) float64: all keys, then unigrams, on their own text."""
    lengths = np.diff(index.starts)[chosen]
    starts = np.cumsum(lengths) - lengths
    tokens = _texts(index, chosen)
    document_of = np.repeat(np.arange(len(chosen)), lengths)
    shift = np.full(index.n_documents, -1)
    shift[chosen] = index.starts[chosen] - starts
    inside = np.flatnonzero(np.isin(rare.document, chosen))
    frequent_key, frequent_place = _find(keys, np.flatnonzero(~is_rare), tokens)
    key = np.append(rare.key[inside], frequent_key)
    place = np.append(rare.place[inside] - shift[rare.document[inside]], frequent_place)
    order = np.argsort(key, kind="stable")  # each key's places are in order already
    key, place = key[order], place[order]
    matches = Matches(key, place, document_of[place], len(chosen), len(tokens))
    found = gather_evidence(keys, matches, beta)
    return found.scores + _unigram_scores(tokens, document_of, found, unigrams, beta)


def _texts(index: NgramIndex, chosen: np.ndarray) -> np.ndarray:
    """The documents' texts in a row; the terminator becomes the corpus's largest token + 1."""
    bounds = zip(index.starts[chosen].tolist(), index.starts[chosen + 1].tolist(), strict=True)
    tokens = np.concatenate([index.text[:0], *(index.text[start:end] for start, end in bounds)])
    return np.minimum(tokens, tokens.dtype.type(index.tokens[-1] + 1))


def _find(keys: Keys, which: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every place of the given keys in a text: keys and places."""
    firsts, group_of_key = np.unique(
        np.array([keys.ngrams[k][0] for k in which], np.int64), return_inverse=True
    )
    group_of = np.full(
        max(tokens.max(initial=0), firsts.max(initial=0)) + 1, len(firsts), np.uint16
    )
    group_of[firsts] = np.arange(len(firsts))
    group = group_of[tokens]
    starts = np.flatnonzero(group < len(firsts))
    starts = starts[np.argsort(group[starts], kind="stable")]
    bounds = np.searchsorted(group[starts], np.arange(len(firsts) + 1))
    found = [np.empty(0, np.int64)]
    for k, g in zip(which, group_of_key, strict=True):
        places = starts[bounds[g] : bounds[g + 1]]
        for t, token in enumerate(keys.ngrams[k][1:], start=1):
            places = places[tokens[places + t] == token]
        found.append(places)
    return np.repeat(which, [len(places) for places in found[1:]]), np.concatenate(found)


def _unigram_scores(
    tokens: np.ndarray,
    document_of: np.ndarray,
    found: Evidence,
    unigrams: np.ndarray,
    beta: float,
) -> np.ndarray:
    """What free places add: each token type once a document, reduced if a key has covered it."""
    types = np.flatnonzero(unigrams)
    if not len(types):
        return np.zeros_like(found.scores)
    column_of = np.full(len(unigrams), -1)
    column_of[types] = np.arange(len(types))
    free = np.flatnonzero((unigrams > 0)[tokens] & ~found.taken)
    present = np.zeros(len(found.scores) * len(types), bool)
    present[document_of[free] * len(types) + column_of[tokens[free]]] = True
    covered = np.zeros_like(present)
    known = unigrams[found.token] > 0
    covered[found.document[known] * len(types) + column_of[found.token[known]]] = True
    cells = np.flatnonzero(present)
    document, column = np.divmod(cells, len(types))
    weights = unigrams[types[column]] * np.where(covered[cells], 1 - beta, 1)
    return np.bincount(document, weights, minlength=len(found.scores))
