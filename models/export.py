"""Exports a system to a Hugging Face folder and loads it; transformers saves the backbone."""

import copy
import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gr_mvdr.backbones import find_start_token
from gr_mvdr.decoding import constraint
from gr_mvdr.decoding.names import TrieNames
from gr_mvdr.files import open_tensors, read_json, reading, write_json, write_tensors
from gr_mvdr.heads.plain import Head, Vocabulary
from gr_mvdr.options import TARGET, admitting, build, check_parts
from gr_mvdr.progress import quiet_libraries
from gr_mvdr.template import read_template
from models.base import System, find_backbone
from models.docid import Docid
from models.generative import GenerativeSystem
from models.multi_vector import MultiVector
from models.sentence_transformers import find_obstacles, find_prompts, write_modules
from models.t5_seal import T5SEAL

SETTINGS, PARTS = "gr_mvdr.json", "gr_mvdr.safetensors"
ROWS = "head_rows."  # before the names of a head's tensors that are not parameters
IDENTIFIERS = "identifiers"


@quiet_libraries()
def write_system(
    system: System,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    texts: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Fills an empty folder with a trained system, in fp32; no file in it is a pickle.

    Args:
        tokenizer: the run's tokeniser; the folder's tokeniser appends the end token itself.
        texts: `text_fields` and `cleaning` of the documents (`gr_mvdr.texts.TextReader`).
    """
    name, backbone = find_backbone(system)
    write_backbone(backbone, folder)
    modules = isinstance(system, MultiVector) and not find_obstacles(system, tokenizer)
    write_tokenizer(find_prompts(system, tokenizer)[0] if modules else tokenizer, folder)
    own = {key: x for key, x in system.state_dict().items() if not key.startswith(f"{name}.")}
    rows = own.pop("head._extra_state", {})  # PAWA's
    if isinstance(system, GenerativeSystem):
        rows = system.head.table_state() or rows
    made_from = {"collection": rows.pop("collection", None)}
    tensors = own | {ROWS + key: value for key, value in rows.items()}
    copies = {  # a projection that both sides share would be refused as two names of one memory
        key: (value.float() if value.is_floating_point() else value).clone().cpu()
        for key, value in tensors.items()
    }
    write_tensors(folder / PARTS, copies, made_from)
    settings: dict[str, Any] = {
        "system": f"{type(system).__module__}.{type(system).__qualname__}",
        "hyper_parameters": dict(system.hparams),
        "texts": {name: list(values) for name, values in (texts or {}).items()},
    }
    if isinstance(system, Docid):
        system.save_identifiers(folder / IDENTIFIERS)
    if generate_searches(system):
        write_constraint(system, folder)
    if modules:
        write_modules(system, tokenizer, folder)
    write_json(folder / SETTINGS, settings)


def generate_searches(system: System) -> bool:
    """Returns whether transformers' `generate`, with a constraint, searches as the system does."""
    # Views of documents and plans are not constraints, and transformers lacks the other heads.
    simple = type(system) in (Docid, T5SEAL) and type(system.head) is Head
    return simple and system.names is not None and system.plan is None


def write_constraint(system: GenerativeSystem, folder: Path) -> None:
    """Writes what constrains transformers' `generate` to the names of the indexed documents."""
    names, is_trie = system.names, isinstance(system.names, TrieNames)
    names.constraint.save(folder / constraint.ARRAYS)
    options = {
        "max_new_tokens": names.length,
        "length_penalty": names.length_penalty if is_trie else 0.0,
        "eos_token_id": system.template.stop,
        "early_stopping": "never",
        "do_sample": False,
        "output_scores": True,
        "return_dict_in_generate": True,
        # What published BARTs ask for.
        "min_length": 0,
        "no_repeat_ngram_size": 0,
        "forced_bos_token_id": None,
        "forced_eos_token_id": None,
    }
    settings = {
        "vocabulary": system.vocabulary_size,
        "width": names.constraint.width if is_trie else system.vocabulary_size,
        "end_token": system.template.stop,
        "options": options,
        "document_ids": system.document_ids if is_trie else [],
    }
    write_json(folder / constraint.SETTINGS, settings, indent=None)
    shutil.copyfile(constraint.__file__, folder / "constraint.py")


def write_backbone(backbone: PreTrainedModel, folder: Path) -> None:
    """Writes config.json, model.safetensors and, for an encoder-decoder, generation_config.json."""
    if any(weight.dtype != torch.float32 for weight in backbone.parameters()):
        backbone = copy.deepcopy(backbone).float()
    decodes = backbone.get_output_embeddings() is not None
    if decodes:
        # What every system here reads first; some configurations leave it open.
        start = find_start_token(backbone)
        for config in (backbone.config, backbone.generation_config):
            config.decoder_start_token_id = start
    backbone.save_pretrained(folder)
    if decodes:  # transformers 5 always writes that the output table is the input's
        tables = backbone.get_input_embeddings(), backbone.get_output_embeddings()
        tied = {"tie_word_embeddings": tables[0].weight is tables[1].weight}
        write_json(folder / "config.json", read_json(folder / "config.json") | tied)


def write_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Writes a tokeniser that appends the end token by default, as a pretrained one does."""
    tokenizer = copy.deepcopy(tokenizer)
    if not tokenizer("")["input_ids"]:
        end = read_template(tokenizer).stop  # BERT's has no end token but [SEP]
        word = tokenizer.convert_ids_to_tokens(end)
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"$A {word}", pair=f"$A {word} $B {word}", special_tokens=[(word, end)]
        )
    tokenizer.save_pretrained(folder)


def load_exported(folder: str | Path, trust: bool = False) -> System:
    """Loads an exported system, which gives the same scores as when it was exported.

    It scores, aligns and, after indexing documents, searches. To continue training its backbone,
    name the folder as `backbone.name`. Without trust, only this library's parts are built
    (docs/design.md).

    Args:
        folder: a folder written by `python -m analysis.export`.
        trust: whether the folder may name classes from outside this library, whose code then runs.

    Raises:
        FileNotFoundError: the folder, or a file in it, is missing.
        ValueError: a file is broken, files do not belong together, or a class is not a part of this
            library.
    """
    folder = Path(folder)
    with reading(f"{folder}: cannot be loaded"):
        settings = read_json(folder / SETTINGS)
        tensors, made_from = open_tensors(folder / PARTS)
        names = [name for name in tensors if name.startswith(ROWS)]
        rows = {name.removeprefix(ROWS): tensors.pop(name) for name in names}
        with admitting(settings) if trust else nullcontext():
            system = _new_system(settings, folder)
            if isinstance(system, Docid):
                system.load_identifiers(folder / IDENTIFIERS)
            if rows:  # else row v is token v
                _make_head(system, rows | made_from)
        missing, unexpected = system.load_state_dict(tensors, strict=False)
        loaded = f"{find_backbone(system)[0]}.", "head._extra_state"
        missing = [name for name in missing if not name.startswith(loaded)]
        if missing or unexpected:
            raise ValueError(f"{PARTS} lacks {missing}, holds unknown {unexpected}")
    return system.eval()


def _make_head(system: GenerativeSystem, state: dict[str, Any]) -> None:
    """Gives a system on the exported backbone the exported head, its parameters still untrained."""
    docids = isinstance(system, Docid)
    known = [system.scheme.first_token, system.scheme.width] if docids else []
    vocabulary = Vocabulary(state["row_tokens"], *known)
    system.head = build("head", system.hparams.head, system.backbone, vocabulary=vocabulary)
    if "table" in state:
        system.head.renew_table(state)
    elif docids:  # tokens of documents that came after training
        system.head.extend(system.identifiers.tokens)


def read_texts(folder: Path) -> dict[str, list[str]]:
    """Reads the options of `TextReader` that make the exported system's texts."""
    return read_json(folder / SETTINGS).get("texts", {})


def _new_system(settings: dict[str, Any], folder: Path) -> System:
    """Builds the system on the exported backbone, its other parts still untrained."""
    options = {TARGET: settings["system"], **settings["hyper_parameters"]}
    check_parts("model", options)
    options["backbone"] = {**options["backbone"], "name": str(folder.resolve()), "shape": None}
    options["backbone"]["from_encoder"] = None  # the folder holds the encoder-decoder
    if "tokenizer" in options:
        options["tokenizer"] = str(folder)
    if "decoder_layers" in options:  # they are trained now, a new decoder would not be
        options["decoder_layers"] = None
    return build("model", options)
