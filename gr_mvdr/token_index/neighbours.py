"""Proposes documents by the clusters, or the tokens, that are nearest to query tokens."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from gr_mvdr.batch import length_mask, ragged_range
from gr_mvdr.evaluation.ranking import tie_order
from gr_mvdr.files import open_tensors, write_tensors
from gr_mvdr.options import Proportion, Size, part
from gr_mvdr.relevance import Scoring, divide
from gr_mvdr.salience import keep_salient, top_share
from gr_mvdr.token_index.codec import Clusters
from gr_mvdr.token_index.scorers import (
    Retrieved,
    expected_relevance,
    imputed_terms,
    segment_max,
)
from gr_mvdr.token_index.search import Imputed, Proposal, Proposer, Query
from gr_mvdr.token_index.store import TokenStore
from gr_mvdr.token_vectors import SIDES, TokenVectors

FOLDER, CLUSTERS = "neighbours", "clusters.safetensors"
_BLOCK = 65_536  # tokens compared, or assigned to clusters, at once
_TOGETHER = 16  # centroids of which the best is found first
_PROBE = 20  # what reading one cluster costs, in retrieved tokens


@part("proposer")
@dataclass(frozen=True)
class NearestTokens(Proposer):
    """Proposes the documents with tokens near a query token.

    A query token reaches the clusters whose centroids are most similar to it. A document's
    similarity to the query token is first that of the best reached centroid that has one of its
    tokens. Then, for the best documents, the tokens of reached clusters are compared themselves.
    With `neighbours`, each query token retrieves its nearest tokens instead, as in xtr.

    Estimates are computed from these similarities: by xtr Eq. 4 under `Imputed`, else by
    `expected_relevance`.

    Attributes:
        probes: number of clusters that a query token reaches; None = all tokens are compared.
        compared: number of documents, the best by centroids, whose tokens are compared.
        neighbours: k', the number of most similar tokens, of the reached clusters, that a query
            token retrieves; None = documents are compared.
        keep_query, keep_document: β_q and β_d, the shares of most salient tokens that are searched;
            full relevance reads all tokens (aligner §3.2, "Pruning").
    """

    probes: Size | None = 64
    compared: Size = 500
    neighbours: Size | None = None
    keep_query: Proportion = 1.0
    keep_document: Proportion = 1.0

    imputes = True

    @property
    def opens(self) -> Any:
        """See `Proposer.opens`."""
        return self.keep_document, self.probes is None

    @property
    def prunes(self) -> bool:
        """Whether it ignores some tokens."""
        return self.keep_query < 1 or self.keep_document < 1

    @property
    def reads(self) -> int:
        """See `Proposer.reads`."""
        return self.neighbours or _PROBE * (self.probes or 0)

    def open(self, searcher: Any) -> "TokenSearch":
        """Opens saved clusters with the same settings, or learns them.

        Raises:
            ValueError: `keep_document` < 1 without stored saliences.
        """
        opened = TokenSearch(searcher.store, self.keep_document)
        if self.probes is not None:
            opened.open_clusters()
        return opened

    def propose(
        self,
        opened: "TokenSearch",
        queries: Sequence[Query],
        scoring: Scoring,
        scorer: Any,
        kept: Tensor | None = None,
    ) -> list[Proposal]:
        """See `Proposer.propose`."""
        among = opened.among(kept)
        return [self._proposal(among, query.vectors, scoring, scorer) for query in queries]

    def _proposal(
        self, opened: "TokenSearch", query: TokenVectors, scoring: Scoring, scorer: Any
    ) -> Proposal:
        query, retrieved = self._retrieve(opened, query)
        count = len(retrieved.documents)
        flops = xtr_scoring_flops(len(query), count, len(retrieved.owners) / max(1, count))
        if isinstance(scorer, Imputed):
            how = scorer.imputation, opened.store.counts, query.salience
            terms, z = imputed_terms(retrieved, *how)
            return Proposal(retrieved.documents, divide(terms.sum(1), z), count, flops)
        if scorer.refine is None or scorer.refine >= count:
            return Proposal(retrieved.documents, None, count)
        estimates = expected_relevance(retrieved, query, scoring)
        if self.neighbours is None and scorer.refine < self.compared:
            best = estimates.topk(min(self.compared, count)).indices.sort().values
            retrieved = opened.compare(query, retrieved, best)
            estimates = expected_relevance(retrieved, query, scoring)
        return Proposal(retrieved.documents, estimates, count, flops)

    def terms(
        self,
        opened: "TokenSearch",
        query: TokenVectors,
        scorer: Imputed,
        kept: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns the terms of which one query's (N, …) imputed scores are the sum.

        Args:
            kept: see `Proposer.propose`.

        Returns:
            (C,) int64 ascending document numbers, (C, N') fp32 terms, (C,) fp32 Z, and (N',) int64
            the ids of the query tokens that pruning keeps. A score is the sum of a row over Z.
        """
        query, retrieved = self._retrieve(opened.among(kept), query)
        how = scorer.imputation, opened.store.counts, query.salience
        return retrieved.documents, *imputed_terms(retrieved, *how), query.ids

    def _retrieve(
        self, opened: "TokenSearch", query: TokenVectors
    ) -> tuple[TokenVectors, Retrieved]:
        """Returns the query's most salient tokens, on the CPU, and what they retrieve."""
        query = keep_salient(query, self.keep_query)
        vectors = _searched(query)
        if self.neighbours is None:
            retrieved = opened.reach(vectors, self.probes)
        else:
            similarities, rows = opened.search(vectors, self.neighbours, self.probes)
            token, place = (rows >= 0).nonzero(as_tuple=True)
            rows, store = rows[token, place], opened.store
            own = store.owners(rows), similarities[token, place], store.salience(rows)
            retrieved = Retrieved(len(vectors), token, *own)
        return query.to("cpu"), retrieved

    def check(self, scoring: Scoring, scorer: Any, salience: Mapping[str, Any] | None) -> None:
        """See `Proposer.check`."""
        if self.neighbours is None and (self.probes is None or isinstance(scorer, Imputed)):
            rule = "must be a number without probes, and with Imputed, which scores tokens"
            raise ValueError(f"model.search.proposer.neighbours=null: {rule}")
        for side in SIDES:
            share = getattr(self, f"keep_{side}")
            if share < 1 and salience is not None and not salience.get(side):
                rule = "must be 1 without salience"
                raise ValueError(f"model.search.proposer.keep_{side}={share}: {rule}")


class Postings(NamedTuple):
    """What each cluster holds: documents, or token rows.

    Attributes:
        numbers: (P,) int32 of documents or rows, ascending in each cluster.
        starts: (K + 1,) int64; cluster c has the places starts[c] to starts[c + 1] − 1.
        salience: (P,) fp32 of a document's first token in the cluster; None = all one.
    """

    numbers: Tensor
    starts: Tensor
    salience: Tensor | None = None

    def keep(self, kept: Tensor) -> "Postings":
        """Returns those of documents for which `kept` (D,) is True."""
        mask = kept[self.numbers]
        starts = torch.cat([self.starts[:1], mask.cumsum(0)])[self.starts]
        salience = None if self.salience is None else self.salience[mask]
        return Postings(self.numbers[mask], starts, salience)

    def read(self, clusters: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the places of all that some clusters (c,) hold; and for each, which of them."""
        own, places = ragged_range(self.starts[clusters].numpy(), self.starts[clusters + 1].numpy())
        return torch.from_numpy(places), torch.from_numpy(own)


class TokenSearch:
    """Token retrieval over a store, among the tokens that pruning keeps.

    Attributes:
        rows: (R,) int64 ascending, the token rows that can be retrieved.
        centroids: (K, d) bf16, once clusters are open.
        documents: the documents of each cluster, each once.
    """

    centroids: Tensor
    documents: Postings
    size_in_bytes = 0

    def __init__(self, store: TokenStore, keep: float = 1.0):
        """
        Args:
            keep: β_d, the share of each document's tokens, the most salient ones, that can be
                retrieved (aligner §3.2).

        Raises:
            ValueError: `keep` < 1 for a store without saliences.
        """
        self.store, self._keep, self.rows = store, keep, _kept_rows(store, keep)
        self._codec, self._kept = store.codecs.get(store.searched), None
        if keep < 1:
            self._kept = torch.zeros(store.n_tokens, dtype=torch.bool)
            self._kept[self.rows] = True
        self._narrowed: tuple[Tensor, TokenSearch] | None = None

    def open_clusters(self) -> None:
        """Opens the saved clusters, or learns and saves them; those of codes are the codec's."""
        file = self.store.directory / FOLDER / CLUSTERS
        made_from = [self.store.revision, self._keep]
        tensors, saved = open_tensors(file) if file.is_file() else ({}, None)
        if saved != made_from:
            tensors = self._learn_clusters()
            write_tensors(file, tensors, made_from)
        self.size_in_bytes = sum(part.nbytes for part in tensors.values())
        self.centroids = self._codec.clusters.centroids if self._codec else tensors["centroids"]
        self._clusters = tensors.get("clusters")
        own = (tensors.get(name) for name in Postings._fields)
        self.documents = Postings(*own)  # type: ignore[arg-type]

    def _learn_clusters(self) -> dict[str, Tensor]:
        """Returns centroids and every token's cluster, unless codes hold both; and postings."""
        every, tensors = torch.arange(self.store.n_tokens), {}
        if self._codec is None:
            clusters = Clusters.learn(self._vectors, self.store.ids(every), len(every))
            blocks = every.split(_BLOCK)
            own = [clusters.assign(self._vectors(b), self.store.ids(b)) for b in blocks]
            self._clusters, self.centroids = torch.cat(own).int(), clusters.centroids
            tensors = {"clusters": self._clusters, "centroids": self.centroids}
        else:
            self.centroids = self._codec.clusters.centroids
        rows, starts, _ = self.tokens
        owners, lengths = self.store.owners(rows), starts.diff()
        cluster = torch.arange(len(lengths)).repeat_interleave(lengths)
        is_new = torch.ones(len(rows), dtype=torch.bool)
        is_new[1:] = (owners.diff() != 0) | (cluster.diff() != 0)
        places = torch.cat([starts[:1], is_new.cumsum(0)])
        tensors |= {"numbers": owners[is_new].int(), "starts": places[starts]}
        if self.store.has_salience:
            tensors["salience"] = self.store.salience(rows[is_new].long())
        return tensors

    @cached_property
    def tokens(self) -> Postings:
        """The rows of each cluster; only a search of tokens reads them."""
        own = torch.cat([self._clusters_of(rows) for rows in self.rows.split(_BLOCK)])
        counts = torch.bincount(own, minlength=len(self.centroids))
        starts = torch.cat([counts[:1] * 0, counts.cumsum(0)])
        return Postings(self.rows[own.argsort(stable=True)].int(), starts)

    def _clusters_of(self, rows: Tensor) -> Tensor:
        if self._codec is None:
            return self._clusters[rows]
        return self._codec.numbers(self.store.column(self.store.searched, rows))

    def among(self, documents: Tensor | None) -> "TokenSearch":
        """Returns the search of some documents' tokens, None = all; the last one is kept."""
        if documents is None:
            return self
        if self._narrowed is None or not torch.equal(documents, self._narrowed[0]):
            kept = torch.zeros(len(self.store), dtype=torch.bool)
            kept[documents] = True
            narrow = copy(self)
            vars(narrow).pop("tokens", None)
            narrow.rows = self.rows[kept.repeat_interleave(self.store.counts)[self.rows]]
            if "documents" in vars(self):
                narrow.documents = self.documents.keep(kept)
            self._narrowed = documents, narrow
        return self._narrowed[1]

    def reach(self, queries: Tensor, probes: int) -> Retrieved:
        """Returns the documents of the clusters nearest to each query token (N, d) fp32.

        Raises:
            ValueError: a query vector is not finite.
        """
        similarities, clusters = self._nearest(_checked(queries), probes)
        places, of = self.documents.read(clusters.flatten())
        own = of // max(1, clusters.shape[1]), self.documents.numbers[places]
        salience = self.documents.salience
        salience = None if salience is None else salience[places]
        similarities = similarities.flatten()[of]
        return Retrieved(len(queries), *own, similarities, salience, clusters.flatten())

    def _nearest(self, queries: Tensor, probes: int) -> tuple[Tensor, Tensor]:
        """(N, p) fp32 the similarities of the nearest clusters, and (N, p) int64 their numbers."""
        products = self.centroids @ self._turned(queries).cpu().bfloat16().T  # (K, N)
        if len(self.rows) < self.store.n_tokens:
            products[self.documents.starts.diff() == 0] = -torch.inf
        return best_rows(products, probes)

    def compare(self, query: TokenVectors, retrieved: Retrieved, places: Tensor) -> Retrieved:
        """Returns the same for some documents, by all their tokens of all reached clusters.

        Args:
            query: (N, …) which reached the clusters.
            places: (c,) int64 the places of the documents in `retrieved`, ascending.
        """
        compared, store = copy(retrieved), self.store
        documents = compared.documents = retrieved.documents[places]
        first, end = store.offsets[documents].numpy(), store.offsets[documents + 1].numpy()
        owners, rows = map(torch.from_numpy, ragged_range(first, end))
        reached = torch.zeros(len(self.centroids), dtype=torch.bool)
        reached[retrieved.clusters] = True
        mask = reached[self._clusters_of(rows)]
        if self._kept is not None:
            mask &= self._kept[rows]
        rows, counts = rows[mask], torch.bincount(owners[mask])
        vectors = store.vectors(store.searched, rows, turned=True)
        products = self._turned(_searched(query)) @ vectors.T
        best, chosen = segment_max(products, counts, store.has_salience)
        compared.best = best.T.maximum(retrieved.missed)
        if store.has_salience:
            compared.best_salience = store.salience(rows)[chosen.T]
        return compared

    def search(
        self, queries: Tensor, neighbours: int, probes: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Finds the k' nearest tokens of each query token, by their stored vectors.

        Ties for the k'-th place go to the documents that `Ranking` puts first.

        Args:
            queries: (N, d) fp32, vectors or keys like the store's `searched` column.
            neighbours: k'; at most all tokens are found.
            probes: number of clusters whose tokens are compared; None = all tokens are.

        Returns:
            similarities (N, k') fp32 and token rows (N, k') int64, best first; −inf and −1 if the
            clusters have fewer tokens.

        Raises:
            ValueError: a query vector is not finite.
        """
        queries, k = _checked(queries), min(neighbours, len(self.rows))
        if probes is None:
            return self._best(queries, self.rows, k)
        best = []
        for query, own in zip(queries, self._nearest(queries, probes)[1], strict=True):
            rows = self.tokens.numbers[self.tokens.read(own)[0]].long().sort().values
            best.append(self._best(query[None], rows, k))
        return tuple(map(torch.cat, zip(*best, strict=True)))

    def _best(self, queries: Tensor, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """`search` among ascending rows; tokens are compared by one integer each.

        The integer is b · 2³² − p: b are the bits of the similarity as an ordered integer, and p is
        the token's place in a tie.
        """
        queries = self._turned(queries)
        best = torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device)
        for some in rows.split(_BLOCK):
            product = queries @ self._vectors(some).to(queries).T
            bits = _ordered_bits(product.float().add_(0.0).view(torch.int32))  # no −0
            keys = bits.long().mul_(1 << 32).sub_(self._places[some].to(best.device))
            best = torch.cat([best, keys], 1)
            best = best.topk(min(k, best.shape[1]), dim=1, sorted=False).values
        best = best.cpu().sort(dim=1, descending=True).values
        bits = -(-best >> 32)
        similarities = _ordered_bits(bits.int()).view(torch.float32)
        found = self._rows_by_place[(bits << 32) - best]
        short = 0, k - best.shape[1]
        return pad(similarities, short, value=-torch.inf), pad(found, short, value=-1)

    @cached_property
    def _rows_by_place(self) -> Tensor:
        """(T,) int64 the rows of all tokens in the order of a tie: `Ranking`'s of documents."""
        ranks = torch.from_numpy(tie_order(self.store.document_ids)).argsort()
        return ranks.repeat_interleave(self.store.counts).argsort(stable=True)

    @cached_property
    def _places(self) -> Tensor:
        """(T,) int64 the place of every token if all tie."""
        return self._rows_by_place.argsort()

    def _turned(self, queries: Tensor) -> Tensor:
        return queries if self._codec is None else self._codec.turn(queries)

    def _vectors(self, rows: Tensor) -> Tensor:
        """(t, d) fp32 the vectors of rows; adjacent rows are a slice, to copy less."""
        first, last = (int(rows[0]), int(rows[-1])) if len(rows) else (0, -1)
        adjacent = last - first + 1 == len(rows) and bool((rows.diff() == 1).all())
        return self.store.vectors(
            self.store.searched, slice(first, last + 1) if adjacent else rows, turned=True
        )


def best_rows(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(N, c) fp32 the largest values of each column of (K, N), in any order, and their rows.

    A sixteenth of the rows comes first: the largest values are among the groups of the largest.
    """
    groups = len(values) // _TOGETHER
    if count >= groups:
        best = values.T.topk(min(count, len(values)), dim=1, sorted=False)
        return best.values.float(), best.indices
    whole = values[: groups * _TOGETHER].view(_TOGETHER, groups, -1)
    chosen = whole.amax(0).T.topk(count, dim=1, sorted=False).indices  # (N, c)
    rows = (chosen[:, None] + torch.arange(0, groups * _TOGETHER, groups)[:, None]).flatten(1)
    rest = torch.arange(groups * _TOGETHER, len(values)).expand(len(rows), -1)
    rows = torch.cat([rows, rest], 1)
    best = values.T.gather(1, rows).topk(count, dim=1, sorted=False)
    return best.values.float(), rows.gather(1, best.indices)


def _searched(query: TokenVectors) -> Tensor:
    return query.vectors if query.keys is None else query.keys


def _checked(queries: Tensor) -> Tensor:
    if not queries.isfinite().all():
        raise ValueError("a query's vectors are not finite: the model's weights are broken")
    return queries


def _ordered_bits(bits: Tensor) -> Tensor:
    """Maps the bits of fp32 numbers to int32 in the order of the numbers; its own inverse."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _kept_rows(store: TokenStore, keep: float) -> Tensor:
    """(K,) int64 the rows of the most salient tokens of each document, a share `keep`."""
    if keep == 1.0:
        return torch.arange(store.n_tokens)
    if not store.has_salience:
        raise ValueError(f"model.search.proposer.keep_document={keep}: must be 1 without salience")
    kept = []
    for documents in store.blocks(_BLOCK):
        mask = length_mask(store.counts[documents])  # (D, M)
        salience = store.salience(store.rows(documents))
        padded = torch.zeros(mask.shape).masked_scatter(mask, salience)
        kept.append(top_share(padded, mask, keep)[mask])
    return torch.cat(kept).nonzero()[:, 0]


def xtr_scoring_flops(query_tokens: float, candidates: float, retrieved_tokens: float) -> float:
    """Operations for scoring by imputed relevance, for one query: n C (r̄ + 1) (xtr App. B).

    For each candidate, these are n r̄ for the maxima and n for their mean. At worst C = n k', which
    gives n² k' (r̄ + 1) of xtr Table 1.

    Args:
        query_tokens: n.
        candidates: C, the number of documents that are scored.
        retrieved_tokens: r̄, the mean number of retrieved tokens of a candidate.
    """
    return query_tokens * candidates * (retrieved_tokens + 1)
