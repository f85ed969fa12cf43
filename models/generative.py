"""What all generative systems share: teacher forcing, decoding steps, and Eq. 14's S and A."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache

from gr_mvdr.backbones import load_encoder_decoder
from gr_mvdr.batch import PairBatch, pad
from gr_mvdr.progress import track
from gr_mvdr.ranking import Ranking
from gr_mvdr.relevance import PairAlignment, relevance
from gr_mvdr.tokenizers import PAD_ID
from models.base import System, Table

# How the scores of a document's segments become the document's score.
POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda scores: scores.sum(),
    "mean": lambda scores: scores.mean(),
    "max": lambda scores: scores.max(),
}
# Sequences decoded at once in reranking.
_DECODE_BATCH = 512


class GenerativeSystem(System):
    """A T5 that generates an identifier of the document from the query (gr_as_mvdr §4)."""

    paradigm = "generative"

    def __init__(self, backbone: dict[str, Any], optimizer: dict[str, Any]):
        """
        Args:
            backbone: arguments of `load_encoder_decoder`.
            optimizer: see `System`.
        """
        super().__init__(optimizer)
        self.backbone = load_encoder_decoder(**backbone)

    def encode(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Query token ids (B, N) and mask → query vectors Q (B, N, d_model)."""
        return self.backbone.encoder(input_ids=ids, attention_mask=mask.long()).last_hidden_state

    def decode(self, queries: Tensor, query_mask: Tensor, document_ids: Tensor) -> Tensor:
        """Teacher forcing: the hidden state that predicts each document token (Eq. 8).

        Args:
            queries: (B, N, d_model) from `encode`; query_mask: (B, N) bool.
            document_ids: (B, M) int64; position i is predicted from the tokens before it.

        Returns:
            (B, M, d_model), scaled so that a product with an output row is a logit.
        """
        hidden = self.backbone.decoder(
            input_ids=F.pad(document_ids[:, :-1], (1, 0), value=PAD_ID),
            encoder_hidden_states=queries,
            encoder_attention_mask=query_mask.long(),
            use_cache=False,
        ).last_hidden_state
        return hidden * self.output_scale

    @property
    def output_scale(self) -> float:
        """d^−½ where the output table is the input's (original T5), else 1 (T5 v1.1, mT5)."""
        config = self.backbone.config
        scaled = getattr(config, "scale_decoder_outputs", False)  # mT5's config has no such key
        return config.d_model**-0.5 if scaled else 1.0

    def loss(self, batch: PairBatch) -> Tensor:
        """() cross-entropy of the document tokens (Eq. 10), a mean over tokens.

        The batch may hold S targets for each query, rows b·S … b·S + S − 1 for query b: the query
        is encoded once.
        """
        targets_per_query = len(batch.document_ids) // len(batch)
        queries = self.encode(batch.query_ids, batch.query_mask)
        hidden = self.decode(
            queries.repeat_interleave(targets_per_query, 0),
            batch.query_mask.repeat_interleave(targets_per_query, 0),
            batch.document_ids,
        )
        # Only real positions reach the output table, the dearest product of a small model.
        logits = self.backbone.lm_head(hidden[batch.document_mask])
        return F.cross_entropy(
            logits.float(),
            batch.document_ids[batch.document_mask],
            label_smoothing=self.hparams.get("label_smoothing", 0.0),
        )

    def sequence_log_probs(
        self, queries: Tensor, query_mask: Tensor, ids: Tensor, mask: Tensor
    ) -> Tensor:
        """(B,) mean log p(token | tokens before it, query) over the real tokens of each sequence.

        Args:
            queries, query_mask: (B, N, d_model) and (B, N) of each sequence's query.
            ids, mask: (B, M) the sequences.
        """
        hidden = self.decode(queries, query_mask, ids)[mask]
        log_probs = self.backbone.lm_head(hidden).float().log_softmax(-1)
        scores = torch.zeros(mask.shape, device=ids.device)
        scores[mask] = log_probs.gather(1, ids[mask].unsqueeze(1)).squeeze(1)
        return scores.sum(1) / mask.sum(1).clamp(min=1)

    def score(self, batch: PairBatch) -> Tensor:
        """(B,) mean log-probability of the document side's tokens."""
        return self.sequence_log_probs(
            self.encode(batch.query_ids, batch.query_mask),
            batch.query_mask,
            batch.document_ids,
            batch.document_mask,
        )

    @torch.inference_mode()
    def rerank(
        self,
        queries: Table,
        documents: Table,
        candidates: dict[str, Sequence[str]],
        segments: Callable[[str, dict], list[list[int]]],
        pool: str,
    ) -> Ranking:
        """Pools log p(segment | query) over segments of each candidate (facts: reranking by GR).

        Args:
            queries, documents, candidates: see `System.rerank`.
            segments: (query text, document row) → token lists of the document.
            pool: "sum", "mean" or "max" over the segments' mean token log-probabilities.
        """
        if pool not in POOLS:
            raise ValueError(f"rerank.pool={pool}: must be one of {', '.join(POOLS)}")
        self.eval()
        row = {identifier: number for number, identifier in enumerate(documents["id"][:])}
        results = {}
        for query in track(queries, "reranking", total=len(queries)):
            ids, mask = pad([self.prepare_query(query["tokens"])])
            encoded = self.encode(ids.to(self.device), mask.to(self.device))
            chosen = candidates[query["id"]]
            found = [segments(query["text"], documents[row[identifier]]) for identifier in chosen]
            scores = self._segment_scores(encoded, mask, [s for group in found for s in group])
            groups = scores.split([len(group) for group in found])
            results[query["id"]] = {
                identifier: POOLS[pool](group).item()
                for identifier, group in zip(chosen, groups, strict=True)
            }
        return Ranking(results)

    def _segment_scores(self, query: Tensor, mask: Tensor, segments: list[list[int]]) -> Tensor:
        """(S,) on the CPU: mean token log-probability of each segment for one query (1, N, d)."""
        scores = []
        for start in range(0, len(segments), _DECODE_BATCH):
            ids, real = (x.to(self.device) for x in pad(segments[start : start + _DECODE_BATCH]))
            repeated = query.expand(len(ids), -1, -1), mask.to(self.device).expand(len(ids), -1)
            scores.append(self.sequence_log_probs(*repeated, ids, real).cpu())
        return torch.cat(scores)

    def align(self, batch: PairBatch, layer: int = -1) -> PairAlignment:
        """S^h = ẽᵀ O_h V_h q and A^h = cross-attention of one decoder layer (Eq. 4, 12–14).

        ẽ_i is the output row of document token i with the final layer norm's gain, its scale at
        that position and T5's d^−½ folded in: Σ_hj S^h_ij A^h_ij is what this layer's
        cross-attention adds to the logit of token i.

        Args:
            batch: pairs; the document side is teacher-forced.
            layer: of the decoder; negative counts from the last.

        Raises:
            RuntimeError: the attention weights are missing (not eager attention).
        """
        queries = self.encode(batch.query_ids, batch.query_mask)
        attention, rows = self._cross_attention(queries, batch, layer)
        module = self.backbone.decoder.block[layer].layer[1].EncDecAttention
        heads = (module.n_heads, module.key_value_proj_dim)
        # V_h q_j and O_hᵀ ẽ_i: the two sides of S^h, each of the head's size.
        values = module.v(queries).unflatten(-1, heads)
        readers = (rows @ module.o.weight).unflatten(-1, heads)
        similarity = torch.einsum("bmhk,bnhk->bhmn", readers, values).float()
        real = batch.document_mask[:, None, :, None] & batch.query_mask[:, None, None, :]
        similarity, attention = similarity * real, attention.float() * real
        return PairAlignment(
            similarity=similarity,
            alignment=attention,
            normaliser=torch.ones(len(batch), device=similarity.device),
            relevance=relevance(similarity, attention).sum(1),
            score=self.score(batch),
            document_ids=batch.document_ids,
            document_mask=batch.document_mask,
            query_ids=batch.query_ids,
            query_mask=batch.query_mask,
        )

    def _cross_attention(
        self, queries: Tensor, batch: PairBatch, layer: int
    ) -> tuple[Tensor, Tensor]:
        """A (B, H, M, N) of one layer, and ẽ (B, M, d_model) of the document tokens."""
        decoder, before_norm = self.backbone.decoder, []
        norm = decoder.final_layer_norm
        hook = norm.register_forward_pre_hook(lambda _, inputs: before_norm.append(inputs[0]))
        implementation = decoder.config._attn_implementation
        decoder.set_attn_implementation("eager")
        try:
            attentions = decoder(
                input_ids=F.pad(batch.document_ids[:, :-1], (1, 0), value=PAD_ID),
                encoder_hidden_states=queries,
                encoder_attention_mask=batch.query_mask.long(),
                use_cache=False,
                output_attentions=True,
            ).cross_attentions
        finally:
            hook.remove()
            decoder.set_attn_implementation(implementation)
        if not attentions or attentions[layer] is None:
            raise RuntimeError("the decoder returned no cross-attention: eager attention is needed")
        power = before_norm[0].float().pow(2).mean(-1, keepdim=True)
        scale = torch.rsqrt(power + norm.variance_epsilon) * self.output_scale
        rows = self.backbone.lm_head.weight[batch.document_ids] * norm.weight * scale
        return attentions[layer], rows

    def prepare_query(self, tokens: Sequence[int]) -> list[int]:
        """The query's tokens as the encoder reads them."""
        raise NotImplementedError

    def decoding_step(self, query_ids: Tensor, query_mask: Tensor) -> Callable:
        """The step function of `gr_mvdr.beam_search` for queries (B, N), with a cache."""
        return _DecodingStep(self, query_ids, query_mask)


class _DecodingStep:
    """(tokens (R,), parents (R,)) → log-probabilities (R, V), one decoder position a call."""

    def __init__(self, system: GenerativeSystem, query_ids: Tensor, query_mask: Tensor):
        self.system = system
        self.queries = system.encode(query_ids, query_mask)
        self.mask = query_mask
        self.cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        self.started = False

    def __call__(self, tokens: Tensor, parents: Tensor) -> Tensor:
        if self.started:
            self.cache.reorder_cache(parents)
            self.queries, self.mask = self.queries[parents], self.mask[parents]
        self.started = True
        hidden = self.system.backbone.decoder(
            input_ids=tokens.unsqueeze(1),
            encoder_hidden_states=self.queries,
            encoder_attention_mask=self.mask.long(),
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state[:, 0]
        logits = self.system.backbone.lm_head(hidden * self.system.output_scale)
        return logits.float().log_softmax(-1)
