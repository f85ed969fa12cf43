"""BM25 as a proposer: it chooses the documents that a system without an index reranks."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from gr_mvdr.evaluation.bm25 import BM25Index, split_words
from gr_mvdr.progress import track
from models.base import Table, hash_documents

_CHUNK = 1000  # documents whose texts are in memory at once


class LexicalCandidates:
    """BM25 over the documents' words."""

    def __init__(self, documents: Table, directory: str | Path | None = None):
        """
        Args:
            documents: with `id`, `text` and `tokens`.
            directory: keeps the index in its folder `bm25`; None = the index is not kept.
        """
        self.index = BM25Index(documents["id"][:], map(split_words, _texts(documents)))
        if directory is not None:
            Path(directory).mkdir(parents=True, exist_ok=True)
            self.index.save(Path(directory) / "bm25", collection=hash_documents(documents))

    @classmethod
    def open(cls, documents: Table, directory: str | Path) -> "LexicalCandidates":
        """Opens a kept index; errors as of `System.open_index`."""
        opened = cls.__new__(cls)
        made_of = hash_documents(documents)
        opened.index = BM25Index.open(Path(directory) / "bm25", collection=made_of)
        return opened

    def __call__(
        self, queries: Table, depth: int, among: Sequence[str] | None = None
    ) -> dict[str, list[str]]:
        """Query id → its best documents that share a word with it, at most `depth`, best first.

        Args:
            among: ids of the documents that may be proposed; None = all.
        """
        rows = zip(queries["id"][:], queries["text"][:], strict=True)
        bar = track(rows, "BM25 candidates", total=len(queries))
        return {q: list(self.index.best(split_words(text), depth, among)) for q, text in bar}


def _texts(documents: Table) -> Iterator[str]:
    for start in range(0, len(documents), _CHUNK):
        yield from documents[start : start + _CHUNK]["text"]
