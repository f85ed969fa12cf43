"""Backbones: any Hugging Face encoder, decoder or encoder-decoder, or a small T5 from a config.

A loaded backbone has a `template` (`gr_mvdr.template.TextTemplate`): the tokens that frame a text.
"""

import copy
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
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
from gr_mvdr.files import check_files, describe_error, find_file, hub_options, read_json
from gr_mvdr.fine_tuning import Frozen, add_lora, merge_published
from gr_mvdr.from_encoder import make_encoder_decoder, set_epsilon
from gr_mvdr.initialisation import Initialisation, match_and_copy
from gr_mvdr.options import Rate, Size, Text, checked, name_some
from gr_mvdr.progress import quiet_libraries, track
from gr_mvdr.static import StaticConfig  # noqa: F401  registers the family
from gr_mvdr.template import TextTemplate

# Encoders whose learned positions can be given, so that texts can be packed (`read_states`).
_PACKED = ("bert", "electra", "roberta", "xlm-roberta")
# Any other name may be a kernel on the hub, which transformers would fetch and run.
Attention = Literal["sdpa", "eager"]
_T5 = ("t5", "mt5", "umt5")
# Only tensors are loaded. A folder's configuration could name an attention kernel on the hub, which
# transformers would fetch and run: models load with eager attention, then get the requested one.
_WEIGHT_OPTIONS = {
    "attn_implementation": "eager",
    "trust_remote_code": False,
    "weights_only": True,
}
_ENCODED = 64  # texts that `encode_texts` encodes at once
_POSITIONS = ("position_embeddings", "embed_positions", "wpe")
# Weights beside those of the backbone, of FlagEmbedding and of an exported system.
_HEADS = ("colbert_linear.pt", "sparse_linear.pt", "gr_mvdr.safetensors")
# Weights of an encoder-decoder that its encoder does not need.
_DECODER = re.compile(r"(model\.)?decoder\.|lm_head\.|final_logits_bias")
# Weights of a decoder's layers: a new decoder does not inherit them.
_LAYERS = re.compile(r"decoder\.(block|layers|final_layer_norm|layer_norm)\.")


@checked
def load_backbone(
    name: Text | None,
    dropout_rate: Rate | None = 0.1,
    attention: Attention = "sdpa",
    shape: dict[str, Size | Text] | None = None,
    gradient_checkpointing: bool = False,
    template: dict[str, Any] | None = None,
    initialisation: Initialisation = "random",
    latent: Rate = 0.0,
    from_encoder: Annotated[dict[str, Any], make_encoder_decoder] | None = None,
    decodes: bool = False,
    decoder_layers: Size | None = None,
    adapter: Text | None = None,
    lora: Annotated[dict[str, Any], add_lora] | None = None,
    frozen: Frozen | None = None,
    compile: bool = False,
    bidirectional: bool = False,
    head: Literal["classifier", "words"] | None = None,
) -> PreTrainedModel:
    """Loads or builds an encoder or an encoder-decoder, in fp32 whatever was saved.

    An encoder maps token ids (B, L) to token vectors (B, L, hidden_size); so does a decoder-only
    language model, whose tokens attend to earlier ones. Its attribute `left_out` lists the weights
    that a pretrained model comes with and that were not loaded, such as a head.

    Args:
        name: a hub name or a folder: `google/t5-v1_1-base`, `bert-base-uncased`,
            `answerdotai/ModernBERT-base`. None builds a small T5.
        dropout_rate: None = the pretrained model's own rate, or 0 for a new model.
        attention: "eager" is faster for small models on a CPU; families without "sdpa" always use
            it.
        shape: T5Config values of a new model (vocab_size, d_model, num_layers, …); a pretrained
            model has its own.
        gradient_checkpointing: during training, each layer keeps only its input and is recomputed
            in the backward pass. This takes a third more time and a fraction of the memory.
        template: `TextTemplate.settings` of the tokeniser; None = T5's.
        initialisation: weights of a new model: "random" (T5's own scheme) or "mimetic"
            (`match_and_copy`).
        latent: share of a token vector's squared norm that `take_latent_meanings` sets later; for
            a new model only.
        from_encoder: options of `make_encoder_decoder`, which gives an encoder a decoder; None =
            the model has its own decoder.
        decodes: load an encoder-decoder with its output table (T5, mT5, BART, …), or a causal
            language model (Gemma, Qwen, …); otherwise only the encoder is kept.
        decoder_layers: number of layers of a new decoder with random weights; None = the backbone's
            own decoder (NCI trains a new decoder of half the encoder's depth).
        adapter: a folder or a hub name of peft's, whose adapter is added to the pretrained weights.
        lora, frozen, compile: how the backbone trains, see `begin_training`.
        bidirectional: whether the tokens of a decoder-only model attend to later ones, too
            (LLM2Vec, BehnamGhader et al. 2024); otherwise as the model was trained.
        head: keep a pretrained encoder's classifier of one label (a cross-encoder's), or its table
            of a masked language model (SPLADE's); None = no head is kept.

    Raises:
        ValueError: the folder lacks weights, or holds only an encoder where a
            decoder is needed; both `from_encoder` and `decoder_layers` ask for a decoder; the
            template's expansion is a token without a trained vector; or a stack does not read the
            shared embedding table after loading.
    """
    text_template, left_out = TextTemplate(**(template or {})), list[str]()
    if name is None:
        depth = {"num_decoder_layers": decoder_layers} if decoder_layers else {}
        model = _new_t5(decodes, dropout_rate, (shape or {}) | depth, text_template)
        model.latent = latent
        if initialisation == "mimetic":
            match_and_copy(model)
    else:
        converts = decodes and from_encoder is not None
        if converts and decoder_layers:
            raise ValueError(
                f"model.decoder_layers={decoder_layers}: must be null with backbone=from_encoder, "
                "whose decoder has backbone.from_encoder.layers layers"
            )
        config = read_backbone_config(name, dropout_rate)
        model, left_out = _load(name, config, decodes and not converts, head)
        if adapter is not None:
            merge_published(model, adapter)
        if converts:
            model = make_encoder_decoder(model, text_template, **from_encoder)
        if decodes and decoder_layers:
            model = _with_new_decoder(model, decoder_layers)
        if decodes and not model.config.is_encoder_decoder:
            # BOS begins the prompt; no second one begins an identifier, as in BART.
            text_template = replace(text_template, target=())
    chosen = attention if model._supports_sdpa else "eager"
    model.set_attn_implementation("packed" if chosen == "sdpa" and not compile else chosen)
    model.template, model.left_out = text_template, left_out
    if bidirectional and decodes:
        raise ValueError("backbone.bidirectional=true: must be false in a system that generates")
    if bidirectional:
        attend_both_ways(model)
    model.fine_tuning = dict(frozen=frozen, lora=lora, compiled=compile)
    model.has_new_rows = False
    check_embedding_ties(model)
    if name is not None and (text_template.expansion or 0) >= model.config.vocab_size:
        raise ValueError(
            f"tokenizer.expansion: must be a token that backbone.name={name} was trained with, its "
            f"table of {model.config.vocab_size:,} rows has no row {text_template.expansion:,}"
        )
    if (missing := text_template.special[-1] + 1 - model.config.vocab_size) > 0:
        add_tokens(model, missing)  # for markers that were added to the tokeniser
    if gradient_checkpointing:
        older = "gradient_checkpointing_enable"  # the name in the first releases of transformers 5
        enable = getattr(model, "activation_checkpointing_enable", None) or getattr(model, older)
        enable({"use_reentrant": False})
    return model.train()  # from_pretrained returns a model in evaluation mode, without dropout


def read_backbone_config(name: str, dropout_rate: float | None, key: str = "") -> PretrainedConfig:
    """Reads the configuration of a pretrained model; never runs code from its folder.

    Args:
        key: the user's key and value, which errors name; "" = "backbone.name=NAME".

    Raises:
        ValueError: the configuration cannot be read, or the model is quantised, is an adapter of
            another model, or does not read texts.
    """
    key = key or f"backbone.name={name}"
    if Path(name).is_dir():
        check_files(Path(name))
    options = hub_options(name)
    try:
        adapter = find_file(name, "adapter_config.json", options)
        if adapter is None:
            config = AutoConfig.from_pretrained(name, trust_remote_code=False, **options)
    except Exception as error:  # of many kinds: no JSON, an unknown family, a value of another type
        cause = describe_error(error)
        raise ValueError(f"{key}: cannot be read: {cause}") from None
    if adapter is not None:  # transformers would ignore it, or load the model that it names
        rule = "name its base model here, and the adapter as backbone.adapter"
        raise ValueError(f"{key}: holds an adapter, adapter_config.json: {rule}")
    if not hasattr(getattr(config, "encoder", config), "hidden_size"):  # CLIP, ResNet
        rule = "must be an encoder, a decoder or an encoder-decoder of texts"
        raise ValueError(f"{key}: is of the family {config.model_type}, {rule}")
    if getattr(config, "quantization_config", None) is not None:
        # Loading quantised weights runs kernels that the folder chooses.
        raise ValueError(f"{key}: must not be quantised")
    if dropout_rate is not None:
        for name, value in vars(config).items():
            drops = "dropout" in name or name.endswith("pdrop")  # GPT-2
            if drops and "classifier" not in name and isinstance(value, int | float):
                setattr(config, name, dropout_rate)
    return config


def _find_heads(name: str, options: dict[str, bool]) -> list[str]:
    """Lists the files of weights beside a backbone's, such as a Dense part of modules.json."""
    modules = find_file(name, "modules.json", options)
    parts = read_json(Path(modules), list) if modules else []
    paths = [part["path"] for part in parts if isinstance(part, dict) and part.get("path")]
    weights = ("model.safetensors", "pytorch_model.bin")
    files = [*_HEADS, *(f"{path}/{file}" for path in paths for file in weights)]
    return [file for file in files if find_file(name, file, options)]


def _load(
    name: str, config: PretrainedConfig, decodes: bool, head: str | None
) -> tuple[PreTrainedModel, list[str]]:
    """Loads an encoder or an encoder-decoder with all its pretrained weights.

    Returns:
        The model, and the names of other weights that the checkpoint and its folder hold.

    Raises:
        ValueError: weights are missing or do not match the configuration, or a needed decoder
            is missing.
    """
    is_t5, kind = config.model_type in _T5, config.model_type
    if decodes:
        if not hasattr(config, "hidden_size"):  # T5Gemma has two configurations
            raise ValueError(
                f"backbone.name={name}: only the encoder of a {kind} is read here; a generative "
                "system must have another decoder, such as T5's or Gemma's"
            )
        # BERT has a causal form, too; a decoder-only family has no masked language model.
        auto: Any = AutoModelForCausalLM
        known = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys() - MODEL_FOR_MASKED_LM_MAPPING_NAMES
        if config.is_encoder_decoder:
            auto, known = (
                AutoModelForSeq2SeqLM,
                kind in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
            )
        if not known:  # transformers would make a random decoder
            raise ValueError(
                f"backbone.name={name}: holds an encoder alone ({kind}), a generative "
                "system must have a decoder, such as T5's or Gemma's"
            )
    elif head:
        auto = {
            "classifier": AutoModelForSequenceClassification,
            "words": AutoModelForMaskedLM,
        }[head]
        named = str((config.architectures or [kind])[0])
        if head == "classifier" and not (
            named.endswith("SequenceClassification") and config.num_labels == 1
        ):  # an LLM that answers yes or no, monoT5
            rule = "must have a classifier of one label; model.pooling=last trains a new head on it"
            raise ValueError(f"backbone.name={name}: holds a {named}, {rule}")
    else:  # the T5 family (ByT5 is a T5) has a separate class for encoders
        auto = AutoModelForTextEncoding if is_t5 else AutoModel
    options = {"output_loading_info": True, **_WEIGHT_OPTIONS, **hub_options(name)}
    options["dtype"] = torch.get_default_dtype()  # fp32: mixed precision is the trainer's
    try:
        with quiet_libraries():  # missing weights are checked below
            model, loading = auto.from_pretrained(name, config=config, **options)
    except (OSError, RuntimeError, ValueError) as error:  # a family without such a head
        raise ValueError(
            f"backbone.name={name}: cannot be loaded: {describe_error(error)}"
        ) from None
    # BERT's pooler may be missing: it is not used.
    lacks = sorted(key for key in loading["missing_keys"] if not key.startswith("pooler."))
    if lacks:
        raise ValueError(f"backbone.name={name}: lacks the weights {name_some(lacks)}")
    # BERT's pooler scores no text, and is not among the weights of all models.
    left_out = sorted(key for key in loading["unexpected_keys"] if ".pooler." not in key)
    if config.is_encoder_decoder:
        left_out = [key for key in left_out if not _DECODER.match(key)]
    set_epsilon(model)
    if not decodes:
        model.config.use_cache = False  # a decoder would return its keys and values
        left_out += [] if head else _find_heads(name, hub_options(name))
        model = model.get_encoder() if config.is_encoder_decoder and not is_t5 else model
        if getattr(model, "pooler", None) is not None:
            model.pooler = None  # BERT's: it would get no gradient
    return model, left_out


def attend_both_ways(model: PreTrainedModel) -> None:
    """Lets every token of a decoder-only model attend to all tokens.

    Raises:
        ValueError: no layer attends.
    """
    layers = [part for part in model.modules() if hasattr(part, "is_causal")]
    if not layers:
        key = f"backbone.bidirectional=true: backbone.name={model.name_or_path}"
        raise ValueError(f"{key}: must have attention ({model.config.model_type} has none)")
    for part in (model.config, *layers):  # the configuration makes the mask
        part.is_causal = False


def _with_new_decoder(model: PreTrainedModel, layers: int) -> PreTrainedModel:
    """Returns a model with the same encoder and tables, and a new decoder of random weights.

    Raises:
        ValueError: it is a decoder alone.
    """
    if not model.config.is_encoder_decoder:
        rule = f"must be null, as backbone.name={model.name_or_path} has no encoder"
        raise ValueError(f"model.decoder_layers={layers}: {rule}")
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


def _packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    lengths: list[int] | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attends within each of the texts that are packed one after another, (1, H, Σ lengths, d)."""
    attend = AttentionInterface()["sdpa"]
    if query.device.type != "cpu":
        return attend(module, query, key, value, mask, **options)
    # torch's attention on a CPU is three times slower in bf16 than in fp32, forward and backward.
    with torch.autocast("cpu", enabled=False):
        query, key, value = (
            part.to(torch.promote_types(part.dtype, torch.float32)) for part in (query, key, value)
        )
        if options.get("position_bias") is not None:  # T5's
            options["position_bias"] = options["position_bias"].to(query.dtype)
        if lengths is None:  # padded texts
            return attend(module, query, key, value, mask, **options)
        texts = zip(*(part.split(lengths, dim=2) for part in (query, key, value)), strict=True)
        return torch.cat([attend(module, *text, None, **options)[0] for text in texts], dim=1), None


AttentionInterface.register("packed", _packed_attention)
AttentionMaskInterface.register("packed", AttentionMaskInterface()["sdpa"])


def read_states(
    encoder: PreTrainedModel, mask: Tensor, attended: Tensor | None = None, **inputs: Tensor
) -> Tensor:
    """Encodes texts into states (B, L, d), which are arbitrary at padding.

    On a CPU, a BERT or RoBERTa reads its texts packed, one after another, without padding, which
    may be a quarter of a batch.

    Args:
        mask: (B, L) bool, True = real token.
        attended: (B, L) bool, the tokens that others attend to; None = all real tokens.
        inputs: `input_ids` (B, L) or `inputs_embeds` (B, L, d), and others of the encoder's.
    """
    config = encoder.config
    packs = config._attn_implementation == "packed" and config.model_type in _PACKED
    packs = packs and mask.device.type == "cpu"
    if not packs or attended is not None or not mask.any():
        seen = encoder_mask(encoder, mask if attended is None else attended)
        return encoder(attention_mask=seen, **inputs).last_hidden_state
    first = _position_table(encoder)[1]
    positions = torch.arange(first, first + mask.shape[1]).expand_as(mask)
    real = {name: part[mask][None] for name, part in (inputs | {"position_ids": positions}).items()}
    lengths = [length for length in mask.sum(1).tolist() if length]
    states = encoder(**real, lengths=lengths).last_hidden_state[0]
    return states.new_zeros(*mask.shape, states.shape[1]).masked_scatter(mask[..., None], states)


def encoder_mask(encoder: PreTrainedModel, mask: Tensor) -> Tensor:
    """Converts a mask (B, L) bool into the form that the encoder takes.

    Given a (B, L) mask, transformers tests whether anything is padded, and the CPU waits for the
    accelerator. T5 adds a bias to every attention and does not benefit from the test: on an
    accelerator its mask is (B, 1, 1, L), which broadcasts over heads and queries.
    """
    if mask.device.type == "cpu" or encoder.config.model_type not in _T5:
        return mask.long()
    every = mask[:, None, None]
    if encoder.config._attn_implementation != "eager":
        return every
    least = torch.finfo(encoder.dtype).min
    return torch.zeros_like(every, dtype=encoder.dtype).masked_fill(~every, least)


def encode(backbone: PreTrainedModel, ids: Tensor, mask: Tensor) -> Tensor:
    """Encodes token ids (B, N) with their mask into vectors (B, N, d), by the model's encoder.

    Those of a causal language model are its states, without its output table.
    """
    encoder = backbone.get_encoder() if backbone.config.is_encoder_decoder else backbone.base_model
    return read_states(encoder, mask, input_ids=ids)


@torch.inference_mode()
def encode_texts(
    backbone: PreTrainedModel,
    texts: Sequence[Sequence[int]],
    length: int,
    description: str,
) -> Iterator[Tensor]:
    """Yields the vectors of each text, (tokens, d) fp32 on the CPU, computed without dropout.

    Args:
        texts: token ids.
        length: number of tokens kept of a text, special tokens included.
    """
    was_training = backbone.training
    backbone.eval()
    for first in track(range(0, len(texts), _ENCODED), description):
        chosen = texts[first : first + _ENCODED]
        rows = [backbone.template.read_document(tokens, length) for tokens in chosen]
        ids, mask = (x.to(backbone.device) for x in pad(rows))
        vectors = encode(backbone, ids, mask).float().cpu()
        yield from (row[real] for row, real in zip(vectors, mask.cpu(), strict=True))
    backbone.train(was_training)


def add_tokens(model: PreTrainedModel, n_tokens: int) -> None:
    """Appends random rows for n new tokens to the embedding table and to a separate output table.

    `resize_token_embeddings` alone would tie the output table of a T5 v1.1 to the embedding table,
    and lose its trained rows.
    """
    head, shared = model.get_output_embeddings(), model.get_input_embeddings().weight
    output = None if head is None or head.weight is shared else head.weight.detach()
    model.resize_token_embeddings(len(shared) + n_tokens, mean_resizing=False)
    if output is not None:
        new = torch.randn(n_tokens, output.shape[1]).to(output) * output.std()
        model.get_output_embeddings().weight = nn.Parameter(torch.cat([output, new]))
    model.has_new_rows = True
    check_embedding_ties(model)


def check_embedding_ties(model: PreTrainedModel) -> None:
    """Checks that encoder and decoder read the shared embedding table.

    Under transformers 5, some checkpoints of the T5 family loaded with untied or random encoder
    embeddings; worse metrics were the only symptom. The output table may be a separate table
    (T5 v1.1) and is not checked.

    Raises:
        ValueError: a stack has its own embedding table.
    """
    shared = model.get_input_embeddings().weight
    for name, part in model.named_modules():
        own = getattr(part, "embed_tokens", None)
        if own is not None and own.weight is not shared:
            raise ValueError(
                f"backbone.name={model.name_or_path}: {name}.embed_tokens is not tied to the "
                "shared embedding table after loading"
            )


def find_start_token(model: PreTrainedModel) -> int:
    """Returns the id that a decoder reads first, as configured, or else as in pretraining.

    A causal language model reads the identifier after the last token of the query's template.
    """
    template = getattr(model, "template", TextTemplate())
    if not model.config.is_encoder_decoder:
        return template.suffix[-1]
    start = getattr(model.config, "decoder_start_token_id", None)
    if start is not None:
        return start
    # mBART starts with the language code that ends the encoder's input, T5 with padding.
    last = template.suffix[-1]
    return template.pad if last == template.stop else last


def max_length(model: PreTrainedModel) -> int | None:
    """Returns the most tokens that a model with learned positions reads; None = unlimited."""
    positions = getattr(model.config, "max_position_embeddings", None)
    table, first = _position_table(model)
    return None if table is None or positions is None else positions - first


def _position_table(model: PreTrainedModel) -> tuple[Any, int]:
    """Returns a model's table of learned positions, or None, and the number of the first one."""
    table = next((p for n, p in model.named_modules() if n.endswith(_POSITIONS)), None)
    # RoBERTa's positions begin after its padding token.
    padding = getattr(table, "padding_idx", None)
    return table, 0 if padding is None else padding + 1


def check_length(model: PreTrainedModel, **lengths: int) -> None:
    """Raises ValueError for a length that the backbone cannot read or that has no room for text."""
    least, longest = model.template.least, max_length(model)
    for name, length in lengths.items():
        if length < least:
            rule = f"must be ≥ {least}, one token of the text and the special tokens around it"
            raise ValueError(f"{name}={length}: {rule}")
        if longest is not None and length > longest:
            rule = f"must be ≤ {longest}, the longest input of backbone.name={model.name_or_path}"
            raise ValueError(f"{name}={length}: {rule}")


def _new_t5(
    decodes: bool, dropout_rate: float | None, shape: dict[str, Any], template: TextTemplate
) -> PreTrainedModel:
    """Builds a new T5 in its original form, with ReLU: a gated unit takes twice the time here.

    The output table is tied to the input table, so that a model without pretraining can copy a
    query token to its output from the start.

    Raises:
        ValueError: transformers or torch cannot make a T5 of these values.
    """
    if unknown := sorted(shape.keys() - T5Config().to_dict().keys()):
        raise ValueError(f"backbone.shape.{unknown[0]}: must be a key of transformers' T5Config")
    try:
        config = T5Config(
            dropout_rate=dropout_rate or 0.0,
            decoder_start_token_id=template.pad,
            pad_token_id=template.pad,
            eos_token_id=template.stop,
            tie_word_embeddings=True,
            **shape,
        )
        return (T5ForConditionalGeneration if decodes else T5EncoderModel)(config)
    except Exception as error:  # its type depends on the value
        rule = f"must be values that a T5 can have ({describe_error(error)})"
        raise ValueError(f"backbone.shape={shape}: {rule}") from None


def hash_weights(model: nn.Module) -> str:
    """Hashes names and values of all parameters, buffers and extra state to 16 hex digits."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        if isinstance(value, torch.Tensor):
            digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:  # extra state that is not a tensor holds plain values
            digest.update(repr(value).encode())
    return digest.hexdigest()[:16]
