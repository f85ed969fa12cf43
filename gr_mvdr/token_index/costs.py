"""What a search finds, and what finding it costs."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from gr_mvdr.token_index.flops import colbert_scoring_flops, mva_joint_flops, xtr_scoring_flops
from gr_mvdr.token_index.imputation import Candidates, Retrieved
from gr_mvdr.token_index.store import TokenStore


class SearchResult(NamedTuple):
    """Scored documents of one query, in no order.

    Attributes:
        documents: (C,) int64 document numbers of an index; scores: (C,) fp32.
        candidates: documents that were scored one way or another, at least C.
        scored_tokens: document tokens that the final scoring read.
        flops: operations of the scoring stage, as in XTR's Appendix B
        (`gr_mvdr.token_index.flops`).
    """

    documents: Tensor
    scores: Tensor
    candidates: int
    scored_tokens: int
    flops: float


@dataclass
class SearchCosts:
    """Running totals over queries; `seconds` includes the token retrieval, `flops` does not."""

    queries: int = 0
    candidates: int = 0
    scored_tokens: int = 0
    flops: float = 0.0
    seconds: float = 0.0

    def add(self, candidates: int, scored_tokens: int, flops: float, queries: int = 1) -> None:
        self.queries += queries
        self.candidates += candidates
        self.scored_tokens += scored_tokens
        self.flops += flops

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Adds the time that is spent in it."""
        start = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - start

    def metrics(self) -> dict[str, float]:
        """Means over the queries, flat; empty before the first query."""
        if not self.queries:
            return {}
        means = {
            "candidates": self.candidates,
            "scored_tokens": self.scored_tokens,
            "scoring_flops": self.flops,
            "search_ms": 1000 * self.seconds,
        }
        return {f"cost/{name}": total / self.queries for name, total in means.items()}


def all_tokens_cost(store: TokenStore, query_tokens: int, documents: Tensor) -> tuple[int, float]:
    """Tokens and operations of scoring documents (C,) with all their tokens (xtr App. B).

    Where keys make an alignment of their own, the operations of mva §2.1.
    """
    tokens = int(store.counts[documents].sum())
    mean, size = tokens / max(1, len(documents)), store.sizes["vectors"]
    if "keys" in store.sizes:
        return tokens, len(documents) * mva_joint_flops(query_tokens, mean, size)
    return tokens, colbert_scoring_flops(query_tokens, len(documents), mean, size)


def imputing_flops(retrieved: Retrieved, candidates: Candidates) -> float:
    """Operations of scoring candidates from their retrieved tokens (xtr App. B)."""
    documents = len(candidates.documents)
    mean = retrieved.count / max(1, documents)
    return xtr_scoring_flops(len(retrieved.owners), documents, mean)
