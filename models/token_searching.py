"""The verbs of search that all multi-vector systems share: index, retrieve, rerank."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from gr_mvdr.backbones import hash_weights
from gr_mvdr.batch import batch_by_size, cut, pad
from gr_mvdr.distributed.ranks import map_over_ranks
from gr_mvdr.evaluation.ranking import Ranking, best_documents, recall_of_exact
from gr_mvdr.files.writing import temporary_folder
from gr_mvdr.progress import track
from gr_mvdr.scoring import Scoring
from gr_mvdr.token_index.index import TokenIndex
from gr_mvdr.token_index.search import TokenSearch
from gr_mvdr.token_index.store import PackedTokens
from gr_mvdr.token_vectors import TokenVectors
from gr_mvdr.tokenizers import EOS_ID
from models.base import System, Table
from models.candidate_encoder import CandidateEncoder

_QUERY_BATCH = 32  # queries encoded at once
# Queries whose approximate search is held against the exact one.
_FIDELITY_QUERIES = 100

# What search reads of queries: ids, and token vectors without padding.
EncodedQueries = list[tuple[str, TokenVectors]]


class TokenSearching(System):
    """A system with a `TokenIndex`. A subclass gives `encode_documents`, `encode_queries` (token
    ids and mask → `TokenVectors`), `scoring`, what scores and documents cost (`pair_flops`,
    `document_floats`), and the lengths among its hyper-parameters."""

    scoring: Scoring

    def __init__(self, search: dict[str, Any], optimizer: dict[str, Any]):
        """
        Args:
            search: arguments of `TokenSearch`; optimizer: see `System`.
        """
        super().__init__(optimizer)
        self.search = TokenSearch(**search)
        self.searcher: TokenIndex | CandidateEncoder | None = None
        self.mean_floats: float | None = None  # numbers that stand for a document, after `index`

    def encode_documents(self, ids: Tensor, mask: Tensor) -> TokenVectors:
        raise NotImplementedError

    def encode_queries(self, ids: Tensor, mask: Tensor) -> TokenVectors:
        raise NotImplementedError

    @torch.inference_mode()
    def encode_texts(self, documents: list[list[int]]) -> TokenVectors:
        """Documents' tokens as they are read → their vectors (B, M, …), fp32, on the CPU."""
        ids, mask = (part.to(self.device) for part in pad(documents))
        return self.eval().encode_documents(ids, mask).to("cpu").float()

    def cut_document(self, tokens: Sequence[int]) -> list[int]:
        """The tokens of a document that are read, the end token included."""
        return cut(tokens, self.hparams.document_length, EOS_ID)

    @torch.inference_mode()
    def index(
        self, documents: Table, directory: str | Path | None = None
    ) -> TokenIndex | CandidateEncoder:
        """Encodes the corpus into a `TokenIndex`, shortest documents first (nothing to pad).

        A system that only reranks (mode "rerank") keeps no vectors: `CandidateEncoder`.
        """
        order, tokens = self._shortest_first(documents)
        self.mean_floats = fmean(self.document_floats(len(document)) for document in tokens)
        if self.search.mode == "rerank":
            self.searcher = CandidateEncoder(self, documents, directory)
            return self.searcher
        directory = directory or temporary_folder("token-index")
        ids = documents["id"]
        self.searcher = TokenIndex.build(
            directory,
            [ids[number] for number in order],
            self._packed(tokens),
            dtype=self.search.dtype,
            pq_bytes=self.search.pq_bytes,
            fingerprint=self.fingerprint(documents),
            seed=self.search.seed,
        )
        self.search.prepare(self.searcher)
        return self.searcher

    @torch.inference_mode()
    def help_index(self, documents: Table) -> None:
        """Encodes this rank's share of the corpus, while rank 0 calls `index`."""
        if self.search.mode == "rerank":
            return
        for _ in self._packed(self._shortest_first(documents)[1]):
            pass

    def _shortest_first(self, documents: Table) -> tuple[list[int], list[list[int]]]:
        """The documents' rows, shortest first, and the tokens that are read of each."""
        tokens = [self.cut_document(document) for document in documents["tokens"]]
        order = sorted(range(len(tokens)), key=lambda number: len(tokens[number]))
        return order, [tokens[number] for number in order]

    def open_index(self, documents: Table, directory: str | Path) -> TokenIndex | CandidateEncoder:
        """Opens an index that this very model made of these documents.

        Raises:
            ValueError: another model, dimension or collection made it, or it is damaged.
        """
        if self.search.mode == "rerank":
            self.searcher = CandidateEncoder(self, documents)
            return self.searcher
        self.searcher = TokenIndex(directory, self.fingerprint(documents))
        self.search.prepare(self.searcher)
        return self.searcher

    def fingerprint(self, documents: Table) -> dict[str, str]:
        """What an index depends on: the model's weights, and the documents' ids and tokens."""
        return {
            "model": hash_weights(self),
            "collection": _texts_hash(documents["id"][:], documents["tokens"]),
        }

    @torch.inference_mode()
    def encoded_queries(self, queries: Table) -> EncodedQueries:
        """Queries as the search reads them; the only place where it encodes any."""
        self.eval()
        encoded = []
        starts = range(0, len(queries), _QUERY_BATCH)
        for start in track(starts, "encoding queries"):
            rows = queries[start : start + _QUERY_BATCH]
            texts = [cut(tokens, self.hparams.query_length, EOS_ID) for tokens in rows["tokens"]]
            ids, mask = (part.to(self.device) for part in pad(texts))
            vectors = self.encode_queries(ids, mask).to("cpu").float()
            encoded += [(name, vectors.unpadded(row)) for row, name in enumerate(rows["id"])]
        return encoded

    def retrieve(self, queries: Table, k: int = 100, **search: Any) -> Ranking:
        """End-to-end search (gr_as_mvdr §6.3).

        Args:
            queries, k: see `System.retrieve`.
            search: options of `TokenSearch` that differ from the system's own.
        """
        if isinstance(self.searcher, CandidateEncoder) and not search:
            found = self.searcher.candidates(queries, self.search.neighbours)
            return self.rerank(queries, self.searcher.documents, found).top(k)
        return self.retrieve_encoded(self.encoded_queries(queries), k, **search)

    @torch.inference_mode()
    def retrieve_encoded(self, encoded: EncodedQueries, k: int = 100, **search: Any) -> Ranking:
        """`retrieve` of queries that are encoded already."""
        settings = self.search.changed(**search)
        assert isinstance(self.searcher, TokenIndex), "index the documents first"
        settings.prepare(self.searcher)
        ids, results = self.searcher.document_ids, {}
        starts = range(0, len(encoded), _QUERY_BATCH)
        for start in track(starts, "searching"):
            names, vectors = zip(*encoded[start : start + _QUERY_BATCH], strict=True)
            found = settings(self.searcher, vectors, self.scoring)
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
        alignment: Any = None,
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
            scores = self.searcher.score(query, numbers, scoring or self.scoring)
            results[name] = dict(zip(candidates[name], scores.tolist(), strict=True))
        return Ranking(results)

    def search_fidelity(self, queries: Table, ranking: Ranking) -> dict[str, float]:
        """How many of the exact search's best ten an approximate one finds, and what it costs."""
        metrics = self.searcher.costs.metrics()
        metrics["cost/bytes_per_token"] = self.searcher.bytes_per_token
        if self.mean_floats is not None:
            metrics["cost/document_floats"] = self.mean_floats
        if self.search.mode in ("gather", "impute"):
            sample = queries.select(range(min(_FIDELITY_QUERIES, len(queries))))
            whole = {"keep_query": 1.0, "keep_document": 1.0}
            exact = self.retrieve(sample, 10, mode="exact", **whole)
            metrics["retrieve/recall_of_exact@10"] = recall_of_exact(exact, ranking)
        return metrics

    def _packed(self, documents: list[list[int]]) -> Iterator[PackedTokens]:
        """The documents' vectors, in order, on rank 0; all ranks encode."""
        batches = list(batch_by_size(documents))
        found = map_over_ranks(batches, self._encoded)
        for parts in track(found, "encoding documents", total=len(batches)):
            yield PackedTokens(*parts)

    def _encoded(self, documents: list[list[int]]) -> PackedTokens:
        found = self.encode_texts(documents)
        real = found.mask
        return PackedTokens(
            vectors=found.vectors[real],
            counts=real.sum(1),
            ids=found.ids[real],
            salience=None if found.salience is None else found.salience[real],
            keys=None if found.keys is None else found.keys[real],
        )


def _texts_hash(ids: Sequence[str], texts: Sequence[Sequence[int]]) -> str:
    """Of a collection's ids and tokens, in whatever order they come."""
    total = 0
    for name, tokens in zip(ids, texts, strict=True):
        text = hashlib.sha256(f"{name} {list(tokens)}".encode()).digest()
        total += int.from_bytes(text[:16], "big")
    return f"{total % 2**128:032x}"
