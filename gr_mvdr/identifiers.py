"""Identifiers: the token sequences that a generative system generates for documents."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from gr_mvdr.array_folder import read_arrays, write_arrays

# table["id"], len(table), table.select(rows) -> a table; a `datasets.Dataset` is one.
Table = Any
# Token lists of n texts → (n, d) vectors, one a text: what a model can lend of itself.
Encode = Callable[[Sequence[Sequence[int]]], np.ndarray]


class Scheme(Protocol):
    """How documents get their identifiers: atomic, naive or semantic docids, titles.

    `fit` learns from the documents that are known in training, `assign` names any documents: the
    known ones as `fit` did, whatever stands beside them, new ones by the same structure. New
    documents are numbered in the order given, so `assign` is asked about a whole collection at
    once; documents added at its end change no identifier before them.
    """

    @property
    def n_tokens(self) -> int:
        """New tokens needed beyond the vocabulary, from `first_token` on; known once fitted."""

    @property
    def width(self) -> int | None:
        """Tokens a position, where position i owns the tokens from first_token + i · width on."""

    def fit(self, documents: Table, first_token: int, encode: Encode | None = None) -> None:
        """
        Args:
            documents: the known documents; first_token: the first token id that is still free;
            encode: the model's own encoder, for schemes that are made with it.
        """

    def assign(self, documents: Table) -> list[list[int]]:
        """One token sequence a document, end token included where one is needed; [] = none."""

    def save(self, folder: str | Path) -> None:
        """Writes all that `assign` needs as the new folder `folder`."""

    def load(self, folder: str | Path, encode: Encode | None = None) -> None:
        """Makes this the scheme that was saved; refuses one of other settings."""


@dataclass(frozen=True)
class Identifiers:
    """The identifiers of a collection, document by document.

    Attributes:
        document_ids: of D documents; sequences: their tokens, [] = not (yet) assigned.
    """

    document_ids: list[str]
    sequences: list[list[int]]

    def __post_init__(self):
        assert len(self.document_ids) == len(self.sequences)

    def __len__(self) -> int:
        return len(self.document_ids)

    def of(self, row: int) -> list[int]:
        """The tokens of the document in that row."""
        return self.sequences[row]

    def statistics(self) -> dict[str, float]:
        """Collisions and depth.

        Returns:
            documents; assigned, those with an identifier; collision_rate, the share of the
            assigned that share theirs with another document; mean_, min_, max_length in tokens;
            branching, the mean number of tokens that can follow a prefix.
        """
        assigned = [tuple(sequence) for sequence in self.sequences if sequence]
        lengths = np.array([len(sequence) for sequence in assigned] or [0])
        return {
            "documents": len(self),
            "assigned": len(assigned),
            "collision_rate": _shared(assigned) / max(1, len(assigned)),
            "mean_length": float(lengths.mean()),
            "min_length": int(lengths.min()),
            "max_length": int(lengths.max()),
            "branching": _branching(assigned),
        }

    def save(self, folder: str | Path) -> None:
        """Writes the identifiers as the new folder `folder`.

        Raises:
            ValueError: `folder` exists.
        """
        lengths = [len(sequence) for sequence in self.sequences]
        tokens = [token for sequence in self.sequences for token in sequence]
        arrays = {
            "tokens": np.array(tokens, dtype=np.int64),
            "starts": np.cumsum([0, *lengths], dtype=np.int64),
        }
        write_arrays(Path(folder), arrays, {"document_ids": self.document_ids})

    @classmethod
    def load(cls, folder: str | Path, collection: str) -> "Identifiers":
        """Opens saved identifiers.

        Args:
            collection: the `collection_hash` of the documents that they must belong to.

        Raises:
            FileNotFoundError: no such folder. ValueError: it is damaged, or of another collection.
        """
        arrays, settings = read_arrays(Path(folder), ("tokens", "starts"))
        document_ids = settings["document_ids"]
        found = collection_hash(document_ids)
        if found != collection:
            raise ValueError(
                f"{folder}: holds the identifiers of collection {found}, "
                f"must be of collection {collection}"
            )
        tokens, starts = arrays["tokens"].tolist(), arrays["starts"].tolist()
        bounds = zip(starts[:-1], starts[1:], strict=True)
        return cls(document_ids, [tokens[start:end] for start, end in bounds])


def collection_hash(document_ids: Sequence[str]) -> str:
    """32 hexadecimal digits that stand for these documents in this order."""
    return hashlib.sha256(json.dumps(list(document_ids)).encode()).hexdigest()[:32]


def check_settings(folder: str | Path, saved: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuses a saved scheme whose settings are not those of the config.

    Raises:
        ValueError: names the first setting that differs, as the user typed it.
    """
    for key, value in wanted.items():
        if saved.get(key) != value:
            raise ValueError(
                f"model.identifiers.{key}={value}: the scheme saved in {folder} has "
                f"{key}={saved.get(key)}"
            )


def _shared(sequences: list[tuple[int, ...]]) -> int:
    """How many of the sequences are not the only one of their kind."""
    return sum(count for count in Counter(sequences).values() if count > 1)


def _branching(sequences: list[tuple[int, ...]]) -> float:
    """Edges of the sequences' trie for each node that has a child."""
    prefixes = {sequence[: end + 1] for sequence in sequences for end in range(len(sequence))}
    followed = {prefix[:-1] for prefix in prefixes}
    return len(prefixes) / max(1, len(followed))
