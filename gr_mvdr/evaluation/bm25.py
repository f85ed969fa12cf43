"""BM25 (Robertson & Zaragoza) through bm25s: the lexical baseline and the source of candidates."""

import json
import re
import warnings
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path

import numpy as np

from gr_mvdr.evaluation.ranking import best_documents
from gr_mvdr.files.writing import new_folder

_WORD = re.compile(r"\w+")


def split_words(text: str) -> list[str]:
    """BM25's terms: lower-cased runs of letters, digits and underscores; no stemming."""
    # One small sigma: whether lower() gives the final one depends on what follows the letter.
    return _WORD.findall(text.lower().replace("ς", "σ"))


class BM25Index:
    """Term scores of all documents, computed once: Lucene's BM25.

    score(q, d) = Σ_j idf(q_j) · tf / (tf + k1 (1 − b + b |d| / mean |d|)),
    idf(t) = ln(1 + (N − df + ½) / (df + ½)).
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

    def best(self, query: Sequence[Hashable], k: int) -> dict[str, float]:
        """The k best documents of one query: document id → score; ties as in `Ranking`."""
        scores = self.scores(query)
        return best_documents(self.ids, np.where(scores > 0, scores, -np.inf), k)

    def save(self, directory: str | Path) -> None:
        """Writes bm25s's own files and the document ids, for later use outside this run."""
        with new_folder(directory, replace=True) as folder:
            if self.vocabulary:
                self.scorer.save(str(folder), show_progress=False)
            (folder / "documents.json").write_text(json.dumps(self.ids))
