"""Training examples of the retrieval task: what the encoder reads and what the decoder answers."""

from collections.abc import Iterator
from functools import partial

import numpy as np
from datasets import Features, List, Value

from data_modules.collection import cached_table
from data_modules.columns import TokenColumn
from data_modules.negatives import Negatives
from data_modules.segments import token_spans
from data_modules.spans import sample_starts, span_weights
from data_modules.tasks import Example, Examples, HardNegatives, RetrievalTask, TrainingTables
from gr_mvdr.batch import cut
from gr_mvdr.parts import part
from gr_mvdr.progress import track
from gr_mvdr.tokenizers import EOS_ID

_WEIGHTS = Features({"weights": List(Value("float32"))})


@part("examples", negatives="negatives")
class DocumentExamples(Examples):
    """Query → the document's own tokens, and those of its negatives. For multi-vector systems."""

    def __init__(self, negatives: Negatives | None = None):
        """
        Args:
            negatives: documents that each query is told apart from, drawn afresh in every epoch
                from (seed, epoch, pair); None = the batch's other documents alone.
        """
        self.negatives = negatives

    @property
    def sources(self) -> dict[str, str]:
        """The files of the negatives and of their teacher."""
        return self.negatives.sources if self.negatives else {}

    def prepare(self, tables: TrainingTables) -> RetrievalTask:
        """The examples of a collection's training pairs; reads or computes the negatives."""
        return _Documents(tables, self.negatives)


class _Documents(RetrievalTask):
    def __init__(self, tables: TrainingTables, negatives: Negatives | None):
        super().__init__(tables)
        self.negatives = negatives.prepare(tables) if negatives else None

    def draw(self, number: int, rng: np.random.Generator) -> Example:
        example = super().draw(number, rng)
        if self.negatives is None:
            return example
        return self._beside(example, *self.negatives.draw(number, rng))

    def example(self, source: list[int], row: int, rng: np.random.Generator) -> Example:
        example = super().example(source, row, rng)
        if self.negatives is None:
            return example
        return self._beside(example, *self.negatives.draw_beside(row, rng))

    def _beside(self, example: Example, rows: list[int], teacher: list[float] | None) -> Example:
        targets = [self._text(row) for row in rows]
        return example._replace(negatives=HardNegatives(targets, rows, teacher))

    def answers(self, row: int, source: list[int], rng: np.random.Generator) -> list[list[int]]:
        return [self._text(row)]

    def _text(self, row: int) -> list[int]:
        return cut(self.tables.document_tokens[row], self.tables.document_length, EOS_ID)

    @property
    def target_lengths(self) -> np.ndarray:
        return self.document_lengths(self.tables.document_length)


@part("examples")
class IdentifierExamples(Examples):
    """Query → an identifier that the model looks up by the document's row (DSI, GENRE, NP)."""

    def prepare(self, tables: TrainingTables) -> RetrievalTask:
        """The examples of a collection's training pairs; their target is empty."""
        return _Identifiers(tables)


class _Identifiers(RetrievalTask):
    def answers(self, row: int, source: list[int], rng: np.random.Generator) -> list[list[int]]:
        return [[]]


@part("examples")
class QueryExamples(Examples):
    """Document → query: what a query generator learns (doc2query, DSI-QG)."""

    def __init__(self, length: int | None = None):
        """
        Args:
            length: tokens kept of the document, the end token included; None = document_length.
        """
        if length is not None and length < 2:
            raise ValueError(f"data.examples.length={length}: must be ≥ 2")
        self.length = length

    def prepare(self, tables: TrainingTables) -> RetrievalTask:
        """The examples of a collection's training pairs, in the other direction."""
        return _Queries(tables, self.length or tables.document_length)


class _Queries(RetrievalTask):
    def __init__(self, tables: TrainingTables, length: int):
        super().__init__(tables)
        self.length = length

    def draw(self, number: int, rng: np.random.Generator) -> Example:
        row = int(self.document_rows[number])
        source = cut(self.tables.document_tokens[row], self.length, EOS_ID)
        return Example(source, [self.query(number)], row)

    def answers(self, row: int, source: list[int], rng: np.random.Generator) -> list[list[int]]:
        raise ValueError("data.indexing: must be null where the query is the target")

    @property
    def target_lengths(self) -> np.ndarray:
        return self.document_lengths(self.length)


@part("examples")
class SpanExamples(Examples):
    """Query → spans of the document that resemble it: SEAL's targets.

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
        self.n_spans, self.length = n_spans, length
        self.temperature, self.max_tokens = temperature, max_tokens

    def prepare(self, tables: TrainingTables) -> RetrievalTask:
        """The examples of a collection's training pairs; reads or computes the start weights."""
        return SpanTask(tables, self)


class SpanTask(RetrievalTask):
    """The prepared form of `SpanExamples`."""

    def __init__(self, tables: TrainingTables, examples: SpanExamples):
        super().__init__(tables)
        self.examples = examples
        made = (tables.pairs, tables.queries, tables.documents)
        fingerprints = [table._fingerprint for table in made]
        weights = partial(_start_weights, tables, examples.temperature)
        made_from = ("span-weights/2", str(examples.temperature), *fingerprints)
        self.weights = cached_table(weights, _WEIGHTS, *made_from)

    @property
    def answerable(self) -> np.ndarray:
        # A text may be all characters that the tokeniser drops.
        words = TokenColumn(self.tables.documents, "word_starts").lengths
        return (words > 0) & (self.tables.document_tokens.lengths > 0)

    def targets(self, pair: int, rng: np.random.Generator) -> list[list[int]]:
        weights = np.asarray(self.weights[pair]["weights"])
        return self._spans(int(self.document_rows[pair]), weights, rng)

    def answers(self, row: int, source: list[int], rng: np.random.Generator) -> list[list[int]]:
        text = self.tables.tokenizer.decode(source, skip_special_tokens=True)
        passage = self.tables.documents[row]["text"]
        return self._spans(row, span_weights(text, passage, self.examples.temperature), rng)

    def _spans(self, row: int, weights: np.ndarray, rng: np.random.Generator) -> list[list[int]]:
        starts = sample_starts(weights, self.examples.n_spans, rng)
        spans = token_spans(self.tables.documents[row], starts, self.examples.length)
        longest = self.tables.document_length
        return [cut(span[: self.examples.max_tokens], longest, EOS_ID) for span in spans]


def _start_weights(tables: TrainingTables, temperature: float) -> Iterator[dict]:
    for pair in track(tables.pairs, "span weights", total=len(tables.pairs)):
        query = tables.queries[pair["query_row"]]["text"]
        document = tables.documents[pair["document_row"]]["text"]
        yield {"weights": span_weights(query, document, temperature)}
