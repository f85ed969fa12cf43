"""All multi-vector systems: token vectors, an alignment, a salience, a Z, and a search.

DPR, Sentence-T5, ME-BERT, COIL, ColBERT, ALIGNER, XTR and MVA are configurations of this one class,
in `conf/model/`. The way from a text to the loss is: `TokenEncoder` (D and Q), `Scoring` (all pairs
of a batch), gr_mvdr/alignment.py (A), relevance.py (S, Z), losses.py. A `Searcher` finds and scores
documents, wherever their vectors are (gr_mvdr/token_index/search.py).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gr_mvdr.alignment import Alignment
from gr_mvdr.backbones import check_length, hash_weights
from gr_mvdr.batch import PairBatch, batch_by_size, pad
from gr_mvdr.evaluation.ranking import Qrels, Ranking, recall_of_exact
from gr_mvdr.measures import RANKINGS, RETRIEVE, Measured, costs
from gr_mvdr.options import AtLeast, Size, build, check_options, inspect_signature, part
from gr_mvdr.pooling import Grouped, group_tokens, merge_tokens, n_groups
from gr_mvdr.progress import track
from gr_mvdr.ranks import encode_share, gather_batch
from gr_mvdr.relevance import (
    Explanation,
    Factors,
    Normaliser,
    PairAlignment,
    Scoring,
    all_pairs_relevance,
    divide,
    similarity,
)
from gr_mvdr.token_index.search import Documents, FullRelevance, Query, SearchOptions
from gr_mvdr.token_vectors import PackedTokens, Side, TokenVectors, concatenate
from models.base import Among, Candidates, Share, System, Table, hash_documents, query_shares
from models.token_encoder import Layer, Projections, TokenEncoder
from models.training import OptimizerOptions

_QUERY_BATCH = 32  # queries encoded at once
_FIDELITY_QUERIES = 100  # queries on which approximate and exact search are compared


@part("model")
class MultiVector(System):
    """Token vectors of a shared encoder, scored by a form of Eq. 1 (gr_as_mvdr §3, aligner §2).

    Attributes:
        searcher: the documents' vectors and their search.
        mean_floats: the mean number of floats per document, after `index`.
    """

    paradigm = "multi_vector"
    needs_negatives = True
    mean_floats: float | None = None

    def __init__(
        self,
        backbone: dict[str, Any],
        dimension: Size | None,
        query_length: Annotated[int, AtLeast(2)],
        document_length: Annotated[int, AtLeast(2)],
        alignment: dict[str, Any],
        loss: dict[str, Any],
        search: Annotated[dict[str, Any], SearchOptions],
        optimizer: OptimizerOptions,
        training_alignment: dict[str, Any] | None = None,
        normaliser: Normaliser = "none",
        projections: Projections = "shared",
        pooling: dict[str, dict[str, Any]] | None = None,
        salience: dict[str, dict[str, Any] | None] | None = None,
        attend_expansion: bool = True,
        expansion_length: Annotated[int, AtLeast(2)] | None = None,
        gradient_cache: Size | None = None,
        heads: Size = 1,
        layers: list[Layer] | None = None,
    ):
        """
        Args:
            backbone, dimension, projections, pooling, salience, heads, layers: see `TokenEncoder`.
            query_length, document_length: tokens kept of a text, special tokens included.
            alignment, loss: parts of `gr_mvdr.alignment` and `gr_mvdr.losses`, as dicts with
                `_target_`.
            training_alignment: the alignment in training; None = `alignment` (xtr has another).
            normaliser: Z of Eq. 1, see `gr_mvdr.relevance.normaliser`.
            search, optimizer: options of `SearchOptions` and `make_optimizer`.
            attend_expansion: whether a query's tokens attend to its expansion tokens
                (`TextTemplate.expansion`, ColBERT's query augmentation), which always align.
            expansion_length: the length to which queries are expanded; None = query_length.
            gradient_cache: texts encoded at once in training (`encode_share`); None = all.
        """
        super().__init__()
        self.save_hyperparameters()
        check_options("model.search", inspect_signature(SearchOptions), search)
        self.search = SearchOptions(**search)
        self.searcher = self.search.searcher()
        self.indexes_in_shards = self.searcher.in_shards
        self.tunes_search = self.search.recall is not None
        self.scoring = Scoring(build("alignment", alignment), normaliser, heads)
        trained = build("alignment", training_alignment or alignment)
        self.training_scoring = Scoring(trained, normaliser, heads)
        self.loss_function = build("loss", loss)
        sizes = dimension, projections, pooling, salience, heads, layers
        self.encoder = TokenEncoder(backbone, *sizes)
        lengths = {"query_length": query_length, "document_length": document_length}
        check_length(self.encoder.backbone, **lengths)
        self.vocabulary_size, self.template = self.encoder.n_tokens, self.encoder.template
        # The minimum number of a query's tokens.
        self.filled_to = 0 if self.template.expansion is None else expansion_length or query_length
        self.searcher.check(self.search, self.scoring, salience or {})

    def prepare(self, documents: Table, known: Sequence[int], directory: str | Path) -> None:
        """Fits saliences that count the collection's tokens (IDF), and looks for the engine; see
        `System.prepare`."""
        self.searcher.connect(Path(directory))
        if self.encoder.salience:
            texts = [self.cut_document(documents["tokens"][row]) for row in known]
            for salience in self.encoder.salience.values():
                salience.fit(texts, self.encoder.vocabulary_size, self.template.special)

    # Training ---------------------------------------------------------------------------------

    def loss(self, batch: PairBatch) -> Tensor:
        """Computes the configured loss () of the batch's (documents, queries) relevance (Eq. 2).

        The batches of all ranks are joined: each rank encodes its share and computes the whole
        loss.
        """
        batch = gather_batch(batch)
        host, how = batch.on_host, (self.hparams.gradient_cache, self.device)
        texts = (
            (self.encode_documents, host.document_ids, host.document_mask),
            (self.encode_queries, host.query_ids, host.query_mask),
        )
        documents, queries = (concatenate(encode_share(*one, *how)).gather() for one in texts)
        scores = all_pairs_relevance(documents, queries, self.training_scoring)
        sides = {"query": queries, "document": documents}
        penalties = [  # the L1 gate of aligner §4.3
            part.penalty(sides[side].salience, sides[side].mask)
            for side, part in self.encoder.salience.items()
        ]
        return sum(penalties, self.loss_function(scores, batch))

    def encode_documents(self, ids: Tensor, mask: Tensor) -> TokenVectors:
        """Encodes document tokens (B, M) int64 with their mask (B, M) bool."""
        return self.encoder(ids, mask, "document")

    def encode_queries(self, ids: Tensor, mask: Tensor) -> TokenVectors:
        """Encodes query tokens (B, N) int64 with their mask (B, N) bool, expansion included."""
        return self.encoder(*self._fill_up(ids, mask))

    def _fill_up(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Side, Tensor | None]:
        """Expands queries with the template's token (ColBERT's augmentation); returns the
        arguments of `TokenEncoder.grouped`."""
        attended, missing = None, max(0, self.filled_to - ids.shape[1])
        if self.filled_to:
            ids, real = F.pad(ids, (0, missing)), F.pad(mask, (0, missing))
            ids = ids.masked_fill(~real, self.template.expansion)
            places = torch.arange(ids.shape[1], device=ids.device)
            mask = real | (places < self.filled_to)
            if self.template.pads_start:  # as a tokeniser with padding_side=left: [MASK] [CLS] text
                added = (self.filled_to - real.sum(1, keepdim=True)).clamp(min=0)
                moved = (places - added) % len(places)
                ids, real = ids.gather(1, moved), real.gather(1, moved)
            attended = None if self.hparams.attend_expansion else real
        return ids, mask, "query", attended

    def on_validation_start(self) -> None:
        """Searches all documents exactly until `Validation` puts the system's own search back."""
        self.search = replace(self.search.exact, source=None)
        self.searcher = self.search.searcher()

    # Given pairs ------------------------------------------------------------------------------

    def score(self, batch: PairBatch) -> Tensor:
        """Computes the pairs' relevance (B,) under the system's alignment (Eq. 1)."""
        return self.scoring(*(merge_tokens(*side) for side in self._tokens(batch)))

    def _tokens(self, batch: PairBatch) -> tuple[Grouped, Grouped]:
        """Encodes each query's own document (no hard negatives) and the queries.

        Documents are merged as in the index (`model.search.pool`).
        """
        ids, mask = batch.document_ids[: len(batch)], batch.document_mask[: len(batch)]
        queries = self._fill_up(batch.query_ids, batch.query_mask)
        tokens, groups = self.encoder.grouped(ids, mask, "document")
        pooled = group_tokens(merge_tokens(tokens, groups), self.search.pool, self.search.pool_by)
        if pooled is not None:
            groups = pooled if groups is None else pooled @ groups
        return (tokens, groups), self.encoder.grouped(*queries)

    def align(self, batch: PairBatch) -> PairAlignment:
        """Returns S and A of each pair, salience included; relevance equals score (Eq. 1)."""
        return self.explain(batch).layers[0]

    def explain(self, batch: PairBatch) -> Explanation:
        """Returns the alignment of B pairs, and Ã before salience if a side has salience.

        If tokens are merged, A of a group is spread evenly over its tokens. This does not change
        the relevance, since a group's similarity is the mean of its tokens' (`merge_tokens`).
        """
        sides, groups = zip(*self._tokens(batch), strict=True)
        merged, pairwise = [merge_tokens(*one) for one in zip(sides, groups, strict=True)], None
        pairs = self.scoring.align(*merged)
        if any(side.salience is not None for side in sides):
            pairwise = _spread(self.scoring.matrices(*merged)[1], *groups)
        if any(group is not None for group in groups):
            heads = self.scoring.heads
            pairs = replace(
                pairs,
                similarity=similarity(*(side.by_head(heads).vectors for side in sides)),
                alignment=_spread(pairs.alignment, *groups),
                document_ids=sides[0].ids,
                document_mask=sides[0].mask,
                query_ids=sides[1].ids,
                query_mask=sides[1].mask,
            )
        return Explanation([pairs], pairwise=pairwise)

    def factors(self, batch: PairBatch) -> Factors:
        """Returns the token vectors behind S, and the keys behind A if they differ (mva §2.1)."""
        return self.scoring.factors(*(merge_tokens(*side) for side in self._tokens(batch)))

    # Index ------------------------------------------------------------------------------------

    def index(self, documents: Table, directory: str | Path | None = None) -> None:
        """Builds the searcher; see `Searcher.build`."""
        self.searcher.build(self._documents(documents), directory)

    def open_index(self, documents: Table, directory: str | Path) -> None:
        """Opens what `index` wrote; see `Searcher.open`."""
        self.searcher.open(self._documents(documents), directory)

    def update_index(self, documents: Table) -> None:
        """See `System.update_index`."""
        self.searcher.update(self._documents(documents))

    def close(self) -> None:
        """See `System.close`."""
        self.searcher.close()

    def _documents(self, table: Table) -> Documents:
        """Returns documents with the way to encode them, and what identifies their vectors."""
        rows = {name: row for row, name in enumerate(table["id"][:])}
        lengths = [len(self.cut_document(tokens)) for tokens in table["tokens"]]
        self.mean_floats = fmean(map(self.encoder.floats, map(self._document_vectors, lengths)))
        pool = self.search.pool
        pooled = f", by {self.search.pool_by} to 1/{pool}" if pool > 1 else ""
        made_from = {
            "dimension": self.encoder.dimension,
            "model": hash_weights(self) + pooled,
            "collection": hash_documents(table),
        }

        def encode(names: Sequence[str]) -> Iterator[PackedTokens]:
            tokens = table.select([rows[name] for name in names])["tokens"]
            texts = [*map(self.cut_document, tokens)]
            for batch in batch_by_size([*map(len, texts)]):
                yield self.encode_texts([texts[place] for place in batch]).pack()

        return Documents(table, encode, lengths, made_from)

    @torch.inference_mode()
    def encode_texts(self, documents: list[list[int]]) -> TokenVectors:
        """Encodes documents' tokens as the vectors (B, M, …) that an index stores, in fp32."""
        sides = (part.to(self.device) for part in pad(documents))
        tokens = self.eval().encode_documents(*sides).float()
        return merge_tokens(tokens, group_tokens(tokens, self.search.pool, self.search.pool_by))

    # Search -----------------------------------------------------------------------------------

    @torch.inference_mode()
    def encoded_queries(self, queries: Table) -> list[Query]:
        """Encodes queries for all searches, on the device that scores them."""
        self.eval()
        encoded = []
        for start in track(range(0, len(queries), _QUERY_BATCH), "encoding queries"):
            rows = queries[start : start + _QUERY_BATCH]
            ids, mask = (x.to(self.device) for x in pad([*map(self.cut_query, rows["tokens"])]))
            vectors = self.encode_queries(ids, mask).float()
            texts = zip(rows["id"], rows["text"], strict=True)
            encoded += [Query(name, vectors.unpad(n), text) for n, (name, text) in enumerate(texts)]
        return encoded

    def _retrieve(
        self,
        queries: Table,
        k: int,
        among: Among,
        with_shares: bool,
        search: SearchOptions | None = None,
    ) -> Ranking:
        """Searches the index (gr_as_mvdr §6.3); a share is a query token's (xtr Eq. 4)."""
        encoded = self.encoded_queries(queries)
        if among is not None:
            search = self.searcher.narrowed(search or self.search, among)
        ranking = self.searcher.search(encoded, self.scoring, k, search, among)
        if with_shares:
            how = search or self.search, among
            ranking.shares = {
                query.id: self._shares(query, ranking.documents(query.id), *how)
                for query in encoded
            }
        return ranking

    def _rerank(
        self,
        queries: Table,
        documents: Table,
        candidates: Candidates,
        alignment: Alignment | None = None,
        normaliser: Normaliser | None = None,
    ) -> Ranking:
        """Scores candidates from their indexed vectors; A and Z are the system's by default.

        A document-to-query alignment gives the paper's MVDR (q←d), which can only rerank (§7.1).
        Its sum has a term for each document token, so without Z = Σ A = M it ranks by length.
        """
        other = {"alignment": alignment, "normaliser": normaliser}
        scoring = replace(self.scoring, **{key: part for key, part in other.items() if part})
        results = {}
        for query in track(self.encoded_queries(queries), "reranking"):
            names = candidates[query.id]
            scores = self.searcher.score(query.vectors, names, scoring).tolist()
            results[query.id] = dict(zip(names, scores, strict=True))
        return Ranking(results)

    @torch.inference_mode()
    def _shares(
        self, query: Query, documents: list[str], search: SearchOptions, among: Among
    ) -> dict[str, list[Share]]:
        """Returns each query token's share of the documents' scores under the search."""
        if not documents:
            return {}
        source = self.searcher.stored_as(search)
        if isinstance(search.scorer, FullRelevance):
            repeated = query.vectors[None][torch.zeros(len(documents), dtype=torch.int64)]
            pairs = self.scoring.align(source.vectors(documents).to(self.device), repeated)
            return dict(zip(documents, query_shares(pairs), strict=True))
        opened = source.opened(search.proposer)
        kept = None if among is None else source.restriction(among)
        proposed, terms, z, ids = search.proposer.terms(opened, query.vectors, search.scorer, kept)
        places = torch.searchsorted(proposed, source.numbers(documents))
        rows, tokens = divide(terms[places], z[places, None]).tolist(), ids.tolist()
        shares = ([Share((t,), v) for t, v in zip(tokens, row, strict=True)] for row in rows)
        return dict(zip(documents, shares, strict=True))

    @torch.inference_mode()
    def tune_search(self, queries: Table, depth: int, qrels: Qrels) -> None:
        """Chooses the search's effort; see `TokenIndex.tune`."""
        self.search = self.searcher.tune(self.encoded_queries(queries), self.scoring, depth)
        self.hparams["search"], self.tunes_search = self.search.settings, False

    # Costs ------------------------------------------------------------------------------------

    def _document_vectors(self, tokens: int) -> int:
        read = min(tokens, self.hparams.document_length)
        return n_groups(self.encoder.pooling["document"].count(read), self.search.pool)

    def joint_flops(self, query_tokens: int, document_tokens: int) -> float:
        """Counts the operations of Eq. 1 for one pair, after pooling; see `System.joint_flops`."""
        read = max(min(query_tokens, self.hparams.query_length), self.filled_to)
        n = self.encoder.pooling["query"].count(read)
        return self.encoder.pair_flops(n, self._document_vectors(document_tokens))

    def search_fidelity(self, queries: Table, ranking: Ranking, depth: int) -> list[Measured]:
        """Returns costs, and the recall of an approximate search against the exact search."""
        stored = {"bytes_per_token": self.searcher.bytes_per_token}
        if self.mean_floats is not None:
            stored["document_floats"] = self.mean_floats
        rows = self.searcher.costs.metrics() + costs(stored)
        if (exact := self.searcher.exact_search()) not in (None, self.search):
            sample = queries.select(range(min(_FIDELITY_QUERIES, len(queries))))
            best = self.retrieve(sample, depth, search=exact)
            for k in sorted({min(10, depth), depth}):
                share = recall_of_exact(best, ranking, k)
                rows.append(RANKINGS["recall_of_exact"].at(k).row(share, group=RETRIEVE))
        return rows


def _spread(alignment: Tensor, documents: Tensor | None, queries: Tensor | None) -> Tensor:
    """Spreads A of groups (B, H, K, L) over their tokens (B, H, M, N)."""
    if documents is not None:
        alignment = documents.mT.unsqueeze(1).to(alignment) @ alignment
    return alignment if queries is None else alignment @ queries.unsqueeze(1).to(alignment)
