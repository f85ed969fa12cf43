"""Cross-attention as alignment: S, A and all paths of a decoder (gr_as_mvdr Eq. 4, 12–16, §8).

A decoder layer's cross-attention adds Σ_h O_h V_h Q α_i^h to the residual stream at position i. If
the scale of every norm is held constant, the logit of target token d_i is linear in that stream, so
the layer's part of rel(d, q) is a multi-vector relevance of H heads (Eq. 1):

    Σ_h sum(S^h ⊙ A^h),   S^h = Ẽᵀ O_h V_h Q,   A^h = softmax(D̂ᵀ Wᵀ Q)

where ẽ_i is the output vector of token d_i (a row of the output table, or PAWA's or NP's vector),
pulled back through all later norms of the stream, and d̂_i is the decoder state that the layer's
cross-attention reads. The values O_hᵀ ẽ_i and V_h q_j make S, the keys W_Q d̂_i and W_K q_j make A.
T5 has one norm at the end of the stream, so all summands share one ẽ_i. BART normalises the stream
after every summand, so each summand has its own ẽ_i.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gr_mvdr.alignment import Softmax
from gr_mvdr.batch import PairBatch
from gr_mvdr.fine_tuning import full_weight
from gr_mvdr.heads.plain import Head, real_places, states_at, table_log_probs
from gr_mvdr.relevance import DecoderPaths, Factors, PairAlignment, Scoring, at_least_float32
from gr_mvdr.token_vectors import TokenVectors

# Constant paths: biases of the norms, biases of the summands' linear maps, bias of the logits.
CONSTANTS = ("norm_bias", "projection_bias", "output_bias")
# Largest relative difference between the stream and the sum of its parts (rounding in bf16).
_ROUNDING = 0.05
# The input and the output of modules in one pass, (B, M, d) each.
Seen = dict[nn.Module, tuple[Tensor, Tensor]]


# The residual stream as a program of summands and norms --------------------------------------
#
# A step either adds a summand (the output of the last linear map of self-attention, cross-attention
# or the feed-forward layer) or normalises the whole stream:
#
#     T5, mT5, ByT5             embedding, 3 summands a layer, norm
#     BART, PLBart              embedding, norm, (summand, norm) three times a layer
#     mBART                     embedding, norm, 3 summands a layer, norm
#     Marian                    embedding, (summand, norm) three times a layer
#     Pegasus, M2M100           embedding, 3 summands a layer, norm
#
# The program is read from the decoder's modules, not from the name of its family.

# What a decoder layer adds to the residual stream, in order.
SUBLAYERS = ("self_attention", "cross_attention", "feed_forward")


@dataclass(frozen=True)
class CrossAttention:
    """A layer's cross-attention: the linear maps of all heads, with or without biases.

    Attributes:
        query, key, value, output: W_Q, W_K, V and O of all heads.
        heads: H.
        scale: factor of query · key (k^−½ in BART, 1 in T5).
    """

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    output: nn.Linear
    heads: int
    scale: float


@dataclass(frozen=True)
class DecoderLayers:
    """The program of a decoder.

    Attributes:
        entry: the module whose first input is the embedding, positions included.
        steps: (name, module) in order. A summand has a name, such as "cross_attention_2", and its
            last linear map; a norm of the whole stream has the name None.
        attentions: the layers' cross-attentions.
    """

    entry: nn.Module
    steps: list[tuple[str | None, nn.Module]]
    attentions: list[CrossAttention]


def read_decoder(decoder: Any) -> DecoderLayers:
    """Reads the program of a decoder from its modules.

    Raises:
        ValueError: the decoder is built neither like T5's nor like BART's.
    """
    try:
        return _read_t5(decoder) if hasattr(decoder, "block") else _read_bart(decoder)
    except (AttributeError, IndexError, TypeError) as error:
        raise unknown_decoder(decoder) from error


def unknown_decoder(decoder: nn.Module) -> ValueError:
    """Returns the error for a decoder whose residual stream cannot be read."""
    name = getattr(decoder, "name_or_path", None)
    return ValueError(
        f"backbone.name={name}: must have a decoder that is built like T5's or BART's, got "
        f"{type(decoder).__name__}"
    )


def _read_t5(decoder: Any) -> DecoderLayers:
    layers = DecoderLayers(decoder.block[0], [], [])
    for number, block in enumerate(decoder.block, start=1):
        crossed = block.layer[1].EncDecAttention
        outputs = block.layer[0].SelfAttention.o, crossed.o, block.layer[2].DenseReluDense.wo
        layers.steps.extend(zip(_names(number), outputs, strict=True))
        maps = crossed.q, crossed.k, crossed.v, crossed.o
        # T5 has no scale; transformers has an attribute for it since 5.1.
        scale = getattr(crossed, "scaling", 1.0)
        layers.attentions.append(CrossAttention(*maps, crossed.n_heads, scale))
    layers.steps.append((None, decoder.final_layer_norm))
    return layers


def _read_bart(decoder: Any) -> DecoderLayers:
    first = getattr(decoder, "layernorm_embedding", None)
    last = getattr(decoder, "layer_norm", None)  # exists if layers normalise their inputs
    layers = DecoderLayers(decoder.layers[0] if first is None else first, [], [])
    if first is not None:
        layers.steps.append((None, first))
    for number, layer in enumerate(decoder.layers, start=1):
        crossed = layer.encoder_attn
        outputs = layer.self_attn.out_proj, crossed.out_proj, layer.fc2
        norms = layer.self_attn_layer_norm, layer.encoder_attn_layer_norm, layer.final_layer_norm
        for name, output, norm in zip(_names(number), outputs, norms, strict=True):
            layers.steps.append((name, output))
            if last is None:
                layers.steps.append((None, norm))
        maps = crossed.q_proj, crossed.k_proj, crossed.v_proj, crossed.out_proj
        layers.attentions.append(CrossAttention(*maps, crossed.num_heads, crossed.scaling))
    if last is not None:
        layers.steps.append((None, last))
    return layers


def _names(layer: int) -> list[str | None]:
    return [f"{name}_{layer}" for name in SUBLAYERS]


# The intermediate results of a pass ----------------------------------------------------------


@dataclass
class DecoderTrace:
    """The intermediate results of a decoder with L layers of H heads on B pairs.

    Attributes:
        head: the decoder's output table.
        batch: the pairs, with the targets on the document side.
        layers: the decoder's structure.
        queries: (B, N, d) the encoder's vectors Q.
        rows: (B, M) int64 the targets' rows in the head.
        position: (B, M) int64 the targets' positions in the decoded sequences.
        states: L tensors (B, M, d), d̂, the decoder states that each layer's cross-attention reads.
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
    layers: DecoderLayers
    queries: Tensor
    rows: Tensor
    position: Tensor
    states: list[Tensor]
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
    maps, batch = trace.layers.attentions[layer], trace.batch
    reader = trace.readers[f"cross_attention_{layer % len(trace.states) + 1}"]
    sides = (
        (
            reader @ full_weight(maps.output).to(reader),
            maps.query(trace.states[layer]) * maps.scale,
        ),
        (maps.value(trace.queries), maps.key(trace.queries)),
    )
    (documents, document_keys), (queries, query_keys) = (map(at_least_float32, s) for s in sides)
    real = batch.document_mask.unsqueeze(-1), batch.query_mask.unsqueeze(-1)
    return (
        TokenVectors(
            documents * real[0], batch.document_mask, batch.document_ids, keys=document_keys
        ),
        TokenVectors(queries * real[1], batch.query_mask, batch.query_ids, keys=query_keys),
        Scoring(Softmax("document_to_query"), heads=maps.heads),
    )


def align_layer(trace: DecoderTrace, score: Tensor, layer: int = -1) -> PairAlignment:
    """rel(d, q) = Σ_h sum(S^h ⊙ A^h) of one decoder layer (Eq. 14).

    Σ_hj S^h_ij A^h_ij is the contribution of the layer's cross-attention to the logit of token i.

    Args:
        score: (B,) the score by which the system ranks these pairs.
    """
    documents, queries, scoring = layer_vectors(trace, layer)
    return replace(scoring.align(documents, queries), score=score)


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
    decoder = head.backbone.get_decoder()
    layers, targets = read_decoder(decoder), head.labels(batch.document_ids, batch.document_index)
    size = targets.shape[1]
    length = min(window or size, size)
    rows = F.pad(targets, (0, -size % length)).reshape(-1, length)  # (B·W, length)
    count = -(-size // length)  # W

    def join(part: Tensor) -> Tensor:
        """(B·W, length, …) → (B, M, …)."""
        return part.unflatten(0, (-1, count)).flatten(1, 2)[:, :size]

    with _recording(layers) as seen:
        hidden, context = head.decode(queries, batch.query_mask, rows)
    vectors = head.vectors(rows, context)
    readers, paths = _pull_back(decoder, layers, seen, vectors, hidden)
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
        position=(torch.arange(size, device=rows.device) % length).expand_as(targets),
        states=[join(seen[maps.query][0]) for maps in layers.attentions],
        hidden=join(hidden),
        context=None if context is None else join(context),
        readers={name: join(reader) for name, reader in readers.items()},
        paths={name: join(path) for name, path in paths.items()},
        logits=join(logits),
    )


@contextmanager
def _recording(layers: DecoderLayers) -> Iterator[Seen]:
    """Records the modules' inputs and outputs in one pass of the decoder."""
    seen: Seen = {}

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen[module] = inputs[0], output

    modules = [layers.entry, *(maps.query for maps in layers.attentions)]
    modules += [module for _, module in layers.steps]
    hooks = [module.register_forward_hook(keep) for module in {*modules}]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _pull_back(
    decoder: nn.Module, layers: DecoderLayers, seen: Seen, vectors: Tensor, hidden: Tensor
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
        bias = getattr(module, "bias", None)
        if bias is not None:
            kind = CONSTANTS[0] if name is None else CONSTANTS[1]
            constants[kind] = constants.get(kind, 0.0) + reader @ at_least_float32(bias)
        if name is None:
            if (stream - made).norm() > _ROUNDING * size:
                raise unknown_decoder(decoder)
            reader, stream, size = _through_norm(module, read, reader), read, read.norm()
        else:
            readers[name], stream = reader, stream - made
            paths[name] = (reader * (made if bias is None else made - bias)).sum(-1)
    embedding = at_least_float32(seen[layers.entry][0])
    if (stream - embedding).norm() > _ROUNDING * size:
        raise unknown_decoder(decoder)
    readers["embedding"], paths["embedding"] = reader, (reader * embedding).sum(-1)
    named = {name: constants[name] for name in CONSTANTS if name in constants}
    return readers, dict(reversed(paths.items())) | named


def _through_norm(norm: Any, stream: Tensor, reader: Tensor) -> Tensor:
    """Pulls `reader` (…, d) back through a norm whose input is `stream`; the bias is left out."""
    centres = isinstance(norm, nn.LayerNorm)  # T5's norm does not subtract the mean
    if centres:
        stream = stream - stream.mean(-1, keepdim=True)
    epsilon = norm.eps if centres else norm.variance_epsilon
    scale = torch.rsqrt(stream.pow(2).mean(-1, keepdim=True) + epsilon)
    reader = reader * norm.weight * scale
    return reader - reader.mean(-1, keepdim=True) if centres else reader
