"""Scoring without an index: candidates are encoded as they come (mva §5 only reranks)."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gr_mvdr.batch import batch_by_size
from gr_mvdr.scoring import Scoring
from gr_mvdr.token_index.costs import SearchCosts
from gr_mvdr.token_vectors import TokenVectors
from models.base import Table
from models.lexical_candidates import LexicalCandidates


class CandidateEncoder:
    """Stands where a `TokenIndex` stands, for `model.search.mode=rerank`; stores no vector.

    A corpus of token vectors takes terabytes where nothing makes them fewer or shorter. Encoding
    1,000 candidates of each of 7,000 queries takes as long as encoding 7,000,000 documents, once
    for `retrieve` and once for `rerank`.
    """

    bytes_per_token = 0.0

    def __init__(self, system: Any, documents: Table, directory: str | Path | None = None):
        """
        Args:
            system: a `TokenSearching`.
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
        flops = sum(self.system.pair_flops(len(query), count) for count in counts)
        self.costs.add(len(texts), sum(counts), flops)
        return scores
