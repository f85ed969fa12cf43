"""What trains of a backbone: all of it, some parts, or low-rank adapters (LoRA, Hu et al. 2022)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import cached_file

from gr_mvdr.files import check_files, describe_error, hub_options, read_json
from gr_mvdr.options import Positive, Size, checked, name_some

Frozen = Literal["embeddings", "encoder", "all"]
_FILES = ("adapter_config.json", "adapter_model.safetensors")
# Keys of adapter_config.json: those of plain LoRA, and those without an effect on a merged adapter.
_LORA = {
    *("r", "lora_alpha", "target_modules", "rank_pattern", "alpha_pattern", "use_rslora"),
    *("fan_in_fan_out", "exclude_modules", "layers_to_transform", "layers_pattern"),
}
_WITHOUT_EFFECT = {
    *("peft_type", "peft_version", "task_type", "base_model_name_or_path", "revision"),
    *("auto_mapping", "inference_mode", "lora_dropout", "megatron_core", "qalora_group_size"),
}


def begin_training(model: PreTrainedModel, frozen: Frozen | None, lora: dict | None) -> None:
    """Freezes a part of a backbone or adds adapters to it, the rest of which is then frozen.

    Tables with rows for new tokens, such as docids, train nevertheless.

    Args:
        frozen: "embeddings" are the tables of tokens, positions and segments; the encoder of an
            encoder-decoder includes those that it reads.
        lora: options of `add_lora`.
    """
    tables = {model.get_input_embeddings(), model.get_output_embeddings()} - {None}
    kept = {id(table.weight): table.weight.requires_grad for table in tables if model.has_new_rows}
    parts: list[nn.Module] = []
    if frozen == "embeddings":  # T5 keeps the biases of its attention in a table, too
        named = model.named_modules()
        parts = [
            part for name, part in named if isinstance(part, nn.Embedding) and "bias" not in name
        ]
    elif frozen:
        has_decoder = model.config.is_encoder_decoder and frozen == "encoder"
        parts = [model.get_encoder() if has_decoder else model]
    for part in parts:
        part.requires_grad_(False)
    if lora is not None and not hasattr(model, "adapted"):
        add_lora(model, **lora)
    for weight in model.parameters():
        if kept.get(id(weight)):
            weight.requires_grad_(True)


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
    try:
        import peft
    except ImportError:
        rule = "needs peft: pip install 'gr-mvdr[adapters]'"
        raise ValueError(f"{key}: {rule}") from None
    try:
        adapted = peft.get_peft_model(model, peft.LoraConfig(**options))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{key}: {describe_error(error)}") from None
    model.adapted = (adapted,)  # a tuple, or it would be a submodule
    return adapted


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
        ValueError: it is not LoRA without extensions, or belongs to another model.
    """
    key, options = f"backbone.adapter={name}", hub_options(name, "backbone.adapter")
    if Path(name).is_dir():
        check_files(Path(name))
    try:
        settings, weights = (Path(str(cached_file(name, file, **options))) for file in _FILES)
        config = read_json(settings)
    except (OSError, ValueError) as error:
        raise ValueError(f"{key}: cannot be read: {describe_error(error)}") from None
    start = config.pop("init_lora_weights", True)  # others than these change the base's weights
    further = [] if start in (True, False, "gaussian") else [f"init_lora_weights={start}"]
    for option in config.keys() - _LORA - _WITHOUT_EFFECT:
        further += [option] if config[option] not in (None, False, [], {}, "none") else []
    if config.get("peft_type") != "LORA" or further:
        rule = f"must be LoRA without {name_some(sorted(further)) or 'another method'}"
        raise ValueError(f"{key}: adapter_config.json: {rule}")
    from peft import set_peft_model_state_dict

    adapted = _adapt(model, key, {name: config[name] for name in _LORA & config.keys()})
    rule = f"does not fit backbone.name={model.name_or_path}"
    try:
        found: Any = set_peft_model_state_dict(adapted, load_file(weights))
    except Exception as error:  # of many kinds: a damaged file, another size
        raise ValueError(f"{key}: {rule}: {describe_error(error)}") from None
    lacks = [name for name in found.missing_keys if "lora_" in name]
    if lacks or found.unexpected_keys:
        raise ValueError(f"{key}: {rule}: {name_some([*lacks, *found.unexpected_keys])}")
    merge_adapters(model)
    model.requires_grad_(True)


def full_weight(layer: nn.Module) -> Tensor:
    """(out, in) a linear layer's weight, its adapter included."""
    added = getattr(layer, "get_delta_weight", None)
    return layer.weight + added("default") if added else layer.weight
