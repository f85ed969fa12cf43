"""BM25 over a corpus, shared by whoever asks for it."""

from functools import cached_property

from datasets import Dataset

from gr_mvdr.bm25 import BM25Index, words


class LazyBM25:
    """Called, it gives BM25 over the texts of a table: built the first time, then kept."""

    def __init__(self, documents: Dataset):
        """
        Args:
            documents: columns id and text.
        """
        self.documents = documents

    def __call__(self) -> BM25Index:
        return self._index

    @cached_property
    def _index(self) -> BM25Index:
        texts = self.documents["text"][:]
        return BM25Index(self.documents["id"][:], [words(text) for text in texts])

    def __reduce__(self) -> tuple:
        return LazyBM25, (self.documents,)  # a loader's worker gets texts, not the whole index
