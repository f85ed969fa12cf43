"""Identifiers: the token sequences that a generative system generates for documents."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from gr_mvdr.files import check, open_tensors, write_tensors
from gr_mvdr.measures import Measured
from gr_mvdr.options import show
from gr_mvdr.template import TextTemplate

# table["id"], len(table), table.select(rows) -> a table; a `datasets.Dataset` is one.
Table = Any
_COLLISIONS = 0.05  # a larger share of documents with a shared identifier is reported


@dataclass(frozen=True)
class Identifiers:
    """The identifiers of a collection.

    Attributes:
        document_ids: the ids of D documents.
        sequences: the tokens of their identifiers; [] = not assigned yet.
    """

    document_ids: list[str]
    sequences: list[list[int]]

    @cached_property
    def tokens(self) -> list[int]:
        """All tokens that occur in an identifier, ascending."""
        return sorted({token for sequence in self.sequences for token in sequence})

    @property
    def hash(self) -> str:
        """Hash of the documents and their identifiers, 32 hexadecimal digits."""
        return _hash([self.document_ids, self.sequences])

    def documents(self) -> dict[tuple[int, ...], list[str]]:
        """Returns the ids of the documents that each identifier names."""
        named: dict[tuple[int, ...], list[str]] = {}
        for document, sequence in zip(self.document_ids, self.sequences, strict=True):
            if sequence:
                named.setdefault(tuple(sequence), []).append(document)
        return named

    def statistics(self) -> dict[str, float]:
        """Computes statistics of collisions, lengths and branching.

        Returns:
            documents: the number of documents.
            assigned: the number of documents with an identifier.
            collision_rate: the share of the assigned documents whose identifier is not unique.
            mean_length, min_length, max_length: in tokens.
            branching: the mean number of tokens that can follow a prefix.
        """
        named = self.documents()
        lengths = np.array([len(s) for s in self.sequences if s] or [0])
        assigned = sum(map(len, named.values()))
        prefixes = {sequence[: end + 1] for sequence in named for end in range(len(sequence))}
        return {
            "documents": len(self.document_ids),
            "assigned": assigned,
            "collision_rate": sum(len(d) for d in named.values() if d[1:]) / max(1, assigned),
            "mean_length": float(lengths.mean()),
            "min_length": int(lengths.min()),
            "max_length": int(lengths.max()),
            "branching": len(prefixes) / max(1, len({prefix[:-1] for prefix in prefixes})),
        }

    def describe_collisions(self) -> str:
        """Reports the share of documents with a shared identifier and an example; "" if few."""
        if (rate := self.statistics()["collision_rate"]) <= _COLLISIONS:
            return ""
        first, second, *others = max(self.documents().values(), key=len)
        more = f" and {len(others):,} more" if others else ""
        return (
            f"{rate:.0%} of the documents share their identifier with another, such as "
            f"{show(first)}, {show(second)}{more}, and a search cannot distinguish them"
        )

    def save(self, file: Path) -> None:
        """Writes the concatenated tokens of all identifiers, and the place where each begins."""
        write_tensors(file, _join(self.sequences), {"document_ids": self.document_ids})

    @classmethod
    def load(cls, file: Path, document_ids: Sequence[str] | None = None) -> "Identifiers":
        """Reads saved identifiers.

        Args:
            document_ids: the documents that the identifiers must belong to; None = any.

        Raises:
            FileNotFoundError: the file does not exist.
            ValueError: the file is damaged, or belongs to other documents.
        """
        arrays, settings = open_tensors(file)
        saved = settings["document_ids"]
        if document_ids is not None and saved != list(document_ids):
            raise ValueError(
                f"{file}: holds the identifiers of collection {hash_collection(saved)}, "
                f"must be of collection {hash_collection(document_ids)}"
            )
        return cls(saved, _split(arrays))


def _join(sequences: Iterable[Sequence[int]]) -> dict[str, torch.Tensor]:
    sequences = list(sequences)
    starts = torch.tensor([0, *map(len, sequences)]).cumsum(0)
    tokens = [token for sequence in sequences for token in sequence]
    return {"tokens": torch.tensor(tokens, dtype=torch.int64), "starts": starts}


def _split(arrays: dict[str, torch.Tensor]) -> list[list[int]]:
    tokens = arrays["tokens"].tolist()
    return [tokens[a:b] for a, b in pairwise(arrays["starts"].tolist())]


class Scheme:
    """Makes identifiers: atomic, naive or semantic docids, titles.

    A new scheme is a subclass that defines `name`, and `learn` if documents that are known in
    training are named otherwise than later ones. It lists its learned attributes in `arrays` and
    `values`.

    Attributes:
        n_tokens: the number of new tokens, from `first_token` on; known after `fit`.
        width: the number of tokens of each position: position i has the tokens from
            first_token + i·width to first_token + (i + 1)·width − 1; None = a token may occur at
            any position.
        known: id → identifier of the documents that were known in training, in their order.
        first_token: the id of the first new token.
        template: the special tokens around an identifier; T5's until a system sets its own.
        device: where a model embeds documents.
        owners: the objects whose attributes are saved: the scheme and its document embedder.
    """

    # The options that the identifiers of known documents depend on.
    options: ClassVar[tuple[str, ...]] = ()
    # Names of the attributes that are saved: numpy arrays, and plain values.
    arrays: ClassVar[tuple[str, ...]] = ()
    values: ClassVar[tuple[str, ...]] = ()
    # Advice to the user if many documents share their identifiers.
    advice = (
        "take another identifier, such as model=dsi_semantic, or give each document a title of "
        "its own"
    )
    n_tokens: int = 0
    width: int | None = None
    first_token = 0
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.known: dict[str, list[int]] = {}
        self.template, self.owners = TextTemplate(), [self]

    def learn(self, documents: Table) -> list[list[int]]:
        """Learns from the known documents; returns their identifiers."""
        return self.name(documents)

    def name(self, documents: Table) -> list[list[int]]:
        """Names each document that is not in `known`; the tokens include an end token if needed.

        [] = no identifier. Appending documents to the table must not change earlier identifiers.
        """
        raise NotImplementedError

    def statistics(self) -> list[Measured]:
        """Returns numbers about a fitted scheme besides `Identifiers.statistics`."""
        return []

    def spell(self, sequence: Sequence[int]) -> str:
        """Spells the new tokens of an identifier, "<position_number>" each, as `TableDocids` reads
        them; a token that may occur at any position is "<number>".
        """
        numbers = (t - self.first_token for t in sequence if t >= self.first_token)
        if (width := self.width) is None:
            return " ".join(f"<{number}>" for number in numbers)
        return " ".join(f"<{number // width + 1}_{number % width}>" for number in numbers)

    def fit(self, documents: Table, first_token: int) -> None:
        """
        Args:
            documents: the known documents.
            first_token: the first free token id.
        """
        self.first_token = first_token
        self.known = dict(zip(documents["id"][:], self.learn(documents), strict=True))

    def assign(self, documents: Table) -> Identifiers:
        """Assigns identifiers; known documents keep theirs, even if their text has changed."""
        ids = documents["id"][:]
        new = [row for row, document in enumerate(ids) if document not in self.known]
        names = iter(self.name(documents.select(new)) if new else [])
        return Identifiers(ids, [self.known[d] if d in self.known else next(names) for d in ids])

    def save(self, file: Path) -> None:
        """Writes the state that `assign` needs; a known document may have been removed since."""
        every = [(owner, name) for owner in self.owners for name in owner.arrays]
        arrays = {name: torch.from_numpy(getattr(owner, name)) for owner, name in every}
        arrays |= _join(self.known.values())
        values = {name: getattr(owner, name) for owner in self.owners for name in owner.values}
        state = {"first_token": self.first_token, "document_ids": list(self.known)}
        write_tensors(file, arrays, {**self._origin(), **values, **state})

    def _origin(self) -> dict[str, Any]:
        """Returns the scheme's class and options, which determine the known identifiers."""
        options = {name: getattr(self, name) for name in self.options}
        return {"scheme": type(self).__name__, **options}

    def load(self, file: Path) -> None:
        """Restores the state that `save` wrote.

        Raises:
            ValueError: the file is damaged, or another scheme or other options saved it.
        """
        tensors, values = open_tensors(file)
        saved = {name: tensor.numpy() for name, tensor in tensors.items()} | values
        for key, value in self._origin().items():
            if saved.get(key) != value:
                raise ValueError(
                    f"model.identifiers.{key}={value}: the identifiers saved in {file} were "
                    f"made with {key}={saved.get(key)}"
                )
        for owner in self.owners:
            names = *owner.arrays, *owner.values
            check(saved.keys() >= {*names}, file, f"must hold {', '.join(names)}")
            vars(owner).update({name: saved[name] for name in names})
        self.known = dict(zip(saved["document_ids"], _split(tensors), strict=True))
        self.first_token = saved["first_token"]


def hash_collection(document_ids: Sequence[str]) -> str:
    """Returns the hash of these ids in this order, 32 hexadecimal digits."""
    return _hash(list(document_ids))


def _hash(value: list) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]
