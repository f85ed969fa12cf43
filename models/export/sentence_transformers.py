"""The files with which sentence-transformers ≥ 6 reads a folder as a `MultiVectorEncoder`.

It scores by MaxSim (gr_as_mvdr Eq. 21), a sum or a mean over query tokens, of unit vectors of all
tokens. Its tokeniser cuts a text and keeps what is around it, as `gr_mvdr.template` does.
"""

import copy
import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from transformers import AddedToken, PreTrainedTokenizerBase

from gr_mvdr.alignment import MaxOverDocument, TopK
from gr_mvdr.pooling import AllTokens
from gr_mvdr.template import read_template
from models.export.published_parts import PROBES, SIDES
from models.multi_vector import MultiVector

# Z of Eq. 1 → the library's name; MaxSim's Σ A is the number of query tokens.
SIMILARITIES = {"none": "maxsim", "query_tokens": "meanmaxsim", "alignment": "meanmaxsim"}
_BASE = "sentence_transformers.base.modules"
MODULES = {
    "": f"{_BASE}.transformer.Transformer",
    "1_Dense": f"{_BASE}.dense.Dense",
    "2_MultiVectorMask": (
        "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask"
    ),
    "3_Normalize": f"{_BASE}.normalize.Normalize",
}
_TOKENS = "token_embeddings"


def find_obstacles(system: MultiVector, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """What of a system's equation the library cannot express; [] = it gives the same scores."""
    encoder, scoring, expansion = system.encoder, system.scoring, system.template.expansion
    prompts = find_prompts(system, tokenizer)[1]
    found = {
        f"the alignment {scoring.alignment!r}": not _is_max_sim(scoring.alignment),
        f"the normaliser {scoring.normaliser}": scoring.normaliser not in SIMILARITIES,
        "keys apart from values": encoder.keys is not None,
        "salience": len(encoder.salience) > 0,
        "pooling": any(type(part) is not AllTokens for part in encoder.pooling.values()),
        "an expansion without a token": (expansion or 0) >= len(tokenizer),
        "markers that join the text after them": None in prompts.values(),
    }
    return [name for name, holds in found.items() if holds]


def _is_max_sim(alignment: Any) -> bool:
    return type(alignment) is MaxOverDocument or alignment == TopK(1)


def find_prompts(
    system: MultiVector, tokenizer: PreTrainedTokenizerBase
) -> tuple[PreTrainedTokenizerBase, dict[str, str | None]]:
    """The texts that the library puts before those of a side, and the tokeniser that finds them.

    A prompt is None where it would change the tokens of the text that follows it.
    """
    own, reader = len(read_template(tokenizer).query), copy.deepcopy(tokenizer)
    markers = {side: list(getattr(system.template, side)[own:]) for side in SIDES}
    if any(markers.values()):
        reader.split_special_tokens = False
    found = {}
    for side, ids in markers.items():
        text = tokenizer.convert_ids_to_tokens(ids[0]) if len(ids) == 1 else tokenizer.decode(ids)
        if len(ids) == 1 and _find_prompt(reader, text, ids) is None:
            # A row such as [unused0], which no text is read as.
            token = AddedToken(text, special=True, normalized=False)
            reader.add_tokens([token], special_tokens=True)
        found[side] = _find_prompt(reader, text, ids)
    return reader, found


def _find_prompt(reader: PreTrainedTokenizerBase, text: str, ids: list[int]) -> str | None:
    def read(text: str) -> list[int]:
        return reader(text, add_special_tokens=False)["input_ids"]

    for prompt in (text, f"{text} "):
        if all(read(prompt + word) == ids + read(word) for word in PROBES):
            return prompt
    return None


def write_modules(system: MultiVector, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Writes the library's files next to those of the encoder and of its tokeniser.

    Args:
        system: one without `obstacles`.
    """
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": kind}
        for number, (path, kind) in enumerate(MODULES.items())
    ]
    _write_json(folder / "modules.json", modules)
    _write_json(
        folder / "config_sentence_transformers.json",
        {
            "model_type": "MultiVectorEncoder",
            "prompts": find_prompts(system, tokenizer)[1],
            "default_prompt_name": None,
            "similarity_fn_name": SIMILARITIES[system.scoring.normaliser],
        },
    )
    _write_json(folder / "sentence_bert_config.json", _transformer(system, tokenizer))
    for path, settings in _parts(system, tokenizer).items():
        (folder / path).mkdir()
        _write_json(folder / path / "config.json", settings)
    weight = system.encoder.values["query"].weight.detach().float().cpu().clone()
    save_file({"linear.weight": weight}, folder / "1_Dense" / "model.safetensors")


def _transformer(system: MultiVector, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    lengths = {name: system.hparams[name] for name in ("query_length", "document_length")}
    settings = {
        "transformer_task": "feature-extraction",
        "modality_config": {
            "text": {"method": "forward", "method_output_name": "last_hidden_state"}
        },
        "module_output_name": _TOKENS,
        **lengths,
    }
    if (token := system.template.expansion) is not None:
        length = min(
            system.hparams.expansion_length or lengths["query_length"], lengths["query_length"]
        )
        settings["query_expansion"] = {
            "strategy": "fixed" if length == lengths["query_length"] else "min",
            "attend": system.hparams.attend_expansion,
            "token": tokenizer.convert_ids_to_tokens(token),
            "length": length,
        }
    return settings


def _parts(system: MultiVector, tokenizer: PreTrainedTokenizerBase) -> dict[str, dict[str, Any]]:
    """The settings of the modules after the encoder, by folder."""
    dense = system.encoder.values["query"]
    names = {"module_input_name": _TOKENS, "module_output_name": _TOKENS}
    return {
        "1_Dense": {
            "in_features": dense.in_features,
            "out_features": dense.out_features,
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
            **names,
        },
        "2_MultiVectorMask": {
            "skiplist_words": tokenizer.convert_ids_to_tokens(list(system.template.skip)),
            "skiplist_tasks": ["document"],
            "keep_only_token_ids": None,
        },
        "3_Normalize": names,
    }


def _write_json(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
