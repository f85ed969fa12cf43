"""What trains of a backbone: all of it, some parts, or low-rank adapters (LoRA, Hu et al. 2022)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D
from transformers.utils import cached_file

from gr_mvdr.files import check_files, describe_error, hub_options, read_json
from gr_mvdr.options import Positive, Size, checked, name_some

Frozen = Literal["embeddings", "encoder", "all"]
_FILES = ("adapter_config.json", "adapter_model.safetensors")
# Keys of adapter_config.json: those of plain LoRA, and those without an effect on its weights.
_LORA = {"r", "lora_alpha", "target_modules", "exclude_modules", "rank_pattern", "alpha_pattern"}
_LORA |= {"use_rslora", "fan_in_fan_out", "layers_to_transform", "layers_pattern"}
_WITHOUT_EFFECT = {"base_model_name_or_path", "task_type", "revision", "auto_mapping"}
_WITHOUT_EFFECT |= {"peft_version", "inference_mode", "lora_dropout"}


def begin_training(
    model: PreTrainedModel, frozen: Frozen | None, lora: dict | None, compiled: bool
) -> None:
    """Freezes a part of a backbone or adds adapters to it, the rest of which is then frozen.

    Tables with rows for new tokens, such as docids, train nevertheless.

    Args:
        frozen: "embeddings" are the tables of tokens, positions and segments; the encoder of an
            encoder-decoder includes those that it reads.
        lora: options of `add_lora`.
        compiled: whether torch compiles the encoder and the decoder, for texts of any length.
    """
    tables = {model.get_input_embeddings(), model.get_output_embeddings()} - {None}
    kept = {id(table.weight): table.weight.requires_grad for table in tables if model.has_new_rows}
    for name, part in model.named_modules():
        # T5 keeps the biases of its attention in a table, too.
        is_table = isinstance(part, nn.Embedding) and "bias" not in name
        has_decoder = model.config.is_encoder_decoder
        in_encoder = part is model.get_encoder() if has_decoder else part is model
        if {"embeddings": is_table, "encoder": in_encoder, "all": True}.get(frozen or ""):
            part.requires_grad_(False)
    if lora is not None and not hasattr(model, "adapted"):
        add_lora(model, **lora)
    for weight in model.parameters():
        if kept.get(id(weight)):
            weight.requires_grad_(True)
    stacks = (
        [model.get_encoder(), model.get_decoder()]
        if model.config.is_encoder_decoder
        else [model.base_model]
    )
    for stack in stacks if compiled else []:
        stack.compile(dynamic=True)


@checked
def add_lora(
    model: PreTrainedModel,
    r: Size = 8,
    alpha: Positive = 16,
    targets: Sequence[str] | str | None = None,
) -> None:
    """Adds (alpha / r) B A to linear layers, where A is (r, d) and B is zero; the rest is frozen.

    Args:
        targets: names of layers, or "all-linear"; None = peft's choice for the family, such as the
            query's and the value's layer of attention.

    Raises:
        ValueError: peft is missing, or finds no such layers.
    """
    options: dict[str, Any] = {"r": r, "lora_alpha": alpha, "target_modules": targets}
    _adapt(model, f"backbone.lora.targets={targets}", options)


def _adapt(model: PreTrainedModel, key: str, options: dict[str, Any]) -> Any:
    peft = _import_peft(key)
    try:
        adapted = peft.get_peft_model(model, peft.LoraConfig(**options))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{key}: {describe_error(error)}") from None
    model.adapted = (adapted,)  # a tuple, or it would be a submodule
    return adapted


def _import_peft(key: str) -> Any:
    try:
        import peft
    except ImportError:
        raise ValueError(f"{key}: needs peft: pip install 'gr-mvdr[adapters]'") from None
    return peft


def merge_adapters(model: PreTrainedModel, folder: Path | None = None) -> None:
    """Adds a backbone's adapters to its weights, and forgets them.

    Args:
        folder: an empty folder, where peft saves them before; None = nowhere.
    """
    (adapted,) = vars(model).pop("adapted")
    if folder is not None:
        adapted.save_pretrained(folder, save_embedding_layers=False)
    adapted.merge_and_unload()


def merge_published(model: PreTrainedModel, name: str) -> None:
    """Adds a published adapter, a folder or a hub name, to the weights of its base model.

    Raises:
        ValueError: it is not plain LoRA, or belongs to another model.
    """
    key, options = f"backbone.adapter={name}", hub_options(name, "backbone.adapter")
    peft = _import_peft(key)
    if Path(name).is_dir():
        check_files(Path(name))
    try:
        settings, weights = (Path(str(cached_file(name, file, **options))) for file in _FILES)
        config, tensors = read_json(settings), load_file(weights)
    except Exception as error:  # of many kinds
        raise ValueError(f"{key}: cannot be read: {describe_error(error)}") from None
    plain = peft.LoraConfig().to_dict()
    others = config.keys() - _LORA - _WITHOUT_EFFECT
    if further := sorted(k for k in others if config[k] and config[k] != plain.get(k)):
        raise ValueError(
            f"{key}: adapter_config.json: must be plain LoRA, has {name_some(further)}"
        )
    adapted = _adapt(model, key, {name: config[name] for name in _LORA & config.keys()})
    try:
        found = peft.set_peft_model_state_dict(adapted, tensors)
        wrong = [name for name in found.missing_keys if "lora_" in name] + found.unexpected_keys
        problem = name_some(wrong)
    except RuntimeError as error:  # another size
        problem = describe_error(error)
    if problem:
        raise ValueError(f"{key}: does not fit backbone.name={model.name_or_path}: {problem}")
    merge_adapters(model)
    model.requires_grad_(True)


def full_weight(layer: nn.Module) -> Tensor:
    """(out, in) a linear layer's weight, its adapter included."""
    added = getattr(layer, "get_delta_weight", None)
    weight = layer.weight + added("default") if added else layer.weight
    return weight.T if isinstance(getattr(layer, "base_layer", layer), Conv1D) else weight  # GPT-2
