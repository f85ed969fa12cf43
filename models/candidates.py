"""BM25 as a proposer: it chooses the documents that a system without an index reranks."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gr_mvdr.evaluation.bm25 import InvertedLists, index_bm25, split_words
from models.base import Table, hash_documents

_CHUNK = 1000  # documents whose texts are in memory at once


class LexicalCandidates:
    """BM25 over the documents' words.

    Attributes:
        lists: the inverted lists of the words.
    """

    def __init__(
        self,
        documents: Table,
        directory: str | Path | None = None,
        texts: Iterable[str] | None = None,
    ):
        """
        Args:
            documents: with `id`, `text` and `tokens`.
            directory: keeps the index in its folder `bm25`; None = the index is not kept.
            texts: of the documents, in place of `text`.
        """
        words = map(split_words, _texts(documents) if texts is None else texts)
        self.lists = index_bm25(documents["id"][:], words)
        if directory is not None:
            self.lists.save(Path(directory) / "bm25", collection=hash_documents(documents))

    @classmethod
    def open(cls, documents: Table, directory: str | Path) -> "LexicalCandidates":
        """Opens a kept index; errors as of `System.open_index`."""
        opened = cls.__new__(cls)
        made_of = hash_documents(documents)
        opened.lists = InvertedLists.open(Path(directory) / "bm25", collection=made_of)
        return opened

    def __call__(
        self, queries: Table, depth: int, among: Sequence[str] | None = None
    ) -> dict[str, list[str]]:
        """Query id → its best documents that share a word with it, at most `depth`, best first.

        Args:
            among: ids of the documents that may be proposed; None = all.
        """
        ranking = self.lists.search(read_words(queries), depth, among)
        return {query: ranking.documents(query) for query in ranking.query_ids}


def read_words(queries: Table) -> dict[str, list[str]]:
    """Query id → the words of its text."""
    rows = zip(queries["id"][:], queries["text"][:], strict=True)
    return {query: split_words(text) for query, text in rows}


def _texts(documents: Table) -> Iterator[str]:
    for start in range(0, len(documents), _CHUNK):
        yield from documents[start : start + _CHUNK]["text"]
