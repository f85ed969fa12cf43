"""What all multi-vector systems share: encode texts to token vectors, index, search, rerank."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gr_mvdr.alignment import MaxSim
from gr_mvdr.backbones import load_encoder
from gr_mvdr.batch import PairBatch, cut, pad
from gr_mvdr.losses import in_batch_cross_entropy
from gr_mvdr.progress import track
from gr_mvdr.ranking import Ranking, best_documents
from gr_mvdr.relevance import PairAlignment, relevance, similarity
from gr_mvdr.token_index import TokenIndex
from gr_mvdr.tokenizers import EOS_ID
from models.base import System, Table

# Padded tokens encoded at once (long documents: fewer of them), and queries searched at once.
_ENCODE_TOKENS = 16_384
_QUERY_BATCH = 32


class MultiVectorSystem(System):
    """A shared T5 encoder, projected and L2-normalised, under an alignment (gr_as_mvdr §3).

    A subclass sets `alignment`, the strategy that makes A from S.
    """

    paradigm = "multi_vector"

    def __init__(
        self,
        backbone: dict[str, Any],
        dimension: int,
        query_length: int,
        document_length: int,
        search: dict[str, Any],
        optimizer: dict[str, Any],
    ):
        """
        Args:
            backbone: arguments of `load_encoder`.
            dimension: d, the size of a token vector.
            query_length, document_length: tokens kept of a text, the end token included.
            search: `mode` "exact" (exhaustive) or "gather" (k' = `neighbours` tokens a query token
                by faiss IVF with `probes`, then all tokens of the candidates); `dtype` stored.
            optimizer: see `System`.
        """
        super().__init__(optimizer)
        self.save_hyperparameters()
        self.encoder = load_encoder(**backbone)
        self.projection = nn.Linear(self.encoder.config.d_model, dimension, bias=False)
        self.searcher: TokenIndex | None = None
        if search["mode"] not in ("exact", "gather"):
            raise ValueError(f"model.search.mode={search['mode']}: must be exact or gather")

    def encode(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Token ids (B, L) and mask → unit token vectors (B, L, d), zero at padding."""
        hidden = self.encoder(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        return F.normalize(self.projection(hidden).float(), dim=-1) * mask.unsqueeze(-1)

    def prepare_queries(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Query ids and mask (B, N) as the encoder reads them: a hook for query augmentation."""
        return ids, mask

    def loss(self, batch: PairBatch) -> Tensor:
        """() contrastive loss with in-batch negatives under any alignment (Eq. 2).

        Memory grows with B²·M·N; a subclass that knows a shorter way overrides this.
        """
        documents = self.encode(batch.document_ids, batch.document_mask)
        query_ids, query_mask = self.prepare_queries(batch.query_ids, batch.query_mask)
        queries = self.encode(query_ids, query_mask)
        matrix = similarity(documents[:, None], queries[None])  # (B, B, M, N)
        aligned = self.alignment(
            matrix,
            batch.document_mask[:, None],
            query_mask[None],
            batch.document_ids[:, None],
            query_ids[None],
        )
        return in_batch_cross_entropy(relevance(matrix, aligned), batch.document_index)

    def score(self, batch: PairBatch) -> Tensor:
        """(B,) relevance of the pairs under the system's alignment (Eq. 1)."""
        return self.align(batch).score

    def align(self, batch: PairBatch) -> PairAlignment:
        """S and A of each pair, H = 1; relevance equals score (Eq. 1)."""
        query_ids, query_mask = self.prepare_queries(batch.query_ids, batch.query_mask)
        documents = self.encode(batch.document_ids, batch.document_mask)
        matrix = similarity(documents, self.encode(query_ids, query_mask))
        aligned = self.alignment(
            matrix, batch.document_mask, query_mask, batch.document_ids, query_ids
        )
        scores = relevance(matrix, aligned)
        return PairAlignment(
            similarity=matrix.unsqueeze(1),
            alignment=aligned.unsqueeze(1),
            normaliser=torch.ones_like(scores),
            relevance=scores,
            score=scores,
            document_ids=batch.document_ids,
            document_mask=batch.document_mask,
            query_ids=query_ids,
            query_mask=query_mask,
        )

    @torch.inference_mode()
    def index(self, documents: Table, directory: str | Path | None = None) -> TokenIndex:
        """Encodes the corpus into a `TokenIndex`, shortest documents first (nothing to pad)."""
        directory = directory or tempfile.mkdtemp(prefix="token-index-")
        tokens = [
            cut(document, self.hparams.document_length, EOS_ID) for document in documents["tokens"]
        ]
        order = sorted(range(len(tokens)), key=lambda number: len(tokens[number]))
        ids = documents["id"]
        self.searcher = TokenIndex.build(
            directory,
            [ids[number] for number in order],
            self._encoded([tokens[number] for number in order]),
            self.hparams.search["dtype"],
        )
        if self.hparams.search["mode"] == "gather":
            self.searcher.build_neighbours(self.hparams.search["lists"])
        return self.searcher

    @torch.inference_mode()
    def retrieve(self, queries: Table, k: int = 100) -> Ranking:
        """End-to-end search, exact or gather (gr_as_mvdr §6.3)."""
        assert self.searcher is not None, "index the documents first"
        search = self._exact if self.hparams.search["mode"] == "exact" else self._gather
        results = {}
        for ids, vectors, mask in track(
            self._query_batches(queries), "searching", total=-(-len(queries) // _QUERY_BATCH)
        ):
            for query_id, found in zip(ids, search(vectors, mask, k), strict=True):
                results[query_id] = found
        return Ranking(results)

    @torch.inference_mode()
    def rerank(
        self,
        queries: Table,
        documents: Table,
        candidates: dict[str, Sequence[str]],
        alignment=None,
    ) -> Ranking:
        """Scores candidates from their indexed vectors under `alignment` (default: the system's).

        A document-to-query alignment gives the paper's MVDR (q←d), which can only rerank (§7.1).
        """
        assert self.searcher is not None, "index the documents first"
        alignment = alignment or self.alignment
        number = {identifier: i for i, identifier in enumerate(self.searcher.document_ids)}
        results = {}
        total = -(-len(queries) // _QUERY_BATCH)
        for ids, vectors, mask in track(self._query_batches(queries), "reranking", total=total):
            for query_id, vector, real in zip(ids, vectors, mask, strict=True):
                chosen = candidates[query_id]
                numbers = torch.tensor([number[identifier] for identifier in chosen])
                scores = self.searcher.score(vector[real], numbers, alignment)
                results[query_id] = dict(zip(chosen, scores.tolist(), strict=True))
        return Ranking(results)

    def _exact(self, vectors: Tensor, mask: Tensor, k: int) -> list[dict[str, float]]:
        ids = self.searcher.document_ids
        if self.alignment == MaxSim("query_to_document"):
            scores = self.searcher.exact(vectors).T
        else:
            everything = torch.arange(len(ids))
            pairs = zip(vectors, mask, strict=True)
            scores = [self.searcher.score(v[m], everything, self.alignment) for v, m in pairs]
        return [best_documents(ids, found.numpy(), k) for found in scores]

    def _gather(self, vectors: Tensor, mask: Tensor, k: int) -> list[dict[str, float]]:
        found, settings = [], self.hparams.search
        for vector, real in zip(vectors, mask, strict=True):
            query = vector[real]
            numbers = self.searcher.candidates(query, settings["neighbours"], settings["probes"])
            ids = [self.searcher.document_ids[number] for number in numbers.tolist()]
            scores = self.searcher.score(query, numbers, self.alignment)
            found.append(best_documents(ids, scores.numpy(), k))
        return found

    def _query_batches(self, queries: Table) -> Iterator[tuple[list[str], Tensor, Tensor]]:
        self.eval()
        for start in range(0, len(queries), _QUERY_BATCH):
            rows = queries[start : start + _QUERY_BATCH]
            texts = [cut(tokens, self.hparams.query_length, EOS_ID) for tokens in rows["tokens"]]
            ids, mask = self.prepare_queries(*pad(texts))
            vectors = self.encode(ids.to(self.device), mask.to(self.device)).cpu()
            yield rows["id"], vectors, mask

    def _encoded(self, documents: list[list[int]]) -> Iterator[tuple[Tensor, Tensor]]:
        self.eval()
        batches = list(_batches(documents))
        for batch in track(batches, "encoding documents"):
            ids, mask = pad(batch)
            vectors = self.encode(ids.to(self.device), mask.to(self.device))
            yield vectors[mask.to(self.device)], mask.sum(1)


def _batches(documents: list[list[int]]) -> Iterator[list[list[int]]]:
    """Consecutive documents whose padded size stays near `_ENCODE_TOKENS`."""
    start = 0
    while start < len(documents):
        end = start + 1
        while end < len(documents) and len(documents[end]) * (end + 1 - start) <= _ENCODE_TOKENS:
            end += 1
        yield documents[start:end]
        start = end
