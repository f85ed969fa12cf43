"""How a multi-vector system searches: an index of token vectors, or BM25 and the encoder itself."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from gr_mvdr.alignment import Alignment
from gr_mvdr.backbones import hash_weights
from gr_mvdr.batch import batch_by_length, batch_by_size, pad
from gr_mvdr.evaluation.ranking import Ranking, best_documents, recall_of_exact
from gr_mvdr.files import remove_with, temporary_folder
from gr_mvdr.pooling import group_tokens, merge_tokens, n_groups
from gr_mvdr.progress import track
from gr_mvdr.ranks import rank
from gr_mvdr.relevance import divide
from gr_mvdr.salience import keep_salient
from gr_mvdr.scoring import Scoring
from gr_mvdr.token_index.costs import SearchCosts
from gr_mvdr.token_index.index import TokenIndex
from gr_mvdr.token_index.search import OPEN_KEYS, SearchOptions
from gr_mvdr.token_index.store import Encode
from gr_mvdr.token_vectors import PackedTokens, TokenVectors
from models.base import Share, Shares, System, Table, hash_documents, query_shares
from models.bm25 import WordBM25

_QUERY_BATCH = 32  # queries encoded at once
_FIDELITY_QUERIES = 100  # on which an approximate search is compared with the exact one

EncodedQueries = list[tuple[str, TokenVectors]]  # ids, and token vectors without padding


class EncodedDocuments:
    """Documents that are encoded when they are scored (mva §5), in place of a `TokenIndex`.

    Stores no vector. To encode 1,000 candidates of each of 7,000 queries takes as long as to encode
    7,000,000 documents, once for `retrieve` and once for `rerank`.
    """

    bytes_per_token = 0.0

    def __init__(self, system: "TokenSearch", documents: Table, bm25: WordBM25 | None):
        """
        Args:
            documents: with `id`, `text` and `tokens`.
            bm25: proposes; None = indexes the documents when `propose` needs it.
        """
        self.system, self.documents, self.bm25 = system, documents, bm25
        self.rows = {name: row for row, name in enumerate(documents["id"][:])}
        self.costs = SearchCosts()

    def propose(self, queries: Table, among: Sequence[str] | None = None) -> dict[str, list[str]]:
        """Query id → BM25's best `neighbours` documents, 2,000 under "auto"."""
        if self.bm25 is None:
            self.bm25 = WordBM25()
            self.bm25.index(self.documents)
        count = self.system.search.neighbours
        return self.bm25.propose(queries, 2000 if isinstance(count, str) else count, among)

    def numbers(self, ids: Sequence[str]) -> Tensor:
        """(C,) int64 numbers of documents by id; KeyError for an unknown one."""
        return torch.tensor([self.rows[name] for name in ids], dtype=torch.int64)

    def vectors(self, documents: Tensor) -> TokenVectors:
        """The vectors (C, M, …) of documents (C,), encoded now."""
        return self.system.encode_texts(self._texts(documents)).to("cpu")

    def score(self, query: TokenVectors, documents: Tensor, scoring: Scoring) -> Tensor:
        """(C,) fp32 relevance of documents (C,) to a query (N, …); see `TokenIndex.score`."""
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


class TokenSearch(System):
    """The search of `MultiVector`, which makes the vectors.

    Attributes:
        encoder, scoring, search: its `TokenEncoder`, its form of Eq. 1, its options.
        searcher: the source of the documents' vectors, after `index`.
        mean_floats: the mean number of floats of a document, after `index`.
    """

    encoder: Any
    scoring: Scoring
    search: SearchOptions
    searcher: TokenIndex | EncodedDocuments | None = None
    mean_floats: float | None = None

    def prepare(self, documents: Table, known: Sequence[int], directory: str | Path) -> None:
        """Lets a salience count the collection's tokens (IDF); see `System.prepare`.

        Raises:
            ValueError: there will be fewer vectors than `search.neighbours`.
        """
        count = self.search.neighbours
        if self.search.mode in ("gather", "impute") and isinstance(count, int):
            share, skipped = self.search.keep_document, {*self.template.skip}
            texts = map(self.cut_document, documents["tokens"])
            lengths = (sum(token not in skipped for token in text) for text in texts)
            held = sum(math.ceil(share * self._document_vectors(length)) for length in lengths)
            if count > held:
                rule = f"must be ≤ the {held} vectors of the documents"
                raise ValueError(f"model.search.neighbours={count}: {rule}")
        if self.encoder.salience:
            texts = [self.cut_document(documents["tokens"][row]) for row in known]
            for salience in self.encoder.salience.values():
                salience.fit(texts, self.encoder.vocabulary_size, self.template.special)

    def _document_vectors(self, tokens: int) -> int:
        read = min(tokens, self.hparams.document_length)
        return n_groups(self.encoder.pooling["document"].count(read), self.search.pool)

    @torch.inference_mode()
    def index(
        self, documents: Table, directory: str | Path | None = None
    ) -> TokenIndex | EncodedDocuments:
        """Encodes the corpus into a `TokenIndex`, shortest documents first (nothing to pad).

        In mode "rerank" no vectors are kept: `EncodedDocuments`.
        """
        lengths = [len(self.cut_document(tokens)) for tokens in documents["tokens"]]
        self.mean_floats = fmean(self.encoder.floats(self._document_vectors(n)) for n in lengths)
        if self.search.mode == "rerank":
            self.searcher = EncodedDocuments(self, documents, None)
            if directory is not None:
                self.searcher.bm25 = WordBM25()
                self.searcher.bm25.index(documents, Path(directory) / "bm25")
            return self.searcher
        names, storage = documents["id"][:], self.search.storage
        self.searcher = TokenIndex.build(
            place := directory or temporary_folder("token-index"),
            [names[row] for row in storage.sample_first(lengths)],
            self._encoder(documents),
            storage,
            self.fingerprint(documents),
        )
        if directory is None:
            remove_with(self.searcher, place)
        if rank() == 0:
            self.searcher.proposer(self.search)
        return self.searcher

    @property
    def indexes_in_shards(self) -> bool:
        return self.search.mode != "rerank"

    def open_index(self, documents: Table, directory: str | Path) -> TokenIndex | EncodedDocuments:
        """Opens an index that this very model made of these documents.

        Raises:
            ValueError: another model, dimension or collection made it, or it is damaged.
        """
        if self.search.mode == "rerank":
            bm25 = WordBM25()
            bm25.open_index(documents, Path(directory) / "bm25")
            self.searcher = EncodedDocuments(self, documents, bm25)
            return self.searcher
        self.searcher = TokenIndex(directory, self.fingerprint(documents))
        self.searcher.proposer(self.search)
        return self.searcher

    def update_index(self, documents: Table) -> None:
        """Encodes the missing documents into a copy of the index; see `System.update_index`."""
        if self.search.mode == "rerank":
            self.searcher = EncodedDocuments(self, documents, None)
            return
        self.searcher = self.searcher.updated(documents["id"][:], self._encoder(documents))
        self.searcher.proposer(self.search)

    def _encoder(self, documents: Table) -> Encode:
        """Encodes the documents of a table, by their ids."""
        rows = {name: row for row, name in enumerate(documents["id"][:])}

        def encode(names: Sequence[str]) -> Iterator[PackedTokens]:
            tokens = documents.select([rows[name] for name in names])["tokens"]
            texts = [*map(self.cut_document, tokens)]
            for batch in batch_by_size([*map(len, texts)]):
                yield self.encode_texts([texts[place] for place in batch]).pack()

        return encode

    def fingerprint(self, documents: Table) -> dict[str, str]:
        """The hashes of the model's weights, with the pooling, and of the documents."""
        pool = self.search.pool
        pooled = f", by {self.search.pool_by} to 1/{pool}" if pool > 1 else ""
        return {"model": hash_weights(self) + pooled, "collection": hash_documents(documents)}

    @torch.inference_mode()
    def encode_texts(self, documents: list[list[int]]) -> TokenVectors:
        """Documents' tokens as they are read → their vectors (B, M, …) as they are stored, fp32."""
        sides = (part.to(self.device) for part in pad(documents))
        tokens = self.eval().encode_documents(*sides).float()
        return merge_tokens(tokens, group_tokens(tokens, self.search.pool, self.search.pool_by))

    @torch.inference_mode()
    def encoded_queries(self, queries: Table) -> EncodedQueries:
        """The queries' ids and token vectors; searches encode queries nowhere else."""
        self.eval()
        encoded = []
        for start in track(range(0, len(queries), _QUERY_BATCH), "encoding queries"):
            rows = queries[start : start + _QUERY_BATCH]
            ids, mask = (x.to(self.device) for x in pad([*map(self.cut_query, rows["tokens"])]))
            vectors = self.encode_queries(ids, mask).to("cpu").float()
            encoded += [(name, vectors.unpad(row)) for row, name in enumerate(rows["id"])]
        return encoded

    def retrieve(self, queries: Table, k: int = 100, **search: Any) -> Ranking:
        """End-to-end search (gr_as_mvdr §6.3).

        Args:
            queries, k: see `System.retrieve`.
            search: options of `SearchOptions` in place of the system's own.
        """
        if isinstance(self.searcher, EncodedDocuments) and not search:
            candidates = self.searcher.propose(queries)
            return self.rerank(queries, self.searcher.documents, candidates).top(k)
        return self.retrieve_encoded(self.encoded_queries(queries), k, **search)

    @torch.inference_mode()
    def retrieve_encoded(
        self,
        encoded: EncodedQueries,
        k: int = 100,
        scoring: Scoring | None = None,
        **search: Any,
    ) -> Ranking:
        """`retrieve` for encoded queries.

        Args:
            scoring: scores the candidates in place of the system's own, under which "auto" options
                are still chosen (aligner §3.1).
        """
        index, options = self._searched(k, search)
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

    def _searched(self, k: int, search: dict[str, Any]) -> tuple[TokenIndex, SearchOptions]:
        """The index that a search with other options reads, and all its options."""
        options, index = self.search.changed(**search), self.searcher
        assert isinstance(index, TokenIndex), "index the documents first"
        if options.stored != self.search.stored:
            if self.search.pool > 1:
                rule = "must be 1 for an index that is stored in other ways"
                raise ValueError(f"model.search.pool={self.search.pool}: {rule}")
            index = index.stored_as(options)
        return index, index.planned(options, self.scoring, k)

    def storage_costs(self, k: int, **search: Any) -> dict[str, float]:
        """Metrics of the bytes that `retrieve` reads under these options."""
        index, options = self._searched(k, search)
        return index.storage_costs(options)

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
        scoring = replace(self.scoring, alignment=alignment or self.scoring.alignment)
        return self._rerank(self.encoded_queries(queries), candidates, scoring)

    @torch.inference_mode()
    def _rerank(
        self, encoded: EncodedQueries, candidates: dict[str, Sequence[str]], scoring: Scoring
    ) -> Ranking:
        assert self.searcher is not None, "index the documents first"
        results = {}
        for name, query in track(encoded, "reranking"):
            numbers = self.searcher.numbers(candidates[name])
            scores = self.searcher.score(query.to(self.device), numbers, scoring)
            results[name] = dict(zip(candidates[name], scores.tolist(), strict=True))
        return Ranking(results)

    @torch.inference_mode()
    def retrieve_with_shares(
        self, queries: Table, k: int = 100, among: Sequence[str] | None = None
    ) -> tuple[Ranking, Shares]:
        """`retrieve`, with each query token's share of a score (Eq. 1, xtr Eq. 4).

        Documents of `among` are all scored with all their tokens, in every mode.
        """
        encoded, options = self.encoded_queries(queries), None
        if among is None and self.search.mode != "rerank":
            ranking = self.retrieve_encoded(encoded, k)
            options = self.searcher.planned(self.search, self.scoring, k)
        else:
            candidates = dict.fromkeys(queries["id"][:], among)
            if self.search.mode == "rerank":
                candidates = self.searcher.propose(queries, among)
            ranking = self._rerank(encoded, candidates, self.scoring).top(k)
        return ranking, {q: self._shares(v, ranking.documents(q), options) for q, v in encoded}

    def _shares(
        self, query: TokenVectors, documents: list[str], options: SearchOptions | None
    ) -> dict[str, list[Share]]:
        """Each query token's share of the scores of documents.

        Args:
            options: of the search that scored them; None = from all their tokens.
        """
        if not documents:
            return {}
        numbers = self.searcher.numbers(documents)
        if options is None or not options.scores_are_estimates:
            repeated = query[None][torch.zeros_like(numbers)]
            pairs = self.scoring.align(self.searcher.vectors(numbers), repeated)
            return dict(zip(documents, query_shares(pairs), strict=True))
        proposed, terms, z = self.searcher.proposer(options).terms(query, options)
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

    def search_fidelity(self, queries: Table, ranking: Ranking, depth: int) -> dict[str, float]:
        """Costs, and the recall of an approximate search against the exact one."""
        metrics = self.searcher.costs.metrics()
        metrics["cost/bytes_per_token"] = self.searcher.bytes_per_token
        if self.mean_floats is not None:
            metrics["cost/document_floats"] = self.mean_floats
        if OPEN_KEYS[self.search.mode]:  # it approximates the exact search
            sample = queries.select(range(min(_FIDELITY_QUERIES, len(queries))))
            depth = max(10, depth)
            exact = self.retrieve(sample, depth, mode="exact", keep_query=1.0, keep_document=1.0)
            for k in (10, depth):
                metrics[f"retrieve/recall_of_exact@{k}"] = recall_of_exact(exact, ranking, k)
        return metrics
