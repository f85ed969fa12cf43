"""One epoch of training: the examples of every task, in batches of like length."""

from collections.abc import Sequence

import numpy as np
import torch

from data_modules.tasks import Example, Task
from gr_mvdr.batch import PairBatch, pad

# Examples are sorted by length within pools of so many batches.
_POOL_BATCHES = 16


class Epoch(torch.utils.data.Dataset):
    """The examples of one epoch, task after task.

    What is drawn depends on (seed, epoch, number) alone: every epoch sees fresh targets in its own
    order, and a resumed run, or one with loader workers, sees what an unbroken one would.
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

    def batches(self, size: int, shuffle: bool, rank: int = 0, ranks: int = 1) -> list[list[int]]:
        """Places in batches of like length, so that little is padding.

        Args:
            size: examples a batch, of all processes; the last may have fewer, none is lost.
            shuffle: random pools of examples, sorted within, and the batches in random order.
            rank, ranks: this process, of so many: each has its part of every batch.
        """
        rng = np.random.default_rng((self.seed, self.epoch, len(self)))  # no example's own stream
        places = self._by_length(size, rng) if shuffle else np.arange(len(self))
        starts = np.arange(0, len(places), size)[1:]
        if len(places) % size and len(places) % size < ranks:
            starts = starts[:-1]  # too few for a batch of their own: every process needs one
        found = np.split(places, starts)
        if shuffle:
            found = [found[i] for i in rng.permutation(len(found))]
        return [np.array_split(batch, ranks)[rank].tolist() for batch in found]

    def _by_length(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """All places: random pools of them, each sorted by length."""
        places = rng.permutation(len(self))
        pool = np.arange(len(self)) // (_POOL_BATCHES * size)
        return places[np.lexsort((self._lengths()[places], pool))]

    def _lengths(self) -> np.ndarray:
        lengths = np.empty(len(self), dtype=np.int64)
        for place, task in enumerate(self.tasks):
            chosen = self.task_of == place
            lengths[chosen] = task.lengths[self.numbers[chosen]]
        return lengths


def collate(examples: list[Example]) -> PairBatch:
    """Pads examples; where some have more targets than others, each target brings its source."""
    if len({len(example.targets) for example in examples}) > 1:
        examples = [
            example._replace(targets=[target]) for example in examples for target in example.targets
        ]
    targets = [target for example in examples for target in example.targets]
    index = [example.document for example in examples]
    further = {}
    if any(example.negatives for example in examples):
        further = _add_negatives(examples, targets, index)
    # Always there: the processes of one batch must send the same tensors.
    further["relevant"] = pad([[1 + row for row in example.relevant] for example in examples])[0]
    sources = pad([example.source for example in examples])
    return PairBatch(*sources, *pad(targets), torch.tensor(index), **further)


def _add_negatives(
    examples: list[Example], targets: list[list[int]], index: list[int]
) -> dict[str, torch.Tensor]:
    """Appends the hard negatives to the batch's documents, each document once.

    Args:
        targets, index: of the positives; what they lack is appended.

    Returns:
        `negatives` and, with a teacher, `teacher` of `PairBatch`.
    """
    row_of = {document: row for row, document in enumerate(index)}
    for example in examples:
        given = zip(example.negatives.targets, example.negatives.documents, strict=True)
        for target, document in given:
            if document not in row_of:
                row_of[document] = len(index)
                targets.append(target)
                index.append(document)
    rows = [[row_of[document] for document in e.negatives.documents] for e in examples]
    scores = [example.negatives.teacher for example in examples]
    teacher = {} if scores[0] is None else {"teacher": torch.tensor(scores)}
    return {"negatives": torch.tensor(rows), **teacher}
