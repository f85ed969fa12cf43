"""What training is made of: examples, and the tasks that draw them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from data_modules.columns import TokenColumn, integers
from data_modules.pair_rows import PairSet
from gr_mvdr.batch import cut
from gr_mvdr.distributed.ranks import rank
from gr_mvdr.evaluation.bm25 import BM25Index
from gr_mvdr.tokenizers import EOS_ID


class HardNegatives(NamedTuple):
    """G documents that do not answer a source.

    Attributes:
        targets: their token sequences; documents: their rows of the corpus.
        teacher: a teacher's scores of the example's document and of these, 1 + G, NaN where it
            gave none; None without a teacher.
    """

    targets: list[list[int]]
    documents: list[int]
    teacher: list[float] | None = None


class Example(NamedTuple):
    """One source and its targets, token ids that are cut and ended as the model reads them.

    Attributes:
        source: the query, or what stands for it.
        targets: token sequences that answer it; an empty one where the model itself knows the
            document's identifier.
        document: row of the corpus.
        negatives: None where the batch's other documents are all there is.
        relevant: rows of further documents that are known to be relevant to the source.
    """

    source: list[int]
    targets: list[list[int]]
    document: int
    negatives: HardNegatives | None = None
    relevant: Sequence[int] = ()


@dataclass(frozen=True)
class TrainingTables:
    """What examples are made from.

    Attributes:
        pairs: columns query_row and document_row.
        queries: columns id, text, tokens, word_starts.
        documents: the same columns and title_tokens.
        query_length, document_length: tokens kept of a text, the end token included.
        tokenizer: the run's.
        special_tokens: the tokens of the texts that mark a source or end a title, by name.
        known: (known,) int64, rows of the documents that are there in training; None = all.
        bm25: gives BM25 over the documents, which is built when it is first asked for.
        training: False for validation, whose queries a file made for training may lack.
        negatives: TREC runs of hard negatives that came with the collection, by name.
        mask_relevant: whether examples name all that is relevant, to be told apart from nothing.
        drop_identical: whether the document that a query is itself is no negative of it either.
    """

    pairs: Dataset
    queries: Dataset
    documents: Dataset
    query_length: int
    document_length: int
    tokenizer: PreTrainedTokenizerBase
    special_tokens: dict[str, list[int]] = field(default_factory=dict)
    known: np.ndarray | None = None
    bm25: Callable[[], BM25Index] | None = None
    training: bool = True
    negatives: dict[str, Path] = field(default_factory=dict)
    mask_relevant: bool = False
    drop_identical: bool = False

    @cached_property
    def relevant(self) -> PairSet:
        """The pairs of which the document is no negative of the query."""
        queries, documents = integers(self.pairs, "query_row"), integers(self.pairs, "document_row")
        if self.drop_identical:
            row_of = {name: row for row, name in enumerate(self.documents["id"][:])}
            ids = enumerate(self.queries["id"][:])
            own = np.array([(row, row_of[name]) for row, name in ids if name in row_of], np.int64)
            queries, documents = np.concatenate([[queries, documents], own.reshape(-1, 2).T], 1)
        return PairSet(queries, documents, len(self.documents))

    @cached_property
    def known_rows(self) -> np.ndarray:
        """(known,) int64, `known` with None replaced by all rows."""
        return np.arange(len(self.documents)) if self.known is None else np.asarray(self.known)

    @cached_property
    def document_tokens(self) -> TokenColumn:
        """The documents' token lists."""
        return TokenColumn(self.documents)

    @cached_property
    def query_tokens(self) -> TokenColumn:
        """The queries' token lists."""
        return TokenColumn(self.queries)


class Task(Protocol):
    """Examples of one kind, each with a number.

    Attributes:
        lengths: (examples,) about how many tokens an example has: those of like length share a
            batch.
    """

    lengths: np.ndarray

    def numbers(self, rng: np.random.Generator) -> np.ndarray:
        """The numbers of the examples that an epoch holds; one may come several times."""

    def draw(self, number: int, rng: np.random.Generator) -> Example:
        """One example, drawn afresh."""


class Examples:
    """What the training pairs of a collection become."""

    @property
    def sources(self) -> dict[str, str]:
        """The SHA-256 of each file that is read, by its path."""
        return {}

    def prepare(self, tables: TrainingTables) -> "RetrievalTask":
        """The examples of a collection's training pairs."""
        raise NotImplementedError


class RetrievalTask:
    """The query → its relevant document, one example a pair; a subclass says what answers."""

    def __init__(self, tables: TrainingTables):
        self.tables = tables
        self.query_rows = integers(tables.pairs, "query_row")
        self.document_rows = integers(tables.pairs, "document_row")

    @property
    def answerable(self) -> np.ndarray:
        """(documents,) bool: those that have an answer. Pairs of others are no examples."""
        return np.ones(len(self.tables.documents), dtype=bool)

    @cached_property
    def pairs(self) -> np.ndarray:
        """(examples,) int64, the pairs that are examples; says how many are not.

        Raises:
            ValueError: no pair is one.
        """
        has = self.answerable[self.document_rows]
        if not has.all():
            split = "training" if self.tables.training else "validation"
            counted = f"{int((~has).sum()):,} of {len(has):,} {split} pairs"
            if not has.any():
                raise ValueError(f"data.examples: {counted} have a document without text")
            if rank() == 0:
                print(f"{counted} are left out: their documents have no text, so no spans")
        return np.flatnonzero(has)

    def targets(self, pair: int, rng: np.random.Generator) -> list[list[int]]:
        """The token sequences that answer the query of a pair."""
        return self.answers(int(self.document_rows[pair]), self.query(pair), rng)

    def answers(self, row: int, source: list[int], rng: np.random.Generator) -> list[list[int]]:
        """The token sequences of a document that answer any source: what the indexing task learns.

        Args:
            row: of the documents.
            source: token ids, the end token included.
        """
        raise NotImplementedError

    def example(self, source: list[int], row: int, rng: np.random.Generator) -> Example:
        """A source that is no training query, with the document's answers to it."""
        return Example(source, self.answers(row, source, rng), row)

    @property
    def target_lengths(self) -> np.ndarray:
        """(pairs,) about how many tokens a target has."""
        return np.zeros(len(self.document_rows), dtype=np.int64)

    def document_lengths(self, longest: int) -> np.ndarray:
        """(pairs,) the tokens of each pair's document, `longest` at most."""
        return self.tables.document_tokens.lengths.clip(max=longest)[self.document_rows]

    def query(self, pair: int) -> list[int]:
        """The query's first tokens and the end token."""
        tokens = self.tables.query_tokens[self.query_rows[pair]]
        return cut(tokens, self.tables.query_length, EOS_ID)

    def relevant(self, pair: int) -> list[int]:
        """What else is relevant to the query of a pair; nothing without `mask_relevant`."""
        if not self.tables.mask_relevant:
            return []
        found = self.tables.relevant.of(int(self.query_rows[pair]))
        return found[found != self.document_rows[pair]].tolist()

    def numbers(self, rng: np.random.Generator) -> np.ndarray:
        return self.pairs

    def draw(self, number: int, rng: np.random.Generator) -> Example:
        row, targets = int(self.document_rows[number]), self.targets(number, rng)
        return Example(self.query(number), targets, row, relevant=self.relevant(number))

    @cached_property
    def lengths(self) -> np.ndarray:
        return self.tables.query_tokens.lengths[self.query_rows] + self.target_lengths
