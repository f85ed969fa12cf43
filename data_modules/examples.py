"""What stands on the document side of a training pair: the document, or an identifier of it."""

from collections.abc import Callable
from functools import partial

import numpy as np
from datasets import Dataset, Features, List, Value

from data_modules.collection import cached_table
from data_modules.segments import token_spans
from data_modules.spans import sample_starts, span_weights
from gr_mvdr.progress import track

# Draws the token sequences that answer the query of a pair: (pair number, rng) → targets.
Draw = Callable[[int, np.random.Generator], list[list[int]]]

_WEIGHTS = Features({"weights": List(Value("float32"))})


class DocumentExamples:
    """(query, document): the document's own tokens. For multi-vector systems."""

    def prepare(self, pairs: Dataset, queries: Dataset, documents: Dataset) -> Draw:
        """Computes what is needed once a collection and answers the function that draws targets.

        Args:
            pairs: the training pairs, columns query_row and document_row.
            queries, documents: columns id, text, tokens, word_starts.
        """
        rows = pairs["document_row"][:]
        return lambda pair, rng: [documents[rows[pair]]["tokens"]]


class SpanExamples:
    """(query, span): SEAL's targets, spans of the document that resemble the query.

    The weights of the start words are computed once and cached; the spans are drawn afresh in
    every epoch, from (seed, epoch, pair).
    """

    def __init__(self, n_spans: int = 10, length: int = 10, temperature: float = 1.0):
        """
        Args:
            n_spans: spans a pair and epoch (10 on MS MARCO, 5 on NQ320k in the paper).
            length: words of a span.
            temperature: T of the softmax over start words.
        """
        for key, value in (("n_spans", n_spans), ("length", length)):
            if value < 1:
                raise ValueError(f"data.examples.{key}={value}: must be ≥ 1")
        self.n_spans, self.length, self.temperature = n_spans, length, temperature

    def prepare(self, pairs: Dataset, queries: Dataset, documents: Dataset) -> Draw:
        """As `DocumentExamples.prepare`."""
        rows = pairs["document_row"][:]
        table = cached_table(
            partial(self._weights, pairs, queries, documents),
            _WEIGHTS,
            "span-weights/1",
            str(self.temperature),
            *(table._fingerprint for table in (pairs, queries, documents)),
        )

        def draw(pair: int, rng: np.random.Generator) -> list[list[int]]:
            starts = sample_starts(np.asarray(table[pair]["weights"]), self.n_spans, rng)
            return token_spans(documents[rows[pair]], starts, self.length)

        return draw

    def _weights(self, pairs: Dataset, queries: Dataset, documents: Dataset):
        for pair in track(pairs, "span weights", total=len(pairs)):
            query, document = queries[pair["query_row"]], documents[pair["document_row"]]
            yield {"weights": span_weights(query["text"], document["text"], self.temperature)}
