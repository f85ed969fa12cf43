"""BM25 (Robertson & Zaragoza), and the inverted lists that lexical systems search."""

from array import array
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from gr_mvdr.evaluation.ranking import Ranking, SearchCosts, best_documents
from gr_mvdr.files import check_fingerprint, open_tensors, reading, write_tensors
from gr_mvdr.progress import track
from gr_mvdr.salience import inverse_document_frequency

_ARRAYS = ("data", "indices", "indptr")
_FILE = "lists.safetensors"
# The terms of a query: term → weight, or a list in which terms may repeat.
Query = Mapping[Any, float] | Sequence[Hashable]


class InvertedLists:
    """score(q, d) = Σ_t w_q(t) · w_d(t) over the terms that a query and a document share.

    Attributes:
        ids: the ids of the D documents.
        vocabulary: term → its column.
        matrix: (D, terms) fp32, scipy's csc_matrix of w_d(t); a column is the term's inverted list.
        settings: saved with the lists: the collection or the model they were made from.
        costs: running totals of all searches.
        query_terms: number of query terms of all searches.
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
        self.costs, self.query_terms = SearchCosts(), 0

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Document id → its row."""
        return {name: number for number, name in enumerate(self.ids)}

    def lists(self, query: Query) -> Iterator[tuple[Hashable, np.ndarray, np.ndarray]]:
        """Yields each term of a query, the rows of the documents that have it, and their weights.

        An unknown term has no documents. The weights are w_d(t), without the factor w_q(t).
        """
        for term in query:
            column = self.vocabulary.get(term)
            begin, end = (0, 0) if column is None else self.matrix.indptr[column : column + 2]
            yield term, self.matrix.indices[begin:end], self.matrix.data[begin:end]

    def scores(self, query: Query) -> np.ndarray:
        """(D,) fp32 the scores of all documents for one query."""
        scores = np.zeros(len(self.ids), np.float32)
        for term, rows, weights in self.lists(query):
            scores[rows] += _weight(query, term) * weights
        return scores

    def best(self, query: Query, k: int, among: Collection[str] | None = None) -> dict[str, float]:
        """Returns the k best documents of one query: document id → score > 0; ties as in `Ranking`.

        Args:
            among: ids of the documents that may be returned; None = all.
        """
        with self.costs.timed():
            scores = self.scores(query)
            reached = int(np.count_nonzero(scores))
            if among is not None:
                rows = [self.numbers[name] for name in among if name in self.numbers]
                scores, every = np.zeros_like(scores), scores
                scores[rows] = every[rows]
            best = best_documents(self.ids, scores, k, above=0)
        read = sum(len(rows) for _, rows, _ in self.lists(query))
        self.costs.add(reached, read, 2.0 * read)
        self.query_terms += len(query)
        return best

    def search(
        self, queries: Mapping[str, Query], k: int, among: Collection[str] | None = None
    ) -> Ranking:
        """Applies `best` to many queries: query id → terms."""
        if unknown := sum(self.vocabulary.keys().isdisjoint(own) for own in queries.values()):
            count = f"{unknown:,} of {len(queries):,} queries"
            print(f"{count} have no term of any document and find nothing (data.language)")
        bar = track(queries.items(), "searching", total=len(queries))
        return Ranking({name: self.best(query, k, among) for name, query in bar})

    def shares(
        self, query: Query, documents: Iterable[str]
    ) -> dict[str, list[tuple[Hashable, float]]]:
        """Returns document id → each term of the query, and what it adds to the score."""
        parts: dict[str, list[tuple[Hashable, float]]] = {name: [] for name in documents}
        for term, rows, weights in self.lists(query):
            added = np.zeros(len(self.ids))
            added[rows] = _weight(query, term) * weights
            for name, own in parts.items():
                own.append((term, float(added[self.numbers[name]])))
        return parts

    def save(self, directory: str | Path, **made_of: Any) -> None:
        """Writes the lists into a folder; older lists there are replaced.

        Args:
            made_of: what the lists were made from; `open` compares it.
        """
        arrays = {name: torch.from_numpy(getattr(self.matrix, name)) for name in _ARRAYS}
        terms = {"ids": self.ids, "terms": list(self.vocabulary)}
        write_tensors(Path(directory) / _FILE, arrays, self.settings | made_of | terms)

    @classmethod
    def open(cls, directory: str | Path, **made_of: Any) -> "InvertedLists":
        """Opens lists that `save` wrote, by memory map.

        Args:
            made_of: what the lists must have been made from.

        Raises:
            FileNotFoundError: the folder has no lists.
            ValueError: the lists are damaged, or were made from something else.
        """
        from scipy.sparse import csc_matrix

        path = Path(directory)
        tensors, settings = open_tensors(path / _FILE)
        check_fingerprint(f"{path}", settings, made_of)
        with reading(f"{path}: is damaged"):
            ids, terms = settings.pop("ids"), settings.pop("terms")
            shape = len(ids), len(terms)
            matrix = csc_matrix(tuple(tensors[name].numpy() for name in _ARRAYS), shape)
        return cls(ids, {term: number for number, term in enumerate(terms)}, matrix, settings)


def _weight(query: Query, term: Hashable) -> np.float32:
    return np.float32(query[term] if isinstance(query, Mapping) else 1.0)


class TermCounts(NamedTuple):
    """How often each term occurs in each document.

    Attributes:
        ids: the ids of the D documents.
        vocabulary: term → its column, in the order of the terms' first occurrence.
        matrix: (D, terms) fp32, scipy's csc_matrix of tf.
    """

    ids: Sequence[str]
    vocabulary: dict[Hashable, int]
    matrix: Any

    def bm25(self, k1: float = 1.5, b: float = 0.75) -> InvertedLists:
        """Computes the BM25 scores of all terms in all documents, in Lucene's form.

        score(q, d) = Σ_j idf(q_j) · tf / (tf + k1 (1 − b + b |d| / mean |d|)),
        idf(t) = ln(1 + (N − df + ½) / (df + ½)). `settings` has mean |d| as `mean_length`, k1, b.

        Args:
            k1: saturation of the term frequency.
            b: strength of the length normalisation.
        """
        from scipy.sparse import csc_matrix

        counts, indices, indptr = (getattr(self.matrix, name) for name in _ARRAYS)
        frequency = np.diff(indptr)
        lengths = np.asarray(self.matrix.sum(axis=1, dtype=np.float64)).ravel()
        mean_length = float(lengths.mean()) if lengths.any() else 0.0
        norms = (k1 * (1 - b + b * lengths / (mean_length or 1.0))).astype(np.float32)
        idf = inverse_document_frequency(frequency, len(self.ids)).astype(np.float32)
        weights = norms[indices]
        weights += counts
        np.divide(counts, weights, out=weights)
        weights *= np.repeat(idf, frequency)
        matrix = csc_matrix((weights, indices, indptr), self.matrix.shape)
        settings = {"mean_length": mean_length, "k1": k1, "b": b}
        return InvertedLists(self.ids, self.vocabulary, matrix, settings)


def count_terms(ids: Sequence[str], documents: Iterable[Iterable[Hashable]]) -> TermCounts:
    """Counts the terms (words, or token ids) of the D documents; their texts are read once."""
    from scipy.sparse import csr_matrix

    vocabulary: dict[Hashable, int] = {}
    numbers, bounds = array("i"), array("q", [0])
    for document in track(documents, "counting terms", total=len(ids)):
        numbers.extend([vocabulary.setdefault(term, len(vocabulary)) for term in document])
        bounds.append(len(numbers))
    ones = np.ones(len(numbers), np.float32)
    parts = ones, np.frombuffer(numbers, "i4"), np.frombuffer(bounds, "i8")
    matrix = csr_matrix(parts, (len(ids), len(vocabulary)))
    matrix.sum_duplicates()
    return TermCounts(ids, vocabulary, matrix.tocsc())
