"""T5 backbones: a pretrained checkpoint by name or folder, or a small one from a config."""

import copy
import hashlib
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoModelForTextEncoding,
    PretrainedConfig,
    PreTrainedModel,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
)

T5_FAMILY = ("t5", "mt5", "umt5")
ATTENTIONS = ("sdpa", "eager")


def load_encoder(
    name: str | None,
    dropout_rate: float = 0.1,
    attention: str = "sdpa",
    shape: dict[str, int] | None = None,
    gradient_checkpointing: bool = False,
) -> PreTrainedModel:
    """A T5 encoder: token ids (B, L) → token vectors (B, L, d_model).

    Args:
        name: `google/t5-v1_1-base`, `t5-base`, `google/mt5-base`, or any folder with a T5 in it;
            None builds a new one with random weights.
        dropout_rate: of the new or the pretrained model.
        attention: "sdpa", or "eager", which is faster for small models on a CPU.
        shape: T5Config values of a new model (vocab_size, d_model, num_layers, …); a pretrained
            model brings its own.
        gradient_checkpointing: in training every layer keeps its input alone and is computed
            again on the way back: a third more time, a fraction of the memory.

    Raises:
        ValueError: the folder holds no T5; another attention; the encoder does not read the shared
            embedding table after loading.
    """
    _check_attention(attention)
    if name is None:
        model = T5EncoderModel(_small_config(dropout_rate, shape or {}))
    else:
        config = _t5_config(name, dropout_rate)
        model = AutoModelForTextEncoding.from_pretrained(
            name, config=config, **weight_options(attention)
        )
    return _prepared(model, attention, gradient_checkpointing)


def load_encoder_decoder(
    name: str | None,
    dropout_rate: float = 0.1,
    attention: str = "sdpa",
    shape: dict[str, int] | None = None,
    decoder_layers: int | None = None,
    gradient_checkpointing: bool = False,
) -> PreTrainedModel:
    """A T5 encoder-decoder with its output table. Arguments as for `load_encoder`, and

    Args:
        decoder_layers: a decoder with random weights and so many layers; None: the backbone's own
            (NCI trains a new decoder of half the encoder's depth).

    Raises:
        ValueError: decoder_layers is too small, the backbone is an encoder alone, or a stack does
            not read the shared embedding table after loading.
    """
    if decoder_layers is not None and decoder_layers < 1:
        raise ValueError(f"model.decoder_layers={decoder_layers}: must be ≥ 1")
    _check_attention(attention)
    if name is None:
        depth = {"num_decoder_layers": decoder_layers} if decoder_layers else {}
        model = T5ForConditionalGeneration(_small_config(dropout_rate, {**(shape or {}), **depth}))
    else:
        config = _t5_config(name, dropout_rate)
        if not config.is_encoder_decoder:  # transformers would draw a decoder, with a warning
            raise ValueError(f"backbone.name={name}: holds an encoder alone, must have a decoder")
        model = AutoModelForSeq2SeqLM.from_pretrained(
            name, config=config, **weight_options(attention)
        )
        if decoder_layers:
            model = _with_new_decoder(model, decoder_layers)
    return _prepared(model, attention, gradient_checkpointing)


def _check_attention(attention: str) -> None:
    """Any other name may be a kernel on the hub, which transformers would fetch and run."""
    if attention not in ATTENTIONS:
        raise ValueError(f"backbone.attention={attention}: must be {' or '.join(ATTENTIONS)}")


def _t5_config(name: str, dropout_rate: float) -> PretrainedConfig:
    """The configuration of a pretrained T5; code that its folder may bring along is never run."""
    config = AutoConfig.from_pretrained(name, dropout_rate=dropout_rate, trust_remote_code=False)
    if config.model_type not in T5_FAMILY:
        rule = f"must be one of {', '.join(T5_FAMILY)}"
        raise ValueError(f"backbone.name={name}: holds a {config.model_type}, {rule}")
    refuse_quantised(name, config)
    return config


def refuse_quantised(name: str, config: PretrainedConfig) -> None:
    """Raises ValueError: reading such weights runs kernels that the folder chooses."""
    if getattr(config, "quantization_config", None) is not None:
        raise ValueError(f"backbone.name={name}: must not be quantised")


def weight_options(attention: str) -> dict[str, Any]:
    """How pretrained weights are loaded: as tensors alone, under the attention asked for here."""
    return {
        "attn_implementation": attention,
        "trust_remote_code": False,
        "weights_only": True,
    }


def _prepared(
    model: PreTrainedModel, attention: str, gradient_checkpointing: bool
) -> PreTrainedModel:
    model.set_attn_implementation(attention)
    check_embedding_ties(model)
    if gradient_checkpointing:
        older = "gradient_checkpointing_enable"  # the name in the first releases of transformers 5
        enable = getattr(model, "activation_checkpointing_enable", None) or getattr(model, older)
        enable({"use_reentrant": False})
    return model


def _with_new_decoder(model: PreTrainedModel, layers: int) -> PreTrainedModel:
    """A model of the same kind: its encoder and tables are the given ones, its decoder is new."""
    config = copy.deepcopy(model.config)
    config.num_decoder_layers = layers
    new = type(model)(config)
    if model.lm_head.weight is not model.shared.weight:  # transformers ties them in a new model
        new.lm_head.weight = nn.Parameter(torch.empty_like(model.lm_head.weight))
    new_parts = ("decoder.block", "decoder.final_layer_norm")
    kept = {k: v for k, v in model.state_dict().items() if not k.startswith(new_parts)}
    new.load_state_dict(kept, strict=False)
    return new


def add_tokens(model: PreTrainedModel, n_tokens: int) -> None:
    """Random rows for n more tokens, after those of the embedding table and the output table.

    `resize_token_embeddings` alone would tie a T5 v1.1's output table to the shared one, and its
    trained rows would be lost.
    """
    output = model.lm_head.weight.detach()
    tied = model.lm_head.weight is model.shared.weight
    model.resize_token_embeddings(len(output) + n_tokens, mean_resizing=False)
    if not tied:
        new = torch.randn(n_tokens, output.shape[1]).to(output) * output.std()
        model.lm_head.weight = nn.Parameter(torch.cat([output, new]))
    check_embedding_ties(model)


def check_embedding_ties(model: PreTrainedModel) -> None:
    """Asserts that encoder and decoder read the shared embedding table.

    Some T5-family checkpoints have been seen to load with untied or random encoder embeddings
    under transformers 5, with nothing but worse numbers to show for it. The output table may
    be a table of its own (T5 v1.1) and is not part of the tie.

    Raises:
        ValueError: a stack has an embedding table of its own.
    """
    for stack in ("encoder", "decoder"):
        part = getattr(model, stack, None)
        if part is not None and part.embed_tokens.weight is not model.shared.weight:
            raise ValueError(
                f"backbone.name={model.name_or_path}: {stack}.embed_tokens is not tied to the "
                "shared embedding table after loading"
            )


def _small_config(dropout_rate: float, shape: dict[str, int]) -> T5Config:
    """The original T5's form: a tied output table, and ReLU, half the time of a gated unit here.

    A tied table lets a model without pretraining copy a query token to its output at once.
    """
    return T5Config(
        dropout_rate=dropout_rate,
        decoder_start_token_id=0,
        tie_word_embeddings=True,
        **shape,
    )


def hash_weights(model: nn.Module) -> str:
    """16 hexadecimal digits of all parameters, buffers and further state, by name and value."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        if isinstance(value, torch.Tensor):
            digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:  # what a module keeps besides tensors is plain
            digest.update(repr(value).encode())
    return digest.hexdigest()[:16]
