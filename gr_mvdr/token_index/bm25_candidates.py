"""BM25 proposes documents, whatever then scores them (mva §5)."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from gr_mvdr.evaluation.bm25 import InvertedLists, index_bm25
from gr_mvdr.options import Size, part
from gr_mvdr.relevance import Scoring
from gr_mvdr.texts import split_words
from gr_mvdr.token_index.search import Proposal, Proposer, Query, Searcher

FOLDER = "bm25"


class Words(NamedTuple):
    """The lists of the words of a searcher's documents."""

    lists: InvertedLists
    searcher: Searcher

    @property
    def size_in_bytes(self) -> int:
        matrix = self.lists.matrix
        return matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes


@part("proposer")
@dataclass(frozen=True)
class BM25Candidates(Proposer):
    """Proposes the documents whose words fit a query's best.

    Attributes:
        depth: the number of documents.
    """

    depth: Size = 2000

    reads_vectors = False

    @property
    def opens(self) -> Any:
        """See `Proposer.opens`."""
        return "words"

    def open(self, searcher: Any) -> Words:
        """Opens the lists of the documents' words, or makes them."""
        documents = searcher.documents
        collection = documents.made_from["collection"]
        return Words(open_words(documents.table, searcher.directory, collection), searcher)

    def propose(
        self,
        opened: Words,
        queries: Sequence[Query],
        scoring: Scoring,
        scorer: Any,
        kept: Tensor | None = None,
    ) -> list[Proposal]:
        """See `Proposer.propose`."""
        among = None if kept is None else [opened.searcher.names[n] for n in kept.tolist()]
        proposed = (
            find_candidates(opened.lists, query.text, self.depth, among) for query in queries
        )
        numbers = (opened.searcher.numbers(names).sort().values for names in proposed)
        return [Proposal(documents, None, len(documents)) for documents in numbers]


def open_words(table: Any, directory: Path, collection: str) -> InvertedLists:
    """Opens the lists of the words of texts for BM25, or makes them.

    Args:
        table: a column table with `id` and `text`.
        directory: the folder of the index; the lists are in its folder "bm25".
        collection: what identifies the texts.

    Raises:
        ValueError: the lists are of other texts, or are damaged.
    """
    with suppress(FileNotFoundError):
        return InvertedLists.open(directory / FOLDER, words_of=collection)
    lists = index_bm25(table["id"][:], map(split_words, table["text"]))
    lists.save(directory / FOLDER, words_of=collection)
    return lists


def find_candidates(
    lists: InvertedLists, text: str, depth: int, among: Collection[str] | None = None
) -> list[str]:
    """Returns the ids of the best documents of a query by BM25, best first."""
    return list(lists.best(split_words(text), depth, among))
