"""How a token index is searched: exactly, by gathering, or from retrieved tokens alone."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from gr_mvdr.alignment import MaxSim
from gr_mvdr.salience import top_share
from gr_mvdr.scoring import Scoring
from gr_mvdr.token_index.imputation import check_imputation
from gr_mvdr.token_index.index import SearchResult, TokenIndex
from gr_mvdr.token_index.store import DTYPES
from gr_mvdr.token_vectors import TokenVectors, stack

MODES = ("exact", "gather", "impute", "rerank")


@dataclass(frozen=True)
class TokenSearch:
    """The options of `model.search`.

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
            if not 0 < getattr(self, key) <= 1:
                raise ValueError(
                    f"model.search.{key}={getattr(self, key)}: must be > 0 and ≤ 1: "
                    "a text keeps its most salient token"
                )
            if self.mode in ("exact", "rerank") and getattr(self, key) < 1:
                raise ValueError(
                    f"model.search.{key}={getattr(self, key)}: must be 1 in mode {self.mode}, "
                    "which looks at every token"
                )
        for key in ("neighbours", "probes", "lists", "refine"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise ValueError(f"model.search.{key}={value}: must be ≥ 1")

    def changed(self, **options: Any) -> "TokenSearch":
        """The same search with other options.

        Raises:
            ValueError: an unknown option, or there is no index to search.
        """
        if self.mode == "rerank":
            raise ValueError(
                "model.search.mode=rerank: must be exact, gather or impute to be searched in "
                "other ways, as it keeps no index"
            )
        known = {field.name for field in fields(self)}
        for key in options.keys() - known:
            raise ValueError(f"model.search.{key}: must be one of {', '.join(sorted(known))}")
        return replace(self, **options)

    def check(self, scoring: Scoring) -> None:
        """Refuses what the mode cannot do for a system's form of Eq. 1."""
        if self.mode == "impute" and scoring.alignment != MaxSim():
            raise ValueError(
                f"model.search.mode=impute: must be exact or gather under {scoring.alignment}; "
                "imputation estimates MaxSim"
            )

    def prepare(self, index: TokenIndex) -> None:
        """Makes what the search needs beside the vectors: which tokens are kept, their clusters."""
        if self.mode == "exact":
            return
        if self.probes is None:
            index.keep_salient(self.keep_document)
        else:
            index.build_neighbours(self.lists, self.keep_document, self.seed)

    def __call__(
        self, index: TokenIndex, queries: Sequence[TokenVectors], scoring: Scoring
    ) -> list[tuple[Tensor, Tensor]]:
        """Searches a batch of queries.

        Args:
            index: prepared; queries: token vectors (N, …) without padding.
            scoring: the system's form of Eq. 1; "impute" has its own.

        Returns:
            Of each query, document numbers (C,) int64 and their scores (C,) fp32, in no order.
        """
        if self.mode == "exact":
            scores = index.exact(stack(queries), scoring).T
            found = (scores[0] > -torch.inf).nonzero()[:, 0]  # deleted documents have −inf
            return [(found, row[found]) for row in scores]
        search = self._gather if self.mode == "gather" else self._impute
        results = [search(index, query, scoring) for query in queries]
        return [(result.documents, result.scores) for result in results]

    def _gather(self, index: TokenIndex, query: TokenVectors, scoring: Scoring) -> SearchResult:
        searched = self._salient(query)
        return index.gather(query, scoring, self.neighbours, self.probes, self.refine, searched)

    def _impute(self, index: TokenIndex, query: TokenVectors, scoring: Scoring) -> SearchResult:
        self.check(scoring)
        return index.impute(self._salient(query), self.neighbours, self.probes, self.imputation)

    def _salient(self, query: TokenVectors) -> TokenVectors:
        """The query's tokens that are searched with (aligner §3.2, β_q)."""
        if self.keep_query == 1:
            return query
        if query.salience is None:
            raise ValueError(
                f"model.search.keep_query={self.keep_query}: must be 1 for a system without "
                "salience"
            )
        return query[top_share(query.salience, query.mask, self.keep_query)]
