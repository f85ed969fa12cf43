"""Inverted lists: of every term the documents that have it, with a weight each.

They are the columns of a sparse matrix (documents, terms).
"""

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gr_mvdr.evaluation.ranking import best_documents
from gr_mvdr.files import check, check_offsets, read_arrays, write_arrays

_ARRAYS = ("data", "indices", "indptr")

# What another value of a setting says of the lists.
_OTHERS = {
    "collection": "of other documents, or of other tokens of theirs",
    "model": "by another model",
}
# A query's terms: with a weight each, or each as often as it counts.
Query = Mapping[Any, float] | Sequence[Hashable]


class InvertedLists:
    """score(q, d) = Σ_t w_q(t) · w_d(t) over the terms that a query and a document share.

    Attributes:
        ids: of the D documents.
        vocabulary: term → its number, the column of its list.
        lists: "data" (n,) fp32 weights and "indices" (n,) documents, one list after the other;
            "indptr" (terms + 1,) where each begins.
    """

    def __init__(
        self, ids: Sequence[str], vocabulary: dict[Hashable, int], lists: Mapping[str, np.ndarray]
    ):
        self.ids, self.vocabulary = list(ids), vocabulary
        self.lists = {name: lists[name] for name in _ARRAYS}

    @classmethod
    def of_matrix(cls, ids: Sequence[str], matrix: Any) -> "InvertedLists":
        """The lists of scipy's sparse matrix (documents, terms) fp32; its columns are the terms."""
        columns = matrix.tocsc()
        columns.sort_indices()
        lists = {name: getattr(columns, name) for name in _ARRAYS}
        return cls(ids, {term: term for term in range(columns.shape[1])}, lists)

    @property
    def matrix(self) -> Any:
        """(documents, terms) fp32, scipy's sparse matrix by columns; no array is copied."""
        from scipy.sparse import csc_matrix

        shape = len(self.ids), len(self.vocabulary)
        return csc_matrix(tuple(self.lists[name] for name in _ARRAYS), shape)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Document id → its number."""
        return {name: number for number, name in enumerate(self.ids)}

    @property
    def document_frequencies(self) -> np.ndarray:
        """(terms,) int64: in how many documents each term occurs, by its number."""
        return np.diff(self.lists["indptr"]).astype(np.int64)

    def documents_with(self, term: Hashable) -> tuple[np.ndarray, np.ndarray]:
        """The documents that have a term, by number, and its weights in them; none if unknown."""
        number = self.vocabulary.get(term)
        begin, end = (0, 0) if number is None else self.lists["indptr"][number : number + 2]
        return self.lists["indices"][begin:end], self.lists["data"][begin:end]

    def scores(self, query: Query) -> np.ndarray:
        """(D,) fp32 scores of one query's terms; terms that occur nowhere add nothing."""
        scores = np.zeros(len(self.ids), np.float32)
        for term, weight in _weighted(query):
            documents, weights = self.documents_with(term)
            np.add.at(scores, documents, np.float32(weight) * weights)
        return scores

    def best(self, query: Query, k: int, among: Collection[str] | None = None) -> dict[str, float]:
        """The k best documents of one query: document id → score; ties as in `Ranking`.

        Args:
            among: ids of the documents that can be found; None = all.
        """
        return self.best_of(self.scores(query), k, among)

    def best_of(
        self, scores: np.ndarray, k: int, among: Collection[str] | None = None
    ) -> dict[str, float]:
        """`best` from the scores (D,) of all documents; one of 0 is not found."""
        if among is not None:
            wanted = frozenset(among)
            scores = scores * np.fromiter((name in wanted for name in self.ids), bool, len(scores))
        return best_documents(self.ids, scores, k, above=0)

    def shares(
        self, query: Query, documents: Iterable[str]
    ) -> dict[str, list[tuple[Hashable, float]]]:
        """Of each document, by id, what every term of the query adds to its score."""
        names = list(documents)
        rows, column, added = [self.numbers[name] for name in names], np.zeros(len(self.ids)), []
        for term, weight in _weighted(query):
            owners, weights = self.documents_with(term)
            column[owners] = np.float32(weight) * weights
            added.append((term, column[rows].tolist()))
            column[owners] = 0
        return {name: [(t, values[n]) for t, values in added] for n, name in enumerate(names)}

    def write(self, directory: str | Path, **settings: Any) -> None:
        """Writes the lists as a folder, over an older one.

        Args:
            settings: what they were made of, which `read` compares, and what else is to be known.
        """
        lists = self.lists | {"indptr": self.lists["indptr"].astype(np.int64)}
        settings |= {"ids": self.ids, "terms": list(self.vocabulary)}
        write_arrays(Path(directory), lists, settings, replace=True)

    @staticmethod
    def read(directory: str | Path, **made_of: str) -> tuple["InvertedLists", dict[str, Any]]:
        """Opens what `write` wrote, the lists by memory map; and its settings.

        Raises:
            FileNotFoundError: there is none.
            ValueError: it is damaged, or was made of something else.
        """
        path = Path(directory)
        lists, settings = read_arrays(path, _ARRAYS)
        for name, value in made_of.items():
            if settings.get(name) != value:
                raise ValueError(f"{path}: was made {_OTHERS[name]}")
        _check_matrix(path, lists, settings)
        vocabulary = {term: number for number, term in enumerate(settings["terms"])}
        return InvertedLists(settings["ids"], vocabulary, lists), settings


def _weighted(query: Query) -> Iterator[tuple[Hashable, float]]:
    return iter(query.items()) if isinstance(query, Mapping) else ((term, 1.0) for term in query)


def _check_matrix(path: Path, arrays: dict[str, np.ndarray], settings: dict[str, Any]) -> None:
    """Refuses weights that are no matrix of the folder's documents and terms."""
    ids, terms = settings.get("ids"), settings.get("terms")
    lists = isinstance(ids, list) and isinstance(terms, list)
    lists = lists and all(isinstance(name, str) for name in ids)
    lists = lists and all(isinstance(term, str | int) for term in terms)
    check(lists, path, "must list ids and terms")
    data, indices = arrays["data"], arrays["indices"]
    check_offsets(arrays["indptr"], 0, len(data), len(terms), path / "indptr.npy")
    fits = data.ndim == 1 and data.dtype == np.float32 and indices.shape == data.shape
    fits = fits and np.issubdtype(indices.dtype, np.integer)
    rule = "must hold a document's number for each score"
    inside = fits and (not len(indices) or 0 <= indices.min() <= indices.max() < len(ids))
    check(inside, path / "indices.npy", rule)
