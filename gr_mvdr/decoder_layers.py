"""The residual stream of a transformers decoder as a program of summands and norms: T5, BART.

A step adds a summand, the output of the last linear map of self-attention, cross-attention or the
feed-forward layer, or it is a norm of the whole stream:

    T5, mT5, ByT5             embedding, 3 summands a layer, norm
    BART, PLBart              embedding, norm, (summand, norm) three times a layer
    mBART                     embedding, norm, 3 summands a layer, norm
    Marian                    embedding, (summand, norm) three times a layer
    Pegasus, M2M100           embedding, 3 summands a layer, norm

The program follows from a decoder's modules, not from its family's name.
"""

from dataclasses import dataclass
from typing import Any

from torch import nn

# What a decoder layer adds to the residual stream, in order.
SUBLAYERS = ("self_attention", "cross_attention", "feed_forward")


@dataclass(frozen=True)
class CrossAttention:
    """A layer's cross-attention: the linear maps of all heads, with or without biases.

    Attributes:
        query, key, value, output: W_Q, W_K, V and O of all heads.
        heads: H; scale: factor of query · key (BART's k^−½; T5 has 1).
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
        steps: (name, module) in order: a summand's name, such as "cross_attention_2", and its last
            linear map; None and a norm of the whole stream.
        attentions: the layers' cross-attentions.
    """

    entry: nn.Module
    steps: list[tuple[str | None, nn.Module]]
    attentions: list[CrossAttention]


def read_decoder(decoder: Any) -> DecoderLayers:
    """The program of a decoder.

    Raises:
        ValueError: it is built neither like T5's nor like BART's.
    """
    try:
        return _read_t5(decoder) if hasattr(decoder, "block") else _read_bart(decoder)
    except (AttributeError, IndexError, TypeError) as error:
        raise unknown_decoder(decoder) from error


def unknown_decoder(decoder: nn.Module) -> ValueError:
    """The error for a decoder whose residual stream cannot be read."""
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
    last = getattr(decoder, "layer_norm", None)  # exists where layers norm their inputs
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
