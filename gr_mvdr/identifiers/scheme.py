"""Identifiers: the token sequences that a generative system generates for documents."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from gr_mvdr.files import read_arrays, write_arrays
from gr_mvdr.options import show
from gr_mvdr.template import TextTemplate

# table["id"], len(table), table.select(rows) -> a table; a `datasets.Dataset` is one.
Table = Any
_COLLISIONS = 0.05  # a larger share of documents that share their identifiers is reported
# A model's own encoder: token lists of n texts, and the number of tokens kept of each (special
# tokens included) → (n, d), one vector for each text.
Encode = Callable[[Sequence[Sequence[int]], int], np.ndarray]


class Scheme:
    """Assigns identifiers to documents: atomic, naive or semantic docids, titles.

    `fit` learns from the documents known in training. `assign` names all documents of a collection:
    known ones as after `fit`, new ones by the same structure in the given order, so that documents
    added at its end change no identifier before them.

    Attributes:
        n_tokens: number of new tokens, from `first_token` on; known once fitted.
        width: number of tokens of a position, where position i has the tokens first_token + i·width
            to first_token + (i + 1)·width − 1; None where a token may be at any position.
        document_ids: of the known documents, in order; a document's number is its place.
        first_token: the first new token's id.
        template: the special tokens around an identifier; T5's until a system sets its own.
    """

    # The options that the identifiers of known documents depend on.
    options: ClassVar[tuple[str, ...]] = ()
    # Advice to the user where many documents share their identifiers.
    advice = (
        "take another identifier, such as model=dsi_semantic, or give each document a title of "
        "its own"
    )
    n_tokens: int = 0
    width: int | None = None

    def __init__(self) -> None:
        self.document_ids: list[str] = []
        self.first_token = 0
        self.template = TextTemplate()

    @property
    def settings(self) -> dict[str, Any]:
        """The `options` with their values, for JSON."""
        return {name: getattr(self, name) for name in self.options}

    def fit(self, documents: Table, first_token: int, encode: Encode | None = None) -> None:
        """
        Args:
            documents: the known ones; first_token: the first free token id.
            encode: the model's own encoder, for schemes that need it.

        Raises:
            ValueError: there are no documents.
        """
        if len(documents) == 0:
            raise ValueError("model.identifiers: there is no document to give an identifier to")
        self.document_ids, self.first_token = list(documents["id"][:]), first_token

    def assign(self, documents: Table) -> list[list[int]]:
        """One token sequence for each document, end token included if needed; [] = none."""
        raise NotImplementedError

    def statistics(self) -> dict[str, float]:
        """Statistics of a fitted scheme besides `Identifiers.statistics`."""
        return {}

    def numbers(self, documents: Table) -> list[int | None]:
        """The number of each document among the known ones; None for new ones."""
        known = {identifier: number for number, identifier in enumerate(self.document_ids)}
        return [known.get(identifier) for identifier in documents["id"][:]]

    def save(self, folder: str | Path) -> None:
        """Writes the state of `assign` as the new folder `folder`.

        Raises:
            ValueError: `folder` exists.
        """
        state = {"first_token": self.first_token, "document_ids": self.document_ids}
        write_arrays(Path(folder), {}, {"scheme": type(self).__name__, **self.settings, **state})

    def load(self, folder: str | Path, encode: Encode | None = None) -> None:
        """Restores the state that `save` wrote.

        Args:
            encode: as for `fit`; a scheme that needs it cannot name new documents without it.

        Raises:
            FileNotFoundError: no such folder. ValueError: it is damaged, or was saved by another
                scheme or with other options.
        """
        _, saved = read_arrays(Path(folder), ())
        if saved.get("scheme") != type(self).__name__:
            raise ValueError(f"{folder}: holds {saved.get('scheme')}, not {type(self).__name__}")
        for key, value in self.settings.items():
            if saved.get(key) != value:
                raise ValueError(
                    f"model.identifiers.{key}={value}: the identifiers saved in {folder} were "
                    f"made with {key}={saved.get(key)}"
                )
        self.document_ids, self.first_token = saved["document_ids"], saved["first_token"]


@dataclass(frozen=True)
class Identifiers:
    """The identifiers of a collection, document by document.

    Attributes:
        document_ids: of D documents; sequences: their tokens, [] = not assigned yet.
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

    @cached_property
    def tokens(self) -> list[int]:
        """All tokens that occur in an identifier, ascending."""
        return sorted(set(chain.from_iterable(self.sequences)))

    @property
    def hash(self) -> str:
        """Hash of the documents and their identifiers, 32 hexadecimal digits."""
        return _hash([self.document_ids, self.sequences])

    def statistics(self) -> dict[str, float]:
        """Collisions, lengths and branching.

        Returns:
            documents; assigned, those with an identifier; collision_rate, the share of the
            assigned whose identifier another document has, too; mean_, min_, max_length in tokens;
            branching, the mean number of tokens that can follow a prefix.
        """
        assigned = [tuple(sequence) for sequence in self.sequences if sequence]
        lengths = np.array([len(sequence) for sequence in assigned] or [0])
        shared = sum(count for count in Counter(assigned).values() if count > 1)
        prefixes = {sequence[: end + 1] for sequence in assigned for end in range(len(sequence))}
        followed = {prefix[:-1] for prefix in prefixes}
        return {
            "documents": len(self),
            "assigned": len(assigned),
            "collision_rate": shared / max(1, len(assigned)),
            "mean_length": float(lengths.mean()),
            "min_length": int(lengths.min()),
            "max_length": int(lengths.max()),
            "branching": len(prefixes) / max(1, len(followed)),
        }

    def describe_collisions(self) -> str:
        """The share of documents that share their identifier, and an example; "" where few do."""
        rate = self.statistics()["collision_rate"]
        if rate <= _COLLISIONS:
            return ""
        shared: dict[tuple[int, ...], list[str]] = {}
        for document, sequence in zip(self.document_ids, self.sequences, strict=True):
            if sequence:
                shared.setdefault(tuple(sequence), []).append(document)
        first, second, *others = max(shared.values(), key=len)
        more = f" and {len(others):,} more" if others else ""
        return (
            f"{rate:.0%} of the documents share their identifier with another, such as "
            f"{show(first)}, {show(second)}{more}, and a search cannot distinguish them"
        )

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
            collection: the `hash_collection` of the documents that they must belong to.

        Raises:
            FileNotFoundError: no such folder. ValueError: it is damaged, or of another collection.
        """
        arrays, settings = read_arrays(Path(folder), ("tokens", "starts"))
        document_ids = settings["document_ids"]
        saved = hash_collection(document_ids)
        if saved != collection:
            raise ValueError(
                f"{folder}: holds the identifiers of collection {saved}, "
                f"must be of collection {collection}"
            )
        tokens, starts = arrays["tokens"], arrays["starts"]
        tokens, starts = tokens.tolist(), starts.tolist()
        return cls(document_ids, [tokens[start:end] for start, end in pairwise(starts)])


def hash_collection(document_ids: Sequence[str]) -> str:
    """Hash of these documents in this order, 32 hexadecimal digits."""
    return _hash(list(document_ids))


def _hash(value: list) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]
