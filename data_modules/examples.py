"""What stands on the document side of a training pair: the document, or an identifier of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
from datasets import Dataset, Features, List, Value

from data_modules.collection import cached_table
from data_modules.segments import token_spans
from data_modules.spans import sample_starts, span_weights
from gr_mvdr.progress import track

_WEIGHTS = Features({"weights": List(Value("float32"))})


@dataclass(frozen=True)
class TrainingTables:
    """What targets are made from.

    Attributes:
        pairs: columns query_row and document_row.
        queries, documents: columns id, text, tokens, word_starts.
        document_length: tokens kept of a document.
    """

    pairs: Dataset
    queries: Dataset
    documents: Dataset
    document_length: int


class Targets(Protocol):
    """The document side of the training pairs."""

    def draw(self, pair: int, rng: np.random.Generator) -> list[list[int]]:
        """The token sequences that answer the query of pair number `pair`, drawn afresh."""

    def lengths(self) -> np.ndarray:
        """(pairs,) about how many tokens a target has: pairs of like length share a batch."""


class DocumentExamples:
    """(query, document): the document's own tokens. For multi-vector systems."""

    def prepare(self, tables: TrainingTables) -> Targets:
        """The targets of a collection's training pairs."""
        return _Documents(tables)


class _Documents:
    def __init__(self, tables: TrainingTables):
        self.tokens = tables.documents["tokens"]
        self.rows = tables.pairs["document_row"][:]
        self.longest = tables.document_length

    def draw(self, pair: int, rng: np.random.Generator) -> list[list[int]]:
        return [self.tokens[self.rows[pair]]]

    def lengths(self) -> np.ndarray:
        return np.array([min(len(tokens), self.longest) for tokens in self.tokens])[self.rows]


class SpanExamples:
    """(query, span): SEAL's targets, spans of the document that resemble the query.

    The weights of the start words are computed once and cached; the spans are drawn afresh in
    every epoch, from (seed, epoch, pair).
    """

    def __init__(
        self,
        n_spans: int = 10,
        length: int = 10,
        temperature: float = 1.0,
        max_tokens: int | None = None,
    ):
        """
        Args:
            n_spans: spans a pair and epoch (10 on MS MARCO, 5 on NQ320k in the paper).
            length: words of a span.
            temperature: T of the softmax over start words.
            max_tokens: cut a span's tokens. Keys in search are 10 tokens long, spans 10 words:
                what lies behind costs time and is never generated. None = the paper's form.
        """
        for key, value in (("n_spans", n_spans), ("length", length), ("max_tokens", max_tokens)):
            if value is not None and value < 1:
                raise ValueError(f"data.examples.{key}={value}: must be ≥ 1")
        self.n_spans, self.length = n_spans, length
        self.temperature, self.max_tokens = temperature, max_tokens

    def prepare(self, tables: TrainingTables) -> Targets:
        """The targets of a collection's training pairs; reads or computes the start weights."""
        made = (tables.pairs, tables.queries, tables.documents)
        fingerprints = [table._fingerprint for table in made]
        weights = partial(_start_weights, tables, self.temperature)
        made_from = ("span-weights/1", str(self.temperature), *fingerprints)
        return _Spans(self, tables, cached_table(weights, _WEIGHTS, *made_from))


class _Spans:
    def __init__(self, examples: SpanExamples, tables: TrainingTables, weights: Dataset):
        self.examples, self.documents, self.weights = examples, tables.documents, weights
        self.rows = tables.pairs["document_row"][:]

    def draw(self, pair: int, rng: np.random.Generator) -> list[list[int]]:
        weights = np.asarray(self.weights[pair]["weights"])
        starts = sample_starts(weights, self.examples.n_spans, rng)
        spans = token_spans(self.documents[self.rows[pair]], starts, self.examples.length)
        return [span[: self.examples.max_tokens] for span in spans]

    def lengths(self) -> np.ndarray:
        return np.zeros(len(self.rows), dtype=np.int64)


def _start_weights(tables: TrainingTables, temperature: float) -> Iterator[dict]:
    for pair in track(tables.pairs, "span weights", total=len(tables.pairs)):
        query = tables.queries[pair["query_row"]]["text"]
        document = tables.documents[pair["document_row"]]["text"]
        yield {"weights": span_weights(query, document, temperature)}
