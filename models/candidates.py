"""Search without an index of its own: BM25's best documents, encoded as they come."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gr_mvdr.batch import batch_by_size
from gr_mvdr.evaluation.bm25 import BM25Index, split_words
from gr_mvdr.progress import track
from gr_mvdr.scoring import Scoring
from gr_mvdr.token_index.costs import SearchCosts
from gr_mvdr.token_vectors import TokenVectors
from models.base import Table, hash_documents

if TYPE_CHECKING:
    from models.multi_vector import MultiVector

_CHUNK = 1000  # documents whose texts are in memory at once


class LexicalCandidates:
    """BM25 over the documents' words: what a system reranks that cannot search by itself."""

    def __init__(self, documents: Table, directory: str | Path | None = None):
        """
        Args:
            documents: with `id`, `text` and `tokens`.
            directory: where the index is kept, in a folder `bm25`; None = nowhere.
        """
        self.index = BM25Index(documents["id"][:], map(split_words, _texts(documents)))
        if directory is not None:
            Path(directory).mkdir(parents=True, exist_ok=True)
            self.index.save(Path(directory) / "bm25", hash_documents(documents))

    @classmethod
    def open(cls, documents: Table, directory: str | Path) -> "LexicalCandidates":
        """Opens what was kept there; errors as of `System.open_index`."""
        found = cls.__new__(cls)
        found.index = BM25Index.open(Path(directory) / "bm25", hash_documents(documents))
        return found

    def __call__(
        self, queries: Table, depth: int, among: Sequence[str] | None = None
    ) -> dict[str, list[str]]:
        """Query id → its best documents that share a word with it, at most `depth`, best first.

        Args:
            among: ids of the documents that can be found; None = all.
        """
        rows = zip(queries["id"][:], queries["text"][:], strict=True)
        bar = track(rows, "BM25 candidates", total=len(queries))
        return {q: list(self.index.best(split_words(text), depth, among)) for q, text in bar}


def _texts(documents: Table) -> Iterator[str]:
    for start in range(0, len(documents), _CHUNK):
        yield from documents[start : start + _CHUNK]["text"]


class CandidateEncoder:
    """Replaces a `TokenIndex` for `model.search.mode=rerank` (mva §5); stores no vector.

    A corpus of token vectors takes terabytes where nothing makes them fewer or shorter. Encoding
    1,000 candidates of each of 7,000 queries takes as long as encoding 7,000,000 documents, once
    for `retrieve` and once for `rerank`.
    """

    bytes_per_token = 0.0

    def __init__(
        self, system: "MultiVector", documents: Table, directory: str | Path | None = None
    ):
        """
        Args:
            documents: with `id`, `text` and `tokens`.
            directory: where BM25's index is kept; None = nowhere.
        """
        self.system, self.documents = system, documents
        if directory is not None:
            self.candidates = LexicalCandidates(documents, directory)
        self.rows = {name: row for row, name in enumerate(documents["id"][:])}
        self.costs = SearchCosts()

    @cached_property
    def candidates(self) -> LexicalCandidates:
        """BM25, which `retrieve` needs and reranking does not."""
        return LexicalCandidates(self.documents)

    def numbers(self, ids: Sequence[str]) -> Tensor:
        """(C,) int64 numbers of documents by id.

        Raises:
            KeyError: there is no such document.
        """
        return torch.tensor([self.rows[name] for name in ids], dtype=torch.int64)

    def vectors(self, documents: Tensor) -> TokenVectors:
        """The vectors (C, M, …) of documents (C,), encoded now."""
        found = self.documents[documents.tolist()]["tokens"]
        texts = [self.system.cut_document(tokens) for tokens in found]
        return self.system.encode_texts(texts).to("cpu")

    def score(self, query: TokenVectors, documents: Tensor, scoring: Scoring) -> Tensor:
        """(C,) fp32 relevance of documents (C,) to a query (N, …); see `TokenIndex.score`."""
        rows = documents.tolist()
        found = self.documents[rows]["tokens"] if rows else []
        texts = [self.system.cut_document(tokens) for tokens in found]
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        found, counts, scores = [], [], torch.empty(len(texts))
        with self.costs.timed():
            for batch in batch_by_size([texts[number] for number in order]):
                vectors = self.system.encode_texts(batch)
                found += scoring(vectors, query[None]).tolist()
                counts += vectors.mask.sum(1).tolist()
        scores[order] = torch.tensor(found)
        flops = sum(self.system.encoder.pair_flops(len(query), count) for count in counts)
        self.costs.add(len(texts), sum(counts), flops)
        return scores
