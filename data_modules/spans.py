"""Spans of a document: SEAL's training targets, and the segments that reranking decodes."""

import zlib
from collections.abc import Sequence

import numpy as np

from gr_mvdr.options import Positive, Seed, Size, part

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


def _windows(words: list[str], width: int) -> list[str]:
    """The window that starts at each word; those at the end are shorter."""
    return [" ".join(words[start : start + width]) for start in range(len(words))]


def sample_starts(weights: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Draws n start words with replacement: (n,) int64, from weights as `span_weights` gives.

    A text without words gives none: (0,).
    """
    if not len(weights):
        return np.empty(0, dtype=np.int64)
    cumulative = np.cumsum(weights)
    return np.searchsorted(cumulative / cumulative[-1], rng.random(n), side="right")


def cut_spans(document: dict, starts: Sequence[int], length: int) -> list[list[int]]:
    """The tokens of the `length` words from each start on; fewer at the document's end.

    Args:
        document: a row with `tokens` and `word_starts`.
        starts: word numbers.
        length: in words.
    """
    tokens = document["tokens"]
    bounds = [*document["word_starts"], len(tokens)]
    last = len(bounds) - 1
    return [tokens[bounds[start] : bounds[min(start + length, last)]] for start in starts]


@part("segments")
class SampledSpans:
    """Spans drawn by similarity to the query, as in training: the paper's rerank setting.

    So the words that query and document share raise the score. A document without text has no
    spans; spans without a token are left out.
    """

    def __init__(
        self, n_spans: Size = 3, length: Size = 10, temperature: Positive = 1.0, seed: Seed = 0
    ):
        """
        Args:
            n_spans: spans a document.
            length: words a span.
            temperature: T of the softmax over start words.
            seed: the same pair gets the same spans in every run of the same seed.
        """
        self.n_spans, self.length = n_spans, length
        self.temperature, self.seed = temperature, seed

    def __call__(self, query: str, document: dict) -> list[list[int]]:
        """Token lists of one document."""
        pair = zlib.crc32(f"{query}\n{document['id']}".encode())
        weights = span_weights(query, document["text"], self.temperature)
        starts = sample_starts(weights, self.n_spans, np.random.default_rng((self.seed, pair)))
        return [span for span in cut_spans(document, starts, self.length) if span]
