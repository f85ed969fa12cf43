"""A cross-encoder: one encoder over query and document together (mva Figure 1a, Table 6)."""

import shutil
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gr_mvdr.analyzer import Language
from gr_mvdr.backbones import check_length, load_backbone, max_length, read_states
from gr_mvdr.batch import PairBatch
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.files import temporary_folder
from gr_mvdr.losses import rotate_documents
from gr_mvdr.options import Size, build, part
from gr_mvdr.ranks import encode_share, gather_batch, gather_rows
from gr_mvdr.relevance import at_least_float32
from gr_mvdr.token_index.bm25_candidates import FOLDER, Words
from models.base import Among, Share, System, Table, hash_documents, read_pairs, token_shares
from models.training import OptimizerOptions

# Names of the inner size of feed-forward layers in the configurations of transformers.
_INNER_SIZES = ("d_ff", "encoder_ffn_dim", "intermediate_size", "hidden_dim")


@part("model")
class CrossEncoder(System):
    """Scores one sequence: the query's tokens, its end token, then the document's tokens.

    Special tokens and token types are those of the backbone's own pairs (BERT: [CLS] query [SEP]
    document [SEP] with types 0 and 1). For a backbone without token types (T5, RoBERTa), a learned
    vector, `query_type`, is added to the query's token vectors. It starts at random in a new model,
    so that attention distinguishes the same token in query and document, and at zero in a
    pretrained model.

    A published cross-encoder has a head of its own, which transformers reads (`pooling="own"`).

    It scores pairs and has no index of its own: `retrieve` reranks BM25's results.
    """

    paradigm = "cross_encoder"
    share_of, score_is = "token", "the cross-encoder's score"
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
        pooling: Literal["mean", "first", "last", "own"] = "mean",
        depth: Size = 100,
        gradient_cache: Size | None = None,
        language: Language = "none",
    ):
        """
        Args:
            backbone: arguments of `load_backbone`.
            query_length, document_length: tokens kept of a text, special tokens included.
            loss: a loss of `gr_mvdr.losses`, as a dict with `_target_`. Pairs that are not scored
                have relevance −inf.
            optimizer: options of `make_optimizer`.
            negatives_per_query: the number of the batch's other documents that a query is scored
                with if the data give no hard negatives; all pairs would need B² passes.
            pooling: whether the head scores the mean of the states, the first or the last state;
                "own" = the pretrained model's head scores the sequence.
            depth: the number of BM25 documents that `retrieve` reranks; it returns no others.
            gradient_cache: pairs encoded at once in training, see `encode_share`; None = all.
            language: of the texts, for BM25.
        """
        super().__init__()
        self.save_hyperparameters()
        self.loss_function = build("loss", loss)
        own = pooling == "own"
        self.encoder = load_backbone(**backbone, head="classifier" if own else None)
        self.template = self.encoder.template
        if self.template.pair is None:
            raise ValueError(
                "tokenizer: must have a template for two texts in one sequence for a "
                "cross-encoder, such as [CLS] query [SEP] document [SEP]"
            )
        check_length(self.encoder, query_length=query_length, document_length=document_length)
        longest, both = max_length(self.encoder), query_length + document_length
        between = len(self.template.pair) - len(self.template.document)
        if longest is not None and both + between > longest:
            rule = f"must be ≤ {longest - between}, the longest pair of {self.encoder.name_or_path}"
            raise ValueError(f"query_length + document_length={both}: {rule}")
        if not own:
            self.head = nn.Linear(self.encoder.config.hidden_size, 1)
        if not self.template.types and not own:
            table = self.encoder.get_input_embeddings().weight
            scale = table.std() if backbone["name"] is None else 0.0
            self.query_type = nn.Parameter(scale * torch.randn(table.shape[1]))

    def joint_scores(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Scores joined sequences (B, L) int64 with their mask; returns (B,) fp32."""
        if self.hparams.pooling == "own":
            scores = self.encoder(attention_mask=mask.long(), **self._pairs(ids)).logits
            return at_least_float32(scores.squeeze(-1))
        states, weights = self._states(ids, mask)
        pooled = (states * weights.unsqueeze(-1)).sum(1)
        return at_least_float32(self.head(pooled).squeeze(-1))

    def _states(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the encoder's states (B, L, d) and their weights (B, L) in the pooled vector."""
        states, pooling = read_states(self.encoder, mask, **self._pairs(ids)), self.hparams.pooling
        if pooling == "mean":
            return states, mask / mask.sum(1, keepdim=True)
        chosen = mask.sum(1, keepdim=True) - 1 if pooling == "last" else 0
        return states, torch.arange(ids.shape[1], device=ids.device).expand_as(mask) == chosen

    def _pairs(self, ids: Tensor) -> dict[str, Tensor]:
        """Returns what the encoder reads of joined sequences (B, L) besides their mask."""
        ends = ids == self.template.suffix[-1]
        of_document = ends.cumsum(1) > ends.long()  # after the query's end
        if self.template.types:
            return {"input_ids": ids, "token_type_ids": of_document.long()}
        if self.hparams.pooling == "own":
            return {"input_ids": ids}
        vectors = self.encoder.get_input_embeddings()(ids)
        return {"inputs_embeds": vectors + self.query_type * ~of_document.unsqueeze(-1)}

    def loss(self, batch: PairBatch) -> Tensor:
        """Computes the configured loss () over each query's positive and negatives.

        The batches of all ranks are joined; each rank scores its share of the pairs.
        """
        batch = gather_batch(batch)
        host = batch.on_host
        scored = choose_pairs(host, self.hparams.negatives_per_query)
        document, query = scored.nonzero(as_tuple=True)
        pairs = self.join(host, document, query)
        how = self.hparams.gradient_cache, self.device
        scores = gather_rows(torch.cat(encode_share(self.joint_scores, *pairs, *how)))
        relevance = scores.new_full(scored.shape, -torch.inf)
        places = (document * len(batch) + query).to(self.device, non_blocking=True)
        relevance = relevance.flatten().index_put((places,), scores).view(scored.shape)
        return self.loss_function(relevance, batch)

    def score(self, batch: PairBatch) -> Tensor:
        """Computes the score (B,) of each pair."""
        own = slice(len(batch))
        return self.joint_scores(*self.join(batch, own, own))

    def join(
        self, batch: PairBatch, documents: Tensor | slice, queries: Tensor | slice
    ) -> tuple[Tensor, Tensor]:
        """Joins B pairs of a batch's rows into one sequence each (B, L); returns also the mask.

        The query's end token separates the two texts; there is no padding between them.
        """
        before = len(self.template.document)  # in a pair other tokens precede the document
        ids, mask = batch.document_ids[documents], batch.document_mask[documents]
        between = ids.new_tensor(self.template.pair).expand(len(ids), -1)
        real = torch.ones_like(between, dtype=torch.bool)
        ids = torch.cat([batch.query_ids[queries], between, ids[:, before:]], 1)
        mask = torch.cat([batch.query_mask[queries], real, mask[:, before:]], 1)
        order = mask.int().argsort(dim=1, descending=True, stable=True)  # real tokens first
        length = int(mask.sum(1).max())
        return ids.gather(1, order)[:, :length], mask.gather(1, order)[:, :length]

    @torch.no_grad()
    def shares(self, batch: PairBatch) -> list[list[Share]]:
        """Splits each pair's score into contributions of the tokens' last states, query first.

        The score is linear in the pooled vector, and so is a sum over the states. A published head
        is not linear: its score is one share, of all tokens.
        """
        ids, mask = self.join(batch, slice(len(batch)), slice(None))
        if self.hparams.pooling == "own":
            scores = zip(ids, mask, self.joint_scores(ids, mask).tolist(), strict=True)
            return [[Share(tuple(row[real].tolist()), score)] for row, real, score in scores]
        states, weights = self._states(ids, mask)
        return token_shares(ids, at_least_float32(self.head(states).squeeze(-1)) * weights, mask)

    def joint_flops(self, query_tokens: int, document_tokens: int) -> float:
        """Counts one pass of the encoder over both texts, the pooling and the head."""
        tokens = min(query_tokens, self.hparams.query_length)
        tokens += min(document_tokens, self.hparams.document_length)
        config = self.encoder.config
        size = config.hidden_size
        inner = next(getattr(config, name) for name in _INNER_SIZES if hasattr(config, name))
        heads = config.num_heads * config.d_kv if hasattr(config, "d_kv") else size
        gated = getattr(config, "is_gated_act", config.model_type == "modernbert")
        passed = transformer_flops(tokens, config.num_hidden_layers, size, inner, heads, gated)
        return passed + (tokens * size if self.hparams.pooling == "mean" else 0) + 2 * size

    def index(self, documents: Table, directory: str | Path | None = None) -> None:
        """Lists the documents' words for BM25, which proposes the candidates of `retrieve`."""
        place = Path(directory or temporary_folder("bm25"))
        shutil.rmtree(place / FOLDER, ignore_errors=True)
        self.open_index(documents, place)

    def open_index(self, documents: Table, directory: str | Path) -> None:
        """Opens the lists of words; see `System.open_index`."""
        self.documents = documents
        self.words = Words.open(
            documents, Path(directory), hash_documents(documents), self.hparams.language
        )

    def _retrieve(self, queries: Table, k: int, among: Among, with_shares: bool) -> Ranking:
        """Reranks the `depth` best BM25 documents of each query and keeps k of them.

        For shares, the retrieved pairs are encoded again.
        """
        candidates = {
            query: self.words.best(text, self.hparams.depth, among)
            for query, text in zip(queries["id"], queries["text"], strict=True)
        }
        ranking = self._rerank(queries, self.documents, candidates).top(k)
        if with_shares:
            best = {query: ranking.documents(query) for query in ranking.query_ids}
            shares = read_pairs(self, queries, self.documents, best, self.shares)
            ranking.shares = {q: {d: shares[q][d] for d in own} for q, own in best.items()}
        return ranking


def choose_pairs(batch: PairBatch, negatives_per_query: int) -> Tensor:
    """Chooses the pairs of a batch that a cross-encoder scores: (D documents, B queries) bool.

    These are the positives and the hard negatives; without hard negatives, the next documents of
    the batch, cyclically, that are negatives of the query.
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


def transformer_flops(
    tokens: float, layers: int, d_model: int, d_ff: int, d_attention: int, gated: bool = False
) -> float:
    """Operations for one pass of a transformer encoder over a text of L tokens.

    A layer counts 8 L d_model d_attention for the four projections of attention, 4 L² d_attention
    for QKᵀ and AV, and 4 L d_model d_ff for the feed-forward's two matrices (6 instead of 4 for the
    three matrices of a gated one). Not counted are embeddings, norms, biases, softmax, activations
    and residual sums: below 1 % in T5-base.

    Half of this, for BERT-base, 128 tokens and 1,000 documents, is 11,170,000 MFLOPs; MVA's Table 5
    says 11,000,000.

    Args:
        tokens: L.
        d_ff: inner size of the feed-forward.
        d_attention: number of heads times the size of a head.
        gated: whether the feed-forward is T5 v1.1's, with a third matrix.
    """
    attention = 8 * tokens * d_model * d_attention + 4 * tokens**2 * d_attention
    feed_forward = (6 if gated else 4) * tokens * d_model * d_ff
    return layers * (attention + feed_forward)
