"""BM25 over a corpus, shared by whoever asks for it, and what it finds as a TREC run."""

import hashlib
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

import datasets
from datasets import Dataset

from data_modules.formats.layout import Ranked
from data_modules.ranked_runs import write_run
from data_modules.written_once import written_once
from gr_mvdr.evaluation.bm25 import BM25Index, split_words
from gr_mvdr.progress import track


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
        texts = (text for rows in self.documents.iter(1000) for text in rows["text"])
        return BM25Index(self.documents["id"][:], map(split_words, texts))

    def __reduce__(self) -> tuple:
        return LazyBM25, (self.documents,)  # a loader's worker gets texts, not the whole index


def stored_run(
    queries: Dataset, documents: Dataset, bm25: Callable[[], BM25Index], depth: int
) -> Path:
    """The TREC run of the `depth` best documents of each query, in the cache of ``datasets``.

    Args:
        queries, documents: columns id and text; bm25: over the documents, built if it is needed.
    """
    made_from = f"bm25/1 {depth} {queries._fingerprint} {documents._fingerprint}"
    name = f"bm25-{hashlib.sha256(made_from.encode()).hexdigest()[:16]}.trec"
    run = Path(datasets.config.HF_DATASETS_CACHE) / "runs" / name
    with written_once(run) as partial:
        if partial is not None:
            write_run(_found(queries, bm25(), depth), partial, "bm25")
    return run


def _found(queries: Dataset, index: BM25Index, depth: int) -> Iterator[Ranked]:
    rows = zip(queries["id"][:], queries["text"][:], strict=True)
    for query, text in track(rows, "BM25 run", total=len(queries)):
        for document, score in index.best(split_words(text), depth).items():
            yield Ranked("", query, document, score)
