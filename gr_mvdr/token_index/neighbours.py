"""Proposes documents by the tokens nearest to query tokens, of all or of an inverted file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from gr_mvdr.batch import length_mask
from gr_mvdr.evaluation.ranking import tie_order
from gr_mvdr.files import open_tensors, write_tensors
from gr_mvdr.options import Proportion, Size, part
from gr_mvdr.relevance import Scoring, divide
from gr_mvdr.salience import keep_salient, top_share
from gr_mvdr.token_index.codec import ITERATIONS, PER_CENTROID, TOKENS_PER_CENTROID, Codec
from gr_mvdr.token_index.scorers import Retrieved, expected_relevance, imputed_terms
from gr_mvdr.token_index.search import Imputed, Proposal, Proposer, Query
from gr_mvdr.token_index.store import TokenStore
from gr_mvdr.token_vectors import SIDES, TokenVectors

FOLDER, LISTS = "neighbours", "lists.safetensors"
_BITS = 4  # bits of a sub-vector's code in the inverted file
_SAMPLE = 65_536  # tokens from which its codes are learned
_BLOCK = 65_536  # tokens compared, or added to the inverted file, at once


@part("proposer")
@dataclass(frozen=True)
class NearestTokens(Proposer):
    """Proposes the documents that own one of the k' tokens nearest to a query token.

    Estimates are computed from these tokens: by xtr Eq. 4 under `Imputed`, else by
    `expected_relevance`.

    Attributes:
        neighbours: k', the number of tokens that a query token retrieves.
        probes: number of clusters that the token retrieval visits; None = it compares all tokens.
        lists: number of clusters of the inverted file; None = √ of the number of tokens. With
            residual codes, the clusters are the centroids, see `Storage`.
        keep_query, keep_document: β_q and β_d, the shares of most salient tokens that the token
            retrieval reads; full relevance reads all tokens (aligner §3.2, "Pruning").
    """

    neighbours: Size = 250
    probes: Size | None = 4
    lists: Size | None = None
    keep_query: Proportion = 1.0
    keep_document: Proportion = 1.0

    imputes = True

    @property
    def opens(self) -> Any:
        """See `Proposer.opens`."""
        return self.keep_document, self.probes is None, self.lists

    @property
    def prunes(self) -> bool:
        """Whether it ignores some tokens."""
        return self.keep_query < 1 or self.keep_document < 1

    def open(self, searcher: Any) -> "TokenSearch":
        """Opens a saved inverted file with the same settings, or builds one.

        Raises:
            ValueError: `keep_document` < 1 without stored saliences.
        """
        retrieval = TokenSearch(searcher.store, self.keep_document)
        if self.probes is not None:
            retrieval.build_lists(self.lists)
        return retrieval

    def propose(
        self,
        opened: "TokenSearch",
        queries: Sequence[Query],
        scoring: Scoring,
        scorer: Any,
        kept: Tensor | None = None,
    ) -> list[Proposal]:
        """See `Proposer.propose`."""
        rows = opened.rows_of(kept)
        return [self._proposal(opened, query.vectors, scoring, scorer, rows) for query in queries]

    def _proposal(
        self,
        opened: "TokenSearch",
        query: TokenVectors,
        scoring: Scoring,
        scorer: Any,
        rows: "Rows",
    ) -> Proposal:
        query, retrieved = self._retrieve(opened, query, isinstance(scorer, Imputed), rows)
        documents, count = retrieved.documents, len(retrieved.documents)
        flops = xtr_scoring_flops(len(query), count, retrieved.n_tokens / max(1, count))
        if isinstance(scorer, Imputed):
            how = scorer.imputation, opened.store.counts, query.salience
            terms, z = imputed_terms(retrieved, *how)
            return Proposal(documents, divide(terms.sum(1), z), count, flops)
        if scorer.refine is None or scorer.refine >= count:
            return Proposal(documents, None, count)
        return Proposal(documents, expected_relevance(retrieved, query, scoring), count, flops)

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
        query, retrieved = self._retrieve(opened, query, True, opened.rows_of(kept))
        how = scorer.imputation, opened.store.counts, query.salience
        return retrieved.documents, *imputed_terms(retrieved, *how), query.ids

    def _retrieve(
        self, opened: "TokenSearch", query: TokenVectors, rescore: bool, rows: "Rows"
    ) -> tuple[TokenVectors, Retrieved]:
        """Returns the query's most salient tokens, on the CPU, and the tokens they retrieve."""
        query = keep_salient(query, self.keep_query)
        vectors = query.vectors if query.keys is None else query.keys
        k = min(self.neighbours, len(rows.numbers))
        similarities, tokens = opened.search(vectors, k, self.probes, rescore, rows)
        salience = opened.store.salience(tokens.flatten().clamp(min=0))
        if salience is not None:
            salience = salience.view_as(similarities)
        return query.to("cpu"), Retrieved(similarities, opened.store.owners(tokens), salience)

    def check(self, scoring: Scoring, salience: Mapping[str, Any] | None) -> None:
        """See `Proposer.check`."""
        for side in SIDES:
            share = getattr(self, f"keep_{side}")
            if share < 1 and salience is not None and not salience.get(side):
                rule = "must be 1 without salience"
                raise ValueError(f"model.search.proposer.keep_{side}={share}: {rule}")


class Rows(NamedTuple):
    """Token rows that can be retrieved.

    Attributes:
        numbers: (R,) int64 ascending.
        documents: (K,) int64 the documents of which they are all; None = of all documents.
        selector: faiss's set of the rows; None = all that the inverted file has.
    """

    numbers: Tensor
    documents: Tensor | None = None
    selector: Any = None


class TokenSearch:
    """Token retrieval over a store, among the tokens that pruning keeps.

    Attributes:
        keep: β_d, the share of each document's tokens, the most salient ones, that can be retrieved
            (aligner §3.2).
        rows: (K,) int64 ascending, the token rows that can be retrieved.
    """

    def __init__(self, store: TokenStore, keep: float = 1.0):
        """
        Raises:
            ValueError: `keep` < 1 for a store without saliences.
        """
        self.store, self.keep, self.rows = store, keep, _kept_rows(store, keep)
        # The codec of residual codes: the inverted file's lists are its centroids.
        self._codec: Codec | None = None
        if store.dtype == "residual":
            self._codec = store.codecs[store.searched]
        self._lists: Any = None  # a faiss index
        self._narrowed = Rows(self.rows)

    @property
    def size_in_bytes(self) -> int:
        """Bytes of the inverted file; 0 if none is open."""
        if self._lists is None:
            return 0
        if self._codec is not None:  # the store's own codes, and 8 bytes a row
            return len(self.rows) * (self._codec.code_size + 8)
        return (self.store.directory / FOLDER / LISTS).stat().st_size

    def build_lists(self, lists: int | None) -> None:
        """Builds, saves and opens the inverted file, or opens a saved one.

        Residual codes name their centroids, which are the lists, so their inverted file is made in
        memory. Other vectors get an inverted file with product quantisation, 4 bits for every two
        dimensions (faiss's "fast scan"). It takes a sixteenth of the vectors' bytes, and visiting a
        list costs a tenth of reading its vectors.

        Args:
            lists: number of clusters; None = √K.
        """
        made_from = [self.store.revision, lists, self.keep]
        if self._codec is not None:
            codes = self.store.column(self.store.searched, self.rows)
            self._lists = self._codec.inverted_file(codes, self.rows)
        else:
            import faiss

            file = self.store.directory / FOLDER / LISTS
            tensors, saved = open_tensors(file) if file.is_file() else ({}, None)
            content: Any = tensors["lists"].numpy() if tensors else b""
            if saved != [*made_from, crc32(content)]:  # faiss trusts what it reads
                content = faiss.serialize_index(self._train_lists(lists))
                tensors = {"lists": torch.from_numpy(content)}
                write_tensors(file, tensors, [*made_from, crc32(content)])
            self._lists = faiss.deserialize_index(content)

    def rows_of(self, documents: Tensor | None) -> Rows:
        """Returns those of `rows` that belong to documents; None = all. The last are kept."""
        if documents is None:
            return Rows(self.rows)
        last = self._narrowed.documents
        if last is None or not torch.equal(documents, last):
            import faiss

            kept = torch.zeros(len(self.store), dtype=torch.bool)
            kept[documents] = True
            tokens = kept.repeat_interleave(self.store.counts)
            bits: Any = np.packbits(tokens.numpy(), bitorder="little")
            select: Any = faiss.IDSelectorBitmap
            self._narrowed = Rows(self.rows[tokens[self.rows]], documents, select(bits))
        return self._narrowed

    def search(
        self,
        queries: Tensor,
        neighbours: int,
        probes: int | None,
        rescore: bool = True,
        rows: Rows | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Finds the k' nearest tokens of each query token.

        Args:
            queries: (T, d) fp32, vectors or keys like the store's `searched` column.
            neighbours: k', at most the number of `rows`.
            probes: number of lists visited; None = all tokens are compared.
            rescore: with `probes`, whether to compute the similarities from the store's vectors;
                otherwise they come from the codes of the inverted file.
            rows: those that can be retrieved; None = all `rows`.

        Returns:
            similarities (T, k') fp32 and token rows (T, k') int64; −inf and −1 if the visited lists
            have fewer tokens. Without `probes`, the best come first, and ties for the k'-th place
            go to the documents that `Ranking` puts first. With `probes`, the inverted file breaks
            ties, and the order is arbitrary.

        Raises:
            ValueError: a query vector is not finite.
        """
        if not queries.isfinite().all():
            raise ValueError("a query's vectors are not finite: the model's weights are broken")
        rows = rows or Rows(self.rows)
        if probes is None:
            return self._every_token(queries, neighbours, rows.numbers)
        queries = queries.cpu()  # like faiss and the store
        turned = queries if self._codec is None else self._codec.turn(queries)
        import faiss

        options: Any = faiss.SearchParametersIVF
        options = options(nprobe=probes, sel=rows.selector)
        turned = turned.contiguous().numpy()
        similarities, found = self._lists.search(turned, neighbours, params=options)
        if rescore:
            found.sort(axis=1)  # in the order on disk
        tokens = torch.from_numpy(found)
        if rescore:
            similarities = self.store.similarities(queries, tokens)
        return torch.as_tensor(similarities).masked_fill(tokens < 0, -torch.inf), tokens

    def _every_token(
        self, queries: Tensor, neighbours: int, every: Tensor
    ) -> tuple[Tensor, Tensor]:
        """`search` over `every` row, without lists; tokens are compared by one integer each.

        The integer is b · 2³² − p: b are the bits of the similarity as an ordered integer, and p is
        the token's place in a tie.
        """
        best = torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device)
        for rows in every.split(_BLOCK):
            product = queries @ self._vectors(rows).to(queries).T
            bits = _ordered_bits(product.float().add_(0.0).view(torch.int32))  # no −0
            keys = bits.long().mul_(1 << 32).sub_(self._places[rows].to(best.device))
            best = torch.cat([best, keys], 1)
            best = best.topk(min(neighbours, best.shape[1]), dim=1, sorted=False).values
        best = best.cpu().sort(dim=1, descending=True).values
        bits = -(-best >> 32)
        similarities = _ordered_bits(bits.int()).view(torch.float32)
        return similarities, self._places.argsort()[(bits << 32) - best]

    @cached_property
    def _places(self) -> Tensor:
        """(T,) int64 the place of every token if all tie: in `Ranking`'s order of documents."""
        ranks = torch.from_numpy(tie_order(self.store.document_ids)).argsort()
        by_document = ranks.repeat_interleave(self.store.counts)
        return by_document.argsort(stable=True).argsort()

    def _vectors(self, rows: Tensor) -> Tensor:
        """(t, d) fp32 the vectors of ascending rows; adjacent rows are a slice, to copy less."""
        first, last = int(rows[0]), int(rows[-1])
        adjacent = last - first + 1 == len(rows)
        return self.store.vectors(self.store.searched, slice(first, last + 1) if adjacent else rows)

    def _train_lists(self, lists: int | None) -> Any:
        """Builds an inverted file of the rows, trained on a sample of them."""
        import faiss

        count = lists or int(len(self.rows) ** 0.5)
        count = max(1, min(count, len(self.rows) // TOKENS_PER_CENTROID))
        generator = torch.Generator().manual_seed(0)
        order = torch.randperm(len(self.rows), generator=generator)
        sample = self.rows[order[: max(_SAMPLE, PER_CENTROID * count)].sort().values]
        sample = self._vectors(sample.repeat(-(-(2**_BITS) // len(sample))))  # for a codebook
        size = sample.shape[1]
        parts = size // 2 if size % 2 == 0 else size  # of two dimensions if d is even
        key = f"IVF{count},PQ{parts}x{_BITS}fs"
        index: Any = faiss.index_factory(size, key, faiss.METRIC_INNER_PRODUCT)
        for clustering in (index.cp, index.pq.cp):
            clustering.seed, clustering.min_points_per_centroid = 0, 1
        index.cp.niter, index.cp.max_points_per_centroid = ITERATIONS, PER_CENTROID
        index.train(sample.contiguous().numpy())
        for rows in self.rows.split(_BLOCK):
            index.add_with_ids(self._vectors(rows).contiguous().numpy(), rows.numpy())
        return index


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
