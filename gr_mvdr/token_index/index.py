"""The index of a multi-vector system: every document token's vector, searched in three ways.

`exact` scores all documents; `gather` scores those that own a token near a query token, with all
their tokens; `impute` scores from the retrieved tokens alone. Documents can be added and deleted.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from gr_mvdr.evaluation.ranking import best_places
from gr_mvdr.scoring import Scoring
from gr_mvdr.token_index import writer as token_writer
from gr_mvdr.token_index.costs import SearchCosts, SearchResult, all_tokens_cost, imputing_flops
from gr_mvdr.token_index.imputation import (
    candidates_of,
    expected_relevance,
    imputed_relevance,
    missing_similarity,
)
from gr_mvdr.token_index.neighbours import TokenNeighbours, saved_settings
from gr_mvdr.token_index.store import PackedTokens, TokenStore
from gr_mvdr.token_index.store_scoring import score_all, score_some
from gr_mvdr.token_vectors import TokenVectors

__all__ = ["PackedTokens", "SearchCosts", "SearchResult", "TokenIndex"]


class TokenIndex:
    """Token vectors of documents on disk. A document's number is its place in `document_ids`.

    A deleted document keeps its number and is never found; an id that is added again gets a new
    one. Attributes:
        store: the tokens; neighbours: their retrieval.
        costs: running totals of all searches; put a new `SearchCosts()` there to start anew.
    """

    def __init__(self, directory: str | Path, fingerprint: dict[str, str] | None = None):
        """Opens an index, and the inverted file beside it, by memory map.

        Arguments and errors as of `TokenStore`.
        """
        self.directory, self.costs = Path(directory), SearchCosts()
        self.store = TokenStore(directory, fingerprint)
        saved = saved_settings(self.directory)
        self._lists = (saved["lists"], saved["seed"]) if saved else None
        self.neighbours = TokenNeighbours(self.store, saved["keep"] if saved else 1.0)

    @classmethod
    def build(
        cls,
        directory: str | Path,
        document_ids: Sequence[str],
        encoded: Iterable[PackedTokens],
        *,
        dtype: str = "float32",
        pq_bytes: int = 16,
        fingerprint: dict[str, str] | None = None,
        seed: int = 0,
    ) -> "TokenIndex":
        """Writes an index from a stream, never holding more than one batch of it.

        Args:
            directory: is created, or replaced once the new index is complete.
            document_ids: D ids in the stream's order.
            encoded: batches of documents.
            dtype: stored type of vectors: "float32", "float16", or "pq": product-quantised to
                `pq_bytes` bytes, with `seed` for the sample and the k-means.
            fingerprint: what the index depends on, such as {"model": …, "collection": …}.

        Raises:
            ValueError: the documents are not as many as the ids, an id comes twice, a document has
                no token, an unknown type, or bytes that do not divide the vectors.
            OSError: the disk is full; nothing half-written remains.
        """
        path = Path(directory)
        token_writer.create(path, document_ids, encoded, dtype, pq_bytes, fingerprint or {}, seed)
        return cls(path)

    def add(self, document_ids: Sequence[str], encoded: Iterable[PackedTokens]) -> None:
        """Adds documents behind the others. An error leaves the index as it was; see `build`."""
        token_writer.append(self.store, document_ids, encoded)
        self._reopen()

    def delete(self, document_ids: Sequence[str]) -> None:
        """Deletes documents: no search finds them any more; their bytes remain.

        Raises:
            ValueError: an id that is not in the index.
        """
        token_writer.delete(self.store, document_ids)
        self._reopen()

    def __len__(self) -> int:
        """The number of live documents."""
        return int(self.store.live.sum())

    @property
    def document_ids(self) -> list[str]:
        """The ids by number, those of deleted documents included."""
        return self.store.document_ids

    def numbers(self, document_ids: Sequence[str]) -> Tensor:
        """(C,) int64 numbers of live documents; ValueError for an id that is not in the index."""
        return self.store.numbers(document_ids)

    @property
    def size_in_bytes(self) -> int:
        """Bytes of all the index's files."""
        return sum(path.stat().st_size for path in self.directory.rglob("*") if path.is_file())

    @property
    def bytes_per_token(self) -> float:
        """Bytes that search holds of a stored token: columns, codebooks, and the inverted file."""
        held = self.store.size_in_bytes + self.neighbours.size_in_bytes
        return held / self.store.n_tokens

    def exact(self, queries: TokenVectors, scoring: Scoring) -> Tensor:
        """Relevance of every document: exhaustive search.

        Args:
            queries: (Q, N, …) padded token vectors.

        Returns:
            (D, Q) fp32, documents by number, −inf for deleted ones.
        """
        with self.costs.timed():
            scores = score_all(self.store, queries, scoring)
        live = self.store.live.nonzero()[:, 0]
        for n in queries.mask.sum(1).tolist():
            self.costs.add(len(live), *all_tokens_cost(self.store, n, live))
        return scores

    def score(self, query: TokenVectors, documents: Tensor, scoring: Scoring) -> Tensor:
        """Relevance of some documents, from all their tokens (Eq. 1).

        Args:
            query: (N, …) token vectors without padding.
            documents: (C,) int64 document numbers.

        Returns:
            (C,) fp32, in the order given.
        """
        with self.costs.timed():
            scores = score_some(self.store, query, documents, scoring)
        self.costs.add(len(documents), *all_tokens_cost(self.store, len(query), documents))
        return scores

    def keep_salient(self, keep: float = 1.0) -> None:
        """From now on documents are found by the `keep` most salient share of their tokens only.

        Raises:
            ValueError: the share is less than 1 and the index holds no saliences.
        """
        if keep != self.neighbours.keep:
            self.neighbours = TokenNeighbours(self.store, keep)

    def build_neighbours(self, lists: int | None = None, keep: float = 1.0, seed: int = 0) -> None:
        """Builds and saves the inverted file (faiss IVF) of token retrieval with `probes`.

        One that was saved with the same settings is opened. After `add` and `delete` the next
        search builds it anew, with the same settings.

        Args:
            lists: number of clusters; None = √(number of tokens).
            keep: see `keep_salient`.
            seed: of the k-means.
        """
        self.keep_salient(keep)
        self._lists = (lists, seed)
        self.neighbours.build_lists(lists, seed)

    def tokens(
        self, queries: Tensor, neighbours: int, probes: int | None = None, rescore: bool = True
    ) -> tuple[Tensor, Tensor]:
        """The k' nearest tokens of each query token: see `TokenNeighbours.search`."""
        self._renew_lists(probes)
        return self.neighbours.search(queries, neighbours, probes, rescore)

    def gather(
        self,
        query: TokenVectors,
        scoring: Scoring,
        neighbours: int,
        probes: int | None = None,
        refine: int | None = None,
        retrieval_query: TokenVectors | None = None,
    ) -> SearchResult:
        """The documents that own a retrieved token, scored with all their tokens (gr_as_mvdr §6.3).

        Args:
            query: (N, …) token vectors without padding.
            neighbours: k'; probes: lists visited, None = exact token retrieval.
            refine: score only so many candidates, those that are best by their retrieved tokens
                and what is expected of the others; None = all.
            retrieval_query: what is searched with, such as the query's most salient tokens
                (aligner §3.2, β_q); None = the query.
        """
        searched = query if retrieval_query is None else retrieval_query
        self._renew_lists(probes)
        with self.costs.timed():
            found = self.neighbours.retrieve(searched, neighbours, probes, rescore=False)
            candidates = candidates_of(found)
            documents, flops = candidates.documents, 0.0
            if refine is not None and refine < len(documents):
                expected = expected_relevance(found, candidates, searched, scoring)
                documents = self._best(documents, expected, refine)
                flops = imputing_flops(found, candidates)
            scores = score_some(self.store, query, documents, scoring)
        tokens, scoring_flops = all_tokens_cost(self.store, len(query), documents)
        counts = (len(candidates.documents), tokens, flops + scoring_flops)
        self.costs.add(*counts)
        return SearchResult(documents, scores, *counts)

    def _best(self, documents: Tensor, scores: Tensor, count: int) -> Tensor:
        """The `count` best of some documents (C,), in their order; ties as in `Ranking`."""
        best = best_places(
            scores.numpy(), count, lambda place: self.document_ids[int(documents[place])]
        )
        return documents[torch.from_numpy(best).sort().values]

    def impute(
        self,
        query: TokenVectors,
        neighbours: int,
        probes: int | None = None,
        imputation: str | float = "last",
    ) -> SearchResult:
        """Relevance from the retrieved tokens alone (xtr Eq. 4); no vector of a document is read.

        Made of the similarities that alignments are made from: those of the keys, if there are any.

        Args:
            query: (N, …) token vectors without padding; its saliences weight the query tokens.
            neighbours: k'; probes: lists visited, None = exact token retrieval.
            imputation: "last", "zero", "mean", "none" or a number: see `missing_similarity`.
        """
        self._renew_lists(probes)
        with self.costs.timed():
            found = self.neighbours.retrieve(query, neighbours, probes)
            candidates = candidates_of(found)
            missing = missing_similarity(found, imputation)
            lengths = self.store.counts[candidates.documents]
            scores = imputed_relevance(found, candidates, missing, lengths, query.salience)
        counts = (len(scores), 0, imputing_flops(found, candidates))
        self.costs.add(*counts)
        return SearchResult(candidates.documents, scores, *counts)

    def _renew_lists(self, probes: int | None) -> None:
        """Builds the inverted file anew if the documents have changed and it is asked for."""
        if probes is not None and self._lists is not None and not self.neighbours.has_lists:
            self.neighbours.build_lists(*self._lists)

    def _reopen(self) -> None:
        """Reads what a writer has changed; an inverted file is built anew when it is needed."""
        keep = self.neighbours.keep
        self.store = TokenStore(self.directory)
        self.neighbours = TokenNeighbours(self.store, keep)
