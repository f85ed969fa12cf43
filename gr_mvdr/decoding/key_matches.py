"""Where keys occur in documents, and what they add to the documents' scores (SEAL's intersection).

The keys claim places of the documents' texts in descending order of weight; a match that overlaps a
claimed place counts for nothing. All documents are handled at once, one key after the other.
"""

from dataclasses import dataclass

import numpy as np

from gr_mvdr.decoding.constraint import ragged_range
from gr_mvdr.decoding.key_weights import Keys


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
class Evidence:
    """What the keys add to D documents.

    scores: (D,) float64; taken: (T,) bool, places that belong to a counted key;
    document, token: (c,) int64, the distinct tokens that the counted keys cover in each document.
    """

    scores: np.ndarray
    taken: np.ndarray
    document: np.ndarray
    token: np.ndarray


def gather_evidence(keys: Keys, matches: Matches, beta: float) -> Evidence:
    """Adds up the weights of the keys found in each document.

    A key counts once a document, however often it occurs, and takes every place it can. Its weight
    is multiplied by 1 − β + β · (its tokens that no better key has covered / its distinct tokens).
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
    return Evidence(scores, taken, document[pair[fresh]], flat[entry[fresh]])


def _without_overlap(keys: Keys, matches: Matches) -> tuple[np.ndarray, np.ndarray]:
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
    """Of one key's free matches, those that a walk from the left can take."""
    chosen, end = np.zeros(len(places), bool), -1
    for i in np.flatnonzero(free).tolist():
        if places[i] >= end:
            chosen[i], end = True, places[i] + length
    return chosen
