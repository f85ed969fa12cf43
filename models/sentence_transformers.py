"""Published dense checkpoints, read and written by sentence-transformers ≥ 6.

Its `MultiVectorEncoder` reads its own folders, PyLate's and Stanford ColBERT's. All hold one kind
of system: an encoder, a linear projection of its states, unit vectors, MaxSim (gr_as_mvdr Eq. 21).
Its `SentenceTransformer` pools the states first. The mean and a linear projection commute, so that
a single vector is the mean of projected token vectors: A_ij = 1/(MN), or 1 at (first, first) or
(last, last). `read_published` extracts options and projection of both.

The library imports the classes that modules.json names, and passes on options that let
transformers run code. `check_folder` first compares both with a list (docs/design.md).
"""

import copy
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn
from transformers import AddedToken, PreTrainedTokenizerBase

from gr_mvdr.alignment import FirstToken, MaxSim
from gr_mvdr.backbones import max_length, read_backbone_config
from gr_mvdr.files import (
    check_files,
    describe_error,
    describe_hub_error,
    hub_options,
    is_on_hub,
    read_json,
    reading,
)
from gr_mvdr.options import TARGET, name_some, show
from gr_mvdr.pooling import AfterFirst, AllTokens
from gr_mvdr.progress import quiet_libraries
from gr_mvdr.static import StaticModel, save_static
from gr_mvdr.template import TextTemplate, agree, join_prompt, read_template
from gr_mvdr.token_vectors import SIDES
from gr_mvdr.tokenizers import load_tokenizer
from models.base import System, find_backbone
from models.multi_vector import MultiVector
from models.published_heads import SCORERS, build_scorer, build_system, find_scorer, give_head
from models.token_encoder import Activation, Layer

# Z of Eq. 1 → the library's name of the score; MaxSim's Σ A is the number of query tokens.
SIMILARITIES = {"none": "maxsim", "query_tokens": "meanmaxsim", "alignment": "meanmaxsim"}
_NORMALISERS = {"maxsim": "none", "meanmaxsim": "query_tokens"}
# How a text becomes a single vector: the library's name → the part.
POOLINGS: dict[str, dict[str, Any]] = {
    "mean": {TARGET: "gr_mvdr.pooling.MeanTokens"},
    "cls": {TARGET: "gr_mvdr.pooling.FirstTokens", "k": 1},
    "lasttoken": {TARGET: "gr_mvdr.pooling.LastToken"},
}
_STATIC = ([], ["Normalize"])
_AFTER_FIRST = {TARGET: "gr_mvdr.pooling.AfterFirst"}
_COLBERT = "colbert_linear.pt"
_MEAN_FIRST = {TARGET: "gr_mvdr.pooling.MeanState"}  # if what follows is not linear
# The matrix and the bias of a layer.
Affine = tuple[Tensor, Tensor]
_CLASSES = (  # that modules.json may name: of release 6, of earlier ones, of PyLate
    "sentence_transformers.base.modules.transformer.Transformer",
    "sentence_transformers.base.modules.dense.Dense",
    "sentence_transformers.base.modules.normalize.Normalize",
    "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask",
    "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "sentence_transformers.sentence_transformer.modules.static_embedding.StaticEmbedding",
    *(
        f"sentence_transformers.models.{name}"
        for name in ("Transformer", "Pooling", "Dense", "Normalize", "StaticEmbedding")
    ),
    "pylate.models.Dense.Dense",
)
_ENCODER_OPTIONS = {  # of sentence_bert_config.json
    *("max_seq_length", "query_length", "document_length", "query_expansion"),
    *("do_lower_case", "transformer_task", "modality_config", "module_output_name"),
}
_ACTIVATIONS = {
    f"torch.nn.{room}{name}"
    for room in ("", "modules.activation.", "modules.linear.")
    for name in get_args(Activation)
}
_TEXT = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
_TOKENS, _TEXTS = "token_embeddings", "sentence_embedding"
# Tokenisers and settings; and heads, which are only looked for.
_DATA = ("*.json", "*.txt", "*.model", "*.metadata", "*_linear.pt")
# As `gr_mvdr.backbones` loads weights: no attention kernel that config.json names, no pickles.
_WEIGHTS = {"attn_implementation": "eager", "weights_only": True}
_UNLIMITED = 2**15  # tokens kept of a text if neither folder nor encoder sets a limit


def find_folder(name: str | Path) -> Path:
    """Returns a folder; for a name on the hub ("owner/model"), a copy of its data without code.

    Raises:
        FileNotFoundError: the hub has no such model, or cannot be reached.
    """
    folder = Path(name).expanduser()
    if not is_on_hub(name):
        return folder
    from huggingface_hub import snapshot_download

    options = hub_options(name, "")
    try:
        for weights in ("*.safetensors", "*pytorch_model*.bin"):  # the second if it has no first
            patterns = [*_DATA, weights]
            copied = snapshot_download(str(name), allow_patterns=patterns, **options)
            if any(Path(copied).rglob(weights)):
                break
    except Exception as error:  # of the hub's client, or of the network below it
        rule = "no such folder, and the hub gives no such model"
        raise FileNotFoundError(f"{name}: {rule}: {describe_hub_error(error)}") from None
    return Path(copied)


def is_published(folder: Path) -> bool:
    """Returns whether a folder is of sentence-transformers, PyLate or Stanford's ColBERT."""
    config = folder / "config.json"
    named = read_json(config).get("architectures") if config.is_file() else None
    return (folder / "modules.json").is_file() or named == ["HF_ColBERT"]


def is_model(folder: Path) -> bool:
    """Returns whether a folder is published, or a model (or an adapter) of transformers."""
    named = ("config.json", "adapter_config.json")
    return is_published(folder) or any((folder / name).is_file() for name in named)


def import_library() -> Any:
    """Imports sentence-transformers.

    Raises:
        ValueError: it is not installed.
    """
    try:
        import sentence_transformers
    except ImportError:
        raise ValueError(
            "sentence-transformers ≥ 6 is missing, which reads and writes published dense models: "
            "pip install 'gr-mvdr[export]'"
        ) from None
    return sentence_transformers


# Reading --------------------------------------------------------------------------------------


@quiet_libraries()
def read_published(folder: Path) -> tuple[dict[str, Any], list[Affine]]:
    """Reads a published system's settings, by configuration key, and its projection's layers.

    Returns:
        The settings (`conf/multi_vector.yaml`; `model.pooling` is {} for a multi-vector system),
        and matrix and bias of each layer, in float64.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: sentence-transformers is not installed or cannot read the folder, the folder
            holds another kind of model, or one that this library cannot express.
    """
    library = import_library()
    load = getattr(library, check_folder(folder))
    try:
        model = load(str(folder), device="cpu", local_files_only=True, model_kwargs=dict(_WEIGHTS))
    except Exception as error:  # of many kinds, a multi-line one of torch's among them
        cause = describe_error(error)
        raise ValueError(f"{folder}: sentence-transformers cannot read it: {cause}") from None
    encoder, *parts = model
    if type(encoder).__name__ == "StaticEmbedding":
        return _read_static(folder, model, encoder, parts)
    pooling = next((part for part in parts if type(part).__name__ == "Pooling"), None)
    for problem, holds in _find_problems(model, encoder, parts, pooling).items():
        if holds:
            raise ValueError(f"{folder}: has {problem}, which this library cannot express")
    template = _read_template(folder, model, parts)
    expansion, limits = encoder.query_expansion, (encoder.max_seq_length, max_length(encoder.model))
    longest = min(_UNLIMITED, *filter(None, limits))
    query_length = encoder.query_length or longest
    if expansion:  # "min" is a floor, "fixed" the end as well
        query_length = max(query_length * (expansion["strategy"] == "min"), expansion["length"])
    projection, layers = _read_projection(parts, encoder.get_embedding_dimension())
    settings = {
        "backbone.name": str(folder.resolve()),
        "backbone.shape": None,
        "backbone.template": template.settings,
        "query_length": query_length,
        "document_length": encoder.document_length or longest,
        "model.dimension": len(projection[-1][1]),
        "model.layers": layers,
    }
    if pooling:
        own, linear = POOLINGS[pooling.pooling_mode], len(projection) == 1 and not _acts(layers)
        if pooling.pooling_mode == "mean" and not linear:
            own = _MEAN_FIRST
        unit = type(parts[-1]).__name__ == "Normalize" or str(model.similarity_fn_name) == "cosine"
        return settings | {
            "model.pooling": dict.fromkeys(SIDES, own),
            "model.alignment": {TARGET: "gr_mvdr.alignment.FirstToken"},
            "model.projections": "shared" if unit else "unnormalised",
        }, projection
    return settings | {
        "model.pooling": {},
        "model.alignment": {TARGET: "gr_mvdr.alignment.MaxSim"},
        "model.normaliser": _NORMALISERS[str(model.similarity_fn_name)],
        "model.attend_expansion": bool(expansion and expansion["attend"]),
        "model.expansion_length": expansion["length"] if expansion else None,
    }, projection


def _read_static(
    folder: Path, model: Any, table: Any, parts: list[Any]
) -> tuple[dict[str, Any], list[Affine]]:
    """Reads static embeddings, whose mean is a text's vector; see `read_published`."""
    rows = table.embedding.weight.detach()
    encoder = save_static(rows, table.tokenizer)
    if any(model.prompts.values()) or [type(part).__name__ for part in parts] not in _STATIC:
        raise ValueError(f"{folder}: has prompts or other modules than StaticEmbedding, Normalize")
    template = replace(read_template(load_tokenizer(encoder, key="")), suffix=())
    unit = bool(parts) or str(model.similarity_fn_name) == "cosine"
    size = rows.shape[1]
    return {
        "backbone.name": str(encoder),
        "backbone.shape": None,
        "backbone.template": template.settings,
        "query_length": _UNLIMITED,
        "document_length": _UNLIMITED,
        "model.dimension": size,
        "model.layers": None,
        "model.pooling": {side: POOLINGS["mean"] for side in SIDES},
        "model.alignment": {TARGET: "gr_mvdr.alignment.FirstToken"},
        "model.projections": "shared" if unit else "unnormalised",
    }, [(torch.eye(size).double(), torch.zeros(size).double())]


def check_folder(folder: Path) -> str:
    """Raises ValueError unless reading the folder runs nothing but the classes listed above.

    It also ensures that the library does not initialise missing weights at random.

    Returns:
        The library's class that reads the folder.
    """
    check_files(folder)
    parts = folder / "modules.json"
    first = read_json(parts, list)[:1] if parts.is_file() else []
    static = any("StaticEmbedding" in str(part) for part in first)  # its class is checked below
    if not static:
        read_backbone_config(str(folder), None, str(folder))
    for file in folder.glob("sentence_*_config.json"):
        for key, value in read_json(file).items():
            _check(file, key, value, key in _ENCODER_OPTIONS or not value, "left out")
            _check(file, key, value, key != "modality_config" or value == _TEXT, str(_TEXT))
    file, settings = folder / "modules.json", folder / "config_sentence_transformers.json"
    if not file.exists():
        if not is_published(folder):
            rule = "must have a modules.json, which says how its states become vectors"
            raise ValueError(f"{folder}: {rule}; weights= takes an encoder alone")
        return "MultiVectorEncoder"
    kinds = [_check_part(folder, number, part) for number, part in enumerate(read_json(file, list))]
    kind = read_json(settings).get("model_type") if settings.is_file() else None
    if "Pooling" in kinds or static:
        known = kind in ("SentenceTransformer", None)  # earlier releases write none
        _check(settings, "model_type", kind, known, "SentenceTransformer, as there is a Pooling")
        return "SentenceTransformer"
    _check(file, "type", "SentenceTransformer", kind != "SentenceTransformer", "with a Pooling")
    known = kind in ("MultiVectorEncoder", "ColBERT") or (kind is None and "Dense" in kinds)
    _check(settings, "model_type", kind, known, "MultiVectorEncoder, or PyLate's ColBERT")
    return "MultiVectorEncoder"


def _check_part(folder: Path, number: int, part: Any) -> str:
    """Checks one part of modules.json; returns its kind."""
    file = folder / "modules.json"
    name, path = (part.get(key) if isinstance(part, dict) else None for key in ("type", "path"))
    _check(file, f"[{number}].type", name, name in _CLASSES, "a class of a dense model")
    kind = name.rpartition(".")[2]
    may_be_here = kind in ("Transformer", "StaticEmbedding")
    plain = isinstance(path, str) and re.fullmatch(r"\w*|\." if may_be_here else r"\w+", path)
    _check(file, f"[{number}].path", path, plain, f"a folder's name, such as {number}_{kind}")
    if kind in ("Dense", "Pooling"):
        check_files(folder / path)
        config = folder / path / "config.json"
        activation = read_json(config).get("activation_function")
        known = kind == "Pooling" or activation in _ACTIVATIONS
        rule = f"one of torch.nn's {', '.join(get_args(Activation))}"
        _check(config, "activation_function", activation, known, rule)
    return kind


def _check(file: Path, key: str, value: Any, holds: bool, rule: str) -> None:
    if not holds:
        raise ValueError(f"{file}: {key}={show(value)}: must be {rule}")


def _find_problems(model: Any, encoder: Any, parts: list[Any], pooling: Any) -> dict[str, bool]:
    """Returns feature → whether a model has it; this library supports none.

    Args:
        pooling: the part that makes one vector of a text; None = the model has a vector a token.
    """
    every = [(type(part).__name__, part) for part in parts]
    vectors = _TEXTS if pooling else _TOKENS
    similarity, prompted = str(model.similarity_fn_name), any(map(model.prompts.get, SIDES))
    order = [kind for kind, _ in every if kind != "MultiVectorMask"]
    dense = [part for kind, part in every if kind == "Dense"]
    whole = [*(["Pooling"] if pooling else []), *["Dense"] * len(dense), "Normalize"]
    masks = [part for kind, part in every if kind == "MultiVectorMask"]
    # A single vector may have any length: the similarity then says whether that counts.
    orders = (whole, whole[:-1]) if pooling else (whole,)
    names = {(part.module_input_name, part.module_output_name) for part in dense}
    theirs, rows = model.tokenizer, encoder.model.config.vocab_size
    problems = {
        f"more tokens than the {rows:,} rows of its table": max(theirs.get_vocab().values())
        >= rows,
        f"other modules than {', '.join(whole)}": order not in orders,
        "a residual connection around an activation": any(
            part.use_residual and _activation(part) != "Identity" for part in dense
        ),
        f"a projection of other than {vectors}": bool(names - {(vectors, vectors)}),
        "another task than feature-extraction": encoder.transformer_task != "feature-extraction",
        "an allow-list of tokens": any(mask.keep_only_token_ids is not None for mask in masks),
        "a skip list of queries": any(
            mask.skiplist_words and mask.skiplist_tasks != ["document"] for mask in masks
        ),
    }
    if pooling:
        problems |= {
            f"the pooling {show(pooling.pooling_mode)}": pooling.pooling_mode not in POOLINGS,
            "a prompt that is not pooled": prompted and not pooling.include_prompt,
            f"the similarity {similarity}": similarity not in ("cosine", "dot"),
        }
    return problems


def _activation(part: Any) -> str:
    return type(part.activation_function).__name__


def _acts(layers: list[Layer] | None) -> bool:
    return any(layer["activation"] != "Identity" for layer in layers or ())


def _read_projection(parts: list[Any], size: int) -> tuple[list[Affine], list[Layer] | None]:
    """Returns the layers of all Dense parts; linear ones are multiplied with the one after them.

    Returns:
        Each layer's matrix and bias, and the layers as `model.layers` describes them.
    """
    # In float64: a product of matrices is rounded once.
    matrix, bias = torch.eye(size).double(), torch.zeros(size).double()
    affine, layers = list[Affine](), list[Layer]()
    dense = [part for part in parts if type(part).__name__ == "Dense"]
    for number, part in enumerate(dense, 1):
        weight, shift = part.linear.weight.detach().double(), part.linear.bias
        if part.use_residual:  # of the same size: the vectors themselves are added
            same = part.in_features == part.out_features
            weight = weight + (torch.eye(len(weight)) if same else part.residual.weight.detach())
        matrix, bias = weight @ matrix, weight @ bias
        bias = bias if shift is None else bias + shift.detach().double()
        name = _activation(part)
        if name != "Identity" or number == len(dense):
            affine.append((matrix, bias))
            layers.append({"size": len(bias), "activation": name})
            matrix, bias = torch.eye(len(bias)).double(), torch.zeros(len(bias)).double()
    if not dense:
        affine, layers = [(matrix, bias)], [{"size": size, "activation": "Identity"}]
    if not _acts(layers) and not affine[0][1].any():
        return affine, None
    layers[-1]["size"] = None  # model.dimension may be less (Matryoshka)
    return affine, layers


def _read_template(folder: Path, model: Any, parts: list[Any]) -> TextTemplate:
    """Returns the template of both sides' texts."""
    theirs, encoder = model.tokenizer, model[0]
    ours = load_tokenizer(folder, key="")
    with reading(str(folder)):
        prompts = {side: join_prompt(theirs, ours, model.prompts.get(side) or "") for side in SIDES}
    own = read_template(theirs)
    # `read_template` ends every text; a published model reads no more than its tokeniser gives.
    after = theirs("a")["input_ids"][len(own.query) + len(theirs.tokenize("a")) :]
    words = [word for part in parts for word in getattr(part, "skiplist_words", ())]
    skip = {*theirs.convert_tokens_to_ids(words)} - {theirs.unk_token_id, None}
    expansion = None
    if encoder.query_expansion:
        named = encoder.query_expansion["token"] or theirs.mask_token or theirs.eos_token
        expansion = theirs.convert_tokens_to_ids(named)
    return replace(
        own,
        **{side: getattr(own, side) + ids for side, (ids, _) in prompts.items()},
        **{f"{side}_text": text for side, (_, text) in prompts.items()},
        suffix=tuple(after),
        skip=tuple(sorted(skip)),
        expansion=expansion,
        # Under "min" the library pads a text alone at its end, whatever the tokeniser's side.
        pads_start=own.pads_start and (encoder.query_expansion or {}).get("strategy") == "fixed",
    )


def build_published(settings: dict[str, Any], projection: list[Affine]) -> MultiVector:
    """Builds a published system, which gives the same scores as sentence-transformers.

    It scores, aligns and, after indexing documents, searches.

    Args:
        settings, projection: what `read_published` returned.

    Raises:
        ValueError: the encoder cannot be loaded, see `load_backbone`.
    """
    system = build_system("models.multi_vector.MultiVector", settings, search={})
    take_projection(system, projection)
    return system.eval()


def open_published(folder: Path) -> System:
    """Opens a published dense model, cross-encoder or SPLADE."""
    scorer = find_scorer(folder)
    return build_scorer(scorer, folder) if scorer else build_published(*read_published(folder))


@torch.no_grad()
def take_projection(system: System, projection: list[Affine]) -> None:
    """Copies the published projection into a system on the published encoder.

    A smaller system takes its first numbers (Matryoshka).

    Raises:
        ValueError: the system learns anything but the encoder and one projection of this size.
    """
    learned = {name for name, _ in system.named_parameters() if "backbone." not in name}
    ours = [part for part in system.modules() if isinstance(part, nn.Linear)]
    if isinstance(system, MultiVector):
        values = system.encoder.values["query"]
        ours = [part for part in values.modules() if isinstance(part, nn.Linear)]
    sizes = [tuple(part.weight.shape) for part in ours]
    theirs = [tuple(matrix.shape) for matrix, _ in projection]
    fits = sizes[:-1] == theirs[:-1] and sizes[-1][1:] == theirs[-1][1:] and sizes[-1] <= theirs[-1]
    if not all(name.startswith("encoder.values.query.") for name in learned) or not fits:
        raise ValueError(
            "must be taken over by a model that learns an encoder and one projection, to "
            f"{theirs[-1][0]} numbers or fewer, such as t5_colbert"
        )
    for part, (matrix, bias) in zip(ours, projection, strict=True):
        part.weight.copy_(matrix[: len(part.weight)])
        if part.bias is not None:
            part.bias.copy_(bias[: len(part.bias)])


class PublishedWeights:
    """A published dense checkpoint, encoder or encoder-decoder, or one with a head that scores.

    It is loaded through `backbone.name`.

    A dense system reads its token vectors from the encoder's states by the published projection,
    or by the identity if it has no projection. How they are pooled and aligned is the system's own
    choice, except that a single vector must be the published one.

    Attributes:
        key: the user's key and value, "weights=NAME", which errors name.
    """

    def __init__(self, key: str, folder: Path):
        self.key, self.folder = key, folder
        self.projection: list[Affine] | None = None
        self.head: dict[str, Tensor] | None = None

    def _read(self, system: str) -> dict[str, Any]:
        """Reads the settings for a system, by its class's name, and projection or head."""
        with reading(self.key):
            if system in SCORERS:
                settings, self.head = SCORERS[system](self.folder)
            elif is_published(self.folder):
                settings, self.projection = read_published(self.folder)
            else:
                template = read_template(load_tokenizer(self.folder, key=""))
                settings = {"backbone.template": template.settings}
        return {"backbone.name": str(self.folder.resolve())} | settings

    def settings(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the configuration values, by key, that the weights require.

        Raises:
            ValueError: the system has a single vector for a text, and the weights have another.
        """
        model = config["model"]
        published = self._read(model[TARGET].rpartition(".")[2])
        self.config = read_backbone_config(published["backbone.name"], None, self.key)
        published.pop("model.alignment", None)
        projections = published.pop("model.projections", None)
        dense = "projections" in model
        pooling = published.pop("model.pooling", {}) if dense else {}
        for side, own in (model["pooling"] if dense else {}).items():
            if own not in POOLINGS.values():
                continue
            if own == POOLINGS["mean"] and pooling.get(side) == _MEAN_FIRST:
                published[f"model.pooling.{side}"] = _MEAN_FIRST
            elif own != pooling.get(side):
                known = f"{pooling[side][TARGET]}, the published one, or " if pooling else ""
                raise ValueError(
                    f"{self.key}: model.pooling.{side}={own[TARGET]}: must be {known}AllTokens"
                )
            published["model.projections"] = projections
        if dense and (file := self.folder / _COLBERT).is_file() and not pooling_of(model):
            published |= self._read_colbert(file)
        named: dict[str, Any] = {"backbone.shape": None}
        if self.key.startswith("weights="):
            named["system"] = Path(self.key.partition("=")[2]).name
        if (config.get("backbone") or {}).get("from_encoder"):
            named["backbone.from_encoder"] = None  # its decoder would be searched untrained
        if self.projection is None and dense:
            encoder = getattr(self.config, "encoder", self.config)  # T5Gemma's
            named["model.dimension"] = encoder.hidden_size
        return named | published

    def _read_colbert(self, file: Path) -> dict[str, Any]:
        """Reads BGE-M3's projection of all tokens but the first, which is its single vector."""
        with reading(self.key):
            state = torch.load(file, map_location="cpu", weights_only=True)
            self.projection = [(state["weight"].double(), state["bias"].double())]
        return {
            "model.dimension": len(state["bias"]),
            "model.layers": [{"size": None, "activation": "Identity"}],
            "model.normaliser": "query_tokens",
            "model.projections": "shared",
            **{f"model.pooling.{side}": _AFTER_FIRST for side in SIDES},
        }

    def give(self, model: System, tokenizer: Any) -> str | None:
        """Gives a dense system its projection; checks that another learns its backbone alone.

        Returns:
            A message on heads that are left out, because the model has several ways to score.

        Raises:
            ValueError: the system learns parameters that the weights lack, or leaves some out that
                its scores need.
        """
        left_out, others = find_backbone(model)[1].left_out, list[str]()
        if self.projection is not None:  # the published parts were read
            kind = type(model.encoder.pooling["query"])
            left_out = [name for name in left_out if name.endswith(".pt")]
            if kind is not AllTokens:
                others = [n for n in left_out if n != _COLBERT or kind is not AfterFirst]
                left_out = []
        if left_out:
            raise ValueError(
                f"{self.key}: holds {name_some(left_out)}, which {type(model).__name__} does not "
                "read: its scores would differ; backbone.name trains without them"
            )
        if self.head is not None:
            give_head(model, self.head)
            return None
        if isinstance(model, MultiVector):
            states = torch.eye(find_backbone(model)[1].config.hidden_size)
            with reading(self.key):
                take_projection(model, self.projection or [(states, states[0])])
            rule = f"without its other scores, of {name_some(others)}"
            return f"{self.key}: is read {rule}" if others else None
        learned = [n for n, _ in model.named_parameters() if not n.startswith("backbone.")]
        if model.backbone.config.vocab_size > self.config.vocab_size:
            learned.append("tokens of its identifiers")
        if learned:
            raise ValueError(
                f"{self.key}: lacks weights for {learned[0]}; to "
                "train the system, name the model as backbone.name instead"
            )
        return None


@contextmanager
def naming(taken: Any) -> Iterator[None]:
    """Names `weights=…`, which the user typed, in errors about the backbone that it sets."""
    try:
        yield
    except (ValueError, OSError) as error:
        if not isinstance(taken, PublishedWeights):
            raise
        own = f"backbone.name={taken.folder.resolve()}"
        if own not in str(error):
            raise
        kind = type(error) if isinstance(error, OSError) else ValueError
        raise kind(str(error).replace(own, taken.key)) from error


# Writing --------------------------------------------------------------------------------------


def find_obstacles(system: MultiVector, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Lists what sentence-transformers cannot express; [] = it gives the same scores."""
    encoder, scoring, template = system.encoder, system.scoring, system.template
    prompts, single = find_prompts(system, tokenizer)[1].values(), find_pooling(system)
    every = all(type(part) is AllTokens for part in encoder.pooling.values())
    one = single and scoring.alignment == FirstToken()
    obstacles = {
        f"the alignment {scoring.alignment!r}": not one and scoring.alignment != MaxSim(),
        f"the normaliser {scoring.normaliser}": scoring.normaliser not in SIMILARITIES,
        "keys apart from values": encoder.keys is not None,
        "salience": len(encoder.salience) > 0,
        "pooling": not single and not every,
        "vectors of any length": not single and not encoder.unit,
        "static embeddings": isinstance(encoder.backbone, StaticModel),
        "bidirectional attention": system.hparams.backbone.get("bidirectional", False),
        "an expansion without a token": (template.expansion or 0) >= len(tokenizer),
        "markers that join the text after them": None in prompts,
        "markers before a text that is cut at its start": any(prompts) and template.cuts_start,
        "padding at the start of a query, to less than its full length": template.pads_start
        and system.filled_to not in (0, system.hparams.query_length),
    }
    return [name for name, holds in obstacles.items() if holds]


def pooling_of(model: Mapping[str, Any]) -> set[str]:
    """Returns the poolings that a configuration of a multi-vector system asks for."""
    return {part[TARGET] for part in model["pooling"].values()} - {"gr_mvdr.pooling.AllTokens"}


def find_pooling(system: MultiVector) -> str | None:
    """Returns the library's name of the pooling that makes one vector of a text, or None."""
    own = [system.hparams.pooling[side] for side in SIDES] if system.hparams.pooling else [None]
    names = [*POOLINGS.items(), ("mean", _MEAN_FIRST)]
    found = next((name for name, part in names if part == own[0]), None)
    return found if own[0] == own[-1] else None


def find_prompts(
    system: MultiVector, tokenizer: PreTrainedTokenizerBase
) -> tuple[PreTrainedTokenizerBase, dict[str, str | None]]:
    """Finds the prompts before the texts of each side, and a tokeniser that reads them.

    A prompt is None if it would change the tokens of the text that follows it.
    """
    own, reader = len(read_template(tokenizer).query), copy.deepcopy(tokenizer)
    joined = system.template.joined
    markers = {side: list(getattr(system.template, side)[own:]) for side in SIDES}
    if any(markers.values()):
        reader.split_special_tokens = False
    prompts = {}
    for side, ids in markers.items():
        text = tokenizer.convert_ids_to_tokens(ids[0]) if len(ids) == 1 else tokenizer.decode(ids)
        choices, rest = (text + joined[side], f"{text} "), joined[side]
        if len(ids) == 1 and not any(agree(reader, reader, p, ids, rest) for p in choices):
            # A row such as [unused0], which no text is read as.
            token = AddedToken(text, special=True, normalized=False)
            reader.add_tokens([token], special_tokens=True)
        prompts[side] = next((p for p in choices if agree(reader, reader, p, ids, rest)), None)
    return reader, prompts


@quiet_libraries()
def write_modules(system: MultiVector, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Saves a system without obstacles as a `MultiVectorEncoder` or a `SentenceTransformer`.

    Args:
        folder: holds the encoder and the tokeniser of `find_prompts`.
    """
    library = import_library()
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
    from sentence_transformers.sentence_transformer.modules import Pooling

    lengths = {name: system.hparams[name] for name in ("query_length", "document_length")}
    expansion, token = None, system.template.expansion
    if token is not None:
        longest = lengths["query_length"]
        length = min(system.hparams.expansion_length or longest, longest)
        expansion = {
            "strategy": "fixed" if length == longest else "min",
            "attend": system.hparams.attend_expansion,
            "token": tokenizer.convert_ids_to_tokens(token),
            "length": length,
        }
    pooling, (first, *rest) = find_pooling(system), system.encoder.values["query"].modules()
    vectors = _TEXTS if pooling else _TOKENS
    layers = rest or [first]
    options = dict(module_input_name=vectors)
    parts: list[Any] = [
        Transformer(str(folder), **lengths, query_expansion=expansion, model_kwargs=dict(_WEIGHTS))
    ]
    if pooling:
        parts.append(Pooling(system.encoder.backbone.config.hidden_size, pooling))
    for linear, function in zip(layers[::2], layers[1::2] or [nn.Identity()], strict=True):
        weight, bias = (
            None if x is None else x.detach().float().cpu().clone()
            for x in (linear.weight, linear.bias)
        )
        parts.append(Dense(*weight.T.shape, bias is not None, function, weight, bias, **options))
    if not pooling:
        parts.append(MultiVectorMask(tokenizer.convert_ids_to_tokens(list(system.template.skip))))
    if system.encoder.unit:
        parts.append(Normalize(**options))
    name = SIMILARITIES[system.scoring.normaliser]
    (library.SentenceTransformer if pooling else library.MultiVectorEncoder)(
        modules=parts,
        prompts=find_prompts(system, tokenizer)[1],
        similarity_fn_name="dot" if pooling else name,
        device="cpu",
    ).save(str(folder), create_model_card=False)
