"""The indexing task (DSI, NCI, DSI-QG): examples made from documents alone.

A text made from the document is the source instead of a query; the targets are the document's.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Self

import numpy as np

from data_modules.collection import TokenColumn, TrainingTables
from data_modules.examples import Example, Examples
from data_modules.tokenisation import add_views, cut_spans
from gr_mvdr.options import AtLeast, ExistingPath, NonNegative, Rule, Size, part
from gr_mvdr.ranks import rank


class Inputs:
    """Makes examples whose source is made from a document; the document's row is their number.

    Attributes:
        tables, retrieval: the arguments of `prepare`.
        rows: rows of the documents that have an input, ascending.
        length: maximum length of a source.
        files: the files that are read.
    """

    tables: TrainingTables
    retrieval: Examples
    rows: np.ndarray
    length: int
    files: Sequence[Path] = ()

    def prepare(self, tables: TrainingTables, retrieval: Examples) -> Self:
        """Returns a copy for the documents of `tables`; `retrieval` gives their targets."""
        prepared = copy(self)
        prepared.tables, prepared.retrieval = tables, retrieval
        # A document without text has no input.
        prepared.rows = np.flatnonzero(tables.document_tokens.lengths)
        return prepared

    def read(self, row: int, rng: np.random.Generator) -> list[int]:
        """The source of a document's example: token ids, the end token included."""
        raise NotImplementedError

    def draw(self, row: int, rng: np.random.Generator) -> Example:
        """Draws an example of a document; each call draws again."""
        return self.retrieval.make_example(self.read(row, rng), row, rng)

    @property
    def lengths(self) -> np.ndarray:
        """(documents,) the approximate number of tokens of an example."""
        return (self.tables.document_tokens.lengths + 1).clip(max=self.length)


@part("indexing", inputs="inputs")
@dataclass
class Indexing:
    """Indexing examples, mixed with the retrieval pairs by a ratio.

    An epoch uses all documents equally often, up to one example.

    Args:
        ratio: indexing examples per retrieval pair (up to 32 in DSI, often 1); 0 = none.
        inputs: what a document's source is made from.
    """

    ratio: NonNegative
    inputs: Inputs

    def prepare(self, tables: TrainingTables, retrieval: Examples) -> Self:
        """Returns a copy that draws indexing examples of the documents known in training.

        Documents without an input or without a target are left out; prints how many have no text.

        Raises:
            ValueError: no document is left, or the retrieval task cannot make targets for one.
        """
        prepared, inputs = copy(self), self.inputs.prepare(tables, retrieval)
        known = tables.known_rows
        rows = np.intersect1d(known, inputs.rows)
        rows = rows[retrieval.has_targets[rows]]
        empty = known[tables.document_tokens.lengths[known] == 0]
        if (left_out := len(np.setdiff1d(empty, rows))) and rank() == 0:
            print(f"{left_out:,} of {len(known):,} documents have no text to be indexed by")
        if not len(rows):
            raise ValueError("data.indexing.inputs: no document known in training has an input")
        inputs.draw(int(rows[0]), np.random.default_rng(0))  # raises here rather than in training
        prepared.inputs, prepared.rows = inputs, rows
        prepared.count = round(self.ratio * len(tables.pairs))  # examples per epoch
        return prepared

    def numbers(self, rng: np.random.Generator) -> np.ndarray:
        """(count,) document rows in random order; how often two rows occur differs by at most 1."""
        return np.resize(rng.permutation(self.rows), self.count)

    @property
    def lengths(self) -> np.ndarray:
        return self.inputs.lengths

    def draw(self, number: int, rng: np.random.Generator) -> Example:
        return self.inputs.draw(number, rng)


@part("inputs")
@dataclass
class DocumentStart(Inputs):
    """The document's first tokens (DSI), at most `length` with the template's tokens."""

    length: Annotated[int, AtLeast(2)] = 32

    def read(self, row: int, rng: np.random.Generator) -> list[int]:
        return self.tables.template.read_query(self.tables.document_tokens[row], self.length)


@part("inputs")
@dataclass
class RandomSpans(Inputs):
    """A random span of the document (NCI: 64 words).

    Args:
        length: words of the span; a shorter document is taken whole. The source is cut at
            document_length tokens.
    """

    length: Size = 64

    def read(self, row: int, rng: np.random.Generator) -> list[int]:
        document = self.tables.documents[row]
        start = int(rng.integers(max(1, len(document["word_starts"]) - self.length + 1)))
        (span,) = cut_spans(document, [start], self.length)
        return self.tables.template.read_query(span, self.tables.document_length)

    @cached_property
    def lengths(self) -> np.ndarray:
        tokens = self.tables.document_tokens.lengths
        # Estimated from the document's average number of tokens per word.
        words = TokenColumn(self.tables.documents, "word_starts").lengths
        return tokens * words.clip(max=self.length) // words.clip(min=1)


@part("inputs", inputs="inputs")
@dataclass
class Mixed(Inputs):
    """Several inputs: each example draws one, uniformly among those that the document has."""

    inputs: Annotated[Sequence[Inputs], Rule("a list with at least one", bool)]

    @property
    def files(self) -> list[Path]:
        """The files of all inputs."""
        return [file for inputs in self.inputs for file in inputs.files]

    def prepare(self, tables: TrainingTables, retrieval: Examples) -> Self:
        """See `Inputs`."""
        prepared = super().prepare(tables, retrieval)
        prepared.inputs = [inputs.prepare(tables, retrieval) for inputs in self.inputs]
        every = np.arange(len(tables.documents))
        # (inputs, documents) bool, True = the document has the input.
        prepared.has = np.stack([np.isin(every, inputs.rows) for inputs in prepared.inputs])
        prepared.rows = np.flatnonzero(prepared.has.any(0))
        return prepared

    def draw(self, row: int, rng: np.random.Generator) -> Example:
        return self.inputs[rng.choice(np.flatnonzero(self.has[:, row]))].draw(row, rng)

    @cached_property
    def lengths(self) -> np.ndarray:
        lengths = np.stack([inputs.lengths for inputs in self.inputs]) * self.has
        return lengths.sum(0) // np.maximum(1, self.has.sum(0))


@part("inputs")
@dataclass
class GeneratedQueries(Inputs):
    """One of the document's generated queries; documents without any are left out.

    Args:
        path: JSON lines {"document_id": …, "queries": […]}, as `experiment=query_generation`
            writes them. Queries without a token are left out.
    """

    path: ExistingPath

    @property
    def files(self) -> list[Path]:
        """The file of queries."""
        return [Path(self.path).expanduser()]

    def prepare(self, tables: TrainingTables, retrieval: Examples) -> Self:
        """See `Inputs`; the tokenised queries are cached.

        Raises:
            ValueError: a line breaks the format or names an unknown document (the message names
                file:line); or no query has a token.
        """
        prepared = super().prepare(tables, retrieval)
        names = [name for name in ("id", "start") if name in tables.documents.column_names]
        ids = tables.documents.select_columns(names)
        table = add_views(ids, {"generated": self.path}, tables.tokenizer)
        prepared.queries = table["generated_tokens"]
        prepared.rows = np.flatnonzero(TokenColumn(table, "generated_tokens").lengths)
        return prepared

    def read(self, row: int, rng: np.random.Generator) -> list[int]:
        queries = self.queries[row]
        query = queries[rng.integers(len(queries))]
        return self.tables.template.read_query(query, self.tables.query_length)

    @cached_property
    def lengths(self) -> np.ndarray:
        lengths = np.zeros(len(self.tables.documents), dtype=np.int64)
        for row, own in enumerate(self.queries):
            lengths[row] = np.mean([len(query) for query in own] or [0])
        return lengths
