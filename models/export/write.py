"""A system as a Hugging Face folder: its T5 as transformers saves it, its other parts beside it."""

import copy
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gr_mvdr.identifiers.scheme import collection_hash
from gr_mvdr.tokenizers import EOS_ID, PAD_ID
from gr_mvdr.weights import weights_hash
from models.base import System
from models.export.head import head_rows
from models.export.sentence_transformers import obstacles, write_modules
from models.identified import IdentifiedSystem
from models.multi_vector import MultiVector

FORMAT = 1
SETTINGS, PARTS, ROWS = "gr_mvdr.json", "gr_mvdr.safetensors", "head_rows.safetensors"
IDENTIFIERS = "identifiers"


def check_exportable(kind: type[System]) -> None:
    """Refuses a class of systems that has no weights of its own.

    Raises:
        ValueError: it is lexical, or a pipeline.
    """
    if kind.paradigm == "pipeline":
        raise ValueError(f"{kind.__name__}: a pipeline is not exported, export the runs it names")
    if not kind.trainable:
        raise ValueError(f"{kind.__name__}: has no T5 to export, it learns nothing")


def write_system(system: System, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Fills a folder with all that a trained system is, in fp32; no file in it is a pickle.

    Args:
        system: trained; its identifiers and rows are written as they are.
        tokenizer: the run's; the folder's one ends a text by itself, as this library does.
        folder: exists and is empty.
    """
    check_exportable(type(system))
    name, t5 = t5_of(system)
    write_t5(t5, folder)
    write_tokenizer(tokenizer, folder)
    _write_tensors(other_parts(system, name), folder / PARTS)
    settings: dict[str, Any] = {
        "format": FORMAT,
        "system": f"{type(system).__module__}.{type(system).__qualname__}",
        "hyper_parameters": dict(system.hparams),
    }
    settings["head"], rows = head_rows(getattr(system, "head", None))
    _write_tensors(rows, folder / ROWS)
    if isinstance(system, IdentifiedSystem):
        system.save_identifiers(folder / IDENTIFIERS)
        settings["identifiers"] = {
            "collection": collection_hash(system.identifiers.document_ids),
            "first_token": system.scheme.first_token,
        }
    if isinstance(system, MultiVector) and not obstacles(system, tokenizer):
        write_modules(system, tokenizer, folder)
    text = json.dumps(settings, indent=2, ensure_ascii=False)
    (folder / SETTINGS).write_text(text + "\n", encoding="utf-8")


def t5_of(system: System) -> tuple[str, PreTrainedModel]:
    """A system's T5, and its name there, such as "encoder.backbone"."""
    parts = system.named_modules()
    return next((name, part) for name, part in parts if isinstance(part, PreTrainedModel))


def other_parts(system: System, t5: str) -> dict[str, Tensor]:
    """The tensors of a system's state that are not its T5's, by name."""
    state = system.state_dict().items()
    return {
        name: value
        for name, value in state
        if isinstance(value, Tensor) and not name.startswith(f"{t5}.")
    }


def write_t5(t5: PreTrainedModel, folder: Path) -> None:
    """config.json, model.safetensors and, of an encoder-decoder, generation_config.json."""
    if any(weight.dtype != torch.float32 for weight in t5.parameters()):
        t5 = copy.deepcopy(t5).float()
    if decodes := hasattr(t5, "lm_head"):
        # What every system here reads first; some configurations leave it open.
        for config in (t5.config, t5.generation_config):
            config.decoder_start_token_id = PAD_ID
    t5.save_pretrained(folder)
    if decodes:
        _write_ties(t5, folder / "config.json")
    _check_loads(t5, folder)


def _write_ties(t5: PreTrainedModel, file: Path) -> None:
    """Says whether the output table is the input's: transformers 5 always writes that it is."""
    config = json.loads(file.read_text(encoding="utf-8"))
    config["tie_word_embeddings"] = _tied(t5)
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _check_loads(t5: PreTrainedModel, folder: Path) -> None:
    """Asserts that transformers reads what was written: it ties tables without a word."""
    loaded = type(t5).from_pretrained(folder)
    assert weights_hash(loaded) == weights_hash(t5), f"{folder}: loads with other weights"
    assert loaded.config.vocab_size == len(loaded.shared.weight), f"{folder}: vocab_size"
    if hasattr(t5, "lm_head"):
        assert len(loaded.lm_head.weight) == len(loaded.shared.weight), f"{folder}: table sizes"
        assert _tied(loaded) == _tied(t5), f"{folder}: loads with other ties"
        assert _scaled(loaded) == _scaled(t5), f"{folder}: loads with another scale of the logits"


def _tied(t5: PreTrainedModel) -> bool:
    return t5.lm_head.weight is t5.shared.weight


def _scaled(t5: PreTrainedModel) -> bool:
    return getattr(t5.config, "scale_decoder_outputs", False)  # mT5's config has no such key


def write_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """The tokeniser's files. Called without options it ends a text with </s>, as T5's own does."""
    tokenizer = copy.deepcopy(tokenizer)
    if tokenizer("")["input_ids"] != [EOS_ID]:
        end = tokenizer.convert_ids_to_tokens(EOS_ID)
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, EOS_ID)]
        )
    tokenizer.save_pretrained(folder)


def _write_tensors(tensors: dict[str, Tensor], file: Path) -> None:
    """A safetensors file, floats in fp32; none where there is nothing to write."""
    copies = {
        # Clones: a projection that both sides share would be refused as two names of one memory.
        name: (value.float() if value.is_floating_point() else value).clone().cpu().contiguous()
        for name, value in tensors.items()
    }
    if copies:
        save_file(copies, file, {"format": "pt"})
