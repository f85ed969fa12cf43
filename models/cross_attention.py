"""S and A of a generative system: cross-attention as an alignment matrix (gr_as_mvdr Eq. 12–14)."""

from typing import Any

import torch
from torch import Tensor

from gr_mvdr.batch import PairBatch
from gr_mvdr.relevance import PairAlignment, relevance


def align_by_cross_attention(
    system: Any, batch: PairBatch, score: Tensor, layer: int = -1
) -> PairAlignment:
    """S^h = ẽᵀ O_h V_h q and A^h = cross-attention of one decoder layer (Eq. 4, 12–14).

    ẽ_i is the head's vector of target token i (an output row, PAWA's or NP's) with the final layer
    norm's gain, its scale at that position and T5's d^−½ folded in: Σ_hj S^h_ij A^h_ij is what this
    layer's cross-attention adds to the logit of token i.

    Args:
        system: a `GenerativeSystem`.
        batch: pairs, the targets on the document side; they are teacher-forced.
        score: (B,) what the system ranks these pairs by.
        layer: of the decoder; negative counts from the last.

    Raises:
        RuntimeError: the attention weights are missing (not eager attention).
    """
    queries = system.encode(batch.query_ids, batch.query_mask)
    attention, vectors = _attention_and_vectors(system, queries, batch, layer)
    module = system.backbone.decoder.block[layer].layer[1].EncDecAttention
    heads = (module.n_heads, module.key_value_proj_dim)
    # V_h q_j and O_hᵀ ẽ_i: the two sides of S^h, each of the head's size.
    values = module.v(queries).unflatten(-1, heads)
    readers = (vectors @ module.o.weight).unflatten(-1, heads)
    similarity = torch.einsum("bmhk,bnhk->bhmn", readers, values).float()
    real = batch.document_mask[:, None, :, None] & batch.query_mask[:, None, None, :]
    similarity, attention = similarity * real, attention.float() * real
    return PairAlignment(
        similarity=similarity,
        alignment=attention,
        normaliser=torch.ones(len(batch), device=similarity.device),
        relevance=relevance(similarity, attention).sum(1),
        score=score,
        document_ids=batch.document_ids,
        document_mask=batch.document_mask,
        query_ids=batch.query_ids,
        query_mask=batch.query_mask,
    )


def _attention_and_vectors(
    system: Any, queries: Tensor, batch: PairBatch, layer: int
) -> tuple[Tensor, Tensor]:
    """A (B, H, M, N) of one layer, and ẽ (B, M, d_model) of the target tokens."""
    decoder, before_norm = system.backbone.decoder, []
    norm = decoder.final_layer_norm
    hook = norm.register_forward_pre_hook(lambda _, inputs: before_norm.append(inputs[0]))
    implementation = decoder.config._attn_implementation
    decoder.set_attn_implementation("eager")
    rows = system.head.labels(batch.document_ids, batch.document_index)
    try:
        output, context = system.decode(queries, batch.query_mask, rows, output_attentions=True)
    finally:
        hook.remove()
        decoder.set_attn_implementation(implementation)
    attentions = output.cross_attentions
    if not attentions or attentions[layer] is None:
        raise RuntimeError("the decoder returned no cross-attention: eager attention is needed")
    power = before_norm[0].float().pow(2).mean(-1, keepdim=True)
    scale = torch.rsqrt(power + norm.variance_epsilon)
    return attentions[layer], system.head.vectors(rows, context) * norm.weight * scale
