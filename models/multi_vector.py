"""Every multi-vector system: token vectors, an alignment, a salience, a Z, and a search.

DPR, ME-BERT, COIL, ColBERT, ALIGNER, XTR and MVA are this one class; `conf/model/` names the
choices of each. From a text to the loss: `TokenEncoder` (D and Q), `Scoring` (all pairs
of a batch), gr_mvdr/alignment.py (A), relevance.py (S, Z), losses.py.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gr_mvdr.alignment import Alignment, InBatchTopK
from gr_mvdr.backbones import check_length, hash_weights
from gr_mvdr.batch import PairBatch, batch_by_size, pad
from gr_mvdr.distributed.ranks import (
    broadcast,
    check_gradient_cache,
    encode_share,
    gather_batch,
    map_over_ranks,
)
from gr_mvdr.evaluation.ranking import Ranking, best_documents, recall_of_exact
from gr_mvdr.files.writing import temporary_folder
from gr_mvdr.parts import build, part
from gr_mvdr.products import fast_products
from gr_mvdr.progress import track
from gr_mvdr.relevance import Explanation, Factors, PairAlignment
from gr_mvdr.scoring import Scoring, all_pairs_relevance
from gr_mvdr.token_index.index import TokenIndex
from gr_mvdr.token_index.plan import AUTO, SearchOptions
from gr_mvdr.token_index.quantiser import sample_size
from gr_mvdr.token_vectors import PackedTokens, TokenVectors, concatenate
from models.base import Shares, System, Table, hash_documents
from models.candidates import CandidateEncoder, LexicalCandidates
from models.token_encoder import TokenEncoder
from models.token_shares import align_vectors, find_shares

_QUERY_BATCH = 32  # queries encoded at once
_FIDELITY_QUERIES = 100  # whose approximate search is compared with the exact one

EncodedQueries = list[tuple[str, TokenVectors]]  # ids, and token vectors without padding


@part("model")
class MultiVector(System):
    """Token vectors of a shared encoder under one form of Eq. 1 (gr_as_mvdr §3, aligner §2)."""

    paradigm = "multi_vector"
    searcher: TokenIndex | CandidateEncoder | None = None
    mean_floats: float | None = None  # numbers that hold a document, after `index`

    def __init__(
        self,
        backbone: dict[str, Any],
        dimension: int,
        query_length: int,
        document_length: int,
        alignment: dict[str, Any],
        loss: dict[str, Any],
        search: dict[str, Any],
        optimizer: dict[str, Any],
        training_alignment: dict[str, Any] | None = None,
        normaliser: str = "none",
        projections: str = "shared",
        pooling: dict[str, Any] | None = None,
        salience: dict[str, Any] | None = None,
        attend_expansion: bool = True,
        expansion_length: int | None = None,
        gradient_cache: int | None = None,
    ):
        """
        Args:
            backbone, dimension, projections, pooling, salience: see `TokenEncoder`.
            query_length, document_length: tokens kept of a text, those around it included.
            alignment, loss: of `gr_mvdr.alignment` and `gr_mvdr.losses`, as dicts with `_target_`.
            training_alignment: the one that the loss uses; None = the same (xtr has another).
            normaliser: Z of Eq. 1, see `gr_mvdr.relevance.normaliser`.
            search, optimizer: see `SearchOptions` and `System`.
            attend_expansion: where queries are filled up (`TextTemplate.expansion`, ColBERT's
                query augmentation), whether other tokens attend to those; they always align.
            expansion_length: tokens that queries are filled up to; None = query_length.
            gradient_cache: texts encoded at once in training (`encode_share`); None = all.
        """
        super().__init__(optimizer)
        self.save_hyperparameters()
        self.search = SearchOptions(**search)
        self.scores_need = self.search.scores_need
        self.scoring = Scoring(build("alignment", alignment), normaliser)
        trained = build("alignment", training_alignment or alignment)
        self.training_scoring = Scoring(trained, normaliser)
        self.loss_function = build("loss", loss)
        self.encoder = TokenEncoder(backbone, dimension, projections, pooling, salience)
        lengths = {"query_length": query_length, "document_length": document_length}
        check_length(self.encoder.backbone, **lengths)
        self.vocabulary_size, self.template = self.encoder.n_tokens, self.encoder.template
        # Tokens that a query has at least.
        self.filled_to = 0 if self.template.expansion is None else expansion_length or query_length
        self._check(salience or {})

    def _check(self, salience: dict[str, Any]) -> None:
        """Refuses choices that do not go together, before hours of training."""
        check_gradient_cache(self.hparams.gradient_cache)
        self.search.check(self.scoring, salience)
        if isinstance(self.scoring.alignment, InBatchTopK):
            rule = "must be model.training_alignment, a score may not depend on other documents"
            raise ValueError(f"model.alignment=InBatchTopK: {rule}")

    def prepare(self, documents: Table, known: Sequence[int], directory: str | Path) -> None:
        """Lets a salience count the collection's tokens (IDF); see `System.prepare`.

        Raises:
            ValueError: a query token is to retrieve more tokens than the index will hold.
        """
        if self.search.mode in ("gather", "impute") and self.search.neighbours != AUTO:
            self._check_neighbours(documents)
        if self.encoder.salience:
            tokens = documents["tokens"]
            self.encoder.fit([self.cut_document(tokens[row]) for row in known])

    def _check_neighbours(self, documents: Table) -> None:
        search, skipped = self.search, {*self.template.skip}
        read = (sum(t not in skipped for t in self.cut_document(d)) for d in documents["tokens"])
        held = sum(math.ceil(search.keep_document * self._document_vectors(n)) for n in read)
        if held < search.neighbours:
            rule = f"must be ≤ the {held} tokens that can be retrieved"
            raise ValueError(f"model.search.neighbours={search.neighbours}: {rule}")

    # Training ---------------------------------------------------------------------------------

    def loss(self, batch: PairBatch) -> Tensor:
        """() the configured loss over the batch's (documents, queries) relevance (Eq. 2).

        The batch is that of all ranks: each encodes its share, and all compute the whole loss.
        """
        batch = gather_batch(batch)
        documents = self._share(self.encode_documents, batch.document_ids, batch.document_mask)
        queries = self._share(self.encode_queries, batch.query_ids, batch.query_mask)
        scores = all_pairs_relevance(documents, queries, self.training_scoring)
        return self.loss_function(scores, batch) + self.encoder.penalty(queries, documents)

    def _share(
        self, encode: Callable[[Tensor, Tensor], TokenVectors], ids: Tensor, mask: Tensor
    ) -> TokenVectors:
        """The vectors of all texts, of which this rank encodes its share."""
        return concatenate(encode_share(encode, ids, mask, self.hparams.gradient_cache)).gather()

    def encode_documents(self, ids: Tensor, mask: Tensor) -> TokenVectors:
        """Document tokens (B, M) int64 and mask (B, M) bool → their vectors."""
        return self.encoder(ids, mask, "document")

    def encode_queries(self, ids: Tensor, mask: Tensor) -> TokenVectors:
        """Query tokens (B, N) int64 and mask (B, N) bool → their vectors, expansion included."""
        if not self.filled_to:
            return self.encoder(ids, mask, "query")
        missing = max(0, self.filled_to - ids.shape[1])
        real, mask = mask, torch.arange(ids.shape[1] + missing, device=ids.device) < self.filled_to
        ids, real = F.pad(ids, (0, missing)), F.pad(real, (0, missing))
        ids, mask = ids.masked_fill(~real, self.template.expansion), mask | real
        return self.encoder(ids, mask, "query", None if self.hparams.attend_expansion else real)

    # Given pairs ------------------------------------------------------------------------------

    def score(self, batch: PairBatch) -> Tensor:
        """(B,) relevance of the pairs under the system's alignment (Eq. 1)."""
        return self.scoring(*self._sides(batch))

    def _sides(self, batch: PairBatch) -> tuple[TokenVectors, TokenVectors]:
        """Token vectors of each query's own document (no hard negatives), and of the queries."""
        queries, own = self.encode_queries(batch.query_ids, batch.query_mask), slice(len(batch))
        return self.encode_documents(batch.document_ids[own], batch.document_mask[own]), queries

    def align(self, batch: PairBatch) -> PairAlignment:
        """S and A of each pair, salience included, H = 1; relevance equals score (Eq. 1)."""
        return align_vectors(*self._sides(batch), self.scoring)

    def explain(self, batch: PairBatch) -> Explanation:
        """The alignment, and Ã before salience where the system has one."""
        documents, queries = self._sides(batch)
        pairwise = None
        if documents.salience is not None or queries.salience is not None:
            pairwise = self.scoring.pairwise(documents, queries)[1].unsqueeze(1)
        return Explanation([align_vectors(documents, queries, self.scoring)], pairwise=pairwise)

    def factors(self, batch: PairBatch) -> Factors:
        """The token vectors behind S, and those behind A where they are others (mva §2.1)."""
        sides = self._sides(batch)
        keys = [side.vectors if side.keys is None else side.keys for side in sides]
        vectors = [side.vectors for side in sides] + keys
        return Factors(*(part.unsqueeze(1) for part in vectors), *(side.mask for side in sides))

    # Costs ------------------------------------------------------------------------------------

    def joint_flops(self, query_tokens: int, document_tokens: int) -> float:
        """Operations of Eq. 1 for one pair, after pooling; see `System.joint_flops`."""
        read = max(min(query_tokens, self.hparams.query_length), self.filled_to)
        n = self.encoder.vectors_of(read, "query")
        return self.encoder.pair_flops(n, self._document_vectors(document_tokens))

    def _document_vectors(self, tokens: int) -> int:
        return self.encoder.vectors_of(min(tokens, self.hparams.document_length), "document")

    # Search -----------------------------------------------------------------------------------

    @torch.inference_mode()
    def index(
        self, documents: Table, directory: str | Path | None = None
    ) -> TokenIndex | CandidateEncoder:
        """Encodes the corpus into a `TokenIndex`, shortest documents first (nothing to pad).

        A system that only reranks (mode "rerank") keeps no vectors: `CandidateEncoder`.
        """
        order, tokens = self._shortest_first(documents)
        self.mean_floats = fmean(self.encoder.document_floats(len(text)) for text in tokens)
        if self.search.mode == "rerank":
            self.searcher = CandidateEncoder(self, documents, directory)
            return self.searcher
        ids = documents["id"]
        self.searcher = TokenIndex.build(
            directory or temporary_folder("token-index"),
            [ids[number] for number in order],
            partial(self._packed, tokens),
            dtype=self.search.dtype,
            pq_bytes=self.search.pq_bytes,
            fingerprint=self.fingerprint(documents),
            seed=self.search.seed,
            lists=self.search.lists,
            vocabulary=self.vocabulary_size,
        )
        self.searcher.prepare(self.search)
        return self.searcher

    @torch.inference_mode()
    def help_index(self, documents: Table) -> None:
        """Encodes this rank's share of the corpus, while rank 0 calls `index`."""
        if self.search.mode != "rerank":
            for _ in self._packed(self._shortest_first(documents)[1]):
                pass

    def open_index(self, documents: Table, directory: str | Path) -> TokenIndex | CandidateEncoder:
        """Opens an index that this very model made of these documents.

        Raises:
            ValueError: another model, dimension or collection made it, or it is damaged.
        """
        if self.search.mode == "rerank":
            self.searcher = CandidateEncoder(self, documents)
            self.searcher.candidates = LexicalCandidates.open(documents, directory)
            return self.searcher
        self.searcher = TokenIndex(directory, self.fingerprint(documents))
        self.searcher.prepare(self.search)
        return self.searcher

    def update_index(self, documents: Table) -> None:
        """Encodes what the index lacks, in a copy of it; see `System.update_index`."""
        if self.search.mode == "rerank":
            self.searcher = CandidateEncoder(self, documents)
            return
        rows = {name: row for row, name in enumerate(documents["id"][:])}

        def encode(names: list[str]) -> Iterator[PackedTokens]:
            tokens = documents.select([rows[name] for name in names])["tokens"][:]
            return self._packed([self.cut_document(document) for document in tokens])

        self.searcher = self.searcher.updated(list(rows), encode)
        self.searcher.prepare(self.search)

    def fingerprint(self, documents: Table) -> dict[str, str]:
        """What an index depends on: the model's weights, and the documents' ids and tokens."""
        return {"model": hash_weights(self), "collection": hash_documents(documents)}

    def _shortest_first(self, documents: Table) -> tuple[list[int], list[list[int]]]:
        """The documents' rows, shortest first, and the tokens that are read of each.

        Before them come those, of all lengths, that a store learns its codes from.
        """
        tokens = [self.cut_document(document) for document in documents["tokens"]]
        order = sorted(range(len(tokens)), key=lambda number: len(tokens[number]))
        total = sum(map(len, tokens))
        step = max(1, total // max(1, sample_size(self.search.dtype, total, self.search.lists)))
        order = [n for first in range(2) for i, n in enumerate(order) if (i % step > 0) == first]
        return order, [tokens[number] for number in order]

    def cut_document(self, tokens: Sequence[int]) -> list[int]:
        """The tokens of a document that are read, those around it included."""
        return self.template.read_document(tokens, self.hparams.document_length)

    def _packed(self, documents: list[list[int]], first: int = 0) -> Iterator[PackedTokens]:
        """The documents' vectors, in order and from the first on that rank 0 names, on rank 0;
        all ranks encode."""
        first = int(broadcast(torch.tensor([first])))
        batches = list(batch_by_size(documents[first:]))
        found = map_over_ranks(batches, lambda batch: self.encode_texts(batch).pack().to("cpu"))
        for parts in track(found, "encoding documents", total=len(batches)):
            yield PackedTokens(*parts)

    @torch.inference_mode()
    def encode_texts(self, documents: list[list[int]]) -> TokenVectors:
        """Documents' tokens as they are read → their vectors (B, M, …), fp32."""
        with fast_products(self.device):
            sides = (part.to(self.device) for part in pad(documents))
            return self.eval().encode_documents(*sides).float()

    @torch.inference_mode()
    def encoded_queries(self, queries: Table) -> EncodedQueries:
        """Queries as the search reads them; the only place where it encodes any."""
        self.eval()
        encoded = []
        for start in track(range(0, len(queries), _QUERY_BATCH), "encoding queries"):
            rows = queries[start : start + _QUERY_BATCH]
            length = self.hparams.query_length
            texts = [self.template.read_query(tokens, length) for tokens in rows["tokens"]]
            ids, mask = (part.to(self.device) for part in pad(texts))
            vectors = self.encode_queries(ids, mask).to("cpu").float()
            encoded += [(name, vectors.unpad(row)) for row, name in enumerate(rows["id"])]
        return encoded

    def retrieve(self, queries: Table, k: int = 100, **search: Any) -> Ranking:
        """End-to-end search (gr_as_mvdr §6.3).

        Args:
            queries, k: see `System.retrieve`.
            search: options of `SearchOptions` that differ from the system's own.
        """
        if isinstance(self.searcher, CandidateEncoder) and not search:
            found = self.searcher.candidates(queries, self.search.lexical_candidates)
            return self.rerank(queries, self.searcher.documents, found).top(k)
        return self.retrieve_encoded(self.encoded_queries(queries), k, **search)

    @torch.inference_mode()
    def retrieve_encoded(self, encoded: EncodedQueries, k: int = 100, **search: Any) -> Ranking:
        """`retrieve` of queries that are encoded already."""
        options = self.search.changed(**search)
        assert isinstance(self.searcher, TokenIndex), "index the documents first"
        options = self.searcher.planned(options, self.scoring, k)
        ids, results = self.searcher.document_ids, {}
        starts = range(0, len(encoded), _QUERY_BATCH)
        for start in track(starts, "searching"):
            names, vectors = zip(*encoded[start : start + _QUERY_BATCH], strict=True)
            asked = [query.to(self.device) for query in vectors]  # where the scores are computed
            found = self.searcher.search(asked, self.scoring, options)
            for name, (numbers, scores) in zip(names, found, strict=True):
                best = scores >= scores.topk(min(k, len(scores))).values[-1:]  # ties enter
                named = [ids[number] for number in numbers[best].tolist()]
                results[name] = best_documents(named, scores[best].numpy(), k)
        return Ranking(results)

    def rerank(
        self,
        queries: Table,
        documents: Table,
        candidates: dict[str, Sequence[str]],
        alignment: Alignment | None = None,
    ) -> Ranking:
        """Scores candidates from their indexed vectors under `alignment` (default: the system's).

        A document-to-query alignment gives the paper's MVDR (q←d), which can only rerank (§7.1).
        """
        scoring = Scoring(alignment, self.scoring.normaliser) if alignment else None
        return self.rerank_encoded(self.encoded_queries(queries), candidates, scoring)

    @torch.inference_mode()
    def rerank_encoded(
        self,
        encoded: EncodedQueries,
        candidates: dict[str, Sequence[str]],
        scoring: Scoring | None = None,
    ) -> Ranking:
        """`rerank` of queries that are encoded already; encodes nothing (aligner §3.1)."""
        assert self.searcher is not None, "index the documents first"
        results = {}
        for name, query in track(encoded, "reranking"):
            numbers = self.searcher.numbers(candidates[name])
            scores = self.searcher.score(query.to(self.device), numbers, scoring or self.scoring)
            results[name] = dict(zip(candidates[name], scores.tolist(), strict=True))
        return Ranking(results)

    @torch.inference_mode()
    def retrieve_with_shares(
        self, queries: Table, k: int = 100, among: Sequence[str] | None = None
    ) -> tuple[Ranking, Shares]:
        """`retrieve`, and what each query token adds to a score (Eq. 1, xtr Eq. 4).

        Documents `among` given ones are all scored, with all their tokens, in every mode.
        """
        encoded, options = self.encoded_queries(queries), None
        if among is None and self.search.mode != "rerank":
            ranking = self.retrieve_encoded(encoded, k)
            options = self.searcher.planned(self.search, self.scoring, k)
        else:
            found = dict.fromkeys(queries["id"][:], among)
            if self.search.mode == "rerank":
                found = self.searcher.candidates(queries, self.search.lexical_candidates, among)
            ranking = self.rerank_encoded(encoded, found).top(k)
        return ranking, {
            q: find_shares(self.searcher, query, ranking.documents(q), self.scoring, options)
            for q, query in encoded
        }

    @property
    def plans_search(self) -> bool:
        """Whether `model.search` leaves something open."""
        return bool(self.search.open_keys)

    @torch.inference_mode()
    def plan_search(self, queries: Table, depth: int) -> None:
        """Chooses what `model.search` leaves open; see `gr_mvdr.token_index.plan`."""
        self.searcher.keep_sample([query for _, query in self.encoded_queries(queries)])
        self.searcher.planned(self.search, self.scoring, depth)

    def search_fidelity(self, queries: Table, ranking: Ranking, depth: int) -> dict[str, float]:
        """What of the exact search's best an approximate one finds, and what it costs."""
        metrics = self.searcher.costs.metrics()
        metrics["cost/bytes_per_token"] = self.searcher.bytes_per_token
        if self.mean_floats is not None:
            metrics["cost/document_floats"] = self.mean_floats
        if self.search.is_approximate:
            sample = queries.select(range(min(_FIDELITY_QUERIES, len(queries))))
            depth = max(10, depth)
            exact = self.retrieve(sample, depth, mode="exact", keep_query=1.0, keep_document=1.0)
            found = {first: recall_of_exact(exact, ranking, first) for first in (10, depth)}
            metrics |= {f"retrieve/recall_of_exact@{first}": found[first] for first in found}
        return metrics
