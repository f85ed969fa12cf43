"""Training examples (a source, its targets and negatives), and the batches of an epoch."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol, Self

import numpy as np
import torch

from data_modules.collection import TrainingTables
from data_modules.negatives import Negatives
from gr_mvdr.batch import PairBatch, append_documents, pad
from gr_mvdr.options import part
from gr_mvdr.ranks import rank

# Examples are sorted by length within pools of this many batches.
_POOL_BATCHES = 16


class HardNegatives(NamedTuple):
    """G documents that are not relevant to a source.

    Attributes:
        targets: the token sequence of each.
        documents: the row of each in the corpus.
        teacher: the teacher's scores of the example's document and of the G negatives, 1 + G
            values, NaN = not scored; None = no teacher.
    """

    targets: list[list[int]]
    documents: list[int]
    teacher: list[float] | None = None


class Example(NamedTuple):
    """One source and its targets: token ids, cut and with the special tokens that the model reads.

    Attributes:
        source: the query, or another text that is read instead of it.
        targets: token sequences to learn from the source; an empty one if the model itself looks
            up the document's identifier.
        document: row of the document in the corpus.
        negatives: hard negatives; None = only the batch's other documents.
        relevant: rows of further documents that are known to be relevant to the source.
    """

    source: list[int]
    targets: list[list[int]]
    document: int
    negatives: HardNegatives | None = None
    relevant: Sequence[int] = ()


class Task(Protocol):
    """Training examples of one kind, identified by number.

    Attributes:
        lengths: (examples,) the approximate number of tokens of each example; examples of similar
            length share a batch.
    """

    lengths: np.ndarray

    def numbers(self, rng: np.random.Generator) -> np.ndarray:
        """The numbers of the examples in an epoch; a number may occur several times."""

    def draw(self, number: int, rng: np.random.Generator) -> Example:
        """Draws the example of a number; each call draws again."""


@dataclass
class Examples:
    """Query → its relevant document, one example per pair; a subclass defines the targets.

    Args:
        negatives: hard negatives of each query, drawn in every epoch from (seed, epoch, place of
            the example in the epoch); None = only the batch's other documents.

    Attributes:
        tables: the split that `prepare` was given; pairs are numbered as in `tables.pairs`.
        reads_documents: whether an example holds the tokens of the whole document.
        takes_negatives: whether examples may have hard negatives.

    Raises:
        ValueError: there are negatives, but `takes_negatives` is False.
    """

    reads_documents: ClassVar[bool] = False
    takes_negatives: ClassVar[bool] = True

    negatives: Negatives | None = None
    tables: TrainingTables = field(init=False, repr=False)

    def __post_init__(self):
        if self.negatives and not self.takes_negatives:
            name = type(self).__name__
            raise ValueError(f"data.examples.negatives: must be null with {name}")

    @property
    def files(self) -> list[Path]:
        """The files of negatives and of a teacher's scores."""
        return list(self.negatives.files.values()) if self.negatives else []

    def prepare(self, tables: TrainingTables) -> Self:
        """Returns a copy that draws examples of the pairs of `tables`.

        Reads or computes the hard negatives.
        """
        prepared = copy(self)
        prepared.tables = tables
        prepared.negatives = self.negatives and self.negatives.prepare(tables)
        return prepared

    def targets(self, row: int, source: list[int], rng: np.random.Generator) -> list[list[int]]:
        """The token sequences of a document to learn from a source.

        Args:
            row: the document's row.
            source: token ids, the end token included; a pair's query or any other source.
        """
        raise NotImplementedError

    def pair_targets(self, pair: int, rng: np.random.Generator) -> list[list[int]]:
        """The token sequences to learn from the query of a pair."""
        return self.targets(int(self.tables.document_rows[pair]), self.query(pair), rng)

    @property
    def has_targets(self) -> np.ndarray:
        """(documents,) bool, True = the document has a target. Other documents give no examples."""
        return np.ones(len(self.tables.documents), dtype=bool)

    @cached_property
    def pairs(self) -> np.ndarray:
        """(examples,) int64, the pairs that have a target; prints how many pairs have none.

        Raises:
            ValueError: no pair has a target.
        """
        has = self.has_targets[self.tables.document_rows]
        if not has.all():
            counted = f"{int((~has).sum()):,} of {len(has):,} {self.tables.split_name} pairs"
            if not has.any():
                raise ValueError(f"data.examples: {counted} have a document without text")
            if rank() == 0:
                print(f"{counted} are left out: their documents have no text, so no spans")
        return np.flatnonzero(has)

    def make_example(self, source: list[int], row: int, rng: np.random.Generator) -> Example:
        """Makes an example from a source that is not a training query and a document's targets."""
        example = Example(source, self.targets(row, source, rng), row)
        return self._add_negatives(example, None, rng)

    def _add_negatives(
        self, example: Example, pair: int | None, rng: np.random.Generator
    ) -> Example:
        """Adds hard negatives: for each, one target, drawn as if it were relevant to the source."""
        if self.negatives is None:
            return example
        rows, teacher = self.negatives.draw(pair, example.document, rng)
        targets = [self.targets(row, example.source, rng)[0] for row in rows]
        return example._replace(negatives=HardNegatives(targets, rows, teacher))

    def query(self, pair: int) -> list[int]:
        """The first tokens of a pair's query as an encoder reads them."""
        tokens = self.tables.query_tokens[self.tables.query_rows[pair]]
        return self.tables.template.read_query(tokens, self.tables.query_length)

    def relevant(self, pair: int) -> list[int]:
        """Rows of the other documents relevant to a pair's query.

        Without `mask_relevant`, only the other passages of the pair's document.
        """
        query, row = self.tables.query_rows[[pair]], self.tables.document_rows[[pair]]
        if self.tables.mask_relevant:
            rows = self.tables.relevant.of(int(query[0]))
        elif self.tables.passages is not None:
            _, rows = self.tables.passages.list_all(query, row)
        else:
            return []
        return rows[rows != row].tolist()

    def numbers(self, rng: np.random.Generator) -> np.ndarray:
        return self.pairs

    def draw(self, number: int, rng: np.random.Generator) -> Example:
        row, targets = int(self.tables.document_rows[number]), self.pair_targets(number, rng)
        example = Example(self.query(number), targets, row, relevant=self.relevant(number))
        return self._add_negatives(example, number, rng)

    @cached_property
    def lengths(self) -> np.ndarray:
        lengths = self.tables.query_tokens.lengths[self.tables.query_rows]
        if self.reads_documents:
            documents = self.tables.document_tokens.lengths.clip(max=self.tables.document_length)
            lengths = lengths + documents[self.tables.document_rows]
        return lengths


@part("examples", negatives="negatives")
class DocumentExamples(Examples):
    """Query → the tokens of the document and of the negatives. For multi-vector systems."""

    reads_documents = True

    def targets(self, row: int, source: list[int], rng: np.random.Generator) -> list[list[int]]:
        tokens, longest = self.tables.document_tokens[row], self.tables.document_length
        return [self.tables.template.read_document(tokens, longest)]


@part("examples", negatives="negatives")
class IdentifierExamples(Examples):
    """Query → an identifier that the model looks up by the document's row (DSI, GENRE, NP)."""

    def targets(self, row: int, source: list[int], rng: np.random.Generator) -> list[list[int]]:
        return [[]]


@part("examples")
@dataclass
class QueryExamples(Examples):
    """Document → query: the training examples of a query generator (doc2query, DSI-QG)."""

    reads_documents = True
    takes_negatives = False

    def draw(self, number: int, rng: np.random.Generator) -> Example:
        row, tables = int(self.tables.document_rows[number]), self.tables
        text = tables.document_tokens[row]
        source = tables.template.read_query(text, tables.document_length)
        return Example(source, [self.query(number)], row)

    def targets(self, row: int, source: list[int], rng: np.random.Generator) -> list[list[int]]:
        raise ValueError("data.indexing: must be null where the query is the target")


class Epoch(torch.utils.data.Dataset):
    """The examples of one epoch, task after task.

    Each example is drawn from (seed, epoch, place in the epoch) alone. Every epoch therefore has
    new targets in a new order, and neither resuming nor loader workers change them.
    """

    def __init__(self, tasks: Sequence[Task], seed: int, epoch: int):
        self.tasks, self.seed, self.epoch = tasks, seed, epoch
        # The 1 makes these random streams differ from the streams of the examples and the order.
        streams = [np.random.default_rng((seed, epoch, place, 1)) for place in range(len(tasks))]
        numbers = [task.numbers(rng) for task, rng in zip(tasks, streams, strict=True)]
        self.numbers = np.concatenate(numbers)
        self.task_of = np.repeat(np.arange(len(tasks)), [len(part) for part in numbers])
        parts = zip(tasks, numbers, strict=True)
        self.lengths = np.concatenate([task.lengths[chosen] for task, chosen in parts])

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, place: int) -> Example:
        rng = np.random.default_rng((self.seed, self.epoch, place))
        return self.tasks[self.task_of[place]].draw(int(self.numbers[place]), rng)

    def batches(
        self, size: int, shuffle: bool, rank: int = 0, world_size: int = 1
    ) -> list[list[int]]:
        """Groups the places of the epoch into batches; similar lengths keep padding small.

        Args:
            size: examples per batch, summed over all processes. No example is lost, so one batch
                may differ in size. Every process needs an example of every batch: if the epoch has
                fewer examples than processes, some occur twice.
            shuffle: draw random pools of examples, sort each pool by length, and shuffle the
                batches; False = the epoch's order.
            rank, world_size: this process and the number of processes; each process gets its part
                of every batch.
        """
        rng = np.random.default_rng((self.seed, self.epoch, len(self)))  # not an example's stream
        places = np.arange(len(self))
        if shuffle:
            pool = places // (_POOL_BATCHES * size)
            places = rng.permutation(len(self))
            places = places[np.lexsort((self.lengths[places], pool))]
        if 0 < len(places) < world_size:
            places = np.resize(places, world_size)
        starts = np.arange(0, len(places), size)[1:]
        if len(places) % size and len(places) % size < world_size:
            starts = starts[:-1]  # the rest is smaller than world_size: it joins the last batch
        batches = np.split(places, starts)
        if shuffle:
            batches = [batches[i] for i in rng.permutation(len(batches))]
        return [np.array_split(batch, world_size)[rank].tolist() for batch in batches]


def collate(examples: list[Example]) -> PairBatch:
    """Pads examples into a batch.

    If the examples differ in their number of targets, each target becomes an example of its own.
    Hard negatives that the batch lacks are appended to its documents, each once.
    """
    if len({len(example.targets) for example in examples}) > 1:
        examples = [
            example._replace(targets=[target]) for example in examples for target in example.targets
        ]
    targets = [target for example in examples for target in example.targets]
    index = [example.document for example in examples]
    # "relevant" is always set: the processes that share a batch must send the same tensors.
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
