"""The structure of a decoder: its residual stream as a program of summands and norms.

A step either adds a summand (the output of the last linear map of self-attention, cross-attention
or the feed-forward layer) or normalises the whole stream:

    T5, mT5, ByT5             embedding, 3 summands a layer, norm
    BART, PLBart              embedding, norm, (summand, norm) three times a layer
    mBART                     embedding, norm, 3 summands a layer, norm
    Marian                    embedding, (summand, norm) three times a layer
    Pegasus, M2M100           embedding, 3 summands a layer, norm
    Llama, Qwen, GPT-2        embedding, 2 summands a layer, norm
    Gemma                     the same, each summand behind its own norm

The program is read from the decoder's modules, not from the name of its family.
"""

from dataclasses import dataclass, field
from typing import Any

from torch import nn
from transformers import PreTrainedModel

# What a decoder layer adds to the residual stream, in order.
SUBLAYERS = ("self_attention", "cross_attention", "feed_forward")
# Summands of a causal language model. Attention becomes the paths of two sublayers: that of the
# query's block is "cross_attention", that of the prefix's is "self_attention".
CAUSAL = ("attention", SUBLAYERS[2])
# What families of causal language models call their parts.
_NAMES = {
    "layers": ("layers", "h"),
    "norm": ("norm", "ln_f", "final_layer_norm"),
    "attention": ("self_attn", "attn", "attention"),
    "output": ("o_proj", "c_proj", "dense"),
    "feed_forward": ("mlp",),
}


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
class SelfAttention:
    """A layer's attention in a causal language model: its module, and O of all heads."""

    module: nn.Module
    output: nn.Module


@dataclass(frozen=True)
class DecoderLayers:
    """The program of a decoder.

    Attributes:
        entry: the module whose first input is the embedding, positions included.
        steps: (name, module) in order. A summand has a name, such as "cross_attention_2", and its
            last linear map; a norm of the whole stream has the name None.
        attentions: the layers' attentions to the query.
        norms: summand → the norm between it and the stream.
    """

    entry: nn.Module
    steps: list[tuple[str | None, nn.Module]]
    attentions: list[Any]
    norms: dict[str, nn.Module] = field(default_factory=dict)


def read_decoder(backbone: PreTrainedModel) -> DecoderLayers:
    """Reads the program of a decoder from its modules.

    Raises:
        ValueError: the decoder is built neither like T5's nor like BART's or Llama's.
    """
    decoder: Any = backbone.base_model
    read = _read_causal
    if backbone.config.is_encoder_decoder:
        decoder = backbone.get_decoder()
        read = _read_t5 if hasattr(decoder, "block") else _read_bart
    try:
        return read(decoder)
    except (AttributeError, IndexError, TypeError, StopIteration) as error:
        raise unknown_decoder(backbone) from error


def unknown_decoder(decoder: nn.Module) -> ValueError:
    """Returns the error for a decoder whose residual stream cannot be read."""
    name = getattr(decoder, "name_or_path", None)
    return ValueError(
        f"backbone.name={name}: must have a decoder that is built like T5's, BART's or Llama's, "
        f"with attention in every layer, to be aligned; got {type(decoder).__name__}"
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


def _read_causal(decoder: Any) -> DecoderLayers:
    stack = _part(decoder, "layers")
    layers = DecoderLayers(stack[0], [], [])
    for number, layer in enumerate(stack, start=1):
        attention = _part(layer, "attention")
        outputs = _part(attention, "output"), _part(layer, "feed_forward")
        names = [f"{name}_{number}" for name in CAUSAL]
        layers.steps.extend(zip(names, outputs, strict=True))
        if hasattr(layer, "post_feedforward_layernorm"):  # Llama's norm before it has the same name
            norms = layer.post_attention_layernorm, layer.post_feedforward_layernorm
            layers.norms.update(zip(names, norms, strict=True))
        layers.attentions.append(SelfAttention(attention, outputs[0]))
    layers.steps.append((None, _part(decoder, "norm")))
    return layers


def _part(module: Any, kind: str) -> Any:
    return next(getattr(module, name) for name in _NAMES[kind] if hasattr(module, name))


def _names(layer: int) -> list[str | None]:
    return [f"{name}_{layer}" for name in SUBLAYERS]
