"""Backbones: any Hugging Face encoder or encoder-decoder, or a small T5 from a config.

A loaded backbone has a `template` (`gr_mvdr.template.TextTemplate`), the tokens around its texts.
"""

import copy
import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoModelForTextEncoding,
    PretrainedConfig,
    PreTrainedModel,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from gr_mvdr.batch import pad
from gr_mvdr.files import check_files, describe_error, hub_options
from gr_mvdr.from_encoder import make_encoder_decoder, set_epsilon
from gr_mvdr.initialisation import Initialisation, match_and_copy
from gr_mvdr.options import Rate, Size, checked
from gr_mvdr.progress import quiet_libraries, track
from gr_mvdr.template import TextTemplate

# Any other name may be a kernel on the hub, which transformers would fetch and run.
Attention = Literal["sdpa", "eager"]
_T5 = ("t5", "mt5", "umt5")
# Pretrained weights are tensors alone. A folder's configuration could name an attention, a kernel
# on the hub that transformers would fetch and run: eager first, then the one asked for.
_WEIGHT_OPTIONS = {
    "attn_implementation": "eager",
    "trust_remote_code": False,
    "weights_only": True,
}
_POSITIONS = ("position_embeddings", "embed_positions")
# Weights of a decoder's layers, which a new decoder of another depth does not take over.
_LAYERS = re.compile(r"decoder\.(block|layers|final_layer_norm|layer_norm)\.")


@checked
def load_backbone(
    name: str | None,
    dropout_rate: Rate | None = 0.1,
    attention: Attention = "sdpa",
    shape: dict[str, int] | None = None,
    gradient_checkpointing: bool = False,
    template: dict[str, Any] | None = None,
    initialisation: Initialisation = "random",
    latent: Rate = 0.0,
    from_encoder: dict[str, Any] | None = None,
    decodes: bool = False,
    decoder_layers: Size | None = None,
) -> PreTrainedModel:
    """An encoder: token ids (B, L) → token vectors (B, L, hidden_size); or an encoder-decoder.

    Args:
        name: a model of the hub or a folder: `google/t5-v1_1-base`, `bert-base-uncased`,
            `answerdotai/ModernBERT-base`. As an encoder, an encoder-decoder loses its decoder. None
            builds a small T5.
        dropout_rate: of the new or the pretrained model; None = the pretrained model's own.
        attention: "eager" is faster for small models on a CPU, and used by families without "sdpa".
        shape: T5Config values of a new model (vocab_size, d_model, num_layers, …); a pretrained
            model brings its own.
        gradient_checkpointing: in training every layer keeps only its input and is recomputed in
            the backward pass: a third more time, a fraction of the memory.
        template: `TextTemplate.settings` of the tokeniser; None = T5's.
        initialisation: of a new model: "random", T5's own weights, or "mimetic", `match_and_copy`.
        latent: the fraction of a new model's token vectors that `take_latent_meanings` sets later.
        from_encoder: options of `make_encoder_decoder`, which gives an encoder a decoder; None = an
            encoder-decoder has its own.
        decodes: an encoder-decoder with its output table (T5, mT5, BART, …).
        decoder_layers: layers of a new decoder with random weights; None: the backbone's own
            decoder (NCI trains a new decoder of half the encoder's depth).

    Raises:
        ValueError: the folder holds a decoder alone, or no weights; it holds an encoder alone, and
            a decoder is wanted; a stack does not read the shared embedding table after loading.
    """
    read = TextTemplate(**(template or {}))
    if name is None:
        depth = {"num_decoder_layers": decoder_layers} if decoder_layers else {}
        model = _new_t5(decodes, dropout_rate, (shape or {}) | depth, read)
        model.latent = latent
        if initialisation == "mimetic":
            match_and_copy(model)
    else:
        converts = decodes and from_encoder is not None
        model = _load(name, read_backbone_config(name, dropout_rate), decodes and not converts)
        if converts:
            model = make_encoder_decoder(model, read, **from_encoder)
        if decodes and decoder_layers:
            model = _with_new_decoder(model, decoder_layers)
    model.set_attn_implementation(attention if model._supports_sdpa else "eager")
    model.template = read
    check_embedding_ties(model)
    if (missing := read.special[-1] + 1 - model.config.vocab_size) > 0:
        add_tokens(model, missing)  # markers that the tokeniser did not know
    if gradient_checkpointing:
        older = "gradient_checkpointing_enable"  # the name in the first releases of transformers 5
        enable = getattr(model, "activation_checkpointing_enable", None) or getattr(model, older)
        enable({"use_reentrant": False})
    return model.train()  # a pretrained model comes in evaluation mode, without dropout


def read_backbone_config(name: str, dropout_rate: float | None) -> PretrainedConfig:
    """The configuration of a pretrained model; code in its folder is never run."""
    if Path(name).is_dir():
        check_files(Path(name))
    config = AutoConfig.from_pretrained(name, trust_remote_code=False, **hub_options(name))
    kind = config.model_type
    # BERT can be trained as a decoder; a decoder-only family has no masked form.
    decodes = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if decodes and kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not config.is_encoder_decoder:
        raise ValueError(
            f"backbone.name={name}: holds a decoder alone ({kind}), must be an encoder or an "
            "encoder-decoder, such as BERT or T5"
        )
    if getattr(config, "quantization_config", None) is not None:
        # Loading quantised weights runs kernels that the folder chooses.
        raise ValueError(f"backbone.name={name}: must not be quantised")
    if dropout_rate is not None:
        for key, value in vars(config).items():
            if "dropout" in key and "classifier" not in key and isinstance(value, int | float):
                setattr(config, key, dropout_rate)
    return config


def _load(name: str, config: PretrainedConfig, decodes: bool) -> PreTrainedModel:
    """An encoder or an encoder-decoder with its pretrained weights, every one of them.

    Raises:
        ValueError: the folder lacks weights, they do not match the configuration, or there is no
            decoder.
    """
    is_t5, kind = config.model_type in _T5, config.model_type
    if decodes:
        known = kind in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
        if not (known and config.is_encoder_decoder):  # transformers would draw a decoder
            raise ValueError(
                f"backbone.name={name}: holds an encoder alone ({kind}), a generative "
                "system must have a decoder that reads it, such as T5 or BART"
            )
        auto: Any = AutoModelForSeq2SeqLM
    else:  # the T5 family (ByT5 is a T5) has a separate class for encoders
        auto = AutoModelForTextEncoding if is_t5 else AutoModel
    options = {"output_loading_info": True, **_WEIGHT_OPTIONS, **hub_options(name)}
    try:
        with quiet_libraries():  # missing weights are checked below
            model, loading = auto.from_pretrained(name, config=config, **options)
    except (OSError, RuntimeError) as error:
        raise ValueError(
            f"backbone.name={name}: cannot be loaded: {describe_error(error)}"
        ) from None
    # BERT's pooler may be missing, and is not used.
    lacks = sorted(key for key in loading["missing_keys"] if not key.startswith("pooler."))
    if lacks:
        raise ValueError(f"backbone.name={name}: lacks the weights {', '.join(lacks[:3])}")
    set_epsilon(model)
    if not decodes:
        model = model.get_encoder() if config.is_encoder_decoder and not is_t5 else model
        if getattr(model, "pooler", None) is not None:
            model.pooler = None  # of BERT: it would have no gradient
    return model


def _with_new_decoder(model: PreTrainedModel, layers: int) -> PreTrainedModel:
    """A model of the same kind with the same encoder and tables, and a new decoder."""
    config = copy.deepcopy(model.config)
    depth = "num_decoder_layers" if hasattr(config, "num_decoder_layers") else "decoder_layers"
    setattr(config, depth, layers)
    new = type(model)(config)
    set_epsilon(new)
    output = model.get_output_embeddings().weight
    if output is not model.get_input_embeddings().weight:  # transformers ties them in a new model
        new.get_output_embeddings().weight = nn.Parameter(torch.empty_like(output))
    kept = {k: v for k, v in model.state_dict().items() if not _LAYERS.search(k)}
    new.load_state_dict(kept, strict=False)
    return new


def encoder_mask(encoder: PreTrainedModel, mask: Tensor) -> Tensor:
    """The mask (B, L) bool of an encoder's tokens in the form that the encoder takes.

    Given a (B, L) mask, transformers tests whether anything is padded, and the CPU waits for the
    accelerator. T5 adds a bias to every attention and does not benefit from the test: on an
    accelerator its mask is (B, 1, 1, L), for all heads and queries.
    """
    if mask.device.type == "cpu" or encoder.config.model_type not in _T5:
        return mask.long()
    every = mask[:, None, None]
    if encoder.config._attn_implementation != "eager":
        return every
    least = torch.finfo(encoder.dtype).min
    return torch.zeros_like(every, dtype=encoder.dtype).masked_fill(~every, least)


def encode(backbone: PreTrainedModel, ids: Tensor, mask: Tensor) -> Tensor:
    """Token ids (B, N) and mask → the vectors (B, N, d) of an encoder, or an encoder-decoder's."""
    encoder = backbone.get_encoder() if backbone.config.is_encoder_decoder else backbone
    return encoder(input_ids=ids, attention_mask=encoder_mask(encoder, mask)).last_hidden_state


@torch.inference_mode()
def encode_texts(
    backbone: PreTrainedModel,
    texts: Sequence[Sequence[int]],
    length: int,
    description: str = "encoding",
    batch_size: int = 64,
) -> Iterator[Tensor]:
    """The vectors of each text without dropout, (tokens, d) fp32 on the CPU; see `encode`.

    Args:
        texts: token ids; length: tokens kept of a text, special tokens included.
        batch_size: texts at once.
    """
    was_training = backbone.training
    backbone.eval()
    for first in track(range(0, len(texts), batch_size), description):
        chosen = texts[first : first + batch_size]
        rows = [backbone.template.read_document(tokens, length) for tokens in chosen]
        ids, mask = (x.to(backbone.device) for x in pad(rows))
        vectors = encode(backbone, ids, mask).float().cpu()
        yield from (row[real] for row, real in zip(vectors, mask.cpu(), strict=True))
    backbone.train(was_training)


def add_tokens(model: PreTrainedModel, n_tokens: int) -> None:
    """Random rows for n more tokens, after those of the embedding table and any output table.

    `resize_token_embeddings` alone would tie a T5 v1.1's output table to the shared one, and its
    trained rows would be lost.
    """
    head, shared = model.get_output_embeddings(), model.get_input_embeddings().weight
    output = None if head is None or head.weight is shared else head.weight.detach()
    model.resize_token_embeddings(len(shared) + n_tokens, mean_resizing=False)
    if output is not None:
        new = torch.randn(n_tokens, output.shape[1]).to(output) * output.std()
        model.get_output_embeddings().weight = nn.Parameter(torch.cat([output, new]))
    check_embedding_ties(model)


def check_embedding_ties(model: PreTrainedModel) -> None:
    """Asserts that encoder and decoder read the shared embedding table.

    Some T5-family checkpoints have been seen to load with untied or random encoder embeddings
    under transformers 5, with nothing but worse numbers to show for it. The output table may
    be a table of its own (T5 v1.1) and is not part of the tie.

    Raises:
        ValueError: a stack has an embedding table of its own.
    """
    shared = model.get_input_embeddings().weight
    for name, part in model.named_modules():
        own = getattr(part, "embed_tokens", None)
        if own is not None and own.weight is not shared:
            raise ValueError(
                f"backbone.name={model.name_or_path}: {name}.embed_tokens is not tied to the "
                "shared embedding table after loading"
            )


def max_length(model: PreTrainedModel) -> int | None:
    """The longest text that a model with learned positions reads, in tokens; None = unlimited."""
    positions = getattr(model.config, "max_position_embeddings", None)
    table = next((p for n, p in model.named_modules() if n.endswith(_POSITIONS)), None)
    if table is None or positions is None:
        return None
    # RoBERTa's positions begin after its padding token.
    return positions - (0 if table.padding_idx is None else table.padding_idx + 1)


def check_length(model: PreTrainedModel, **lengths: int) -> None:
    """Raises ValueError for a length that the backbone cannot read, or that leaves no token."""
    least, longest = model.template.least, max_length(model)
    for name, length in lengths.items():
        if length < least:
            raise ValueError(f"{name}={length}: must be ≥ {least}, a token and those around it")
        if longest is not None and length > longest:
            reader = f"backbone.name={model.name_or_path}"
            raise ValueError(f"{name}={length}: must be ≤ {longest}, what {reader} reads")


def _new_t5(
    decodes: bool, dropout_rate: float | None, shape: dict[str, Any], template: TextTemplate
) -> PreTrainedModel:
    """A new T5 in the original's form, with ReLU, which takes half the time of a gated unit here.

    The output table is tied to the input's, so that a model without pretraining copies a query
    token to its output at once.

    Raises:
        ValueError: transformers or torch cannot make a T5 of these values.
    """
    if unknown := sorted(shape.keys() - T5Config().to_dict().keys()):
        raise ValueError(f"backbone.shape.{unknown[0]}: must be a key of transformers' T5Config")
    token = torch.zeros(1, 1, dtype=torch.long)
    both = {"decoder_input_ids": token} if decodes else {}
    try:
        config = T5Config(
            dropout_rate=dropout_rate or 0.0,
            decoder_start_token_id=template.pad,
            pad_token_id=template.pad,
            eos_token_id=template.stop,
            tie_word_embeddings=True,
            **shape,
        )
        model = (T5ForConditionalGeneration if decodes else T5EncoderModel)(config).eval()
        with torch.no_grad():  # some shapes fail in the first pass alone
            model(input_ids=token, **both)
    except Exception as error:  # many kinds, depending on the value
        rule = f"must be values that a T5 can have ({describe_error(error)})"
        raise ValueError(f"backbone.shape={shape}: {rule}") from None
    return model


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
