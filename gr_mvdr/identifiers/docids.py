"""Docids: identifiers made of new tokens (DSI, Tay et al. 2022, §3.2; NCI)."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gr_mvdr.files import new_folder
from gr_mvdr.identifiers.cluster_tree import ClusterTree
from gr_mvdr.identifiers.scheme import Encode, Scheme, Table, check_at_least, check_choice
from gr_mvdr.options import build, part

TFIDF = {"_target_": "gr_mvdr.identifiers.document_embeddings.TfidfSvd"}


@part("identifiers")
class AtomicDocids(Scheme):
    """One new token a document (DSI's atomic docids).

    A document that arrives later has no trained token, and an untrained one would be noise.
    """

    def __init__(self, new_documents: str = "skip"):
        """
        Args:
            new_documents: "skip", they get no identifier and cannot be found, or "refuse".

        Raises:
            ValueError: another value.
        """
        super().__init__()
        check_choice("model.identifiers.new_documents", new_documents, ("skip", "refuse"))
        self.new_documents = new_documents

    @property
    def n_tokens(self) -> int:
        return len(self.document_ids)

    @property
    def width(self) -> int:
        """All tokens belong to the one position."""
        return self.n_tokens

    def assign(self, documents: Table) -> list[list[int]]:
        """One token a known document, [] for the others.

        Raises:
            ValueError: there are others, and they are to be refused.
        """
        numbers = self.numbers(documents)
        if self.new_documents == "refuse" and None in numbers:
            first = documents["id"][numbers.index(None)]
            raise ValueError(
                f"model.identifiers.new_documents=refuse: {numbers.count(None)} documents were "
                f"not there in training and have no token, the first is {first!r}"
            )
        return [[] if number is None else [self.first_token + number] for number in numbers]


@part("identifiers")
class NaiveDocids(Scheme):
    """The decimal digits of the document's number, then </s> (DSI's naive string docids).

    Not zero-padded, so that new documents get the next numbers however many there are.
    """

    n_tokens = 10
    width = None

    def assign(self, documents: Table) -> list[list[int]]:
        """Known documents have the number of their row in `fit`, new ones count on from there."""
        found, next_number = [], len(self.document_ids)
        for number in self.numbers(documents):
            if number is None:
                number, next_number = next_number, next_number + 1
            digits = (self.first_token + int(digit) for digit in str(number))
            found.append([*digits, self.template.stop])
        return found


class EmbeddedDocids(Scheme):
    """Docids made of the documents' vectors (`gr_mvdr.identifiers.document_embeddings`)."""

    def __init__(self, embeddings: dict[str, Any] | None = None):
        """embeddings: `_target_` and options; None = TF-IDF and SVD."""
        super().__init__()
        self.embedding_settings = dict(embeddings or TFIDF)
        self.embeddings = build("embeddings", self.embedding_settings)
        self.encode: Encode | None = None

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | {"embeddings": self.embedding_settings}

    def fit(self, documents: Table, first_token: int, encode: Encode | None = None) -> None:
        """Lets the embeddings learn from the documents; raises ValueError if there are none."""
        super().fit(documents, first_token, encode)
        self.encode = encode
        self.embeddings.fit(documents)

    def save(self, folder: str | Path) -> None:
        """Writes options, embeddings and what is made of them as the new folder `folder`."""
        with new_folder(Path(folder)) as unfinished:
            super().save(unfinished / "scheme")
            self.embeddings.save(unfinished / "embeddings")
            self.save_structure(unfinished)

    def load(self, folder: str | Path, encode: Encode | None = None) -> None:
        super().load(Path(folder) / "scheme")
        self.encode = encode
        self.embeddings.load(Path(folder) / "embeddings")
        self.load_structure(Path(folder))

    def save_structure(self, folder: Path) -> None:
        """Writes the tree, or the codes, as a new folder within `folder`."""
        raise NotImplementedError

    def load_structure(self, folder: Path) -> None:
        """Reads back what `save_structure` wrote; raises ValueError if it is damaged."""
        raise NotImplementedError


@part("identifiers")
class SemanticDocids(EmbeddedDocids):
    """The path through a tree of clusters, then a number in the leaf (DSI's semantic docids).

    Documents with a common prefix are alike. No identifier is the beginning of another, as leaves
    have no children: there is no end token.
    """

    options = ("k", "leaf_size", "balanced", "positional", "seed")

    def __init__(
        self,
        k: int,
        leaf_size: int,
        balanced: bool = False,
        positional: bool = True,
        embeddings: dict[str, Any] | None = None,
        new_documents: str = "number",
        seed: int = 0,
    ):
        """
        Args:
            k: clusters that a cluster is split into (DSI 10, NCI 30).
            leaf_size: clusters of at most so many documents are not split (DSI 100, NCI 30).
            balanced: the parts of a cluster differ in size by at most one.
            positional: a token belongs to one position, as in NCI; else all positions share theirs.
            embeddings: of the documents, of `gr_mvdr.identifiers.document_embeddings`, with
                options; None = TF-IDF and SVD.
            new_documents: that arrive later go down the tree by the nearest centroids; "number"
                gives them the leaf's next number, or, when its tokens are used up, the identifier
                of the leaf's nearest known document; "nearest" always gives them that.
            seed: of the clustering.

        Raises:
            ValueError: an option out of range.
        """
        super().__init__(embeddings)
        check_at_least("model.identifiers.k", k, 2)
        check_at_least("model.identifiers.leaf_size", leaf_size, 1)
        check_choice("model.identifiers.new_documents", new_documents, ("number", "nearest"))
        self.k, self.leaf_size, self.balanced, self.seed = k, leaf_size, balanced, seed
        self.positional, self.new_documents = positional, new_documents
        self.tree: ClusterTree | None = None

    @property
    def numbers_a_position(self) -> int:
        """How many numbers a position may have to tell apart: clusters, or members of a leaf."""
        return max(self.k, self.leaf_size)

    @property
    def width(self) -> int | None:
        return self.numbers_a_position if self.positional else None

    @property
    def n_tokens(self) -> int:
        positions = self.tree.depth + 1 if self.positional else 1
        return positions * self.numbers_a_position

    def fit(self, documents: Table, first_token: int, encode: Encode | None = None) -> None:
        """Embeds and clusters the documents; a single one needs no clusters.

        Raises:
            ValueError: no documents, or fewer than k.
        """
        super().fit(documents, first_token, encode)
        if 1 < len(documents) < self.k:
            raise ValueError(
                f"model.identifiers.k={self.k}: must be ≤ the {len(documents)} documents"
            )
        points = self.embeddings.transform(documents, encode)
        self.tree = ClusterTree.build(points, self.k, self.leaf_size, self.balanced, self.seed)

    def assign(self, documents: Table) -> list[list[int]]:
        """Known documents keep their places, whatever their text is now; new ones find theirs."""
        places = [(0, 0)] * len(self.document_ids)  # each document's leaf and its number there
        for leaf in range(len(self.tree)):
            for number, member in enumerate(self.tree.members_of(leaf).tolist()):
                places[member] = (leaf, number)
        numbers, paths = self.numbers(documents), self.tree.paths()
        found = [None if number is None else places[number] for number in numbers]
        new = [row for row, number in enumerate(numbers) if number is None]
        for row, place in zip(new, self._new_places(documents.select(new), places), strict=True):
            found[row] = place
        step = self.width or 0
        return [
            [self.first_token + at * step + part for at, part in enumerate([*paths[leaf], number])]
            for leaf, number in found
        ]

    def _new_places(
        self, documents: Table, places: Sequence[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        if not len(documents):
            return []
        points = self.embeddings.transform(documents, self.encode)
        taken = Counter(leaf for leaf, _ in places)
        found = []
        for leaf, point in zip(self.tree.descend(points).tolist(), points, strict=True):
            if self.new_documents == "number" and taken[leaf] < self.numbers_a_position:
                found.append((leaf, taken[leaf]))
                taken[leaf] += 1
            else:
                found.append(places[self.tree.nearest_member(leaf, point)])
        return found

    def save_structure(self, folder: Path) -> None:
        self.tree.save(folder / "tree")

    def load_structure(self, folder: Path) -> None:
        self.tree = ClusterTree.load(folder / "tree")
