"""One epoch of training: the examples of every task, in batches of like length."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch

from gr_mvdr.batch import PairBatch, append_documents, pad

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
            size: examples a batch, of all processes; the last may have fewer, none is lost.
            shuffle: random pools of examples, sorted within, and the batches in random order.
            rank, world_size: of this process; each process has its part of every batch.
        """
        rng = np.random.default_rng((self.seed, self.epoch, len(self)))  # no example's own stream
        places = np.arange(len(self))
        if shuffle:
            pool = places // (_POOL_BATCHES * size)
            places = rng.permutation(len(self))
            places = places[np.lexsort((self._lengths()[places], pool))]
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
