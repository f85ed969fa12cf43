"""Documents that a file or BM25 names for queries: candidates to rerank, and hard negatives."""

from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from datasets import Dataset

from data_modules.formats.named_pairs import RANKING, RUN, read_pairs
from gr_mvdr.evaluation.bm25 import InvertedLists, index_bm25, split_words
from gr_mvdr.evaluation.ranking import tie_order
from gr_mvdr.progress import track


class NamedRows(NamedTuple):
    """What a file says of the queries and documents of a collection.

    Attributes:
        queries, documents: (lines,) int64 rows, pair by pair as in the file.
        scores: (lines,) fp32, NaN = none.
        positive: (lines,) bool, the file says that the document is relevant to the query.
    """

    queries: np.ndarray
    documents: np.ndarray
    scores: np.ndarray
    positive: np.ndarray

    def ranked(self, document_ids: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """(queries, documents), query by query, the best documents first; ties as in `Ranking`.

        Without scores the file's order counts.
        """
        distinct, which = np.unique(self.documents, return_inverse=True)
        place_in_ties = np.argsort(tie_order([document_ids[row] for row in distinct.tolist()]))
        ties = np.where(np.isnan(self.scores), 0, place_in_ties[which])
        order = np.lexsort((ties, -self.scores, self.queries))
        return self.queries[order], self.documents[order]


def read_rows(
    file: Path,
    queries: Mapping[str, int],
    documents: Mapping[str, int],
    forms: Sequence[tuple[str, ...]] = (RUN, RANKING),
) -> tuple[NamedRows, int, int]:
    """Reads a file of named pairs.

    Args:
        queries, documents: id → row.
        forms: see `read_pairs`.

    Returns:
        The pairs, and how many others there are: of other queries, of unknown documents.

    Raises:
        ValueError: a line breaks the format.
    """
    columns = array("q"), array("q"), array("f"), array("b")
    other_queries = unknown_documents = 0
    for pair in track(read_pairs(file, *forms), f"reading {file.name}"):
        if pair.query_id not in queries:
            other_queries += 1
        elif pair.document_id not in documents:
            unknown_documents += 1
        else:
            rows = queries[pair.query_id], documents[pair.document_id]
            for column, value in zip(columns, (*rows, pair.score, pair.positive), strict=True):
                column.append(value)
    kinds = np.int64, np.int64, np.float32, bool
    found = (np.array(column, kind) for column, kind in zip(columns, kinds, strict=True))
    return NamedRows(*found), other_queries, unknown_documents


def read_candidates(
    path: str | Path, query_ids: Sequence[str], document_ids: Sequence[str]
) -> dict[str, list[str]]:
    """Query id → the documents of the corpus that the file names for it, best first.

    Args:
        path: of a TREC run, or another form that `read_pairs` reads.
        query_ids: of the queries that are reranked; document_ids: of the corpus.

    Returns:
        The queries that have a candidate.
    """
    file = Path(path).expanduser()
    rows = ({id: row for row, id in enumerate(ids)} for ids in (query_ids, document_ids))
    named, _, unknown = read_rows(file, *rows)
    if unknown:
        print(f"{file}: {unknown:,} candidates are not in the collection and are left out")
    found: dict[str, list[str]] = {}
    for query, document in zip(*named.ranked(document_ids), strict=True):
        found.setdefault(query_ids[query], []).append(document_ids[document])
    return found


def index_texts(documents: Dataset) -> InvertedLists:
    """BM25 over a table's column "text"."""
    texts = (text for rows in documents.iter(1000) for text in rows["text"])
    return index_bm25(documents["id"][:], map(split_words, texts))
