"""BM25 (Robertson & Zaragoza) through bm25s: the lexical baseline and the source of candidates."""

import re
import warnings
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path

import numpy as np

from gr_mvdr.evaluation.inverted_lists import InvertedLists
from gr_mvdr.files import check

_OWN = ("mean_length", "k1", "b")  # what else the index holds
_WORD = re.compile(r"\w+")


def split_words(text: str) -> list[str]:
    """BM25's terms: lower-cased runs of letters, digits and underscores; no stemming."""
    # One small sigma: whether lower() gives the final one depends on what follows the letter.
    return _WORD.findall(text.lower().replace("ς", "σ"))


class BM25Index(InvertedLists):
    """Term scores of all documents, computed once: Lucene's BM25.

    score(q, d) = Σ_j idf(q_j) · tf / (tf + k1 (1 − b + b |d| / mean |d|)),
    idf(t) = ln(1 + (N − df + ½) / (df + ½)).

    Attributes:
        mean_length: of the documents, in terms; k1, b: see `__init__`.
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

        # A term's number is its place among those seen so far; the texts are read once.
        vocabulary: dict[Hashable, int] = {}
        numbers = [
            np.array([vocabulary.setdefault(t, len(vocabulary)) for t in document], "i4")
            for document in documents
        ]
        self.mean_length, self.k1, self.b = sum(map(len, numbers)) / max(1, len(numbers)), k1, b
        if not vocabulary:
            warnings.warn(
                f"BM25: none of the {len(ids):,} documents has a word (letters or digits): "
                "it finds nothing",
                stacklevel=2,
            )
            none = {"data": np.zeros(0, "f4"), "indices": np.zeros(0, "i4"), "indptr": np.zeros(1)}
            super().__init__(ids, vocabulary, none)
            return
        scorer = bm25s.BM25(k1=k1, b=b, method="lucene")
        # bm25s wants words as keys; ours are numbers already.
        scorer.index((numbers, {str(n): n for n in range(len(vocabulary))}), show_progress=False)
        super().__init__(ids, vocabulary, scorer.scores)

    def save(self, directory: str | Path, collection: str = "") -> None:
        """Writes the index as a folder, over an older one.

        Args:
            collection: names the documents that it was made of (`open`).
        """
        self.write(directory, collection=collection, **{key: getattr(self, key) for key in _OWN})

    @classmethod
    def open(cls, directory: str | Path, collection: str = "") -> "BM25Index":
        """Opens what `save` wrote, its scores by memory map.

        Raises:
            FileNotFoundError: there is none; ValueError: it is damaged, or of another collection.
        """
        found, settings = cls.read(directory, collection=collection)
        index = cls.__new__(cls)
        InvertedLists.__init__(index, found.ids, found.vocabulary, found.lists)
        for key in _OWN:
            check(isinstance(settings.get(key), int | float), directory, f"must give {key}")
            setattr(index, key, settings[key])
        return index
