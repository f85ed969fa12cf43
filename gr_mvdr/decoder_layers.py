"""How a decoder of transformers adds up its residual stream: T5's way, and BART's.

The stream is a short program. A step adds a summand, the output of a linear map (that of self-
attention, cross-attention or the feed-forward layer), or it is a norm that lies on the stream:

    T5, mT5, ByT5             embedding, 3 summands a layer, norm
    BART, PLBart              embedding, norm, (summand, norm) three times a layer
    mBART                     embedding, norm, 3 summands a layer, norm
    Marian                    embedding, (summand, norm) three times a layer
    Pegasus, M2M100           embedding, 3 summands a layer, norm

Which one it is follows from the modules that are there, not from the family's name. `find_sites`
lists the parts of the layers of any stack, an encoder's too.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

# What a decoder layer adds to the residual stream, in order.
SUBLAYERS = ("self_attention", "cross_attention", "feed_forward")
PARTS = ("residual", *SUBLAYERS)  # of a layer: the stream that it reads, and what it adds
# A layer, and the last linear map of each of its sublayers, as transformers names them: of T5;
# BART; BERT, RoBERTa and DeBERTa; DistilBERT; MPNet; ModernBERT.
_LAYER = re.compile(r"(?:.*?\.)??(?:block|layers?)\.(\d+)(?:\.(.+))?")
_MAPS = re.compile(
    r"(layer\.0\.SelfAttention\.o|self_attn\.out_proj|attention\.output\.dense"
    r"|attention\.out_lin|attention\.attn\.o|attn\.Wo)"
    r"|(layer\.1\.EncDecAttention\.o|encoder_attn\.out_proj)"
    r"|(layer\.\d\.DenseReluDense\.wo|fc2|output\.dense|ffn\.lin2|mlp\.Wo)"
)


@dataclass(frozen=True)
class Step:
    """One step of the stream.

    Attributes:
        module: a linear map whose output is added; or a norm that the whole stream goes through.
        name: of the summand, such as "cross_attention_2"; None of a norm.
    """

    module: Any
    name: str | None = None


@dataclass(frozen=True)
class CrossAttention:
    """A layer's cross-attention: the linear maps of all heads together, some with biases.

    Attributes:
        query, key, value, output: W_Q, W_K, V and O of all heads.
        heads: H; scale: of the products of query and key (BART's k^−½; T5 has none).
    """

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    output: nn.Linear
    heads: int
    scale: float

    def split(self, vectors: Tensor) -> Tensor:
        """(B, tokens, H·k) → (B, H, tokens, k)."""
        return vectors.unflatten(-1, (self.heads, -1)).transpose(1, 2)


@dataclass(frozen=True)
class DecoderLayers:
    """The program of a decoder.

    Attributes:
        entry: the module whose first input is the embedding, positions included.
        steps: all that follows; attentions: the layers' cross-attentions.
    """

    entry: nn.Module
    steps: tuple[Step, ...]
    attentions: tuple[CrossAttention, ...]


def read_decoder(decoder: Any) -> DecoderLayers:
    """The program of a decoder.

    Raises:
        ValueError: it is built in neither way.
    """
    try:
        return _read_t5(decoder) if hasattr(decoder, "block") else _read_bart(decoder)
    except (AttributeError, IndexError, TypeError) as error:
        raise unknown_decoder(decoder) from error


def unknown_decoder(decoder: nn.Module) -> ValueError:
    """The error for a decoder whose residual stream is not understood."""
    name = getattr(decoder, "name_or_path", None)
    return ValueError(
        f"backbone.name={name}: must have a decoder that is built like T5's or BART's, got "
        f"{type(decoder).__name__}"
    )


def _read_t5(decoder: Any) -> DecoderLayers:
    steps, attentions = [], []
    for number, block in enumerate(decoder.block, start=1):
        crossed = block.layer[1].EncDecAttention
        outputs = block.layer[0].SelfAttention.o, crossed.o, block.layer[2].DenseReluDense.wo
        steps += [Step(output, name) for output, name in zip(outputs, _names(number), strict=True)]
        maps = crossed.q, crossed.k, crossed.v, crossed.o
        # Before 5.1, transformers had no attribute for the scale that T5 does not have.
        scale = getattr(crossed, "scaling", 1.0)
        attentions.append(CrossAttention(*maps, crossed.n_heads, scale))
    steps.append(Step(decoder.final_layer_norm))
    return DecoderLayers(decoder.block[0], tuple(steps), tuple(attentions))


def _read_bart(decoder: Any) -> DecoderLayers:
    first = getattr(decoder, "layernorm_embedding", None)
    last = getattr(decoder, "layer_norm", None)  # where layers norm what they read, not the stream
    steps = [] if first is None else [Step(first)]
    attentions = []
    for number, layer in enumerate(decoder.layers, start=1):
        crossed = layer.encoder_attn
        outputs = layer.self_attn.out_proj, crossed.out_proj, layer.fc2
        norms = layer.self_attn_layer_norm, layer.encoder_attn_layer_norm, layer.final_layer_norm
        for output, name, norm in zip(outputs, _names(number), norms, strict=True):
            steps += [Step(output, name)] + ([Step(norm)] if last is None else [])
        maps = crossed.q_proj, crossed.k_proj, crossed.v_proj, crossed.out_proj
        attentions.append(CrossAttention(*maps, crossed.num_heads, crossed.scaling))
    steps += [] if last is None else [Step(last)]
    entry = decoder.layers[0] if first is None else first
    return DecoderLayers(entry, tuple(steps), tuple(attentions))


def _names(layer: int) -> Iterator[str]:
    return (f"{name}_{layer}" for name in SUBLAYERS)


@dataclass(frozen=True, eq=False)
class Site:
    """A part of one layer (from 0) of a stack, "encoder" or "decoder".

    Attributes:
        part: one of `PARTS`. module: reads the stream, or that of which the part is a linear map.
        heads: H equal parts of what an attention's `module` reads; 1 of other parts.
    """

    stack: str
    part: str
    layer: int
    module: nn.Module
    heads: int


def find_sites(stack: str, model: Any) -> list[Site]:
    """The parts of all layers of an encoder or a decoder of transformers, part by part.

    Raises:
        ValueError: its layers are built in a way that is not known here.
    """
    sites = []
    for name, module in model.named_modules():
        if (found := _LAYER.fullmatch(name)) is None:
            continue
        known, heads = _MAPS.fullmatch(found[2] or ""), 1
        if known or not found[2]:
            part = PARTS[known.lastindex or 0] if known else PARTS[0]
            if "attention" in part:
                own = getattr(model.config, f"{stack}_attention_heads", None)
                heads = own or model.config.num_attention_heads
            sites.append(Site(stack, part, int(found[1]), module, heads))
    sites.sort(key=lambda site: (PARTS.index(site.part), site.layer))
    layers = range(len({site.layer for site in sites}))
    parts = [part for part in PARTS if stack == "decoder" or part != "cross_attention"]
    every = [(part, layer) for part in parts for layer in layers]
    if not sites or [(site.part, site.layer) for site in sites] != every:
        rule = f"must have layers like those of T5, BART or BERT, got {type(model).__name__}"
        raise ValueError(f"backbone.name={model.name_or_path}: {rule}")
    return sites
