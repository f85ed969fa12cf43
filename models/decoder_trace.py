"""One teacher-forced pass of a decoder with every part of it kept (gr_as_mvdr §4.1, §8)."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gr_mvdr.batch import PairBatch

# What a decoder layer adds to the residual stream, in order; the attribute holds its module.
SUBLAYERS = {
    "self_attention": "SelfAttention",
    "cross_attention": "EncDecAttention",
    "feed_forward": "DenseReluDense",
}


@dataclass
class DecoderTrace:
    """What a decoder made of B pairs, L layers of H heads.

    Attributes:
        queries: (B, N, d) the encoder's vectors Q.
        rows: (B, M) int64 the head's rows of the targets.
        attentions: L of (B, H, M, N), each layer's cross-attention A (Eq. 4).
        states: L of (B, M, d), what each layer's cross-attention reads of the decoder (d̂).
        parts: the residual stream's summands, (B, M, d) each: the embedding, then for every layer
            those of `SUBLAYERS`.
        hidden: (B, M, d) after the final norm.
        context: the head's, see `Head.context`.
        readers: (B, M, d) ẽ, the head's vectors with the final norm's gain and its scale at each
            position folded in: ẽ_i · Σ parts_i is the logit of target i.
        logits: (B, M) fp32 e_i · h_i (Eq. 11).
    """

    queries: Tensor
    rows: Tensor
    attentions: list[Tensor]
    states: list[Tensor]
    parts: list[Tensor]
    hidden: Tensor
    context: Tensor | None
    readers: Tensor
    logits: Tensor


def trace_decoder(system: Any, batch: PairBatch) -> DecoderTrace:
    """Teacher-forces the document side of a batch and keeps all that the decoder adds up.

    Args:
        system: a `GenerativeSystem` in evaluation mode.
        batch: pairs, the targets on the document side.

    Raises:
        RuntimeError: the attention weights are missing (not eager attention).
    """
    decoder = system.backbone.decoder
    queries = system.encode(batch.query_ids, batch.query_mask)
    rows = system.head.labels(batch.document_ids, batch.document_index)
    with _eager(decoder), ExitStack() as hooks:
        parts, states = _recorders(decoder, hooks)
        output, context = system.decode(queries, batch.query_mask, rows, output_attentions=True)
    attentions = output.cross_attentions
    if not attentions or any(attention is None for attention in attentions):
        raise RuntimeError("the decoder returned no cross-attention: eager attention is needed")
    stream = [system.head.inputs(rows), *parts]
    vectors, hidden = system.head.vectors(rows, context), output.last_hidden_state
    return DecoderTrace(
        queries=queries,
        rows=rows,
        attentions=list(attentions),
        states=states,
        parts=stream,
        hidden=hidden,
        context=context,
        readers=vectors * _final_norm(decoder.final_layer_norm, stream),
        logits=(vectors * hidden).sum(-1).float(),
    )


def _final_norm(norm: nn.Module, stream: list[Tensor]) -> Tensor:
    """(B, M, d) the final layer norm as a factor: its gain, over the stream's size there."""
    power = torch.stack(stream).sum(0).float().pow(2).mean(-1, keepdim=True)
    return norm.weight * torch.rsqrt(power + norm.variance_epsilon)


def _recorders(decoder: nn.Module, hooks: ExitStack) -> tuple[list[Tensor], list[Tensor]]:
    """Lists that fill with the summands and with the cross-attentions' inputs in a pass."""
    parts, states = [], []
    for block in decoder.block:
        for layer, name in zip(block.layer, SUBLAYERS.values(), strict=True):
            _on_output(getattr(layer, name), parts.append, hooks)
        _on_output(block.layer[1].layer_norm, states.append, hooks)
    return parts, states


def _on_output(module: nn.Module, keep: Callable[[Tensor], None], hooks: ExitStack) -> None:
    def hook(_, __, output):
        keep(output[0] if isinstance(output, tuple) else output)

    hooks.callback(module.register_forward_hook(hook).remove)


@contextmanager
def _eager(decoder: nn.Module) -> Iterator[None]:
    """Attention that answers its weights, for a while."""
    implementation = decoder.config._attn_implementation
    decoder.set_attn_implementation("eager")
    try:
        yield
    finally:
        decoder.set_attn_implementation(implementation)
