"""Training examples: a source, its targets and negatives; an epoch of them in batches."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, NamedTuple, Protocol, Self

import numpy as np
import torch

from data_modules.collection import TrainingTables
from data_modules.negatives import NegativeDraws, Negatives
from data_modules.tables import integers
from gr_mvdr.batch import PairBatch, append_documents, pad
from gr_mvdr.options import part
from gr_mvdr.ranks import rank

# Examples are sorted by length within pools of this many batches.
_POOL_BATCHES = 16


class HardNegatives(NamedTuple):
    """G documents that are not relevant to a source.

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
        source: the query, or what is read in its place.
        targets: token sequences to learn from it; an empty one where the model itself knows the
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
        """Draws one example, a fresh one each time."""


@dataclass
class Examples:
    """The query → its relevant document, one example a pair; a subclass gives the targets.

    Args:
        negatives: hard negatives of each query, drawn in every epoch from
            (seed, epoch, pair); None = the batch's other documents alone.

    Attributes:
        tables: what is prepared; pairs are numbered as in `tables.pairs`.
        query_rows, document_rows: (pairs,) int64.
        reads_documents: whether an example holds the tokens of its document, not only of a part.
    """

    reads_documents: ClassVar[bool] = False

    negatives: Negatives | None = None
    tables: TrainingTables = field(init=False, repr=False)
    query_rows: np.ndarray = field(init=False, repr=False)
    document_rows: np.ndarray = field(init=False, repr=False)
    drawn: NegativeDraws | None = field(default=None, init=False, repr=False)

    @property
    def sources(self) -> dict[str, str]:
        """The SHA-256 of each file that is read, by its path: the negatives', their teacher's."""
        return self.negatives.sources if self.negatives else {}

    def prepare(self, tables: TrainingTables) -> Self:
        """A copy that has the training pairs of a collection and draws their examples.

        Reads or computes the negatives.
        """
        prepared = copy(self)
        prepared.drawn = self.negatives.prepare(tables) if self.negatives else None
        prepared.tables = tables
        prepared.query_rows = integers(tables.pairs, "query_row")
        prepared.document_rows = integers(tables.pairs, "document_row")
        return prepared

    def targets(self, row: int, source: list[int], rng: np.random.Generator) -> list[list[int]]:
        """The token sequences of a document to learn from any source, a pair's query or not.

        Args:
            row: of the documents.
            source: token ids, the end token included.
        """
        raise NotImplementedError

    def pair_targets(self, pair: int, rng: np.random.Generator) -> list[list[int]]:
        """The token sequences to learn from the query of a pair."""
        return self.targets(int(self.document_rows[pair]), self.query(pair), rng)

    @property
    def has_targets(self) -> np.ndarray:
        """(documents,) bool: those that have a target. Pairs of others are no examples."""
        return np.ones(len(self.tables.documents), dtype=bool)

    @cached_property
    def pairs(self) -> np.ndarray:
        """(examples,) int64, the pairs that are examples; says how many are not.

        Raises:
            ValueError: no pair is one.
        """
        has = self.has_targets[self.document_rows]
        if not has.all():
            counted = f"{int((~has).sum()):,} of {len(has):,} {self.tables.split_name} pairs"
            if not has.any():
                raise ValueError(f"data.examples: {counted} have a document without text")
            if rank() == 0:
                print(f"{counted} are left out: their documents have no text, so no spans")
        return np.flatnonzero(has)

    def make_example(self, source: list[int], row: int, rng: np.random.Generator) -> Example:
        """A source that is no training query, with the targets of a document."""
        example = Example(source, self.targets(row, source, rng), row)
        return self._add_negatives(example, None, rng)

    def _add_negatives(
        self, example: Example, pair: int | None, rng: np.random.Generator
    ) -> Example:
        """Of each negative one target, as it would be drawn if the source asked for it."""
        if self.drawn is None:
            return example
        rows, teacher = self.drawn.draw(pair, example.document, rng)
        targets = [self.targets(row, example.source, rng)[0] for row in rows]
        return example._replace(negatives=HardNegatives(targets, rows, teacher))

    def query(self, pair: int) -> list[int]:
        """The query's first tokens as an encoder reads them."""
        tokens = self.tables.query_tokens[self.query_rows[pair]]
        return self.tables.template.read_query(tokens, self.tables.query_length)

    def relevant(self, pair: int) -> list[int]:
        """What else is relevant to the query of a pair; nothing without `mask_relevant`."""
        if not self.tables.mask_relevant:
            return []
        found = self.tables.relevant.of(int(self.query_rows[pair]))
        return found[found != self.document_rows[pair]].tolist()

    def numbers(self, rng: np.random.Generator) -> np.ndarray:
        return self.pairs

    def draw(self, number: int, rng: np.random.Generator) -> Example:
        row, targets = int(self.document_rows[number]), self.pair_targets(number, rng)
        example = Example(self.query(number), targets, row, relevant=self.relevant(number))
        return self._add_negatives(example, number, rng)

    @cached_property
    def lengths(self) -> np.ndarray:
        lengths = self.tables.query_tokens.lengths[self.query_rows]
        if self.reads_documents:
            documents = self.tables.document_tokens.lengths.clip(max=self.tables.document_length)
            lengths = lengths + documents[self.document_rows]
        return lengths


@part("examples", negatives="negatives")
class DocumentExamples(Examples):
    """Query → the document's own tokens, and those of its negatives. For multi-vector systems."""

    reads_documents = True

    def targets(self, row: int, source: list[int], rng: np.random.Generator) -> list[list[int]]:
        return [self._text(row)]

    def _text(self, row: int) -> list[int]:
        tables = self.tables
        return tables.template.read_document(tables.document_tokens[row], tables.document_length)


@part("examples", negatives="negatives")
class IdentifierExamples(Examples):
    """Query → an identifier that the model looks up by the document's row (DSI, GENRE, NP)."""

    def targets(self, row: int, source: list[int], rng: np.random.Generator) -> list[list[int]]:
        return [[]]


@part("examples")
@dataclass
class QueryExamples(Examples):
    """Document → query: what a query generator learns (doc2query, DSI-QG)."""

    reads_documents = True

    def __post_init__(self):
        if self.negatives:
            raise ValueError("data.examples.negatives: must be null where the query is the target")

    def draw(self, number: int, rng: np.random.Generator) -> Example:
        row, tables = int(self.document_rows[number]), self.tables
        text = tables.document_tokens[row]
        source = tables.template.read_query(text, tables.document_length)
        return Example(source, [self.query(number)], row)

    def targets(self, row: int, source: list[int], rng: np.random.Generator) -> list[list[int]]:
        raise ValueError("data.indexing: must be null where the query is the target")


class Epoch(torch.utils.data.Dataset):
    """The examples of one epoch, task after task.

    Every draw depends on (seed, epoch, number) alone: each epoch has new targets in a new order,
    and neither resuming nor loader workers change them.
    """

    def __init__(self, tasks: Sequence[Task], seed: int, epoch: int):
        self.tasks, self.seed, self.epoch = tasks, seed, epoch
        # The 1 keeps these streams apart from those of the examples and of the order.
        streams = [np.random.default_rng((seed, epoch, place, 1)) for place in range(len(tasks))]
        numbers = [task.numbers(rng) for task, rng in zip(tasks, streams, strict=True)]
        self.numbers = np.concatenate(numbers)
        self.task_of = np.repeat(np.arange(len(tasks)), [len(part) for part in numbers])

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, place: int) -> Example:
        rng = np.random.default_rng((self.seed, self.epoch, place))
        return self.tasks[self.task_of[place]].draw(int(self.numbers[place]), rng)

    def batches(
        self, size: int, shuffle: bool, rank: int = 0, world_size: int = 1
    ) -> list[list[int]]:
        """Places in batches of like length, so that little is padding.

        Args:
            size: examples a batch, of all processes; the last may have fewer, none is lost. Where
                there are fewer examples than processes, some come twice: each process needs one.
            shuffle: random pools of examples, sorted within, and the batches in random order.
            rank, world_size: of this process; each process has its part of every batch.
        """
        rng = np.random.default_rng((self.seed, self.epoch, len(self)))  # no example's own stream
        places = np.arange(len(self))
        if shuffle:
            pool = places // (_POOL_BATCHES * size)
            places = rng.permutation(len(self))
            places = places[np.lexsort((self._lengths()[places], pool))]
        if 0 < len(places) < world_size:
            places = np.resize(places, world_size)
        starts = np.arange(0, len(places), size)[1:]
        if len(places) % size and len(places) % size < world_size:
            starts = starts[:-1]  # too few for a batch of their own: every process needs one
        found = np.split(places, starts)
        if shuffle:
            found = [found[i] for i in rng.permutation(len(found))]
        return [np.array_split(batch, world_size)[rank].tolist() for batch in found]

    def _lengths(self) -> np.ndarray:
        lengths = np.empty(len(self), dtype=np.int64)
        for place, task in enumerate(self.tasks):
            chosen = self.task_of == place
            lengths[chosen] = task.lengths[self.numbers[chosen]]
        return lengths


def collate(examples: list[Example]) -> PairBatch:
    """Pads examples; if their numbers of targets differ, each target becomes an example.

    Hard negatives that the batch does not contain yet are appended to its documents, each once.
    """
    if len({len(example.targets) for example in examples}) > 1:
        examples = [
            example._replace(targets=[target]) for example in examples for target in example.targets
        ]
    targets = [target for example in examples for target in example.targets]
    index = [example.document for example in examples]
    # Always there: the processes of one batch must send the same tensors.
    further = {"relevant": pad([[1 + row for row in example.relevant] for example in examples])[0]}
    negatives = [example.negatives for example in examples if example.negatives]
    if negatives:
        documents = [document for each in negatives for document in each.documents]
        texts = [target for each in negatives for target in each.targets]
        new, rows = append_documents(index, documents)
        targets += [texts[place] for place in new]
        index += [documents[place] for place in new]
        further["negatives"] = torch.tensor(rows).view(len(examples), -1)
        if negatives[0].teacher is not None:
            further["teacher"] = torch.tensor([each.teacher for each in negatives])
    sources = pad([example.source for example in examples])
    return PairBatch(*sources, *pad(targets), torch.tensor(index), **further)
