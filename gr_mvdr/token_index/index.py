"""The index of a multi-vector system: every document token's vector on disk, and its searches."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, Literal, cast

import torch
from torch import Tensor

from gr_mvdr.evaluation.ranking import SearchCosts
from gr_mvdr.files import remove_with, temporary_folder
from gr_mvdr.measures import Measured, costs
from gr_mvdr.options import Size, part, show
from gr_mvdr.pooling import group_tokens, merge_tokens
from gr_mvdr.ranks import rank
from gr_mvdr.relevance import Scoring
from gr_mvdr.token_index import scorers, store
from gr_mvdr.token_index.codec import Storage
from gr_mvdr.token_index.search import (
    Documents,
    FullRelevance,
    Imputed,
    Proposal,
    Query,
    Searcher,
    SearchOptions,
    relevance_cost,
)
from gr_mvdr.token_vectors import PackedTokens, TokenVectors, stack

_MARGIN = 2  # standard errors: in 49 of 50 samples, the recall on all queries is higher


@part("source")
class TokenIndex(Searcher):
    """Token vectors of documents on disk, and their searches.

    Attributes:
        store: the tokens, once documents are built or opened.
    """

    keeps_vectors = in_shards = True
    store: store.TokenStore

    def __init__(
        self,
        dtype: Literal["float32", "float16", "codes"] = "float32",
        code_bytes: Size | None = None,
    ):
        """See `Storage`."""
        super().__init__()
        self.stored = Storage(dtype, code_bytes)
        if not self.stored.is_coded:
            self.stored = Storage(dtype)
        self._others: dict[Any, TokenIndex] = {}  # of `stored_as`, by what they store

    def check(self, options: SearchOptions, scoring: Scoring, salience: Any = None) -> None:
        """See `Searcher.check`."""
        super().check(options, scoring, salience)
        # The basis of residual codes mixes the parts of different heads.
        if scoring.heads > 1 and (options.source or {}).get("dtype") == "codes":
            raise ValueError(f"model.heads={scoring.heads}: must be 1 with dtype=codes")

    def build(self, documents: Documents, directory: str | Path | None = None) -> None:
        """Writes an index and opens it; see `store.create`."""
        place, names = directory or temporary_folder("token-index"), documents.table["id"][:]
        order = [names[row] for row in self.stored.sample_first(documents.lengths)]
        store.create(Path(place), order, documents.encode, self.stored, documents.made_from)
        self.documents = documents
        self.open_store(place, is_temporary=directory is None)

    def open(self, documents: Documents, directory: str | Path) -> None:
        """Opens an index by memory map; errors as in `TokenStore`."""
        self.documents = documents
        self.open_store(directory, documents.made_from)

    def update(self, documents: Documents) -> None:
        """Makes an index of exactly these documents in a temporary folder; see `store.revise`."""
        place = temporary_folder("token-index")
        names, encode, made_from = documents.table["id"][:], documents.encode, documents.made_from
        store.revise(self.store, place, names, encode, made_from)
        self.documents = documents
        self.open_store(place, is_temporary=True)

    def open_store(
        self, place: str | Path, made_from: Any = None, is_temporary: bool = False
    ) -> None:
        """Opens the store of a folder, which is removed with it if it is temporary."""
        self.store, self._others = store.TokenStore(place, made_from), {}
        self.directory = self.store.directory
        self.hold(self.store.document_ids)
        if is_temporary:
            remove_with(self.store, self.directory)
        if self.options.proposer is not None and rank() == 0:
            self.opened(self.options.proposer)

    def stored_as(self, options: SearchOptions) -> Searcher:
        """Returns an index of the same documents with the pooling and storage of these options.

        It is made once from this index's vectors, in a temporary folder. Both share their costs.
        """
        if options.stored == self.options.stored:
            return self
        for key, value, wanted in (
            ("pool", self.options.pool, 1),
            ("source.dtype", self.stored.is_coded and self.stored.dtype, False),
        ):
            if value != wanted:
                rule = "must not merge or code vectors, to search vectors that are stored otherwise"
                raise ValueError(f"model.search.{key}={show(value)}: {rule}")

        def pooled(names: Sequence[str]) -> Iterator[PackedTokens]:
            tokens = self.vectors(names)
            yield merge_tokens(tokens, group_tokens(tokens, options.pool, options.pool_by)).pack()

        if options.stored not in self._others:
            place, other = temporary_folder("token-index"), cast(TokenIndex, options.searcher())
            store.create(place, self.names, pooled, other.stored)
            other.open_store(place, is_temporary=True)
            self._others[options.stored], other.documents = other, self.documents
        self._others[options.stored].costs = self.costs
        return self._others[options.stored]

    @property
    def bytes_per_token(self) -> float:
        """Bytes for each stored token: columns, codebooks, and what proposers read."""
        held = self.store.size_in_bytes
        held += sum(opened.size_in_bytes for _, opened in self._opened.values())
        return held / self.store.n_tokens

    def storage_costs(self, options: SearchOptions) -> list[Measured]:
        """Returns bytes for each token, and bytes a search may read, the proposer's included."""
        source, read = self.stored_as(options), self.store.size_in_bytes
        if source is not self:
            return source.storage_costs(options)
        if options.proposer is not None:
            opened = self.opened(options.proposer)
            if isinstance(options.scorer, Imputed):
                read = read * len(opened.rows) // self.store.n_tokens
            read += opened.size_in_bytes
        return costs({"searched_bytes": read, "bytes_per_token": self.bytes_per_token})

    def narrowed(self, options: SearchOptions, among: Sequence[str]) -> SearchOptions:
        """Returns the search for some documents: the exact one if it is cheaper."""
        n_tokens = int(self.store.counts[self.numbers(among)].sum())
        is_cheap = options.token_effort(n_tokens) > 1
        return options.exact if is_cheap else super().narrowed(options, among)

    def score_all(
        self, queries: Sequence[Query], scoring: Scoring, kept: Tensor | None = None
    ) -> list[Proposal]:
        """Computes the relevance of documents from all their tokens (Eq. 1)."""
        every = torch.arange(len(self.names)) if kept is None else kept
        with self.costs.timed():
            together = stack([query.vectors for query in queries])
            scores = scorers.score(self.store, together, scoring, kept)
        for query in queries:
            spent = relevance_cost(query.vectors, self.store.counts[every], scoring.heads)
            self.costs.add(len(every), *spent)
        return [Proposal(every, own) for own in scores.T]

    def relevance(self, query: TokenVectors, documents: Tensor, scoring: Scoring) -> Tensor:
        """See `Searcher.relevance`."""
        with self.costs.timed():
            scores = scorers.score(self.store, query[None], scoring, documents)[:, 0]
        spent = relevance_cost(query, self.store.counts[documents], scoring.heads)
        self.costs.add(0, *spent, queries=0)
        return scores

    def vectors(self, names: Sequence[str]) -> TokenVectors:
        """Reads the vectors of documents, padded to (C, M, …)."""
        return self.store.read(self.numbers(names)).pad()

    def tune(self, queries: Sequence[Query], scoring: Scoring, depth: int) -> SearchOptions:
        """Doubles the search's effort until it finds enough of what the exact search finds.

        The recall of the exact search's best `depth` documents, minus its error, must reach
        `options.recall`. If the exact search is cheaper before that, it is chosen, unless the user
        prunes tokens or does not score in full; then, the effort with the highest recall is chosen.

        Returns:
            The options with which `search` now searches.
        """
        options, before, self.costs = self.options, self.costs, SearchCosts()  # trials do not count
        exact = self.exact_search()
        wanted = self.search(queries, scoring, depth, exact)

        def effort(trial: SearchOptions) -> float:
            return trial.effort(self.store.n_tokens, len(self.store))

        trial, chosen, highest = options, options, -1.0
        proposer: Any = options.proposer
        in_full = isinstance(options.scorer, FullRelevance) and not proposer.prunes
        own = None if in_full else options  # is tried whatever it costs
        while highest < options.recall and (trial is own or effort(trial) <= 1):
            ranking, shares = self.search(queries, scoring, depth, trial), []
            for query in wanted.query_ids:
                best = {*wanted.documents(query)}
                shares.append(len(best & {*ranking.documents(query)}) / len(best))
            recall = fmean(shares) - _MARGIN * pstdev(shares) / len(shares) ** 0.5
            if recall > highest:
                chosen, highest = trial, recall
            trial = trial.doubled()
        if highest < options.recall and in_full:
            chosen, highest = exact, 1.0
        self.costs, self.options = before, replace(chosen, recall=None)
        how = self.options.proposer or "scoring all documents"
        found = f"finds {highest:.3f} of the best {depth} documents"
        print(f"model.search.recall={options.recall}: {how} {found}")
        return self.options
