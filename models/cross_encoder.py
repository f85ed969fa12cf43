"""A cross-encoder: one encoder over query and document together (mva Figure 1a, Table 6)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gr_mvdr.backbones import check_length, encoder_mask, load_encoder, max_length
from gr_mvdr.batch import PairBatch, pad
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.losses import rotate_documents
from gr_mvdr.options import Size, build, part
from gr_mvdr.progress import track
from gr_mvdr.ranks import encode_share, gather_batch, gather_rows
from gr_mvdr.relevance import at_least_float32
from gr_mvdr.token_index.costs import transformer_flops
from models.base import Share, Shares, System, Table
from models.candidates import LexicalCandidates
from models.training import OptimizerOptions

# Names of the inner size of feed-forward layers in the configurations of transformers.
_INNER_SIZES = ("d_ff", "encoder_ffn_dim", "intermediate_size", "hidden_dim")
_BATCH = 64  # pairs scored at once in reranking


@part("model")
class CrossEncoder(System):
    """The query's tokens, its end token, then the document's: one sequence, one score.

    Special tokens and token types are those of the backbone's own pairs (BERT: [CLS] query [SEP]
    document [SEP] with types 0 and 1). A backbone without token types (T5, RoBERTa) gets a learned
    vector, `query_type`, that is added to the query's token vectors. In a new model it is random,
    so that attention distinguishes the same token in the query and in the document; in a
    pretrained model it starts at zero.

    It scores pairs and has no index: `retrieve` reranks the results of a BM25 index.
    """

    paradigm = "cross_encoder"
    share_of, score_is, scores_need = "token", "the cross-encoder's score", ""
    alignable = False
    needs_negatives = True

    def __init__(
        self,
        backbone: dict[str, Any],
        query_length: Size,
        document_length: Size,
        loss: dict[str, Any],
        optimizer: OptimizerOptions,
        negatives_per_query: Size = 4,
        pooling: Literal["mean", "first"] = "mean",
        depth: Size = 100,
        gradient_cache: Size | None = None,
    ):
        """
        Args:
            backbone: arguments of `load_encoder`.
            query_length, document_length: tokens kept of a text, special tokens included.
            loss: a loss of `gr_mvdr.losses`, as a dict with `_target_`. Pairs that were not scored
                have relevance −inf.
            optimizer: see `System`.
            negatives_per_query: other documents of the batch that a query is scored with, unless
                the data give its negatives; all pairs would be B² passes.
            pooling: the scored vector, the mean of the states or the first state.
            depth: BM25 documents that `retrieve` reranks; it returns no others.
            gradient_cache: pairs encoded at once in training, see `encode_share`; None = all.
        """
        super().__init__(optimizer)
        self.save_hyperparameters()
        self.loss_function = build("loss", loss)
        self.encoder = load_encoder(**backbone)
        self.template = self.encoder.template
        check_length(self.encoder, query_length=query_length, document_length=document_length)
        self._check_pairs(query_length + document_length)
        self.head = nn.Linear(self.encoder.config.hidden_size, 1)
        if not self.template.types:
            table = self.encoder.get_input_embeddings().weight
            scale = table.std() if backbone["name"] is None else 0.0
            self.query_type = nn.Parameter(scale * torch.randn(table.shape[1]))

    def _check_pairs(self, both: int) -> None:
        if self.template.pair is None:
            raise ValueError(
                "tokenizer: must have a template for two texts in one sequence for a "
                "cross-encoder, such as [CLS] query [SEP] document [SEP]"
            )
        between = len(self.template.pair) - len(self.template.document)
        longest = max_length(self.encoder)
        if longest is not None and both + between > longest:
            rule = f"must be ≤ {longest - between}, the longest pair of {self.encoder.name_or_path}"
            raise ValueError(f"query_length + document_length={both}: {rule}")

    def joint_scores(self, ids: Tensor, mask: Tensor) -> Tensor:
        """(B,) fp32 from whole sequences, query and document (B, L) int64, and their mask."""
        states, weights = self._states(ids, mask)
        pooled = (states * weights.unsqueeze(-1)).sum(1)
        return at_least_float32(self.head(pooled).squeeze(-1))

    def _states(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The encoder's states (B, L, d), and their weights in the pooled vector (B, L)."""
        ends = ids == self.template.suffix[-1]
        of_document = ends.cumsum(1) > ends.long()  # after the query's end
        if self.template.types:
            pair = {"input_ids": ids, "token_type_ids": of_document.long()}
        else:
            vectors = self.encoder.get_input_embeddings()(ids)
            pair = {"inputs_embeds": vectors + self.query_type * ~of_document.unsqueeze(-1)}
        read = self.encoder(attention_mask=encoder_mask(self.encoder, mask), **pair)
        states = read.last_hidden_state
        if self.hparams.pooling == "first":
            return states, (torch.arange(ids.shape[1], device=ids.device) == 0).expand_as(mask)
        return states, mask / mask.sum(1, keepdim=True)

    def loss(self, batch: PairBatch) -> Tensor:
        """() the configured loss over each query's positive and its negatives.

        The batch is that of all ranks, each of which scores its part of the pairs.
        """
        batch = gather_batch(batch)
        scored = choose_pairs(batch, self.hparams.negatives_per_query)
        document, query = scored.nonzero(as_tuple=True)
        queries = batch.query_ids[query], batch.query_mask[query]
        documents = batch.document_ids[document], batch.document_mask[document]
        pairs = self._join(*queries, *documents)
        parts = encode_share(self.joint_scores, *pairs, self.hparams.gradient_cache)
        scores = gather_rows(torch.cat(parts))
        relevance = scores.new_full(scored.shape, -torch.inf)
        relevance[document, query] = scores
        return self.loss_function(relevance, batch)

    def score(self, batch: PairBatch) -> Tensor:
        """(B,) the score of each pair."""
        return self.joint_scores(*self._join_batch(batch))

    def _join_batch(self, batch: PairBatch) -> tuple[Tensor, Tensor]:
        """Ids and mask (B, L) of each query with its positive."""
        own = slice(len(batch))
        documents = batch.document_ids[own], batch.document_mask[own]
        return self._join(batch.query_ids, batch.query_mask, *documents)

    def _join(
        self, query_ids: Tensor, query_mask: Tensor, ids: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """`join_pairs`, with the special tokens that precede a document in a pair."""
        template = self.template
        between = ids.new_tensor(template.pair).expand(len(ids), -1)
        ids = torch.cat([between, ids[:, len(template.document) :]], 1)
        mask = F.pad(mask[:, len(template.document) :], (len(template.pair), 0), value=True)
        return join_pairs(query_ids, query_mask, ids, mask)

    @torch.no_grad()
    def shares(self, batch: PairBatch) -> list[list[Share]]:
        """For each pair, the contribution of each token's last state, the query's tokens first.

        The score is linear in the pooled vector, and so a sum over the states.
        """
        ids, mask = self._join_batch(batch)
        states, weights = self._states(ids, mask)
        added = at_least_float32(self.head(states).squeeze(-1)) * weights
        rows = zip(ids, added, mask, strict=True)
        return [
            [Share((t,), v) for t, v in zip(i[m].tolist(), a[m].tolist(), strict=True)]
            for i, a, m in rows
        ]

    def joint_flops(self, query_tokens: int, document_tokens: int) -> float:
        """One pass of the encoder over both texts, the pooling and the head."""
        tokens = min(query_tokens, self.hparams.query_length)
        tokens += min(document_tokens, self.hparams.document_length)
        config = self.encoder.config
        size = config.hidden_size
        inner = next(getattr(config, name) for name in _INNER_SIZES if hasattr(config, name))
        heads = config.num_heads * config.d_kv if hasattr(config, "d_kv") else size
        gated = getattr(config, "is_gated_act", config.model_type == "modernbert")
        passed = transformer_flops(tokens, config.num_hidden_layers, size, inner, heads, gated)
        return passed + (tokens * size if self.hparams.pooling == "mean" else 0) + 2 * size

    def index(self, documents: Table, directory: str | Path | None = None) -> LexicalCandidates:
        """BM25 over the documents' words, which gives the candidates of `retrieve`."""
        self.documents, self.candidates = documents, LexicalCandidates(documents, directory)
        return self.candidates

    def open_index(self, documents: Table, directory: str | Path) -> LexicalCandidates:
        """Opens BM25's scores; see `System.open_index`."""
        self.documents = documents
        self.candidates = LexicalCandidates.open(documents, directory)
        return self.candidates

    def retrieve(self, queries: Table, k: int = 100, among: Sequence[str] | None = None) -> Ranking:
        """Reranks the `depth` best BM25 documents of each query and keeps k of them."""
        candidates = self.candidates(queries, self.hparams.depth, among)
        return self.rerank(queries, self.documents, candidates).top(k)

    def retrieve_with_shares(
        self, queries: Table, k: int = 100, among: Sequence[str] | None = None
    ) -> tuple[Ranking, Shares]:
        """`retrieve`, and the contribution of each token; the retrieved pairs are encoded again."""
        ranking, contributions = self.retrieve(queries, k, among), {}
        asked = self._queries(queries)
        texts = self._documents(self.documents, {q: ranking.documents(q) for q in asked})
        for query in asked:
            documents = ranking.documents(query)
            sides = *pad([asked[query]] * len(documents)), *pad([texts[d] for d in documents])
            batch = PairBatch(*sides, torch.zeros(len(documents), dtype=torch.int64))
            shares = self.shares(batch.to(self.device)) if documents else []
            contributions[query] = dict(zip(documents, shares, strict=True))
        return ranking, contributions

    @torch.inference_mode()
    def rerank(
        self, queries: Table, documents: Table, candidates: dict[str, Sequence[str]]
    ) -> Ranking:
        """Scores every candidate together with its query, pairs of similar length in a batch."""
        self.eval()
        asked, texts = self._queries(queries), self._documents(documents, candidates)
        pairs = [(query, document) for query in asked for document in candidates[query]]
        pairs.sort(key=lambda pair: len(asked[pair[0]]) + len(texts[pair[1]]))
        results: dict[str, dict[str, float]] = {query: {} for query in asked}
        for start in track(range(0, len(pairs), _BATCH), "reranking"):
            batch = pairs[start : start + _BATCH]
            sides = *pad([asked[query] for query, _ in batch]), *pad([texts[d] for _, d in batch])
            scores = self.joint_scores(*self._join(*(part.to(self.device) for part in sides)))
            for (query, document), score in zip(batch, scores.tolist(), strict=True):
                results[query][document] = score
        return Ranking(results)

    def _queries(self, queries: Table) -> dict[str, list[int]]:
        """Query id → tokens, the end token included."""
        length = self.hparams.query_length
        rows = zip(queries["id"][:], queries["tokens"][:], strict=True)
        return {query: self.template.read_query(t, length) for query, t in rows}

    def _documents(
        self, documents: Table, candidates: dict[str, Sequence[str]]
    ) -> dict[str, list[int]]:
        """Document id → tokens, the end token included, for the candidates."""
        length, needed = self.hparams.document_length, set().union(*candidates.values())
        rows = [row for row, name in enumerate(documents["id"][:]) if name in needed]
        chosen = documents[rows] if rows else {"id": [], "tokens": []}
        pairs = zip(chosen["id"], chosen["tokens"], strict=True)
        return {document: self.template.read_document(t, length) for document, t in pairs}


def choose_pairs(batch: PairBatch, negatives_per_query: int) -> Tensor:
    """(D documents, B queries) bool: the pairs of a batch that a cross-encoder scores.

    The positives and the hard negatives; without hard negatives, the next documents of the batch,
    cyclically, that are negatives of the query.
    """
    size, device = len(batch), batch.query_ids.device
    queries = torch.arange(size, device=device)
    scored = torch.zeros(len(batch.document_ids), size, dtype=torch.bool, device=device)
    if batch.negatives is not None:
        scored[batch.negatives, queries[:, None]] = True
    else:
        circle = rotate_documents(batch)
        negative = batch.is_negative[circle, queries]
        scored.scatter_(0, circle, negative & (negative.cumsum(0) <= negatives_per_query))
    scored[queries, queries] = True
    return scored


def join_pairs(
    query_ids: Tensor, query_mask: Tensor, document_ids: Tensor, document_mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Ids and masks (B, N) and (B, M) as one sequence (B, L) without padding in between.

    A query ends with its end token, which separates the two texts.
    """
    ids = torch.cat([query_ids, document_ids], dim=1)
    mask = torch.cat([query_mask, document_mask], dim=1)
    order = mask.int().argsort(dim=1, descending=True, stable=True)  # real tokens first, in order
    length = int(mask.sum(1).max())
    return ids.gather(1, order)[:, :length], mask.gather(1, order)[:, :length]
