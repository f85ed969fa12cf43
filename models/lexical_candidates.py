"""BM25's best documents: what a system without a search of its own reranks."""

from collections.abc import Iterator
from pathlib import Path

from gr_mvdr.evaluation.bm25 import BM25Index, split_words
from gr_mvdr.progress import track
from models.base import Table

_CHUNK = 1000  # documents whose texts are in memory at once


class LexicalCandidates:
    """BM25 over the documents' words."""

    def __init__(self, documents: Table, directory: str | Path | None = None):
        """
        Args:
            documents: with `id` and `text`.
            directory: where the index is kept, in a folder `bm25`; None = nowhere.
        """
        texts = (text for rows in _chunks(documents) for text in rows["text"])
        self.index = BM25Index(documents["id"][:], map(split_words, texts))
        if directory is not None:
            Path(directory).mkdir(parents=True, exist_ok=True)
            self.index.save(Path(directory) / "bm25")

    def __call__(self, queries: Table, depth: int) -> dict[str, list[str]]:
        """Query id → its best documents that share a word with it, at most `depth`, best first."""
        rows = zip(queries["id"][:], queries["text"][:], strict=True)
        bar = track(rows, "BM25 candidates", total=len(queries))
        return {query: list(self.index.best(split_words(text), depth)) for query, text in bar}


def _chunks(documents: Table) -> Iterator[Table]:
    return (documents[start : start + _CHUNK] for start in range(0, len(documents), _CHUNK))
