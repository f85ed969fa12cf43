"""S and A of a generative system: cross-attention as an alignment matrix (gr_as_mvdr Eq. 12–14)."""

from typing import Any

import torch
from torch import Tensor, nn

from gr_mvdr.batch import PairBatch
from gr_mvdr.relevance import (
    DecoderPaths,
    Explanation,
    Factors,
    PairAlignment,
    at_least_float32,
    relevance,
    similarity,
)
from models.decoder_trace import SUBLAYERS, DecoderTrace, trace_decoder


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
    return _layer_alignment(system, trace_decoder(system, batch), batch, score, layer)


def explain_by_paths(system: Any, batch: PairBatch, score: Tensor) -> Explanation:
    """The alignments of all decoder layers, and the logits as sums over all paths (§8).

    Args, Raises: as `align_by_cross_attention`.
    """
    trace = trace_decoder(system, batch)
    layers = range(len(trace.attentions))
    return Explanation(
        [_layer_alignment(system, trace, batch, score, layer) for layer in layers],
        decoder=_paths(system, trace, batch),
    )


def cross_attention_factors(system: Any, batch: PairBatch, layer: int = -1) -> Factors:
    """The vectors behind one layer's S^h and A^h = softmax(keys' products) (Eq. 4, 16)."""
    trace = trace_decoder(system, batch)
    module = _module(system, layer)
    values = _values(module, trace)
    return Factors(
        *values,
        document_keys=_heads(module, module.q(trace.states[layer])),
        query_keys=_heads(module, module.k(trace.queries)),
        document_mask=batch.document_mask,
        query_mask=batch.query_mask,
    )


def _module(system: Any, layer: int) -> nn.Module:
    return system.backbone.decoder.block[layer].layer[1].EncDecAttention


def _heads(module: nn.Module, vectors: Tensor) -> Tensor:
    """(B, tokens, H·k) → (B, H, tokens, k)."""
    return vectors.unflatten(-1, (module.n_heads, module.key_value_proj_dim)).transpose(1, 2)


def _values(module: nn.Module, trace: DecoderTrace) -> tuple[Tensor, Tensor]:
    """O_hᵀ ẽ_i and V_h q_j, the two sides of S^h: (B, H, M, k) and (B, H, N, k)."""
    readers = _heads(module, trace.readers @ module.o.weight)
    return readers, _heads(module, module.v(trace.queries))


def _layer_alignment(
    system: Any, trace: DecoderTrace, batch: PairBatch, score: Tensor, layer: int
) -> PairAlignment:
    real = batch.document_mask[:, None, :, None] & batch.query_mask[:, None, None, :]
    matrix = similarity(*_values(_module(system, layer), trace)) * real
    attention = at_least_float32(trace.attentions[layer]) * real
    return PairAlignment(
        similarity=matrix,
        alignment=attention,
        normaliser=torch.ones(len(batch), device=matrix.device),
        relevance=relevance(matrix, attention).sum(1),
        score=score,
        document_ids=batch.document_ids,
        document_mask=batch.document_mask,
        query_ids=batch.query_ids,
        query_mask=batch.query_mask,
    )


def _paths(system: Any, trace: DecoderTrace, batch: PairBatch) -> DecoderPaths:
    """What each summand of the residual stream adds to the targets' logits."""
    real, layers = batch.document_mask, len(trace.attentions)
    parts = [at_least_float32((trace.readers * part).sum(-1)) for part in trace.parts]
    names = [f"{name}_{layer}" for layer in range(1, layers + 1) for name in SUBLAYERS]
    log_probs = torch.zeros_like(trace.logits)
    log_probs[real] = system.row_log_probs(
        trace.hidden, trace.context, trace.rows, trace.position, real
    )
    norms = [_centred_norm(states, real) for states in trace.states]
    return DecoderPaths(
        names=("embedding", *names),
        contributions=torch.stack(parts, 1) * real[:, None],
        logits=trace.logits * real,
        log_probs=log_probs,
        document_norms=torch.stack(norms, 1),
        query_norms=_transposed_norm(trace.queries, batch.query_mask),
        projection_norms=torch.stack(
            [_projection_norms(_module(system, layer)) for layer in range(layers)]
        ),
    )


def _centred(vectors: Tensor, mask: Tensor) -> Tensor:
    """R = X − 1xᵀ with x the mean of the real rows, zero at padding (Appendix B)."""
    vectors, real = at_least_float32(vectors), mask.unsqueeze(-1)
    mean = (vectors * real).sum(-2, keepdim=True) / real.sum(-2, keepdim=True).clamp(min=1)
    return (vectors - mean) * real


def _centred_norm(vectors: Tensor, mask: Tensor) -> Tensor:
    """(B,) ‖R_d‖₁, the largest column sum of absolute values, tokens as rows."""
    return _centred(vectors, mask).abs().sum(-2).amax(-1)


def _transposed_norm(vectors: Tensor, mask: Tensor) -> Tensor:
    """(B,) ‖R_qᵀ‖₁, the largest sum of absolute values of a token's vector."""
    return _centred(vectors, mask).abs().sum(-1).amax(-1)


def _projection_norms(module: nn.Module) -> Tensor:
    """(H,) ‖W‖₁ of W = W_Qᵀ W_K, head by head (Eq. 4)."""
    heads = module.n_heads, module.key_value_proj_dim
    to_query, to_key = (
        at_least_float32(part.weight).unflatten(0, heads) for part in (module.q, module.k)
    )
    return (to_query.transpose(1, 2) @ to_key).abs().sum(-2).amax(-1)
