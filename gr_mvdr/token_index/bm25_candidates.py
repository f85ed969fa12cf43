"""BM25 proposes documents, whatever then scores them (mva §5)."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from gr_mvdr.analyzer import Analyzer, Language
from gr_mvdr.evaluation.bm25 import InvertedLists, count_terms
from gr_mvdr.options import Size, part
from gr_mvdr.relevance import Scoring
from gr_mvdr.token_index.search import Proposal, Proposer, Query, Searcher

FOLDER = "bm25"


class Words(NamedTuple):
    """BM25 over the terms of texts, whatever their tokens are.

    Attributes:
        lists: the lists of the terms.
        analyzer: makes the terms of a query.
    """

    lists: InvertedLists
    analyzer: Analyzer

    @classmethod
    def open(cls, table: Any, directory: Path, collection: str, language: str) -> "Words":
        """Opens the lists in the folder "bm25" of an index, or makes them.

        Args:
            table: a column table with `id` and `text`.
            directory: the folder of the index.
            collection: what identifies the texts.

        Raises:
            ValueError: the lists are of other texts, or are damaged.
        """
        analyzer, place = Analyzer.of(language, table["text"]), directory / FOLDER
        made_of = {"words_of": collection, "language": analyzer.language}
        with suppress(FileNotFoundError):
            return cls(InvertedLists.open(place, **made_of), analyzer)
        lists = count_terms(table["id"][:], map(analyzer.terms, table["text"])).bm25()
        lists.save(place, **made_of)
        return cls(lists, analyzer)

    def best(self, text: str, depth: int, among: Collection[str] | None = None) -> list[str]:
        """Returns the ids of the best documents of a query by BM25, best first."""
        return list(self.lists.best(self.analyzer.terms(text), depth, among))

    @property
    def size_in_bytes(self) -> int:
        matrix = self.lists.matrix
        return matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes


@part("proposer")
@dataclass(frozen=True)
class BM25Candidates(Proposer):
    """Proposes the documents whose terms fit a query's best.

    Attributes:
        depth: the number of documents.
        language: of the texts, see `Analyzer`.
    """

    depth: Size = 2000
    language: Language = "none"

    reads_vectors = False

    @property
    def opens(self) -> Any:
        """See `Proposer.opens`."""
        return "words", self.language

    def open(self, searcher: Any) -> tuple[Words, Searcher]:
        """Opens the lists of the documents' terms, or makes them."""
        documents = searcher.documents
        collection = documents.made_from["collection"]
        words = Words.open(documents.table, searcher.directory, collection, self.language)
        return words, searcher

    def propose(
        self,
        opened: tuple[Words, Searcher],
        queries: Sequence[Query],
        scoring: Scoring,
        scorer: Any,
        kept: Tensor | None = None,
    ) -> list[Proposal]:
        """See `Proposer.propose`."""
        words, searcher = opened
        among = None if kept is None else [searcher.names[number] for number in kept.tolist()]
        proposed = (words.best(query.text, self.depth, among) for query in queries)
        numbers = (searcher.numbers(names).sort().values for names in proposed)
        return [Proposal(documents, None, len(documents)) for documents in numbers]
