"""Documents that are encoded when they are scored (mva §5)."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from gr_mvdr.files import temporary_folder
from gr_mvdr.options import part
from gr_mvdr.relevance import Scoring
from gr_mvdr.token_index.bm25_candidates import FOLDER
from gr_mvdr.token_index.search import Documents, Searcher, SearchOptions, relevance_cost
from gr_mvdr.token_index.store import join_batches
from gr_mvdr.token_vectors import PackedTokens, TokenVectors


@part("source")
class OnDemandDocuments(Searcher):
    """Documents that are encoded when they are scored; no vectors are stored.

    7,000 queries with 1,000 candidates each need 7,000,000 document encodings for `search`, and as
    many again for reranking.
    """

    stored = "on demand"
    documents: Documents

    def build(self, documents: Documents, directory: str | Path | None = None) -> None:
        """Holds the documents; a proposer's files are in the folder."""
        directory = Path(directory or temporary_folder("index"))
        shutil.rmtree(directory / FOLDER, ignore_errors=True)
        self.open(documents, directory)

    def open(self, documents: Documents, directory: str | Path) -> None:
        """Holds the documents, with the proposer's files that `build` wrote."""
        self.documents, self.directory = documents, Path(directory)
        self.hold(documents.table["id"][:])
        if self.options.proposer is not None:
            self.opened(self.options.proposer)

    def update(self, documents: Documents) -> None:
        """Holds these documents instead."""
        self.build(documents)

    def exact_search(self) -> SearchOptions | None:
        """None: the exact search would encode every document for every query."""

    def relevance(self, query: TokenVectors, documents: Tensor, scoring: Scoring) -> Tensor:
        """Encodes and scores documents (C,); see `Searcher.relevance`."""
        order = torch.tensor([self.documents.lengths[n] for n in documents.tolist()]).argsort()
        with self.costs.timed():
            batches = self._encode(documents[order])
            parts = [scoring(tokens.pad(), query[None]).cpu() for tokens in batches]
            scores = torch.cat([torch.zeros(0, dtype=torch.float32), *parts])[order.argsort()]
        counts = torch.tensor([n for tokens in batches for n in tokens.counts.tolist()])
        self.costs.add(0, *relevance_cost(query, counts, scoring.heads), queries=0)
        return scores

    def vectors(self, names: Sequence[str]) -> TokenVectors:
        """Encodes documents; returns their vectors (C, M, …) on the CPU."""
        return join_batches([t.to("cpu") for t in self._encode(self.numbers(names))]).pad()

    def _encode(self, documents: Tensor) -> list[PackedTokens]:
        return list(self.documents.encode([self.names[n] for n in documents.tolist()]))
