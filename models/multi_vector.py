"""All multi-vector systems: token vectors, an alignment, a salience, a Z, and a search.

DPR, Sentence-T5, ME-BERT, COIL, ColBERT, ALIGNER, XTR and MVA are configurations of this one class,
in `conf/model/`. The way from a text to the loss is: `TokenEncoder` (D and Q), `Scoring` (all pairs
of a batch), gr_mvdr/alignment.py (A), relevance.py (S, Z), losses.py. A search reads a `TokenIndex`
of the documents' vectors or asks a database for them (`EngineIndex`), or encodes BM25's candidates
when it scores them (`EncodedDocuments`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gr_mvdr.alignment import Alignment
from gr_mvdr.backbones import check_length, hash_weights
from gr_mvdr.batch import PairBatch, batch_by_length, batch_by_size, pad
from gr_mvdr.evaluation.ranking import Ranking, SearchCosts, best_documents, recall_of_exact
from gr_mvdr.files import remove_with, temporary_folder
from gr_mvdr.measures import RANKINGS, RETRIEVE, Measured, costs
from gr_mvdr.options import AtLeast, Size, build, part
from gr_mvdr.pooling import Grouped, group_tokens, merge_tokens, n_groups
from gr_mvdr.progress import track
from gr_mvdr.ranks import encode_share, gather_batch, rank
from gr_mvdr.relevance import Explanation, Factors, Normaliser, PairAlignment, divide, similarity
from gr_mvdr.salience import keep_salient
from gr_mvdr.scoring import Scoring, all_pairs_relevance
from gr_mvdr.token_index.engine import EngineIndex
from gr_mvdr.token_index.index import TokenIndex
from gr_mvdr.token_index.search import EDGE, SearchOptions
from gr_mvdr.token_vectors import PackedTokens, Side, TokenVectors, concatenate
from models.base import Among, Candidates, Share, System, Table, hash_documents, query_shares
from models.bm25 import WordBM25
from models.token_encoder import Projections, TokenEncoder
from models.training import OptimizerOptions

_QUERY_BATCH = 32  # queries encoded at once
_FIDELITY_QUERIES = 100  # queries on which approximate and exact search are compared
_PROPOSED = 2000  # documents that BM25 proposes under model.search.neighbours=auto

EncodedQueries = list[tuple[str, TokenVectors]]  # ids, and token vectors without padding


@part("model")
class MultiVector(System):
    """Token vectors of a shared encoder, scored by a form of Eq. 1 (gr_as_mvdr §3, aligner §2).

    Attributes:
        searcher: the source of the documents' vectors, after `index`.
        mean_floats: the mean number of floats per document, after `index`.
    """

    paradigm = "multi_vector"
    needs_negatives = True
    searcher: "TokenIndex | EngineIndex | EncodedDocuments | None" = None
    mean_floats: float | None = None

    def __init__(
        self,
        backbone: dict[str, Any],
        dimension: Size,
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
    ):
        """
        Args:
            backbone, dimension, projections, pooling, salience, heads: see `TokenEncoder`.
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
        self.search = SearchOptions(**search)
        self.indexes_in_shards = self.search.mode != "rerank" and not self.search.engine
        self.scoring = Scoring(build("alignment", alignment), normaliser, heads)
        trained = build("alignment", training_alignment or alignment)
        self.training_scoring = Scoring(trained, normaliser, heads)
        self.loss_function = build("loss", loss)
        self.encoder = TokenEncoder(backbone, dimension, projections, pooling, salience, heads)
        lengths = {"query_length": query_length, "document_length": document_length}
        check_length(self.encoder.backbone, **lengths)
        self.vocabulary_size, self.template = self.encoder.n_tokens, self.encoder.template
        # The minimum number of a query's tokens.
        self.filled_to = 0 if self.template.expansion is None else expansion_length or query_length
        self.search.check(self.scoring, salience or {})

    def prepare(self, documents: Table, known: Sequence[int], directory: str | Path) -> None:
        """Fits saliences that count the collection's tokens (IDF), and looks for the engine; see
        `System.prepare`."""
        if self.search.engine:
            EngineIndex(self.search, Path(directory) / EDGE).close()
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
        documents = self._share(self.encode_documents, batch.document_ids, batch.document_mask)
        queries = self._share(self.encode_queries, batch.query_ids, batch.query_mask)
        scores = all_pairs_relevance(documents, queries, self.training_scoring)
        sides = {"query": queries, "document": documents}
        penalties = [  # the L1 gate of aligner §4.3
            part.penalty(sides[side].salience, sides[side].mask)
            for side, part in self.encoder.salience.items()
        ]
        return sum(penalties, self.loss_function(scores, batch))

    def _share(
        self, encode: Callable[[Tensor, Tensor], TokenVectors], ids: Tensor, mask: Tensor
    ) -> TokenVectors:
        """Returns the vectors of all texts, of which this rank encodes its share."""
        return concatenate(encode_share(encode, ids, mask, self.hparams.gradient_cache)).gather()

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

    # Given pairs ------------------------------------------------------------------------------

    def score(self, batch: PairBatch) -> Tensor:
        """Computes the pairs' relevance (B,) under the system's alignment (Eq. 1)."""
        return self.scoring(*self._sides(batch))

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

    def _sides(self, batch: PairBatch) -> list[TokenVectors]:
        return [merge_tokens(*side) for side in self._tokens(batch)]

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
        return self.scoring.factors(*self._sides(batch))

    # Index ------------------------------------------------------------------------------------

    @torch.inference_mode()
    def index(self, documents: Table, directory: str | Path | None = None) -> None:
        """Encodes the corpus into a `TokenIndex`, in an order in which batches need little padding.

        With an engine, the database stores the vectors. Mode "rerank" stores none; see
        `EncodedDocuments`.
        """
        lengths = [len(self.cut_document(tokens)) for tokens in documents["tokens"]]
        self.mean_floats = fmean(self.encoder.floats(self._document_vectors(n)) for n in lengths)
        if self.search.mode == "rerank":
            self.searcher = EncodedDocuments(self, documents)
            self.searcher.bm25.index(documents, directory and Path(directory) / "bm25")
            return
        names, storage = documents["id"][:], self.search.storage
        place = directory or temporary_folder("token-index")
        if self.search.engine:
            made_from, encode = self._made_from(documents), self._encoder(documents)
            with self._connected(place) as engine:
                engine.load(made_from, documents, encode)
            return
        self.searcher = TokenIndex.build(
            place,
            [names[row] for row in storage.sample_first(lengths)],
            self._encoder(documents),
            storage,
            self.fingerprint(documents),
        )
        if directory is None:
            remove_with(self.searcher, place)
        if rank() == 0:
            self.searcher.proposer(self.search)

    def open_index(self, documents: Table, directory: str | Path) -> None:
        """Opens the index that this model made of these documents.

        Raises:
            ValueError: the index is damaged, or belongs to another model or collection.
        """
        if self.search.mode == "rerank":
            self.searcher = EncodedDocuments(self, documents)
            self.searcher.bm25.open_index(documents, Path(directory) / "bm25")
            return
        if self.search.engine:
            with self._connected(directory) as engine:
                engine.open(self._made_from(documents), documents)
            return
        self.searcher = TokenIndex(directory, self.fingerprint(documents))
        self.searcher.proposer(self.search)

    def update_index(self, documents: Table) -> None:
        """Encodes the missing documents into a copy of the index; see `System.update_index`."""
        if self.search.mode == "rerank":
            self.index(documents)
            return
        encode = self._encoder(documents)
        if isinstance(self.searcher, EngineIndex):
            self.searcher.update(self._made_from(documents), documents, encode)
            return
        self.searcher = self.searcher.updated(documents["id"][:], encode)
        self.searcher.proposer(self.search)

    def _encoder(self, documents: Table) -> Callable[[Sequence[str]], Iterator[PackedTokens]]:
        """Returns a function that encodes the documents of these ids."""
        rows = {name: row for row, name in enumerate(documents["id"][:])}

        def encode(names: Sequence[str]) -> Iterator[PackedTokens]:
            tokens = documents.select([rows[name] for name in names])["tokens"]
            texts = [*map(self.cut_document, tokens)]
            for batch in batch_by_size([*map(len, texts)]):
                yield self.encode_texts([texts[place] for place in batch]).pack()

        return encode

    def fingerprint(self, documents: Table) -> dict[str, str]:
        """Returns hashes of the model's weights, with the index's pooling, and the documents."""
        pool = self.search.pool
        pooled = f", by {self.search.pool_by} to 1/{pool}" if pool > 1 else ""
        return {"model": hash_weights(self) + pooled, "collection": hash_documents(documents)}

    def close(self) -> None:
        """Closes the engine's collection; see `System.close`."""
        if isinstance(self.searcher, EngineIndex):
            self.searcher.close()
            self.searcher = None

    @contextmanager
    def _connected(self, directory: str | Path) -> Iterator[EngineIndex]:
        """Yields the engine's collection, which becomes the searcher if the block succeeds.

        After an error it is closed: a traceback may keep it for long, and one object opens a
        collection at a time.
        """
        self.close()
        engine = EngineIndex(self.search, Path(directory) / EDGE)
        try:
            yield engine
        except BaseException:
            engine.close()
            raise
        self.searcher = engine

    def _made_from(self, documents: Table) -> dict[str, Any]:
        """Returns what an engine's collection is made from."""
        return {"dimension": self.encoder.dimension, **self.fingerprint(documents)}

    @torch.inference_mode()
    def encode_texts(self, documents: list[list[int]]) -> TokenVectors:
        """Encodes documents' tokens as the vectors (B, M, …) that an index stores, in fp32."""
        sides = (part.to(self.device) for part in pad(documents))
        tokens = self.eval().encode_documents(*sides).float()
        return merge_tokens(tokens, group_tokens(tokens, self.search.pool, self.search.pool_by))

    # Search -----------------------------------------------------------------------------------

    @torch.inference_mode()
    def encoded_queries(self, queries: Table) -> EncodedQueries:
        """Encodes queries for all searches; returns their ids and token vectors."""
        self.eval()
        encoded = []
        for start in track(range(0, len(queries), _QUERY_BATCH), "encoding queries"):
            rows = queries[start : start + _QUERY_BATCH]
            ids, mask = (x.to(self.device) for x in pad([*map(self.cut_query, rows["tokens"])]))
            vectors = self.encode_queries(ids, mask).to("cpu").float()
            encoded += [(name, vectors.unpad(row)) for row, name in enumerate(rows["id"])]
        return encoded

    def _retrieve(
        self, queries: Table, k: int, among: Among, with_shares: bool, **search: Any
    ) -> Ranking:
        """Searches the whole index (gr_as_mvdr §6.3); a share is a query token's (xtr Eq. 4).

        With `among`, all these documents are scored with all their tokens, in every mode.
        """
        encoded, index, options = self.encoded_queries(queries), self.searcher, None
        candidates = None if among is None else dict.fromkeys(queries["id"][:], among)
        if isinstance(self.searcher, EncodedDocuments) and not search:
            candidates = self.searcher.propose(queries, among)
        if candidates is not None:
            ranking = self._rerank(encoded, candidates, self.scoring).top(k)
        else:
            ranking = self.retrieve_encoded(encoded, k, **search)
            if with_shares:
                index, options = self._searched(k, search)
        if with_shares:
            ranking.shares = {
                q: self._shares(index, vectors, ranking.documents(q), options)
                for q, vectors in encoded
            }
        return ranking

    @torch.inference_mode()
    def retrieve_encoded(
        self,
        encoded: EncodedQueries,
        k: int = 100,
        scoring: Scoring | None = None,
        **search: Any,
    ) -> Ranking:
        """Retrieves documents as `retrieve` does, for encoded queries.

        Args:
            scoring: scores the candidates instead of the system's own scoring, which still chooses
                "auto" options (aligner §3.1).
        """
        index, options = self._searched(k, search)
        if isinstance(index, EngineIndex):
            return Ranking(index.search(encoded, scoring or self.scoring, options, k))
        ids, results = index.store.document_ids, {}
        starts = range(0, len(encoded), _QUERY_BATCH)
        for start in track(starts, "searching"):
            names, vectors = zip(*encoded[start : start + _QUERY_BATCH], strict=True)
            asked = [query.to(self.device) for query in vectors]  # where the scores are computed
            scored = index.search(asked, scoring or self.scoring, options)
            for name, (numbers, scores) in zip(names, scored, strict=True):
                best = scores >= scores.topk(min(k, len(scores))).values[-1:]  # ties enter
                named = [ids[number] for number in numbers[best].tolist()]
                results[name] = best_documents(named, scores[best].numpy(), k)
        return Ranking(results)

    def _searched(
        self, k: int, search: dict[str, Any]
    ) -> "tuple[TokenIndex | EngineIndex, SearchOptions]":
        """Returns the index and all options of a search that overrides some options."""
        options, index = self.search.changed(**search), self.searcher
        assert isinstance(index, TokenIndex | EngineIndex), "index the documents first"
        if options.stored != self.search.stored:
            other = "for an index that is stored in other ways"
            if self.search.pool > 1:
                raise ValueError(f"model.search.pool={self.search.pool}: must be 1 {other}")
            if self.search.storage.is_coded:
                rule = f"must be float32 or float16 {other}"
                raise ValueError(f"model.search.dtype={self.search.dtype}: {rule}")
            index = index.stored_as(options)
        return index, index.planned(options, self.scoring, k)

    def storage_costs(self, k: int, **search: Any) -> list[Measured]:
        """Returns metrics of the bytes that `retrieve` reads with these options."""
        index, options = self._searched(k, search)
        return index.storage_costs(options)

    def rerank(
        self,
        queries: Table,
        documents: Table,
        candidates: Candidates,
        alignment: Alignment | None = None,
    ) -> Ranking:
        """Scores candidates from their indexed vectors under `alignment` (default: the system's).

        A document-to-query alignment gives the paper's MVDR (q←d), which can only rerank (§7.1).
        """
        scoring = replace(self.scoring, alignment=alignment or self.scoring.alignment)
        return self._rerank(self.encoded_queries(queries), candidates, scoring)

    @torch.inference_mode()
    def _rerank(self, encoded: EncodedQueries, candidates: Candidates, scoring: Scoring) -> Ranking:
        assert self.searcher is not None, "index the documents first"
        results = {}
        for name, query in track(encoded, "reranking"):
            numbers = self.searcher.numbers(candidates[name])
            scores = self.searcher.score(query.to(self.device), numbers, scoring)
            results[name] = dict(zip(candidates[name], scores.tolist(), strict=True))
        return Ranking(results)

    @torch.inference_mode()
    def _shares(
        self,
        index: "TokenIndex | EncodedDocuments",
        query: TokenVectors,
        documents: list[str],
        options: SearchOptions | None,
    ) -> dict[str, list[Share]]:
        """Returns each query token's share of the documents' scores.

        Args:
            index, options: those of the search that scored the documents; options None = the
                scores are of all tokens.
        """
        if not documents:
            return {}
        numbers = index.numbers(documents)
        if options is None or not options.scores_are_estimates:
            repeated = query[None][torch.zeros_like(numbers)]
            pairs = self.scoring.align(index.vectors(numbers), repeated)
            return dict(zip(documents, query_shares(pairs), strict=True))
        proposed, terms, z = index.proposer(options).terms(query, options)
        places = torch.searchsorted(proposed, numbers)
        tokens = keep_salient(query, options.keep_query).ids.tolist()
        rows = divide(terms[places], z[places, None]).tolist()
        shares = ([Share((t,), v) for t, v in zip(tokens, row, strict=True)] for row in rows)
        return dict(zip(documents, shares, strict=True))

    @property
    def plans_search(self) -> bool:
        """Whether an option of `model.search` is "auto"."""
        return bool(self.search.open_keys)

    @torch.inference_mode()
    def plan_search(self, queries: Table, depth: int) -> None:
        """Chooses the "auto" options of `model.search`; see `TokenIndex.planned`."""
        self.searcher.keep_sample([query for _, query in self.encoded_queries(queries)])
        self.searcher.planned(self.search, self.scoring, depth)

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
        if self.search.mode not in ("exact", "rerank"):  # it approximates the exact search
            sample = queries.select(range(min(_FIDELITY_QUERIES, len(queries))))
            exact = self.retrieve(sample, depth, mode="exact", keep_query=1.0, keep_document=1.0)
            for k in sorted({min(10, depth), depth}):
                share = recall_of_exact(exact, ranking, k)
                rows.append(RANKINGS["recall_of_exact"].at(k).row(share, group=RETRIEVE))
        return rows


class EncodedDocuments:
    """Encodes documents when it scores them (mva §5); replaces a `TokenIndex` in mode "rerank".

    It stores no vectors. 7,000 queries with 1,000 candidates each need 7,000,000 document encodings
    for `retrieve`, and as many again for `rerank`.
    """

    bytes_per_token = 0.0

    def __init__(self, system: MultiVector, documents: Table):
        """
        Args:
            documents: a table with `id`, `text` and `tokens`; `bm25` proposes candidates once it
                has indexed them.
        """
        self.system, self.documents, self.bm25 = system, documents, WordBM25()
        self.rows = {name: row for row, name in enumerate(documents["id"][:])}
        self.costs = SearchCosts()

    def propose(self, queries: Table, among: Among) -> dict[str, list[str]]:
        """Returns query id → BM25's best `neighbours` documents."""
        count = self.system.search.neighbours
        return self.bm25.propose(queries, _PROPOSED if isinstance(count, str) else count, among)

    def numbers(self, ids: Sequence[str]) -> Tensor:
        """Returns the numbers (C,) int64 of documents; raises KeyError for an unknown id."""
        return torch.tensor([self.rows[name] for name in ids], dtype=torch.int64)

    def vectors(self, documents: Tensor) -> TokenVectors:
        """Encodes documents (C,); returns their vectors (C, M, …)."""
        return self.system.encode_texts(self._texts(documents)).to("cpu")

    def score(self, query: TokenVectors, documents: Tensor, scoring: Scoring) -> Tensor:
        """Computes the relevance (C,) fp32 of documents (C,) to a query; see `TokenIndex.score`."""
        texts, scores = self._texts(documents), torch.empty(len(documents))
        counts = []
        with self.costs.timed():
            for places in batch_by_length([*map(len, texts)]):
                vectors = self.system.encode_texts([texts[place] for place in places])
                scores[places] = scoring(vectors, query[None]).to(scores)
                counts += vectors.mask.sum(1).tolist()
        flops = sum(self.system.encoder.pair_flops(len(query), count) for count in counts)
        self.costs.add(len(texts), sum(counts), flops)
        return scores

    def _texts(self, documents: Tensor) -> list[list[int]]:
        rows = documents.tolist()
        tokens = self.documents[rows]["tokens"] if rows else []
        return [self.system.cut_document(text) for text in tokens]


def _spread(alignment: Tensor, documents: Tensor | None, queries: Tensor | None) -> Tensor:
    """Spreads A of groups (B, H, K, L) over their tokens (B, H, M, N)."""
    if documents is not None:
        alignment = documents.mT.unsqueeze(1).to(alignment) @ alignment
    return alignment if queries is None else alignment @ queries.unsqueeze(1).to(alignment)
