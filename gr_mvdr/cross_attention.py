"""Attention to the query as alignment: S, A, all paths of a decoder (gr_as_mvdr Eq. 4, 12–16, §8).

A decoder layer's cross-attention adds Σ_h O_h V_h Q α_i^h to the residual stream at position i. If
the scale of every norm is held constant, the logit of target token d_i is linear in that stream, so
the layer's part of rel(d, q) is a multi-vector relevance of H heads (Eq. 1):

    Σ_h sum(S^h ⊙ A^h),   S^h = Ẽᵀ O_h V_h Q,   A^h = softmax(D̂ᵀ Wᵀ Q)

where ẽ_i is the output vector of token d_i (a row of the output table, or PAWA's or NP's vector),
pulled back through all later norms of the stream, and d̂_i is the decoder state that the layer's
cross-attention reads. The values O_hᵀ ẽ_i and V_h q_j make S, the keys W_Q d̂_i and W_K q_j make A.
T5 has one norm at the end of the stream, so all summands share one ẽ_i. BART normalises the stream
after every summand, so each summand has its own ẽ_i.

A causal language model attends to query and identifier at once. With n_j the normed state of token
j in this layer, p_i the position that predicts d_i, and g(h) the group of head h,

    S^h_ij = ẽ_iᵀ O_h V_g(h) n_j,   A^h_ij = α^h_{p_i j},   j ≤ p_i.

The columns of the prompt are the query's block, which takes the place of cross-attention. Those of
the identifier's earlier tokens are the prefix's block; a row of A sums to one over both. Rotary
positions, and norms of queries and keys, are in the keys, so that W of Eq. 4 is the identity there.
If the model normalises what attention adds to the stream (Gemma), ẽ_i is pulled back through that
norm, too.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from gr_mvdr.alignment import Softmax, pair_mask
from gr_mvdr.batch import PairBatch
from gr_mvdr.decoder_layers import (
    CAUSAL,
    CrossAttention,
    DecoderLayers,
    read_decoder,
    unknown_decoder,
)
from gr_mvdr.decoders import push_right
from gr_mvdr.fine_tuning import full_weight
from gr_mvdr.heads.plain import Head, real_places, states_at, table_log_probs
from gr_mvdr.relevance import (
    DecoderPaths,
    Factors,
    PairAlignment,
    Prefix,
    Scoring,
    at_least_float32,
    similarity,
)
from gr_mvdr.token_vectors import TokenVectors

# Constant paths: biases of the norms, biases of the summands' linear maps, bias of the logits.
CONSTANTS = ("norm_bias", "projection_bias", "output_bias")
# Largest relative difference between the stream and the sum of its parts (rounding in bf16).
_ROUNDING = 0.05
# The attention of a causal language model while it is traced; its mask is added to the logits.
_RECORDED = "recorded"
AttentionMaskInterface.register(_RECORDED, AttentionMaskInterface()["eager"])
# The input and the output of modules in one pass, (B, M, d) each.
Seen = dict[nn.Module, tuple[Tensor, Tensor]]


# The intermediate results of a pass ----------------------------------------------------------


@dataclass
class Attended:
    """What a layer's attention to the query read and computed on B pairs.

    Attributes:
        output: O of all heads.
        heads: H.
        document_keys: (B, M, H·k) the products of D̂ that A is made from, times the scale.
        query_keys, query_values: (B, N, H·k).
        states, vectors: (B, M, …) D̂ and (B, N, …) Q of Eq. 4; A is made from D̂ᵀ Wᵀ Q.
        projection_norms: (H,) ‖W‖₁.
        weights: (B, H, M, N) A, zero at padding; None = the softmax over the query's keys.
        prefix_values: (B, H, P, k) and prefix_weights (B, H, M, P) of the prefix's block, or None.
    """

    output: nn.Module
    heads: int
    document_keys: Tensor
    query_keys: Tensor
    query_values: Tensor
    states: Tensor
    vectors: Tensor
    projection_norms: Tensor
    weights: Tensor | None = None
    prefix_values: Tensor | None = None
    prefix_weights: Tensor | None = None


@dataclass
class DecoderTrace:
    """The intermediate results of a decoder with L layers of H heads on B pairs.

    Attributes:
        head: the decoder's output table.
        batch: the pairs, with the targets on the document side.
        queries: (B, N, d) from `read_query`.
        rows: (B, M) int64 the targets' rows in the head.
        position: (B, M) int64 the targets' positions in the decoded sequences.
        attended: what each layer's attention to the query read and computed.
        hidden: (B, M, d) h, the decoder's output.
        context: what `Head.context` returned.
        readers: summand → (B, M, d) ẽ, the vector whose product with the summand is the summand's
            part of the logit. Summands are "embedding", "self_attention_1", "cross_attention_1",
            "feed_forward_1", ….
        paths: path → (B, M) its contribution to the logit. The paths are the summands, and each of
            `CONSTANTS` that the backbone has.
        logits: (B, M) fp32 e_i · h_i (Eq. 11), the output's bias included.
    """

    head: Head
    batch: PairBatch
    queries: Tensor
    rows: Tensor
    position: Tensor
    attended: list[Attended]
    hidden: Tensor
    context: Tensor | None
    readers: dict[str, Tensor]
    paths: dict[str, Tensor]
    logits: Tensor


# Eq. 4 and 12–16: one layer as S and A -----------------------------------------------------------


def layer_vectors(trace: DecoderTrace, layer: int) -> tuple[TokenVectors, TokenVectors, Scoring]:
    """Returns one layer's document vectors, its query vectors, and its form of Eq. 1.

    Vectors (values) and keys are (B, M, H·k) and (B, N, H·k). The attention's scale is part of the
    documents' keys. A bias of V is part of the queries' values, which is exact because rows of A
    sum to one.

    Args:
        layer: number of the decoder layer; negative numbers count from the last.
    """
    own, batch = trace.attended[layer], trace.batch
    reader = trace.readers[f"cross_attention_{layer % len(trace.attended) + 1}"]
    sides = (
        (reader @ full_weight(own.output).to(reader), own.document_keys),
        (own.query_values, own.query_keys),
    )
    (documents, document_keys), (queries, query_keys) = (map(at_least_float32, s) for s in sides)
    real = batch.document_mask.unsqueeze(-1), batch.query_mask.unsqueeze(-1)
    given: Any = lambda *_: own.weights  # noqa: E731
    alignment = Softmax("document_to_query") if own.weights is None else given
    return (
        TokenVectors(
            documents * real[0], batch.document_mask, batch.document_ids, keys=document_keys
        ),
        TokenVectors(queries * real[1], batch.query_mask, batch.query_ids, keys=query_keys),
        Scoring(alignment, heads=own.heads),
    )


def align_layer(trace: DecoderTrace, score: Tensor, layer: int = -1) -> PairAlignment:
    """rel(d, q) = Σ_h sum(S^h ⊙ A^h) of one decoder layer (Eq. 14).

    Σ_hj S^h_ij A^h_ij is the contribution of the layer's attention to the query, to the logit of
    token i.

    Args:
        score: (B,) the score by which the system ranks these pairs.
    """
    documents, queries, scoring = layer_vectors(trace, layer)
    own, prefix = trace.attended[layer], None
    if own.prefix_values is not None:
        values = documents.by_head(own.heads).vectors
        matrix = similarity(values, at_least_float32(own.prefix_values))
        prefix = Prefix(matrix * (own.prefix_weights > 0), own.prefix_weights)
    return replace(scoring.align(documents, queries), score=score, prefix=prefix)


def collect_factors(trace: DecoderTrace, layer: int = -1) -> Factors:
    """The vectors behind one layer's S^h and A^h (Eq. 16)."""
    documents, queries, scoring = layer_vectors(trace, layer)
    return scoring.factors(documents, queries)


# §8: all paths of the decoder --------------------------------------------------------------------


def sum_paths(trace: DecoderTrace) -> DecoderPaths:
    """The contribution of each path of the decoder to the targets' logits (§8)."""
    batch, real = trace.batch, trace.batch.document_mask
    places = real_places(real)
    states = states_at(places, trace.hidden, trace.context, trace.position)
    log_probs = torch.zeros_like(trace.logits)
    log_probs.view(-1)[places] = table_log_probs(trace.head, states, trace.rows.flatten()[places])
    # With tokens as rows, ‖R_d‖₁ is the largest column sum of absolute values, ‖R_qᵀ‖₁ the largest
    # row sum.
    norms = [
        (
            _centred(own.states, real).abs().sum(-2).amax(-1),
            _centred(own.vectors, batch.query_mask).abs().sum(-1).amax(-1),
        )
        for own in trace.attended
    ]
    document_norms, query_norms = (torch.stack(parts, 1) for parts in zip(*norms, strict=True))
    contributions = torch.stack(list(trace.paths.values()), 1)
    return DecoderPaths(
        names=tuple(trace.paths),
        # No product with the mask: a bias may be −∞ at padding (SEAL's BART).
        contributions=contributions.masked_fill(~real[:, None], 0.0),
        logits=trace.logits.masked_fill(~real, 0.0),
        log_probs=log_probs,
        document_norms=document_norms,
        query_norms=query_norms,
        projection_norms=torch.stack([own.projection_norms for own in trace.attended]),
    )


def _centred(vectors: Tensor, mask: Tensor) -> Tensor:
    """R = X − 1xᵀ with x the mean of the real rows, zero at padding (Appendix B)."""
    vectors, real = at_least_float32(vectors), mask.unsqueeze(-1)
    mean = (vectors * real).sum(-2, keepdim=True) / real.sum(-2, keepdim=True).clamp(min=1)
    return (vectors - mean) * real


def _projection_norms(maps: CrossAttention) -> Tensor:
    """(H,) ‖W‖₁ with W = s · W_Qᵀ W_K as in Lemma 5.1 (Eq. 4 has its transpose) and the scale s.

    Biases of W_Q and W_K only add terms to the attention's logits that are constant along a row or
    along a column. E of Appendix B is the logits minus the means of both, so that its bound needs W
    alone.
    """
    to_query, to_key = (
        at_least_float32(full_weight(part)).unflatten(0, (maps.heads, -1))
        for part in (maps.query, maps.key)
    )
    products = to_query.transpose(1, 2) @ to_key
    return products.abs().sum(-2).amax(-1) * abs(maps.scale)


# One teacher-forced pass that keeps all intermediate results -------------------------------------


def trace_decoder(
    head: Head, batch: PairBatch, queries: Tensor, window: int | None = None
) -> DecoderTrace:
    """Teacher-forces the document side of a batch and records all summands of the decoder.

    Args:
        head: the output table of an encoder-decoder in evaluation mode.
        batch: pairs with the targets on the document side.
        queries: (B, N, d) the encoder's vectors of the query side.
        window: number of tokens decoded at once, as in training and search. A sequence is decoded
            in W windows, each from position 0. None = the whole sequence.

    Raises:
        ValueError: the decoder's structure is unknown.
    """
    backbone = head.backbone
    layers, targets = read_decoder(backbone), head.labels(batch.document_ids, batch.document_index)
    size = targets.shape[1]
    length = min(window or size, size)
    rows = F.pad(targets, (0, -size % length)).reshape(-1, length)  # (B·W, length)
    count = -(-size // length)  # W

    def join(part: Tensor) -> Tensor:
        """(B·W, length, …) → (B, M, …)."""
        return part.unflatten(0, (-1, count)).flatten(1, 2)[:, :size]

    sides = queries.repeat_interleave(count, 0), batch.query_mask.repeat_interleave(count, 0)
    with _recording(backbone, layers, length) as (seen, attention):
        hidden, context = head.decode(*sides, rows)
    vectors = head.vectors(rows, context)
    readers, paths = _pull_back(backbone, layers, seen, vectors, hidden)
    logits = at_least_float32((vectors * hidden).sum(-1))
    if head.output_bias is not None:
        paths["output_bias"] = at_least_float32(head.output_bias[rows])
        logits = logits + paths["output_bias"]
    if backbone.config.is_encoder_decoder:
        states = [join(seen[maps.query][0]) for maps in layers.attentions]
        attended = [
            _cross(maps, one, queries) for maps, one in zip(layers.attentions, states, strict=True)
        ]
    else:
        given = [attention[own.module] for own in layers.attentions]
        attended = [
            _attended(own.output, one, batch, join, count)
            for own, one in zip(layers.attentions, given, strict=True)
        ]
        paths = _split_paths(paths, readers, layers, given, batch.query_mask.shape[1])
        readers |= {f"cross_attention_{n}": readers[f"{CAUSAL[0]}_{n}"] for n in _numbers(layers)}
    return DecoderTrace(
        head=head,
        batch=batch,
        queries=queries,
        rows=targets,
        position=(torch.arange(size, device=rows.device) % length).expand_as(targets),
        attended=attended,
        hidden=join(hidden),
        context=None if context is None else join(context),
        readers={name: join(reader) for name, reader in readers.items()},
        paths={name: join(path) for name, path in paths.items()},
        logits=join(logits),
    )


def _numbers(layers: DecoderLayers) -> range:
    return range(1, len(layers.attentions) + 1)


def _cross(maps: CrossAttention, states: Tensor, queries: Tensor) -> Attended:
    """Returns what a cross-attention read: `states` (B, M, d) and the encoder's `queries`."""
    keys = maps.query(states) * maps.scale, maps.key(queries), maps.value(queries)
    return Attended(maps.output, maps.heads, *keys, states, queries, _projection_norms(maps))


@dataclass
class _Given:
    """The tensors of a causal attention: `query` (R, H, L, k), the last L positions, after rotary
    positions and norms; `key` and `value` (R, H, N − 1 + L, k), repeated for grouped queries;
    `weights` (R, H, L, N − 1 + L); and the scale of query · key."""

    query: Tensor
    key: Tensor
    value: Tensor
    weights: Tensor
    scale: float


def _attend(
    kept: dict[nn.Module, _Given],
    last: int,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    scaling: float,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Attends as transformers' eager attention does, and keeps the last positions' tensors.

    Raises:
        ValueError: the attention is not a softmax of products.
    """
    if unknown := [name for name in ("softcap", "s_aux") if options.get(name) is not None]:
        raise ValueError(f"{type(module).__name__}: has {unknown[0]}, which no alignment has")
    groups = query.shape[1] // key.shape[1]
    key, value = (at_least_float32(x.repeat_interleave(groups, 1)) for x in (key, value))
    logits = similarity(at_least_float32(query) * scaling, key)
    weights = (logits + mask[..., : key.shape[2]]).softmax(-1)
    ends = query[:, :, -last:], key, value, weights[:, :, -last:]
    kept[module] = _Given(*ends, scaling)
    return (weights @ value).to(query).transpose(1, 2), weights


def _attended(
    output: nn.Module, given: _Given, batch: PairBatch, join: Callable, count: int
) -> Attended:
    """Divides an attention into the blocks of the query and of the prefix.

    Args:
        join: joins the windows of a document; count: how many it has.
    """
    columns, heads = batch.query_mask.shape[1], given.query.shape[1]

    def turn(part: Tensor) -> Tensor:
        """(R, H, L, …) → (B, H, M, …)."""
        return join(part.transpose(1, 2)).transpose(1, 2)

    def ask(part: Tensor) -> Tensor:
        """(B·W, H, N − 1 + L, k) → (B, N, H·k), the prompt's, padded on the right again."""
        prompt = part[::count, :, :columns].transpose(1, 2).flatten(2)
        return push_right(prompt, ~batch.query_mask)

    weights = turn(given.weights)  # (B, H, M, N − 1 + L)
    asked = push_right(weights[..., :columns].permute(0, 3, 1, 2), ~batch.query_mask)
    real = pair_mask(batch.document_mask, batch.query_mask)[:, None]
    states, keys = turn(given.query).transpose(1, 2).flatten(2), ask(given.key)
    return Attended(
        output,
        heads,
        states * given.scale,
        keys,
        ask(given.value),
        states,
        keys,
        weights.new_full((heads,), abs(given.scale)),
        asked.permute(0, 2, 3, 1) * real,
        given.value[::count, :, columns:],
        weights[..., columns:] * batch.document_mask[:, None, :, None],
    )


def _split_paths(
    paths: dict[str, Tensor],
    readers: dict[str, Tensor],
    layers: DecoderLayers,
    given: list[_Given],
    columns: int,
) -> dict[str, Tensor]:
    """Divides the path of each attention into those of the query's columns and of the prefix's."""
    split = dict[str, Tensor]()
    for name, path in paths.items():
        kind, _, number = name.rpartition("_")
        if kind == CAUSAL[0]:
            own, values = given[int(number) - 1], readers[name]
            output = full_weight(layers.attentions[int(number) - 1].output)
            values = (values @ output.to(values)).unflatten(-1, (own.query.shape[1], -1))
            seen = own.weights[..., :columns] @ own.value[:, :, :columns]
            asked = (values * seen.transpose(1, 2)).sum((2, 3))
            split[f"self_attention_{number}"] = path - asked
            split[f"cross_attention_{number}"] = asked
        else:
            split[name] = path
    return split


@contextmanager
def _recording(
    backbone: PreTrainedModel, layers: DecoderLayers, last: int
) -> Iterator[tuple[Seen, dict[nn.Module, _Given]]]:
    """Records the modules' inputs and outputs at the last positions in one pass of the decoder."""
    seen: Seen = {}
    attention: dict[nn.Module, _Given] = {}

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
        made = output if isinstance(output, Tensor) else output[0]
        seen[module] = inputs[0][:, -last:], made[:, -last:]

    modules = [layers.entry, *layers.norms.values(), *(module for _, module in layers.steps)]
    own = backbone.config._attn_implementation
    if backbone.config.is_encoder_decoder:
        modules += [maps.query for maps in layers.attentions]
    else:
        AttentionInterface.register(_RECORDED, partial(_attend, attention, last))
        backbone.set_attn_implementation(_RECORDED)
    hooks = [module.register_forward_hook(keep) for module in {*modules}]
    try:
        yield seen, attention
    finally:
        for hook in hooks:
            hook.remove()
        if not backbone.config.is_encoder_decoder:
            backbone.set_attn_implementation(own)
            AttentionInterface.register(_RECORDED, _attend)  # frees what it kept


def _pull_back(
    backbone: nn.Module, layers: DecoderLayers, seen: Seen, vectors: Tensor, hidden: Tensor
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Computes the readers and paths of `DecoderTrace`, except the path of the output's bias.

    Walks through the stream from its end. The reader before a step is the gradient of the logit
    there; the stream before a summand is the stream after it, minus the summand.

    Args:
        vectors: (B, M, d) e, the readers at the end of the stream.
        hidden: (B, M, d) the end of the stream.

    Raises:
        ValueError: the stream is not the sum of its recorded parts.
    """
    reader, stream, size = at_least_float32(vectors), at_least_float32(hidden), hidden.norm()
    readers: dict[str, Tensor] = {}
    paths: dict[str, Tensor] = {}
    constants: dict[str, Tensor] = {}
    for name, module in reversed(layers.steps):
        read, made = (at_least_float32(part) for part in seen[module])
        own, added, norm = reader, made, layers.norms.get(name or "")
        if norm is not None:  # between the summand and the stream
            before, added = (at_least_float32(part) for part in seen[norm])
            own = _through_norm(norm, before, reader)
        bias = getattr(module, "bias", None)
        if bias is not None:
            kind = CONSTANTS[0] if name is None else CONSTANTS[1]
            constants[kind] = constants.get(kind, 0.0) + own @ at_least_float32(bias)
        if name is None:
            if (stream - made).norm() > _ROUNDING * size:
                raise unknown_decoder(backbone)
            reader, stream, size = _through_norm(module, read, reader), read, read.norm()
        else:
            readers[name], stream = own, stream - added
            paths[name] = (own * (made if bias is None else made - bias)).sum(-1)
    embedding = at_least_float32(seen[layers.entry][0])
    if (stream - embedding).norm() > _ROUNDING * size:
        raise unknown_decoder(backbone)
    readers["embedding"], paths["embedding"] = reader, (reader * embedding).sum(-1)
    named = {name: constants[name] for name in CONSTANTS if name in constants}
    return readers, dict(reversed(paths.items())) | named


def _through_norm(norm: Any, stream: Tensor, reader: Tensor) -> Tensor:
    """Pulls `reader` (…, d) back through a norm whose input is `stream`; the bias is left out."""
    centres = isinstance(norm, nn.LayerNorm)  # others do not subtract the mean
    if centres:
        stream = stream - stream.mean(-1, keepdim=True)
    epsilon = getattr(norm, "variance_epsilon", None) or norm.eps
    scale = torch.rsqrt(stream.pow(2).mean(-1, keepdim=True) + epsilon)
    # Gemma's gain is 1 + weight: a norm of ones tells it for every family.
    ones = torch.ones_like(stream[:1, :1])
    gain = norm.weight if centres else norm(ones) * (1 + epsilon) ** 0.5
    reader = reader * gain * scale
    return reader - reader.mean(-1, keepdim=True) if centres else reader
