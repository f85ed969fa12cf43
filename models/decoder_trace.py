"""One teacher-forced pass of a decoder with every part of it kept (gr_as_mvdr §4.1, §8)."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gr_mvdr.batch import PairBatch
from gr_mvdr.relevance import at_least_float32

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
        rows: (B, M) int64 the head's rows of the targets; position: (B, M) int64 their places in
            the sequences that were decoded.
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
    position: Tensor
    attentions: list[Tensor]
    states: list[Tensor]
    parts: list[Tensor]
    hidden: Tensor
    context: Tensor | None
    readers: Tensor
    logits: Tensor


def trace_decoder(system: Any, batch: PairBatch) -> DecoderTrace:
    """Teacher-forces the document side of a batch and keeps all that the decoder adds up.

    Targets that are longer than the system's `window` are decoded window by window, as they are
    where it trains, scores and searches, and laid side by side again.

    Args:
        system: a `GenerativeSystem` in evaluation mode.
        batch: pairs, the targets on the document side.

    Raises:
        RuntimeError: the attention weights are missing (not eager attention).
    """
    decoder, windows = system.backbone.decoder, Windows(batch.document_ids.shape[1], system.window)
    queries = system.encode(batch.query_ids, batch.query_mask)
    targets = system.head.labels(batch.document_ids, batch.document_index)
    rows, sides = windows.split(targets), map(windows.repeat, (queries, batch.query_mask))
    with _eager(decoder), ExitStack() as hooks:
        parts, states = _recorders(decoder, hooks)
        output, context = system.decode(*sides, rows, output_attentions=True)
    attentions = output.cross_attentions
    if not attentions or any(attention is None for attention in attentions):
        raise RuntimeError("the decoder returned no cross-attention: eager attention is needed")
    stream = [system.head.inputs(rows), *parts]
    vectors, hidden = system.head.vectors(rows, context), output.last_hidden_state
    readers = vectors * _final_norm(decoder.final_layer_norm, stream)
    return DecoderTrace(
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
