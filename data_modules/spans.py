"""Spans of a passage: SEAL's training targets, and fixed windows for leak-free reranking."""

from collections.abc import Sequence

import numpy as np

# Words at which no span begins (single letters are what is left of contractions).
STOPWORDS = frozenset(
    """
    a about above after again against all am an and any are as at be because been before being
    below between both but by can did do does doing don down during each few for from further
    had has have having he her here hers him his how i if in into is it its just me more most my
    myself no nor not now of off on once only or other our ours ourselves out over own s same
    she should so some such t than that the their them then there these they this those through
    to too under until up very was we were what when where which while who whom why will with
    you your yours
    """.split()
)


def span_weights(query: str, passage: str, temperature: float = 1.0, window: int = 3) -> np.ndarray:
    """How probable a span starts at each word of the passage (SEAL's supervised targets).

    The weight of a start is softmax(s / temperature), where s sums, over all windows of `window`
    words of the query, their indel similarity (whole percents) to the passage's window there. No
    span starts at a stopword, unless there is nothing else: then every start is equally probable.

    Args:
        query, passage: split at white space; compared in lower case.
    Returns:
        (passage words,) float64, summing to 1; (0,) of a passage without words.
    Raises:
        ValueError: the temperature is not positive.
    """
    from rapidfuzz import fuzz, process

    if not temperature > 0:
        raise ValueError(f"temperature={temperature}: must be > 0")
    words = passage.lower().split()
    starts = np.flatnonzero([word not in STOPWORDS for word in words])
    if not len(starts):
        return np.full(len(words), 1 / max(1, len(words)))
    query_windows = _windows(query.lower().split(), window)
    passage_windows = _windows(words, window)
    percents = process.cdist(
        query_windows, [passage_windows[start] for start in starts], scorer=fuzz.ratio
    )
    similarity = np.rint(percents.astype(np.float64)).sum(0) / 100 / temperature
    weights = np.zeros(len(words))
    weights[starts] = np.exp(similarity - similarity.max())
    return weights / weights.sum()


def sample_starts(weights: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Draws n start words with replacement: (n,) int64, from weights as `span_weights` gives.

    Where there is no word, there is none to draw: (0,).
    """
    if not len(weights):
        return np.empty(0, dtype=np.int64)
    cumulative = np.cumsum(weights)
    return np.searchsorted(cumulative / cumulative[-1], rng.random(n), side="right")


def sample_spans(
    query: str,
    passage: str,
    n_spans: int,
    rng: np.random.Generator,
    length: int = 10,
    temperature: float = 1.0,
) -> list[str]:
    """Draws spans of `length` words that resemble the query: SEAL's training targets of a pair.

    To draw afresh in each epoch, keep `span_weights` and call `sample_starts` and `spans_at`.

    Returns:
        n_spans strings in the passage's own case; one that starts near the end is shorter. A
        passage without words has none.
    Raises:
        ValueError: as `span_weights`, or a length below 1.
    """
    starts = sample_starts(span_weights(query, passage, temperature), n_spans, rng)
    return spans_at(passage, starts, length)


def spans_at(passage: str, starts: Sequence[int], length: int = 10) -> list[str]:
    """The up to `length` words of the passage from each start on, in their own case."""
    if length < 1:
        raise ValueError(f"length={length}: must be ≥ 1")
    words = passage.split()
    return [" ".join(words[start : start + length]) for start in starts]


def fixed_windows(tokens: Sequence[int], length: int) -> list[Sequence[int]]:
    """Cuts a document's tokens into consecutive windows: segments that do not look at a query.

    Returns:
        windows of `length` tokens that do not overlap; the last may be shorter.
    Raises:
        ValueError: a length below 1.
    """
    if length < 1:
        raise ValueError(f"length={length}: must be ≥ 1")
    return [tokens[start : start + length] for start in range(0, len(tokens), length)]


def _windows(words: list[str], width: int) -> list[str]:
    """The window that starts at each word; those at the end are shorter."""
    return [" ".join(words[start : start + width]) for start in range(len(words))]
