"""Cross-attention as alignment: S, A and all paths of a T5 decoder (gr_as_mvdr Eq. 4, 12–14, §8).

A decoder layer's cross-attention adds Σ_h O_h V_h Q α_i^h to the residual stream at position i, and
the logit of target token d_i is linear in that stream. So its part of rel(d, q) is an Eq. 1:

    Σ_h sum(S^h ⊙ A^h),   S^h = Ẽᵀ O_h V_h Q,   A^h = softmax(D̂ᵀ Wᵀ Q)

where ẽ_i is the head's vector of token d_i (an output row, PAWA's or NP's) as it is seen through
the final layer norm, and d̂_i what the layer's cross-attention reads of the decoder.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gr_mvdr.batch import PairBatch
from gr_mvdr.heads.plain import Head
from gr_mvdr.relevance import (
    DecoderPaths,
    Factors,
    PairAlignment,
    at_least_float32,
    relevance,
    similarity,
)

# What a decoder layer adds to the residual stream, in order; the attribute holds its module.
SUBLAYERS = {
    "self_attention": "SelfAttention",
    "cross_attention": "EncDecAttention",
    "feed_forward": "DenseReluDense",
}


@dataclass
class DecoderTrace:
    """What a decoder of L layers of H heads made of B pairs.

    Attributes:
        head: the decoder's output table; batch: the pairs, the targets on the document side.
        queries: (B, N, d) the encoder's vectors Q.
        rows: (B, M) int64 the head's rows of the targets; position: (B, M) int64 their places in
            the sequences that were decoded.
        attentions: L of (B, H, M, N), each layer's cross-attention A (Eq. 4).
        states: L of (B, M, d), what each layer's cross-attention reads of the decoder (d̂).
        parts: the residual stream's summands, (B, M, d) each: the embedding, then for every layer
            those of `SUBLAYERS`.
        hidden: (B, M, d) h, after the final norm.
        context: the head's, see `Head.context`.
        readers: (B, M, d) ẽ, the head's vectors with the final norm's gain and its scale at each
            position folded in: ẽ_i · Σ parts_i is the logit of target i.
        logits: (B, M) fp32 e_i · h_i (Eq. 11).
    """

    head: Head
    batch: PairBatch
    queries: Tensor
    rows: Tensor
    position: Tensor
    attentions: list[Tensor]
    states: list[Tensor]
    parts: list[Tensor]
    hidden: Tensor
    context: Tensor | None
    readers: Tensor
    logits: Tensor

    def cross_attention(self, layer: int) -> nn.Module:
        """T5's module: linear maps `q`, `k`, `v` and `o` of all heads together."""
        return self.head.backbone.decoder.block[layer].layer[1].EncDecAttention


# Eq. 4 and 12–14: one layer as S and A -----------------------------------------------------------


def project_keys(trace: DecoderTrace, layer: int) -> tuple[Tensor, Tensor]:
    """W_Q d̂_i (B, H, M, k) and W_K q_j (B, H, N, k): A^h is their products' softmax (Eq. 4, 16)."""
    module = trace.cross_attention(layer)
    return _heads(module, module.q(trace.states[layer])), _heads(module, module.k(trace.queries))


def project_values(trace: DecoderTrace, layer: int) -> tuple[Tensor, Tensor]:
    """O_hᵀ ẽ_i (B, H, M, k) and V_h q_j (B, H, N, k): S^h_ij is their product (Eq. 12–13, ẽᵀq)."""
    module = trace.cross_attention(layer)
    readers = _heads(module, trace.readers @ module.o.weight)
    return readers, _heads(module, module.v(trace.queries))


def align_layer(trace: DecoderTrace, score: Tensor, layer: int = -1) -> PairAlignment:
    """rel(d, q) = Σ_h sum(S^h ⊙ A^h) of one decoder layer (Eq. 14).

    Σ_hj S^h_ij A^h_ij is what the layer's cross-attention adds to the logit of token i.

    Args:
        score: (B,) what the system ranks these pairs by.
        layer: of the decoder; negative counts from the last.
    """
    batch = trace.batch
    real = batch.document_mask[:, None, :, None] & batch.query_mask[:, None, None, :]
    matrix = similarity(*project_values(trace, layer)) * real
    attention = at_least_float32(trace.attentions[layer]) * real
    return PairAlignment(
        similarity=matrix,
        alignment=attention,
        normaliser=torch.ones(len(batch), device=matrix.device),
        relevance=relevance(matrix, attention).sum(1),
        score=score,
        **batch.sides,
    )


def collect_factors(trace: DecoderTrace, layer: int = -1) -> Factors:
    """The vectors behind one layer's S^h and A^h (Eq. 16)."""
    masks = trace.batch.document_mask, trace.batch.query_mask
    return Factors(*project_values(trace, layer), *project_keys(trace, layer), *masks)


def _heads(module: nn.Module, vectors: Tensor) -> Tensor:
    """(B, tokens, H·k) → (B, H, tokens, k)."""
    return vectors.unflatten(-1, (module.n_heads, module.key_value_proj_dim)).transpose(1, 2)


# §8: all paths of the decoder --------------------------------------------------------------------


def sum_paths(trace: DecoderTrace) -> DecoderPaths:
    """What each summand of the residual stream adds to the targets' logits (§8)."""
    batch, layers = trace.batch, range(len(trace.attentions))
    real = batch.document_mask
    parts = [at_least_float32((trace.readers * part).sum(-1)) for part in trace.parts]
    logits = trace.head.logits_at(real, trace.hidden, trace.context, trace.position)
    log_probs = torch.zeros_like(trace.logits)
    log_probs[real] = logits.log_softmax(-1).gather(1, trace.rows[real].unsqueeze(1)).squeeze(1)
    # ‖R_d‖₁ is the largest column sum of absolute values, tokens as rows; ‖R_qᵀ‖₁ a token's sum.
    document_norms = [_centred(states, real).abs().sum(-2).amax(-1) for states in trace.states]
    query_norms = _centred(trace.queries, batch.query_mask).abs().sum(-1).amax(-1)
    projections = [_projection_norms(trace.cross_attention(layer)) for layer in layers]
    return DecoderPaths(
        names=("embedding", *(f"{name}_{layer + 1}" for layer in layers for name in SUBLAYERS)),
        contributions=torch.stack(parts, 1) * real[:, None],
        logits=trace.logits * real,
        log_probs=log_probs,
        document_norms=torch.stack(document_norms, 1),
        query_norms=query_norms,
        projection_norms=torch.stack(projections),
    )


def _centred(vectors: Tensor, mask: Tensor) -> Tensor:
    """R = X − 1xᵀ with x the mean of the real rows, zero at padding (Appendix B)."""
    vectors, real = at_least_float32(vectors), mask.unsqueeze(-1)
    mean = (vectors * real).sum(-2, keepdim=True) / real.sum(-2, keepdim=True).clamp(min=1)
    return (vectors - mean) * real


def _projection_norms(module: nn.Module) -> Tensor:
    """(H,) ‖W‖₁ of W = W_Qᵀ W_K, head by head (Eq. 4)."""
    heads = module.n_heads, module.key_value_proj_dim
    to_query, to_key = (
        at_least_float32(part.weight).unflatten(0, heads) for part in (module.q, module.k)
    )
    return (to_query.transpose(1, 2) @ to_key).abs().sum(-2).amax(-1)


# One teacher-forced pass with every part of it kept ----------------------------------------------


def trace_decoder(
    head: Head, batch: PairBatch, queries: Tensor, window: int | None = None
) -> DecoderTrace:
    """Teacher-forces the document side of a batch and keeps all that the decoder adds up.

    Args:
        head: of a T5 in evaluation mode.
        batch: pairs, the targets on the document side.
        queries: (B, N, d) the encoder's vectors of the query side.
        window: tokens decoded at once, as in training and search; None = the whole sequence.

    Raises:
        RuntimeError: the attention weights are missing (not eager attention).
    """
    decoder, windows = head.backbone.decoder, Windows(batch.document_ids.shape[1], window)
    targets = head.labels(batch.document_ids, batch.document_index)
    rows = windows.split(targets)
    vectors, mask = windows.repeat(queries), windows.repeat(batch.query_mask)
    with _recording(decoder) as (parts, states):
        output, context = head.decode(vectors, mask, rows, output_attentions=True)
    attentions = output.cross_attentions
    if not attentions or any(attention is None for attention in attentions):
        raise RuntimeError("the decoder returned no cross-attention: eager attention is needed")
    stream = [head.inputs(rows), *parts]
    vectors, hidden = head.vectors(rows, context), output.last_hidden_state
    readers = vectors * _final_norm(decoder.final_layer_norm, stream)
    return DecoderTrace(
        head=head,
        batch=batch,
        queries=queries,
        rows=targets,
        position=windows.position(targets),
        attentions=[windows.join(part, axis=2) for part in attentions],
        states=[windows.join(part) for part in states],
        parts=[windows.join(part) for part in stream],
        hidden=windows.join(hidden),
        context=None if context is None else windows.join(context),
        readers=windows.join(readers),
        logits=windows.join(at_least_float32((vectors * hidden).sum(-1))),
    )


class Windows:
    """Sequences of M tokens as W windows of at most `length` each: (B, M) ↔ (B·W, length).

    Args:
        size: M. length: None = one window.
    """

    def __init__(self, size: int, length: int | None):
        self.size, self.length = size, min(length or size, size)
        self.count = -(-size // max(1, self.length))

    def split(self, tokens: Tensor) -> Tensor:
        """(B, M) → (B·W, length); the last window is filled up with the row of padding."""
        missing = self.count * self.length - self.size
        return F.pad(tokens, (0, missing)).reshape(-1, self.length)

    def repeat(self, sides: Tensor) -> Tensor:
        """(B, …) → (B·W, …), once for each window."""
        return sides.repeat_interleave(self.count, 0)

    def join(self, parts: Tensor, axis: int = 1) -> Tensor:
        """(B·W, …, length, …) → (B, …, M, …), the windows' tokens along `axis`."""
        apart = parts.unflatten(0, (-1, self.count)).movedim(1, axis)
        return apart.flatten(axis, axis + 1).narrow(axis, 0, self.size)

    def position(self, tokens: Tensor) -> Tensor:
        """(B, M) int64, each token's position in its window."""
        return (torch.arange(self.size, device=tokens.device) % self.length).expand_as(tokens)


def _final_norm(norm: nn.Module, stream: list[Tensor]) -> Tensor:
    """(B, M, d) the final layer norm as a factor: its gain, over the stream's size there."""
    power = at_least_float32(torch.stack(stream).sum(0)).pow(2).mean(-1, keepdim=True)
    return norm.weight * torch.rsqrt(power + norm.variance_epsilon)


@contextmanager
def _recording(decoder: Any) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Lists that fill with the summands and with the cross-attentions' inputs in a pass.

    Attention is eager meanwhile, the one kind that returns its weights.
    """
    parts: list[Tensor] = []
    states: list[Tensor] = []
    watched = []
    for block in decoder.block:
        for layer, name in zip(block.layer, SUBLAYERS.values(), strict=True):
            watched.append((getattr(layer, name), parts))
        watched.append((block.layer[1].layer_norm, states))

    def keeper(found: list[Tensor]) -> Callable[..., None]:
        return lambda _, __, out: found.append(out[0] if isinstance(out, tuple) else out)

    hooks = [module.register_forward_hook(keeper(found)) for module, found in watched]
    implementation = decoder.config._attn_implementation
    decoder.set_attn_implementation("eager")
    try:
        yield parts, states
    finally:
        decoder.set_attn_implementation(implementation)
        for hook in hooks:
            hook.remove()
