"""BM25 (Robertson & Zaragoza) by bm25s, and the inverted lists that lexical systems search."""

import re
import warnings
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from gr_mvdr.evaluation.ranking import best_documents
from gr_mvdr.files import read_arrays, reading, write_arrays

_ARRAYS = ("data", "indices", "indptr")
_WORD = re.compile(r"\w+")
# The terms of a query: each with a weight, or each as often as it occurs.
Query = Mapping[Any, float] | Sequence[Hashable]


def split_words(text: str) -> list[str]:
    """BM25's terms: lower-cased runs of letters, digits and underscores; no stemming."""
    # One small sigma: whether lower() gives the final one depends on what follows the letter.
    return _WORD.findall(text.lower().replace("ς", "σ"))


class InvertedLists:
    """score(q, d) = Σ_t w_q(t) · w_d(t) over the terms that a query and a document share.

    Attributes:
        ids: the ids of the D documents.
        vocabulary: term → its column.
        matrix: (D, terms) fp32, scipy's csc_matrix of w_d(t); a column is the term's inverted list.
        settings: saved with the lists: the collection or the model they were made from.
    """

    def __init__(
        self,
        ids: Sequence[str],
        vocabulary: dict[Hashable, int],
        matrix: Any,
        settings: Mapping[str, Any] | None = None,
    ):
        self.ids, self.vocabulary, self.matrix = list(ids), vocabulary, matrix
        self.settings = dict(settings or {})

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Document id → its row."""
        return {name: number for number, name in enumerate(self.ids)}

    @property
    def document_frequencies(self) -> np.ndarray:
        """(terms,) int64: the number of documents with each term."""
        return np.diff(self.matrix.indptr).astype(np.int64)

    def documents_with(self, term: Hashable) -> tuple[np.ndarray, np.ndarray]:
        """The rows of the documents with a term, and its weights; empty for an unknown term."""
        column = self.vocabulary.get(term)
        begin, end = (0, 0) if column is None else self.matrix.indptr[column : column + 2]
        return self.matrix.indices[begin:end], self.matrix.data[begin:end]

    def scores(self, query: Query) -> np.ndarray:
        """(D,) fp32 scores of one query."""
        scores = np.zeros(len(self.ids), np.float32)
        for term, weight in _weighted(query):
            documents, weights = self.documents_with(term)
            scores[documents] += np.float32(weight) * weights
        return scores

    def best(self, query: Query, k: int, among: Collection[str] | None = None) -> dict[str, float]:
        """The k best documents of one query: document id → score > 0; ties as in `Ranking`.

        Args:
            among: ids of the documents that may be returned; None = all.
        """
        return self.best_of(self.scores(query), k, among)

    def best_of(
        self, scores: np.ndarray, k: int, among: Collection[str] | None = None
    ) -> dict[str, float]:
        """`best` for the scores (D,) of all documents."""
        if among is not None:
            wanted = frozenset(among)
            scores = scores * np.fromiter((name in wanted for name in self.ids), bool, len(scores))
        return best_documents(self.ids, scores, k, above=0)

    def shares(
        self, query: Query, documents: Iterable[str]
    ) -> dict[str, list[tuple[Hashable, float]]]:
        """Document id → what each term of the query adds to the document's score."""
        names = list(documents)
        rows, column, added = [self.numbers[name] for name in names], np.zeros(len(self.ids)), []
        for term, weight in _weighted(query):
            owners, weights = self.documents_with(term)
            column[owners] = np.float32(weight) * weights
            added.append((term, column[rows].tolist()))
            column[owners] = 0
        return {name: [(t, values[n]) for t, values in added] for n, name in enumerate(names)}

    def save(self, directory: str | Path, **made_of: Any) -> None:
        """Writes the lists as a folder, over an older one.

        Args:
            made_of: what the lists were made from, compared by `open`.
        """
        arrays = {name: getattr(self.matrix, name) for name in _ARRAYS}
        terms = {"ids": self.ids, "terms": list(self.vocabulary)}
        write_arrays(Path(directory), arrays, self.settings | made_of | terms, replace=True)

    @classmethod
    def open(cls, directory: str | Path, **made_of: Any) -> Self:
        """Opens what `save` wrote, the lists by memory map.

        Raises:
            FileNotFoundError: no such folder.
            ValueError: it is damaged, or was made from something else.
        """
        from scipy.sparse import csc_matrix

        path = Path(directory)
        arrays, settings = read_arrays(path, _ARRAYS)
        for name, value in made_of.items():
            if settings.get(name) != value:
                raise ValueError(f"{path}: was made from another {name}")
        with reading(f"{path}: is damaged"):
            ids, terms = settings.pop("ids"), settings.pop("terms")
            shape = len(ids), len(terms)
            matrix = csc_matrix(tuple(arrays[name] for name in _ARRAYS), shape)
            matrix.check_format()  # scipy reads raw memory at the indices
        lists = cls.__new__(cls)
        vocabulary = {term: number for number, term in enumerate(terms)}
        InvertedLists.__init__(lists, ids, vocabulary, matrix, settings)
        return lists


def _weighted(query: Query) -> Iterator[tuple[Hashable, float]]:
    return iter(query.items()) if isinstance(query, Mapping) else ((term, 1.0) for term in query)


class BM25Index(InvertedLists):
    """The term scores of all documents, computed once: Lucene's BM25.

    score(q, d) = Σ_j idf(q_j) · tf / (tf + k1 (1 − b + b |d| / mean |d|)),
    idf(t) = ln(1 + (N − df + ½) / (df + ½)). `settings` has mean |d| as `mean_length`, k1 and b.
    """

    def __init__(
        self,
        ids: Sequence[str],
        documents: Iterable[Sequence[Hashable]],
        k1: float = 1.5,
        b: float = 0.75,
    ):
        """
        Args:
            ids: the ids of the D documents.
            documents: the terms of each (words, or token ids).
            k1: saturation of the term frequency.
            b: strength of the length normalisation.

        Warns:
            UserWarning: no document has a term, so that no query retrieves anything.
        """
        import bm25s
        from scipy.sparse import csc_matrix

        # A term's number is the order of its first occurrence; the texts are read once.
        vocabulary: dict[Hashable, int] = {}
        numbers = [
            np.array([vocabulary.setdefault(t, len(vocabulary)) for t in document], "i4")
            for document in documents
        ]
        matrix = csc_matrix((len(ids), len(vocabulary)), dtype=np.float32)
        if vocabulary:
            scorer = bm25s.BM25(k1=k1, b=b, method="lucene")
            names = {str(n): n for n in range(len(vocabulary))}  # bm25s wants words as keys
            scorer.index((numbers, names), show_progress=False)
            matrix = csc_matrix(tuple(scorer.scores[name] for name in _ARRAYS), matrix.shape)
        else:
            warnings.warn(
                f"BM25: none of the {len(ids):,} documents has a word (letters or digits): "
                "it finds nothing",
                stacklevel=2,
            )
        mean_length = sum(map(len, numbers)) / max(1, len(numbers))
        settings = {"mean_length": mean_length, "k1": k1, "b": b}
        super().__init__(ids, vocabulary, matrix, settings)
