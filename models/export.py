"""Exports a system: a saved model with what transformers' and other libraries' searches need."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from gr_mvdr.decoding import constraint
from gr_mvdr.decoding.names import TrieNames
from gr_mvdr.files import VERSION, describe_hub_error, find_hub_failure, write_json
from gr_mvdr.heads.plain import Head
from models.base import System
from models.docid import Docid
from models.generative import GenerativeSystem
from models.multi_vector import MultiVector
from models.saved_model import save_model
from models.sentence_transformers import find_obstacles, find_prompts, write_modules
from models.t5_seal import T5SEAL


def export_model(
    system: System,
    folder: Path,
    tokenizer: PreTrainedTokenizerBase,
    texts: Mapping[str, Any],
    publish: bool = False,
) -> None:
    """Fills an empty folder with a trained system, for transformers and sentence-transformers too.

    Args:
        tokenizer, texts: see `save_model`.
        publish: whether others will get the folder; it then holds no texts of documents, which an
            index of n-grams is.
    """
    modules = isinstance(system, MultiVector) and not find_obstacles(system, tokenizer)
    reader = find_prompts(system, tokenizer)[0] if modules else tokenizer
    save_model(system, folder, reader, texts)
    if generate_searches(system) and not (publish and isinstance(system, T5SEAL)):
        write_constraint(system, folder)
    if modules:
        write_modules(system, tokenizer, folder)


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


def upload(folder: Path, name: str) -> str:
    """Publishes a folder on the Hugging Face hub, in the place of what was there.

    Args:
        name: "USER/NAME"; a new repository is public.

    Returns:
        Its address.

    Raises: as `ask_hub`.
    """
    ask_hub(name, "create_repo", exist_ok=True)
    # Files of an earlier export, such as identifiers, are removed.
    said = dict(commit_message=f"Export by gr-mvdr {VERSION}", delete_patterns="*")
    return str(ask_hub(name, "upload_folder", folder_path=folder, **said).repo_url)


def ask_hub(name: str, method: str, **options: Any) -> Any:
    """Calls a method of `HfApi` for a model's name; any failure is an error of one line."""
    from huggingface_hub import HfApi

    if cause := find_hub_failure():
        raise ValueError(f"{name}: the hub cannot be reached ({cause})")
    try:
        return getattr(HfApi(), method)(repo_id=name, **options)
    except Exception as error:  # of the hub's client, or of the network below it
        raise ValueError(f"{name}: the hub refuses: {describe_hub_error(error)}") from None
