"""Token segments of a document: what a generative system decodes for training and reranking."""

import zlib
from collections.abc import Sequence

import numpy as np

from data_modules.spans import fixed_windows, sample_starts, span_weights
from gr_mvdr.parts import part


def token_spans(document: dict, starts: Sequence[int], length: int) -> list[list[int]]:
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
class Windows:
    """Consecutive windows over the document's first tokens: they do not look at the query."""

    def __init__(self, length: int = 10, document_length: int = 256):
        """
        Args:
            length: tokens a window, the length of a key in search.
            document_length: tokens of the document that are looked at, the end token included.
        """
        self.length, self.document_length = length, document_length

    def __call__(self, query: str, document: dict) -> list[list[int]]:
        """Token lists of one document."""
        # As many as a batch holds besides the end token.
        return fixed_windows(document["tokens"][: self.document_length - 1], self.length)


@part("segments")
class SampledSpans:
    """Spans drawn by similarity to the query, as in training: the paper's rerank setting.

    A document without text has none, nor has a span of words without a token.

    Lexical overlap leaks into the score this way (facts: reranking by a generative model).
    """

    def __init__(self, n_spans: int = 3, length: int = 10, temperature: float = 1.0, seed: int = 0):
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
        return [span for span in token_spans(document, starts, self.length) if span]
