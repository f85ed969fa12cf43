"""Cross-attention as alignment: S, A and all paths of a decoder (gr_as_mvdr Eq. 4, 12–14, §8).

A decoder layer's cross-attention adds Σ_h O_h V_h Q α_i^h to the residual stream at position i. If
the scale of every norm is held constant, the logit of target token d_i is linear in that stream, so
the layer's part of rel(d, q) has the form of Eq. 1:

    Σ_h sum(S^h ⊙ A^h),   S^h = Ẽᵀ O_h V_h Q,   A^h = softmax(D̂ᵀ Wᵀ Q)

where ẽ_i is the head's vector of token d_i (an output row, PAWA's or NP's) pulled back through all
later norms of the stream, and d̂_i is the decoder state that the layer's cross-attention reads. T5
has one norm at the end of the stream, so that all summands share one ẽ_i; BART norms the stream
after every summand, so that each summand has its own ẽ_i.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gr_mvdr.batch import PairBatch
from gr_mvdr.decoder_layers import CrossAttention, DecoderLayers, read_decoder, unknown_decoder
from gr_mvdr.heads.plain import Head, real_places
from gr_mvdr.heads.softmax import table_log_probs
from gr_mvdr.relevance import (
    DecoderPaths,
    Factors,
    PairAlignment,
    at_least_float32,
    relevance,
    similarity,
)

# Constant paths: biases of the norms, biases of the summands' linear maps, bias of the logits.
CONSTANTS = ("norm_bias", "projection_bias", "output_bias")
# Largest relative difference between the stream and the sum of its parts (rounding in bf16).
_ROUNDING = 0.05


@dataclass
class DecoderTrace:
    """The intermediate results of a decoder with L layers of H heads on B pairs.

    Attributes:
        head: the decoder's output table; batch: the pairs, the targets on the document side.
        layers: the decoder's structure.
        queries: (B, N, d) the encoder's vectors Q.
        rows: (B, M) int64 the head's rows of the targets; position: (B, M) int64 their positions
            in the decoded sequences.
        attentions: L of (B, H, M, N), each layer's cross-attention A (Eq. 4).
        states: L of (B, M, d), d̂, the decoder states that each layer's cross-attention reads.
        hidden: (B, M, d) h, the decoder's output.
        context: the head's, see `Head.context`.
        readers: summand → (B, M, d) ẽ, the vector whose product with the summand is its part of
            the logit: "embedding", "self_attention_1", "cross_attention_1", "feed_forward_1", ….
        paths: path → (B, M) its contribution to the logit; the paths are the summands and those of
            `CONSTANTS` that the backbone has.
        logits: (B, M) fp32 e_i · h_i (Eq. 11), the output's bias included.
    """

    head: Head
    batch: PairBatch
    layers: DecoderLayers
    queries: Tensor
    rows: Tensor
    position: Tensor
    attentions: list[Tensor]
    states: list[Tensor]
    hidden: Tensor
    context: Tensor | None
    readers: dict[str, Tensor]
    paths: dict[str, Tensor]
    logits: Tensor


# Eq. 4 and 12–14: one layer as S and A -----------------------------------------------------------


def project_keys(trace: DecoderTrace, layer: int) -> tuple[Tensor, Tensor]:
    """W_Q d̂_i (B, H, M, k) and W_K q_j (B, H, N, k): A^h is their products' softmax (Eq. 4, 16).

    The attention's scale is part of the first.
    """
    module = trace.layers.attentions[layer]
    documents = module.query(trace.states[layer]) * module.scale
    return module.split(documents), module.split(module.key(trace.queries))


def project_values(trace: DecoderTrace, layer: int) -> tuple[Tensor, Tensor]:
    """O_hᵀ ẽ_i (B, H, M, k) and V_h q_j (B, H, N, k): S^h_ij is their product (Eq. 12–13, ẽᵀq).

    A bias of V is part of the second, which is exact because rows of A sum to 1.
    """
    module = trace.layers.attentions[layer]
    reader = trace.readers[f"cross_attention_{layer % len(trace.attentions) + 1}"]
    readers = reader @ module.output.weight.to(reader)
    return module.split(readers), module.split(module.value(trace.queries))


def align_layer(trace: DecoderTrace, score: Tensor, layer: int = -1) -> PairAlignment:
    """rel(d, q) = Σ_h sum(S^h ⊙ A^h) of one decoder layer (Eq. 14).

    Σ_hj S^h_ij A^h_ij is the contribution of the layer's cross-attention to the logit of token i.

    Args:
        score: (B,) the score by which the system ranks these pairs.
        layer: of the decoder; negative counts from the last.

    Raises:
        ValueError: the decoder has no such layer.
    """
    batch, count = trace.batch, len(trace.attentions)
    if not -count <= layer < count:
        raise ValueError(f"layer={layer}: must be ≥ {-count} and < {count}, the decoder's layers")
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


# §8: all paths of the decoder --------------------------------------------------------------------


def sum_paths(trace: DecoderTrace) -> DecoderPaths:
    """The contribution of each path of the decoder to the targets' logits (§8)."""
    batch, real = trace.batch, trace.batch.document_mask
    places = real_places(real)
    states = trace.head.states_at(places, trace.hidden, trace.context, trace.position)
    log_probs = torch.zeros_like(trace.logits)
    log_probs.view(-1)[places] = table_log_probs(trace.head, states, trace.rows.flatten()[places])
    # ‖R_d‖₁ is the largest column sum of absolute values, tokens as rows; ‖R_qᵀ‖₁ a token's sum.
    document_norms = [_centred(states, real).abs().sum(-2).amax(-1) for states in trace.states]
    query_norms = _centred(trace.queries, batch.query_mask).abs().sum(-1).amax(-1)
    contributions = torch.stack(list(trace.paths.values()), 1)
    return DecoderPaths(
        names=tuple(trace.paths),
        # No product with the mask: a bias may be −∞ at padding (SEAL's BART).
        contributions=contributions.masked_fill(~real[:, None], 0.0),
        logits=trace.logits.masked_fill(~real, 0.0),
        log_probs=log_probs,
        document_norms=torch.stack(document_norms, 1),
        query_norms=query_norms,
        projection_norms=torch.stack([*map(_projection_norms, trace.layers.attentions)]),
    )


def _centred(vectors: Tensor, mask: Tensor) -> Tensor:
    """R = X − 1xᵀ with x the mean of the real rows, zero at padding (Appendix B)."""
    vectors, real = at_least_float32(vectors), mask.unsqueeze(-1)
    mean = (vectors * real).sum(-2, keepdim=True) / real.sum(-2, keepdim=True).clamp(min=1)
    return (vectors - mean) * real


def _projection_norms(module: CrossAttention) -> Tensor:
    """(H,) ‖W‖₁ of W = s · W_Qᵀ W_K, head by head, s the attention's scale (Eq. 4).

    Biases of W_Q and W_K add to the logits only what is constant along a row or along a column. E
    of Appendix B is the logits without the means of both: its bound needs W alone.
    """
    to_query, to_key = (
        at_least_float32(part.weight).unflatten(0, (module.heads, -1))
        for part in (module.query, module.key)
    )
    products = to_query.transpose(1, 2) @ to_key
    return products.abs().sum(-2).amax(-1) * abs(module.scale)


# One teacher-forced pass with every part of it kept ----------------------------------------------


def trace_decoder(
    head: Head, batch: PairBatch, queries: Tensor, window: int | None = None
) -> DecoderTrace:
    """Teacher-forces the document side of a batch and records all summands of the decoder.

    Args:
        head: of an encoder-decoder in evaluation mode.
        batch: pairs, the targets on the document side.
        queries: (B, N, d) the encoder's vectors of the query side.
        window: tokens decoded at once, as in training and search; None = the whole sequence.

    Raises:
        RuntimeError: the attention weights are missing (not eager attention).
        ValueError: the decoder's structure is unknown.
    """
    decoder, windows = head.backbone.get_decoder(), Windows(batch.document_ids.shape[1], window)
    layers = read_decoder(decoder)
    targets = head.labels(batch.document_ids, batch.document_index)
    rows = windows.split(targets)
    vectors, mask = windows.repeat(queries), windows.repeat(batch.query_mask)
    with _recording(decoder, layers) as seen:
        output, context = head.decode(vectors, mask, rows, output_attentions=True)
    attentions = output.cross_attentions
    if not attentions or any(attention is None for attention in attentions):
        raise RuntimeError("the decoder returned no cross-attention: eager attention is needed")
    vectors, hidden = head.vectors(rows, context), output.last_hidden_state
    if not _adds_up(layers, seen):
        raise unknown_decoder(decoder)
    readers, paths = _pull_back(layers, seen, vectors)
    logits = at_least_float32((vectors * hidden).sum(-1))
    if head.output_bias is not None:
        paths["output_bias"] = at_least_float32(head.output_bias[rows])
        logits = logits + paths["output_bias"]
    return DecoderTrace(
        head=head,
        batch=batch,
        layers=layers,
        queries=queries,
        rows=targets,
        position=windows.position(targets),
        attentions=[windows.join(part, axis=2) for part in attentions],
        states=[windows.join(seen.read[attention.query]) for attention in layers.attentions],
        hidden=windows.join(hidden),
        context=None if context is None else windows.join(context),
        readers={name: windows.join(reader) for name, reader in readers.items()},
        paths={name: windows.join(path) for name, path in paths.items()},
        logits=windows.join(logits),
    )


@dataclass
class _Seen:
    """Inputs and outputs of a decoder's modules in one pass, (B, M, d) each.

    Attributes:
        read: inputs of the entry, of the norms and of the cross-attentions' `query`.
        made: outputs of the norms and of the summands' maps.
    """

    read: dict[nn.Module, Tensor]
    made: dict[nn.Module, Tensor]


def _adds_up(layers: DecoderLayers, seen: _Seen) -> bool:
    """Whether every norm reads the sum of the summands before it."""
    total = at_least_float32(seen.read[layers.entry])
    for step in layers.steps:
        made = at_least_float32(seen.made[step.module])
        if step.name is not None:
            total = total + made
            continue
        read = at_least_float32(seen.read[step.module])
        if read.shape != total.shape or (total - read).norm() > _ROUNDING * read.norm():
            return False
        total = made
    return True


def _pull_back(
    layers: DecoderLayers, seen: _Seen, vectors: Tensor
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Readers and paths as in `DecoderTrace`, without the output's bias, of windows (B·W, …).

    Args:
        vectors: (B·W, M, d) e, the readers of the end of the stream.
    """
    reader, readers = at_least_float32(vectors), {}
    paths: dict[str, Tensor] = {}
    constants: dict[str, Tensor] = {}
    for step in reversed(layers.steps):
        bias, constant = getattr(step.module, "bias", None), torch.zeros_like(reader[..., 0])
        if bias is not None:
            constant = reader @ at_least_float32(bias)
            name = CONSTANTS[0] if step.name is None else CONSTANTS[1]
            constants[name] = constants.get(name, 0.0) + constant
        if step.name is None:
            reader = _through_norm(step.module, at_least_float32(seen.read[step.module]), reader)
        else:
            readers[step.name] = reader
            paths[step.name] = (reader * seen.made[step.module]).sum(-1) - constant
    readers["embedding"] = reader
    paths["embedding"] = (reader * seen.read[layers.entry]).sum(-1)
    named = {name: constants[name] for name in CONSTANTS if name in constants}
    return readers, dict(reversed(paths.items())) | named


def _through_norm(norm: Any, stream: Tensor, reader: Tensor) -> Tensor:
    """(…, d) the vector before a norm that is equivalent to `reader` after it, without the bias."""
    centres = isinstance(norm, nn.LayerNorm)  # T5's norm does not subtract the mean
    if centres:
        stream = stream - stream.mean(-1, keepdim=True)
    epsilon = norm.eps if centres else norm.variance_epsilon
    scale = torch.rsqrt(stream.pow(2).mean(-1, keepdim=True) + epsilon)
    reader = reader * norm.weight * scale
    return reader - reader.mean(-1, keepdim=True) if centres else reader


class Windows:
    """Sequences of M tokens as W windows of at most `length` each: (B, M) ↔ (B·W, length).

    Args:
        size: M. length: None = one window.
    """

    def __init__(self, size: int, length: int | None):
        self.size, self.length = size, min(length or size, size)
        self.count = -(-size // max(1, self.length))

    def split(self, tokens: Tensor) -> Tensor:
        """(B, M) → (B·W, length); the last window is padded with row 0."""
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


@contextmanager
def _recording(decoder: Any, layers: DecoderLayers) -> Iterator[_Seen]:
    """Records the inputs and outputs of a pass.

    Attention is eager meanwhile, the only implementation that returns its weights.
    """
    seen = _Seen({}, {})

    def keep_read(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.read[module] = inputs[0]

    def keep_made(module: nn.Module, _: Any, output: Tensor) -> None:
        seen.made[module] = output

    norms = [step.module for step in layers.steps if step.name is None]
    readers = {layers.entry, *norms, *(attention.query for attention in layers.attentions)}
    hooks = [module.register_forward_pre_hook(keep_read) for module in readers]
    hooks += [step.module.register_forward_hook(keep_made) for step in layers.steps]
    implementation = decoder.config._attn_implementation
    decoder.set_attn_implementation("eager")
    try:
        yield seen
    finally:
        decoder.set_attn_implementation(implementation)
        for hook in hooks:
            hook.remove()
