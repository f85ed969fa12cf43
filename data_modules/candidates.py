"""Documents to rerank: those that a file names, and those that BM25 finds."""

import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from datasets import Dataset

from data_modules.formats.named_pairs import RANKING, RUN, read_pairs
from gr_mvdr.evaluation.bm25 import InvertedLists, index_bm25, split_words
from gr_mvdr.evaluation.ranking import Ranking


def read_candidates(
    path: str | Path, query_ids: Sequence[str], document_ids: Sequence[str]
) -> dict[str, list[str]]:
    """Query id → the documents of the corpus that the file names for it, as `Ranking` orders them.

    Args:
        path: of a TREC run, or another form that `read_pairs` reads.
        query_ids: of the queries that are reranked; document_ids: of the corpus.

    Returns:
        The queries that have a candidate.

    Raises:
        ValueError: a line breaks the format.
    """
    file = Path(path).expanduser()
    wanted, known = set(query_ids), set(document_ids)
    found: dict[str, dict[str, float]] = {}
    unknown = 0
    for pair in read_pairs(file, RUN, RANKING):
        if pair.query not in wanted:
            continue
        if pair.document in known:
            scores = found.setdefault(pair.query, {})
            # Without scores the file's order counts.
            scores.setdefault(pair.document, -len(scores) if math.isnan(pair.score) else pair.score)
        else:
            unknown += 1
    if unknown:
        print(f"{file}: {unknown:,} candidates are not in the collection and are left out")
    ranking = Ranking(found)
    return {query: ranking.documents(query) for query in found}


def check_complete(file: str, query_ids: Sequence[str], found: dict[str, list[str]]) -> None:
    """Raises ValueError: the user's file has no candidate for a query."""
    if missing := [query for query in query_ids if query not in found]:
        raise ValueError(
            f"data.candidates_run={file}: {len(missing):,} of {len(query_ids):,} queries have no "
            f"candidate in the collection, the first is {missing[0]!r}"
        )


class LazyBM25:
    """Called, it gives BM25 over the texts of a table: built the first time, then kept."""

    def __init__(self, documents: Dataset):
        """
        Args:
            documents: columns id and text.
        """
        self.documents = documents

    def __call__(self) -> InvertedLists:
        return self._index

    @cached_property
    def _index(self) -> InvertedLists:
        texts = (text for rows in self.documents.iter(1000) for text in rows["text"])
        return index_bm25(self.documents["id"][:], map(split_words, texts))

    def __reduce__(self) -> tuple:
        return LazyBM25, (self.documents,)  # a loader's worker gets texts, not the whole index
