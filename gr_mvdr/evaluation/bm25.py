"""BM25 (Robertson & Zaragoza) through bm25s: the lexical baseline and the source of candidates."""

import re
import warnings
from collections.abc import Collection, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gr_mvdr.evaluation.ranking import best_documents
from gr_mvdr.files.arrays import check, check_offsets, read_arrays, write_arrays

_WORD = re.compile(r"\w+")
_ARRAYS = ("data", "indices", "indptr")


def split_words(text: str) -> list[str]:
    """BM25's terms: lower-cased runs of letters, digits and underscores; no stemming."""
    # One small sigma: whether lower() gives the final one depends on what follows the letter.
    return _WORD.findall(text.lower().replace("ς", "σ"))


class BM25Index:
    """Term scores of all documents, computed once: Lucene's BM25.

    score(q, d) = Σ_j idf(q_j) · tf / (tf + k1 (1 − b + b |d| / mean |d|)),
    idf(t) = ln(1 + (N − df + ½) / (df + ½)).

    Attributes:
        ids: of the D documents. mean_length: in terms.
        vocabulary: term → its number; the term's documents are a column of the scores.
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
            ids: of D documents; documents: the terms of each (words, or token ids).
            k1: saturation of the term frequency.
            b: strength of the length normalisation.

        Warns:
            UserWarning: no document has a term; then nothing is found for any query.
        """
        import bm25s

        self.ids = list(ids)
        # A term's number is its place among those seen so far; the texts are read once.
        self.vocabulary: dict[Hashable, int] = {}
        numbers = [
            np.array([self.vocabulary.setdefault(t, len(self.vocabulary)) for t in document], "i4")
            for document in documents
        ]
        self.mean_length = sum(map(len, numbers)) / max(1, len(numbers))
        self.scorer = bm25s.BM25(k1=k1, b=b, method="lucene")
        if not self.vocabulary:
            warnings.warn(
                f"BM25: none of the {len(self.ids):,} documents has a word (letters or digits): "
                "it finds nothing",
                stacklevel=2,
            )
            return
        # bm25s wants words as keys; ours are numbers already.
        self.scorer.index(
            (numbers, {str(n): n for n in range(len(self.vocabulary))}), show_progress=False
        )

    def scores(self, query: Sequence[Hashable]) -> np.ndarray:
        """(D,) fp32 scores of one query's terms; terms that occur nowhere add nothing."""
        known = [self.vocabulary[term] for term in query if term in self.vocabulary]
        if not known:
            return np.zeros(len(self.ids), dtype=np.float32)
        return self.scorer.get_scores_from_ids(known)

    def best(
        self, query: Sequence[Hashable], k: int, among: Collection[str] | None = None
    ) -> dict[str, float]:
        """The k best documents of one query: document id → score; ties as in `Ranking`.

        Args:
            among: ids of the documents that can be found; None = all.
        """
        scores = self.scores(query)
        if among is not None:
            wanted = frozenset(among)
            scores *= np.fromiter((name in wanted for name in self.ids), bool, len(self.ids))
        return best_documents(self.ids, scores, k, above=0)

    def shares(
        self, query: Sequence[Hashable], documents: Iterable[str]
    ) -> dict[str, list[tuple[Hashable, float]]]:
        """Of each document, by id, what every term of the query adds to its score."""
        number = {name: n for n, name in enumerate(self.ids)}
        rows = {name: number[name] for name in documents}
        columns = [(term, self._column(term)) for term in query]
        return {
            name: [(term, column.get(row, 0.0)) for term, column in columns]
            for name, row in rows.items()
        }

    def _column(self, term: Hashable) -> dict[int, float]:
        """Document number → what the term adds to its score."""
        if (number := self.vocabulary.get(term)) is None:
            return {}
        begins = self.scorer.scores["indptr"]
        own = slice(int(begins[number]), int(begins[number + 1]))
        parts = (self.scorer.scores[name][own].tolist() for name in ("indices", "data"))
        return dict(zip(*parts, strict=True))

    @property
    def document_frequencies(self) -> np.ndarray:
        """(terms,) int64: in how many documents each term occurs, by its number."""
        if not self.vocabulary:
            return np.zeros(0, np.int64)
        return np.diff(self.scorer.scores["indptr"]).astype(np.int64)

    def save(self, directory: str | Path, collection: str = "") -> None:
        """Writes the index as a folder, over an older one.

        Args:
            collection: names the documents that it was made of (`open`).
        """
        empty = {"data": np.zeros(0, "f4"), "indices": np.zeros(0, "i4"), "indptr": np.zeros(1)}
        scores = self.scorer.scores if self.vocabulary else empty
        arrays = {name: scores[name] for name in _ARRAYS}
        arrays["indptr"] = arrays["indptr"].astype(np.int64)
        settings = {
            "collection": collection,
            "ids": self.ids,
            "terms": list(self.vocabulary),
            "mean_length": self.mean_length,
            "k1": self.scorer.k1,
            "b": self.scorer.b,
        }
        write_arrays(Path(directory), arrays, settings, replace=True)

    @classmethod
    def open(cls, directory: str | Path, collection: str = "") -> "BM25Index":
        """Opens what `save` wrote, its scores by memory map.

        Raises:
            FileNotFoundError: there is none; ValueError: it is damaged, or of another collection.
        """
        import bm25s

        path = Path(directory)
        arrays, settings = read_arrays(path, _ARRAYS)
        if settings.get("collection") != collection:
            raise ValueError(f"{path}: was made of other documents, or of other tokens of theirs")
        _check_matrix(path, arrays, settings)
        index = cls.__new__(cls)
        index.ids, index.mean_length = settings["ids"], settings["mean_length"]
        index.vocabulary = {term: number for number, term in enumerate(settings["terms"])}
        index.scorer = bm25s.BM25(k1=settings["k1"], b=settings["b"], method="lucene")
        index.scorer.scores = {**arrays, "num_docs": len(index.ids)}
        index.scorer.nonoccurrence_array = None
        index.scorer.vocab_dict = {str(n): n for n in range(len(index.vocabulary))}
        index.scorer.unique_token_ids_set = set(index.scorer.vocab_dict.values())
        return index


def _check_matrix(path: Path, arrays: dict[str, np.ndarray], settings: dict[str, Any]) -> None:
    """Refuses scores that are no matrix of the folder's documents and terms."""
    ids, terms = settings.get("ids"), settings.get("terms")
    lists = isinstance(ids, list) and isinstance(terms, list)
    check(lists and all(isinstance(name, str) for name in ids), path, "must list ids and terms")
    for key in ("mean_length", "k1", "b"):
        check(isinstance(settings.get(key), int | float), path, f"must give {key}")
    data, indices = arrays["data"], arrays["indices"]
    check_offsets(arrays["indptr"], 0, len(data), len(terms), path / "indptr.npy")
    fits = data.ndim == 1 and data.dtype == np.float32 and indices.shape == data.shape
    fits = fits and np.issubdtype(indices.dtype, np.integer)
    rule = "must hold a document's number for each score"
    inside = fits and (not len(indices) or 0 <= indices.min() <= indices.max() < len(ids))
    check(inside, path / "indices.npy", rule)
