"""The one form in which texts reach a model: padded (query, document) pairs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

_PADDED_TOKENS = 4_096  # encoded at once, padding included; more are slower on a CPU


@dataclass
class PairBatch:
    """B pairs of token sequences, padded on the right.

    The document side holds what the system treats as the document: the text for a multi-vector
    model, the identifier (a span, a docid) for a generative one. Hard negatives may follow the B
    positives, each document once.

    Attributes:
        query_ids, query_mask: (B, N) int64 and bool, True = real token.
        document_ids, document_mask: (D, M) int64 and bool; the first B are the queries' positives.
            Where a generative system learns S targets of each query, these B · S rows are first.
        document_index: (D,) int64, the document's number in the corpus. Equal numbers mean the
            same document, which must not serve as its own negative.
        negatives: (B, G) int64, the rows of each query's hard negatives in the batch's documents.
        teacher: (B, 1 + G) fp32, a teacher's scores of the positive and of the hard negatives;
            NaN = no score.
        relevant: (B, R) int64, 1 + the numbers of further documents that are relevant to each
            query, padded with 0; None = unknown.
        host: the same pairs on the CPU, where `to` came from; a changed batch has none.
    """

    query_ids: Tensor
    query_mask: Tensor
    document_ids: Tensor
    document_mask: Tensor
    document_index: Tensor
    negatives: Tensor | None = None
    teacher: Tensor | None = None
    relevant: Tensor | None = None
    host: "PairBatch | None" = field(default=None, init=False)

    def __len__(self) -> int:
        return len(self.query_ids)

    def to(self, device: torch.device) -> "PairBatch":
        """The same pairs on another device; only a copy to the CPU waits for a device."""
        late = torch.device(device).type != "cpu"
        tensors = self.tensors.items()
        moved = PairBatch(**{name: x.to(device, non_blocking=late) for name, x in tensors})
        moved.host = self if self.query_ids.device.type == "cpu" else None
        return moved

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors that the batch has, by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    @property
    def on_host(self) -> "PairBatch":
        """The same pairs on the CPU, so that asking them for a size does not wait for a device."""
        return self.host or self.to(torch.device("cpu"))

    @property
    def is_negative(self) -> Tensor:
        """(D, B) bool, True where the document is a negative of the query.

        Excluded are the query's positive, its copies, and other documents known to be relevant.
        """
        number = self.document_index.unsqueeze(1)
        negative = number != self.document_index[: len(self)]
        if self.relevant is not None:
            negative &= (self.relevant != 1 + number.unsqueeze(2)).all(2)
        return negative

    @property
    def relevant_index(self) -> Tensor:
        """(B, 1 + R) int64, the numbers of each query's positive and further relevant documents.

        A query with fewer than R further documents is padded with its positive.
        """
        positive = self.document_index[: len(self), None]
        if self.relevant is None:
            return positive
        return torch.cat([positive, (self.relevant - 1).where(self.relevant > 0, positive)], 1)

    def without_negatives(self) -> "PairBatch":
        """The batch without its hard negatives; each query keeps all its targets."""
        if self.negatives is None:
            return self
        size = len(self)
        targets = len(self.document_ids) + size - len(self.document_index)
        sides = {name: getattr(self, name)[:targets] for name in ("document_ids", "document_mask")}
        own = self.document_index[:size]
        kept = replace(self, **sides, document_index=own, negatives=None, teacher=None)
        kept.host = self.host and self.host.without_negatives()
        return kept

    @property
    def sides(self) -> dict[str, Tensor]:
        """Token ids and masks of both sides, by name."""
        names = ("query_ids", "query_mask", "document_ids", "document_mask")
        return {name: getattr(self, name) for name in names}


def pad(sequences: Sequence[Sequence[int]], pad_id: int = 0) -> tuple[Tensor, Tensor]:
    """Pads B lists of token ids on the right to the longest of them, with `pad_id`.

    Returns:
        ids (B, L) int64 and mask (B, L) bool, True = real token. L is at least 1.
    """
    mask = length_mask(torch.tensor([len(sequence) for sequence in sequences]))
    ids = torch.full(mask.shape, pad_id, dtype=torch.int64)
    tokens = [token for sequence in sequences for token in sequence]
    ids[mask] = torch.tensor(tokens, dtype=torch.int64)  # an empty list would be floats
    return ids, mask


def unpad(ids: Tensor, mask: Tensor) -> list[list[int]]:
    """Returns the real tokens of each row: the inverse of `pad`."""
    return [row[real].tolist() for row, real in zip(ids, mask, strict=True)]


def append_documents(index: Sequence[int], further: Sequence[int]) -> tuple[list[int], list[int]]:
    """Appends further documents to a batch, each document once.

    Args:
        index: numbers of the batch's documents.
        further: numbers of the documents to append; copies and known ones are allowed.

    Returns:
        The places in `further` of the documents that have to be appended, and the row in the batch
        of every document of `further`.
    """
    row_of = {number: row for row, number in enumerate(index)}
    new: list[int] = []
    for place, number in enumerate(further):
        if number not in row_of:
            row_of[number] = len(index) + len(new)
            new.append(place)
    return new, [row_of[number] for number in further]


def length_mask(lengths: Tensor) -> Tensor:
    """(B,) int64 lengths → (B, L) bool, True = real token; L is the largest length, at least 1."""
    places = torch.arange(max(1, int(lengths.max())), device=lengths.device)
    return places < lengths.unsqueeze(1)


def cut(tokens: Sequence[int], length: int, end_id: int) -> list[int]:
    """Truncates a text and appends the end token, at most `length` tokens in total."""
    return [*tokens[: length - 1], end_id]


def batch_by_size(lengths: Sequence[int], most: int | None = None) -> Iterator[range]:
    """Yields batches of consecutive texts, as full as allowed, each as the range of their places.

    Args:
        lengths: number of tokens of each text.
        most: texts in a batch; None = as many as `_PADDED_TOKENS` allows. A text that is longer
            than this is a batch of one.
    """
    start = longest = 0
    for place, length in enumerate(lengths):
        longest, size = max(longest, length), place - start
        if size and (size == most if most else longest * (size + 1) > _PADDED_TOKENS):
            yield range(start, place)
            start, longest = place, length
    if start < len(lengths):
        yield range(start, len(lengths))


def batch_by_length(lengths: Sequence[int], most: int | None = None) -> list[list[int]]:
    """Batches texts of similar length, shortest first, to pad little; see `batch_by_size`."""
    places = sorted(range(len(lengths)), key=lengths.__getitem__)
    batches = batch_by_size([lengths[place] for place in places], most)
    return [[places[n] for n in batch] for batch in batches]


def ragged_range(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lists all integers of the intervals [low, high), interval by interval.

    Args:
        low, high: (H,) integers, low ≤ high.

    Returns:
        The interval of each integer, and the integers, both (Σ (high − low),) int64.
    """
    lengths = np.asarray(high, dtype=np.int64) - low
    row = np.repeat(np.arange(len(lengths)), lengths)
    first = np.cumsum(lengths) - lengths
    return row, np.arange(len(row)) + np.repeat(low - first, lengths)
