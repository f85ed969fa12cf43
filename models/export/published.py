"""Published multi-vector checkpoints: what their folders say, read as nothing but data.

Three layouts hold the same system, ColBERT's: an encoder, a linear projection of its states, unit
vectors, MaxSim (gr_as_mvdr Eq. 21).

- sentence-transformers ≥ 6, `MultiVectorEncoder`: modules.json lists the parts; the texts' lengths
  and the expansion of queries are in sentence_bert_config.json.
- PyLate: modules.json lists an encoder and projections; everything else is in
  config_sentence_transformers.json, and masking and normalising are its code's.
- colbert-ai: one file of weights, `bert.*` and `linear.weight`, and artifact.metadata.

Class names in these files are compared with a list and never imported (docs/security.md).
"""

import json
import string
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gr_mvdr.files import describe_error, hub_options, is_on_hub, read_json, read_weights
from gr_mvdr.template import TextTemplate
from models.base import System
from models.export.published_parts import (
    MODULES,
    SIDES,
    FolderTokens,
    check_matrix,
    check_width,
    read_keys,
    read_parts,
    read_projection,
    read_whole,
    read_words,
    wrong,
)
from models.multi_vector import MultiVector

SETTINGS, ENCODER_SETTINGS = "config_sentence_transformers.json", "sentence_bert_config.json"
STANFORD_SETTINGS = "artifact.metadata"
NORMALISERS = {None: "none", "maxsim": "none", "meanmaxsim": "query_tokens"}
_STANFORD = ("HF_ColBERT", "ColBERT")  # the second is version 1's
_LINEAR = {"method": "forward", "method_output_name": "last_hidden_state"}
_DATA = ("*.json", "*.txt", "*.model", "*.metadata")  # tokenisers and settings


@dataclass(frozen=True)
class Published:
    """A published system's choices, in this library's terms.

    Attributes:
        folder: with config.json, weights and tokeniser of the encoder.
        layout: "sentence-transformers", "PyLate" or "colbert-ai".
        projection: (dimension, hidden size) fp32, without bias.
        query_length, document_length: tokens kept of a text, special tokens and marker included.
        template: what is around texts, what fills queries up, what documents do not keep.
        expansion_length: tokens that queries are filled up to. attend_expansion: whether the
            encoder's other tokens see those.
        normaliser: Z of Eq. 1, see `gr_mvdr.relevance.normaliser`.
        prefix_space: see `load_tokenizer`.
    """

    folder: Path
    layout: str
    projection: Tensor = field(compare=False, repr=False)
    query_length: int
    document_length: int
    template: TextTemplate
    expansion_length: int | None = None
    attend_expansion: bool = False
    normaliser: str = "none"
    prefix_space: bool | None = None

    @property
    def dimension(self) -> int:
        return len(self.projection)


def find_folder(name: str | Path) -> Path:
    """A folder; of a name on the hub ("owner/model") a copy of its data, never of code.

    Raises:
        FileNotFoundError: the hub has no such model, or cannot be reached.
    """
    folder = Path(name).expanduser()
    if not is_on_hub(name):
        return folder
    from huggingface_hub import snapshot_download

    options = hub_options(name, "")
    try:
        data = [*_DATA, "*.safetensors"]
        found = Path(snapshot_download(str(name), allow_patterns=data, **options))
        if not any(found.rglob("*.safetensors")):
            snapshot_download(str(name), allow_patterns=["*pytorch_model*.bin"], **options)
    except (OSError, ValueError) as error:  # also of the hub's own kinds
        cause = describe_error(error)
        raise FileNotFoundError(
            f"{name}: no such folder, and the hub gives no such model ({cause})"
        ) from None
    return found


def find_layout(folder: str | Path) -> str | None:
    """Which of the three layouts a folder is in, by its files' names alone; None = in none."""
    folder = Path(folder)
    if (folder / MODULES).is_file():
        own = folder / SETTINGS
        settings = read_json(own) if own.is_file() else {}
        kind = settings.get("model_type")
        # PyLate wrote no type at first.
        older = kind is None and {"query_prefix", "query_length"} & settings.keys()
        return "PyLate" if kind == "ColBERT" or older else "sentence-transformers"
    if (folder / STANFORD_SETTINGS).is_file():
        return "colbert-ai"
    config = folder / "config.json"
    named = read_json(config).get("architectures") if config.is_file() else None
    return "colbert-ai" if isinstance(named, list) and {*_STANFORD} & {*named} else None


def read_published(folder: str | Path) -> Published:
    """Reads a published checkpoint's folder.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: the folder holds another kind of model, a value that this library cannot
            express, or a broken file; in one line that names the file and the key.
    """
    folder = Path(folder)
    layout = find_layout(folder)
    if layout is None:
        raise ValueError(
            f"{folder}: must hold {MODULES} (sentence-transformers, PyLate) or {STANFORD_SETTINGS} "
            "(colbert-ai): it is no published multi-vector model"
        )
    return _READERS[layout](folder)


# sentence-transformers ------------------------------------------------------------------------


def _read_sentence_transformers(folder: Path) -> Published:
    settings = read_json(folder / SETTINGS)
    kind, parts = settings.get("model_type", "SentenceTransformer"), read_parts(folder)
    if kind != "MultiVectorEncoder":
        raise ValueError(f"{folder}: is a {kind}, must be a MultiVectorEncoder or PyLate's ColBERT")
    kinds = [kind for kind, _ in parts]
    if "Normalize" not in kinds or "Dense" in kinds[kinds.index("Normalize") :]:
        raise ValueError(f"{folder / MODULES}: must end with Normalize: vectors have length 1 here")
    name = settings.get("similarity_fn_name")
    if name not in NORMALISERS:
        raise wrong(folder / SETTINGS, "similarity_fn_name", name, "maxsim or meanmaxsim")
    encoder = parts[0][1]
    read, file = _encoder_settings(encoder)
    tokens, prompts = FolderTokens(encoder), read_keys(folder / SETTINGS, settings, "prompts")
    if read.get("do_lower_case") and tokens.ids("AB c") != tokens.ids("ab c"):
        raise wrong(file, "do_lower_case", True, "false: the tokeniser keeps capitals")
    masks = [path for kind, path in parts if kind == "MultiVectorMask"]
    expansion = read_keys(file, read, "query_expansion")
    if expansion and not masks:
        raise ValueError(f"{file}: query_expansion: must have a MultiVectorMask after it")
    lengths = _lengths(file, read, expansion, tokens.limit)
    return Published(
        encoder,
        "sentence-transformers",
        read_projection(parts, encoder),
        template=tokens.template(
            {side: tokens.prompt(folder / SETTINGS, side, prompts.get(side)) for side in SIDES},
            tokens.known([word for path in masks for word in _skipped_words(path / "config.json")]),
            tokens.filler(file, expansion.get("token")) if expansion else None,
        ),
        attend_expansion=expansion.get("attend") is True,
        normaliser=NORMALISERS[name],
        prefix_space=tokens.prefix_space,
        **lengths,
    )


def _lengths(
    file: Path, settings: dict[str, Any], expansion: dict[str, Any], limit: int
) -> dict[str, Any]:
    """Lengths as sentence-transformers has them: an expansion is a floor, "fixed" the end too."""
    limit = read_whole(file, settings, "max_seq_length", None) or limit
    found = {f"{s}_length": read_whole(file, settings, f"{s}_length", None) or limit for s in SIDES}
    if not expansion:
        return found
    if (strategy := expansion.get("strategy")) not in ("fixed", "min"):
        raise wrong(file, "query_expansion.strategy", strategy, "fixed or min")
    length = read_whole(file, expansion, "length", None)
    if length is None:
        raise wrong(file, "query_expansion.length", None, "a whole number ≥ 1")
    longest = length if strategy == "fixed" else max(found["query_length"], length)
    return found | {"query_length": longest, "expansion_length": length}


def _encoder_settings(encoder: Path) -> tuple[dict[str, Any], Path]:
    """The text encoder's options; ValueError if it reads texts in another way than plain ones."""
    file = encoder / ENCODER_SETTINGS
    settings = read_json(file) if file.is_file() else {}
    task = settings.get("transformer_task", "feature-extraction")
    if task != "feature-extraction":
        raise wrong(file, "transformer_task", task, "feature-extraction")
    modality = settings.get("modality_config", {"text": _LINEAR})
    if modality != {"text": _LINEAR}:
        raise wrong(file, "modality_config", json.dumps(modality), "text alone, its last states")
    if settings.get("processing_kwargs"):
        raise wrong(file, "processing_kwargs", json.dumps(settings["processing_kwargs"]), "{}")
    return settings, file


def _skipped_words(file: Path) -> list[str]:
    """The words of a mask that documents drop; ValueError for a mask of another kind."""
    settings = read_json(file)
    if settings.get("keep_only_token_ids") is not None:
        raise wrong(file, "keep_only_token_ids", settings["keep_only_token_ids"], "null")
    words = read_words(file, settings, "skiplist_words", [])
    tasks = settings.get("skiplist_tasks", ["document"])
    if words and tasks not in (["document"], "document"):
        raise wrong(file, "skiplist_tasks", tasks, "[document]")
    return words


# PyLate ---------------------------------------------------------------------------------------


def _read_pylate(folder: Path) -> Published:
    file = folder / SETTINGS
    settings, parts = read_json(file), read_parts(folder)
    if [kind for kind, _ in parts if kind not in ("Transformer", "Dense")]:
        raise ValueError(
            f"{folder / MODULES}: must list a Transformer and Dense in PyLate's layout"
        )
    encoder = parts[0][1]
    tokens, prompts = FolderTokens(encoder), read_keys(file, settings, "prompts")
    markers = {}
    for side, default in (("query", "[Q] "), ("document", "[D] ")):
        prefix, prompt = settings.get(f"{side}_prefix"), prompts.get(side) or ""
        prefix = default if prefix is None else prefix
        marker = tokens.one(file, f"{side}_prefix", prefix) if prefix else ()
        # A folder that went through sentence-transformers has the prefix in its prompt as well.
        markers[side] = marker + tokens.prompt(file, side, prompt.removeprefix(prefix))
    words = read_words(file, settings, "skiplist_words", list(string.punctuation))
    expands = settings.get("do_query_expansion") is not False
    length = read_whole(file, settings, "query_length", 32)
    return Published(
        encoder,
        "PyLate",
        read_projection(parts, encoder),
        query_length=length,
        document_length=read_whole(file, settings, "document_length", 180),
        template=tokens.template(
            markers, tokens.known(words), tokens.filler(file, None) if expands else None
        ),
        expansion_length=length if expands else None,
        attend_expansion=expands and settings.get("attend_to_expansion_tokens") is True,
        prefix_space=tokens.prefix_space,
    )


# colbert-ai -----------------------------------------------------------------------------------


def _read_stanford(folder: Path) -> Published:
    file = folder / STANFORD_SETTINGS
    settings = read_json(file) if file.is_file() else {}
    if (similarity := settings.get("similarity", "cosine")) != "cosine":
        raise wrong(file, "similarity", similarity, "cosine")
    weights = read_weights(folder)
    if "linear.weight" not in weights:
        raise ValueError(f"{folder}: must have linear.weight among its weights, the projection")
    projection = check_matrix(folder, "linear.weight", weights["linear.weight"])
    dimension = settings.get("dim", len(projection))
    if dimension != len(projection):
        raise wrong(file, "dim", dimension, f"{len(projection)}, the rows of linear.weight")
    check_width(folder, "linear.weight", projection, folder)
    tokens, markers = FolderTokens(folder), {}
    for side, name, default in (("query", "query", "[unused0]"), ("document", "doc", "[unused1]")):
        key = f"{name}_token_id"
        markers[side] = tokens.one(file, key, settings.get(key) or default)
    skipped = string.punctuation if settings.get("mask_punctuation", True) else ""
    length = read_whole(file, settings, "query_maxlen", 32)
    return Published(
        folder,
        "colbert-ai",
        projection,
        query_length=length,
        document_length=read_whole(file, settings, "doc_maxlen", 220),
        template=tokens.template(markers, tokens.first_of(skipped), tokens.filler(file, None)),
        expansion_length=length,
        attend_expansion=settings.get("attend_to_mask_tokens") is True,
    )


_READERS = {
    "sentence-transformers": _read_sentence_transformers,
    "PyLate": _read_pylate,
    "colbert-ai": _read_stanford,
}


# A system -------------------------------------------------------------------------------------


def describe_settings(found: Published) -> dict[str, Any]:
    """What a folder says, by key of this library's configuration (`conf/multi_vector.yaml`)."""
    return {
        "backbone.name": str(found.folder.resolve()),
        "backbone.shape": None,
        "backbone.template": found.template.settings,
        "tokenizer.prefix_space": found.prefix_space,
        "query_length": found.query_length,
        "document_length": found.document_length,
        "model.dimension": found.dimension,
        "model.normaliser": found.normaliser,
        "model.attend_expansion": found.attend_expansion,
        "model.expansion_length": found.expansion_length,
    }


def build_published(found: Published) -> MultiVector:
    """The system of a folder that was read, with the library's own scores.

    It scores, aligns and, once it has indexed documents, searches.

    Raises:
        ValueError: the encoder cannot be loaded, see `load_encoder`.
    """
    settings = describe_settings(found)
    own = {k.removeprefix("model."): v for k, v in settings.items() if k.startswith("model.")}
    backbone = {k.removeprefix("backbone."): v for k, v in settings.items() if "backbone." in k}
    system = MultiVector(
        {**backbone, "dropout_rate": None, "attention": "sdpa"},
        query_length=found.query_length,
        document_length=found.document_length,
        alignment={"_target_": "gr_mvdr.alignment.MaxSim"},
        loss={"_target_": "gr_mvdr.losses.InBatchCrossEntropy"},
        search={"mode": "exact"},
        optimizer={"learning_rate": 1e-5, "weight_decay": 0.01, "schedule": "constant"},
        **own,
    )
    take_projection(system, found)
    return system.eval()


@torch.no_grad()
def take_projection(system: System, published: Published) -> None:
    """Gives a system on the published encoder the published projection.

    Raises:
        ValueError: it is of another kind, has another projection, or learns more than one.
    """
    width = tuple(published.projection.shape)
    encoder = system.encoder if isinstance(system, MultiVector) else None
    own = encoder.named_parameters() if encoder is not None else ()
    learned = {name for name, _ in own if not name.startswith("backbone.")}
    if learned != {"values.query.weight"} or tuple(encoder.values["query"].weight.shape) != width:
        raise ValueError(
            "must be taken over by a model that learns an encoder and one projection, to "
            f"{width[0]} numbers, such as t5_colbert"
        )
    encoder.values["query"].weight.copy_(published.projection)
