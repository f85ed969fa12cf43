"""The index of a multi-vector system: every document token's vector, searched in three ways.

`exact` scores all documents; `gather` scores those that own a token near a query token, with all
their tokens; `impute` scores from the retrieved tokens alone. Documents can be added and deleted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gr_mvdr.alignment import MaxSim
from gr_mvdr.evaluation.ranking import best_places
from gr_mvdr.salience import top_share
from gr_mvdr.scoring import Scoring
from gr_mvdr.token_index import writer
from gr_mvdr.token_index.costs import SearchCosts, all_tokens_cost, imputing_flops
from gr_mvdr.token_index.imputation import (
    candidates_of,
    check_imputation,
    expected_relevance,
    imputed_relevance,
    missing_similarity,
)
from gr_mvdr.token_index.max_sim import score_all, score_some
from gr_mvdr.token_index.neighbours import TokenNeighbours, saved_settings
from gr_mvdr.token_index.store import DTYPES, TokenStore
from gr_mvdr.token_vectors import PackedTokens, TokenVectors, stack

MODES = ("exact", "gather", "impute", "rerank")


@dataclass(frozen=True)
class SearchOptions:
    """The options of `model.search`: how a `TokenIndex` is searched.

    Attributes:
        mode: "exact": all documents under the system's alignment. "gather": the documents that own
            one of the k' nearest tokens of a query token, scored with all their tokens
            (gr_as_mvdr §6.3). "impute": from the retrieved tokens alone (xtr Eq. 4). "rerank": no
            index; BM25's best `neighbours` documents, encoded as they come (mva §5).
        neighbours: k'.
        probes: clusters that the token retrieval visits; None = it looks at every token.
        lists: clusters of the inverted file; None = faiss's rule of thumb.
        refine: gather scores only so many candidates, those with the best imputed relevance;
            None = all. For MaxSim without document salience: to other alignments the retrieved
            tokens say too little.
        imputation: of similarities that were not retrieved: "last", "zero", "mean", "none", or a
            number (`gr_mvdr.token_index.imputation`).
        keep_query, keep_document: β_q and β_d: the share of most salient tokens that are searched
            with and for; scoring keeps all (aligner §3.2, "Pruning").
        dtype: of stored vectors: "float32", "float16" or "pq" (`pq_bytes` codes a vector).
        seed: of the k-means.
    """

    mode: str = "exact"
    neighbours: int = 2000
    probes: int | None = 64
    lists: int | None = None
    refine: int | None = None
    imputation: str | float = "last"
    keep_query: float = 1.0
    keep_document: float = 1.0
    dtype: str = "float32"
    pq_bytes: int = 16
    seed: int = 0

    def __post_init__(self):
        if self.mode not in MODES:
            raise ValueError(f"model.search.mode={self.mode}: must be one of {', '.join(MODES)}")
        if self.dtype not in DTYPES:
            raise ValueError(f"model.search.dtype={self.dtype}: must be one of {', '.join(DTYPES)}")
        check_imputation(self.imputation)
        for key in ("keep_query", "keep_document"):
            value = getattr(self, key)
            if not 0 < value <= 1:
                rule = "must be > 0 and ≤ 1: a text keeps its most salient token"
                raise ValueError(f"model.search.{key}={value}: {rule}")
            if self.mode in ("exact", "rerank") and value < 1:
                rule = f"must be 1 in mode {self.mode}, which looks at every token"
                raise ValueError(f"model.search.{key}={value}: {rule}")
        for key in ("neighbours", "probes", "lists", "refine"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise ValueError(f"model.search.{key}={value}: must be ≥ 1")

    def changed(self, **options: Any) -> "SearchOptions":
        """The same search with other options.

        Raises:
            ValueError: an unknown option, or there is no index to search.
        """
        if self.mode == "rerank":
            rule = "must be exact, gather or impute to be searched in other ways: it has no index"
            raise ValueError(f"model.search.mode=rerank: {rule}")
        known = {field.name for field in fields(self)}
        for key in options.keys() - known:
            raise ValueError(f"model.search.{key}: must be one of {', '.join(sorted(known))}")
        return replace(self, **options)

    def check(self, scoring: Scoring) -> None:
        """Refuses what the mode cannot do for a system's form of Eq. 1."""
        if self.mode == "impute" and scoring.alignment != MaxSim():
            rule = f"must be exact or gather under {scoring.alignment}; imputation estimates MaxSim"
            raise ValueError(f"model.search.mode=impute: {rule}")

    def salient(self, query: TokenVectors) -> TokenVectors:
        """The query's tokens that are searched with (aligner §3.2, β_q)."""
        if self.keep_query == 1:
            return query
        if query.salience is None:
            rule = "must be 1 for a system without salience"
            raise ValueError(f"model.search.keep_query={self.keep_query}: {rule}")
        return query[top_share(query.salience, query.mask, self.keep_query)]


class FoundDocuments(NamedTuple):
    """Scored documents of one query, in no order.

    Attributes:
        documents: (C,) int64 document numbers of an index; scores: (C,) fp32.
        candidates: documents that were scored one way or another, at least C.
        scored_tokens: document tokens that the final scoring read.
        flops: operations of the scoring stage, as in XTR's Appendix B (`costs`).
    """

    documents: Tensor
    scores: Tensor
    candidates: int
    scored_tokens: int
    flops: float


class TokenIndex:
    """Token vectors of documents on disk. A document's number is its place in `document_ids`.

    A deleted document keeps its number and is never found; an id that is added again gets a new
    one.

    Attributes:
        store: the tokens; neighbours: their retrieval.
        costs: running totals of all searches; a new `SearchCosts()` begins at zero.
    """

    def __init__(self, directory: str | Path, fingerprint: dict[str, str] | None = None):
        """Opens an index, and its inverted file if there is one, by memory map.

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
        writer.create(path, document_ids, encoded, dtype, pq_bytes, fingerprint or {}, seed)
        return cls(path)

    def add(self, document_ids: Sequence[str], encoded: Iterable[PackedTokens]) -> None:
        """Adds documents behind the others. An error leaves the index as it was; see `build`."""
        writer.append(self.store, document_ids, encoded)
        self._reopen()

    def delete(self, document_ids: Sequence[str]) -> None:
        """Deletes documents: no search finds them any more; their bytes remain.

        Raises:
            ValueError: an id that is not in the index.
        """
        writer.delete(self.store, document_ids)
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

    def prepare(self, options: SearchOptions) -> None:
        """Makes what a search needs besides the vectors: which tokens are kept, their clusters."""
        if options.mode == "exact":
            return
        if options.probes is None:
            self.keep_salient(options.keep_document)
        else:
            self.build_neighbours(options.lists, options.keep_document, options.seed)

    def search(
        self, queries: Sequence[TokenVectors], scoring: Scoring, options: SearchOptions
    ) -> list[tuple[Tensor, Tensor]]:
        """Searches for a batch of queries; call `prepare` with the same options first.

        Args:
            queries: token vectors (N, …) without padding.
            scoring: the system's form of Eq. 1; "impute" has its own.

        Returns:
            Of each query, document numbers (C,) int64 and their scores (C,) fp32, in no order.
        """
        options.check(scoring)
        if options.mode == "exact":
            scores = self.exact(stack(queries), scoring).T
            found = (scores[0] > -torch.inf).nonzero()[:, 0]  # deleted documents have −inf
            return [(found, row[found]) for row in scores]
        results = []
        for query in queries:
            salient, retrieval = options.salient(query), (options.neighbours, options.probes)
            if options.mode == "gather":
                result = self.gather(query, scoring, *retrieval, options.refine, salient)
            else:
                result = self.impute(salient, *retrieval, options.imputation)
            results.append((result.documents, result.scores))
        return results

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
    ) -> FoundDocuments:
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
                # Ties as in `Ranking`.
                names = self.document_ids
                best = best_places(expected.numpy(), refine, lambda c: names[int(documents[c])])
                documents = documents[torch.from_numpy(best).sort().values]
                flops = imputing_flops(found, candidates)
            scores = score_some(self.store, query, documents, scoring)
        tokens, scoring_flops = all_tokens_cost(self.store, len(query), documents)
        counts = (len(candidates.documents), tokens, flops + scoring_flops)
        self.costs.add(*counts)
        return FoundDocuments(documents, scores, *counts)

    def impute(
        self,
        query: TokenVectors,
        neighbours: int,
        probes: int | None = None,
        imputation: str | float = "last",
    ) -> FoundDocuments:
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
        return FoundDocuments(candidates.documents, scores, *counts)

    def _renew_lists(self, probes: int | None) -> None:
        """Builds the inverted file anew if the documents have changed and it is asked for."""
        if probes is not None and self._lists is not None and not self.neighbours.has_lists:
            self.neighbours.build_lists(*self._lists)

    def _reopen(self) -> None:
        """Reads what a writer has changed; an inverted file is built anew when it is needed."""
        keep = self.neighbours.keep
        self.store = TokenStore(self.directory)
        self.neighbours = TokenNeighbours(self.store, keep)
