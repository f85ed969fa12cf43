"""Published models whose own head scores: cross-encoders and SPLADE.

transformers reads encoder and head, so the folder's files are read as data alone: what frames the
texts, how terms are weighted, and where the encoder lies.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gr_mvdr.files import check_files, read_json
from gr_mvdr.options import TARGET, build, show
from gr_mvdr.template import read_template
from gr_mvdr.token_vectors import SIDES
from gr_mvdr.tokenizers import load_tokenizer
from models.base import System

Head = tuple[dict[str, Any], dict[str, Tensor]]
_PAIR = 512  # tokens of a pair, if the folder allows more
_CLASSIFIER, _MASKED, _ROUTER = "ForSequenceClassification", "ForMaskedLM", "router_config.json"
_LOSS = {TARGET: "gr_mvdr.losses.InBatchCrossEntropy"}
_OPTIMIZER = {"learning_rate": 1e-5, "weight_decay": 0.01, "schedule": "constant"}


def find_scorer(folder: Path) -> str | None:
    """Returns the path of the system whose head a folder holds; None = it has no such head."""
    file = folder / "config.json"
    named = read_json(file).get("architectures") if file.is_file() else None
    if any(str(name).endswith(_CLASSIFIER) for name in named or ()):
        return "models.cross_encoder.CrossEncoder"
    if (folder / _ROUTER).is_file() or [*folder.glob("*_SpladePooling")]:
        return "models.beyond.splade.SPLADE"
    return None


def read_classifier(folder: Path) -> Head:
    """Reads how a published cross-encoder is configured.

    Its scores are those of sentence-transformers' `CrossEncoder` before an activation function,
    which changes no ranking, for texts within the lengths.
    """
    tokenizer = load_tokenizer(folder, key="")
    template = read_template(tokenizer)
    longest = min(_PAIR, tokenizer.model_max_length)
    query = longest // 4
    return {
        "backbone.name": str(folder.resolve()),
        "backbone.template": template.settings,
        "model.pooling": "own",
        "query_length": query,
        "document_length": longest - query - len(template.pair or ()),
    }, {}


def read_sparse(folder: Path) -> Head:
    """Reads how a published SPLADE is configured, and the weights of a query's tokens, if any.

    Raises:
        ValueError: a text's terms are not weighted by the maximum over its tokens, or the folder
            has other parts.
    """
    check_files(folder)
    encoder, pooling, query = folder, next(iter(folder.glob("*_SpladePooling")), None), None
    if (file := folder / _ROUTER).is_file():
        routes = read_json(file).get("structure")
        try:
            (query,), (encoder, pooling) = ([_within(folder, n) for n in routes[s]] for s in SIDES)
            known = query.name.endswith("SparseStaticEmbedding")
        except (KeyError, TypeError, ValueError):
            known = False
        if not known:
            rule = "must be one table of weights for queries, an encoder and a SpladePooling"
            raise ValueError(f"{file}: structure={show(routes)}: {rule}")
    own = read_json(pooling / "config.json") if pooling else {}
    if (strategy := own.get("pooling_strategy", "max")) != "max":
        raise ValueError(f"{pooling}/config.json: pooling_strategy={show(strategy)}: must be max")
    tokenizer, tensors = load_tokenizer(encoder, key=""), {}
    template = read_template(tokenizer)
    if query is not None:
        from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding

        check_files(query)
        table = SparseStaticEmbedding.load(str(folder), subfolder=query.name, local_files_only=True)
        tensors["query_weights"] = table.weight.detach()
    rows = read_json(encoder / "config.json")["vocab_size"]
    longest = min(_PAIR, tokenizer.model_max_length)
    return {
        "backbone.name": str(encoder.resolve()),
        "backbone.template": template.settings,
        "model.head": "own",
        "model.activation": own.get("activation_function", "relu"),
        "model.query_weights": query is not None,
        "model.keep": dict.fromkeys(SIDES, rows),
        "query_length": longest,
        "document_length": longest,
    }, tensors


def _within(folder: Path, name: Any) -> Path:
    if not re.fullmatch(r"\w+", name):
        raise ValueError(f"{name}: must be a folder's name")
    return folder / name


SCORERS: dict[str, Callable[[Path], Head]] = {
    "CrossEncoder": read_classifier,
    "SPLADE": read_sparse,
}


def build_scorer(path: str, folder: Path) -> System:
    """Builds a published cross-encoder or SPLADE, which scores and searches as published.

    Args:
        path: as from `find_scorer`.

    Raises:
        ValueError: its weights cannot be loaded, see `load_backbone`, or the head is another.
    """
    settings, tensors = SCORERS[path.rpartition(".")[2]](folder)
    sparse = {"regulariser": dict.fromkeys(SIDES, 0.0)} if path.endswith("SPLADE") else {}
    system = build_system(path, settings, **sparse)
    give_head(system, tensors)
    return system.eval()


def build_system(path: str, settings: dict[str, Any], **options: Any) -> Any:
    """Builds a published system as configured, without the weights that are not its backbone's.

    Args:
        path: of its class.
        settings: configuration key → value.
        options: further arguments of the class.
    """
    named = {key.rpartition(".")[::2]: value for key, value in settings.items()}
    backbone = {name: value for (group, name), value in named.items() if group == "backbone"}
    backbone |= {"dropout_rate": None, "attention": "sdpa"}
    own = {name: value for (group, name), value in named.items() if group in ("", "model")}
    parts = {"backbone": backbone, "loss": _LOSS, "optimizer": _OPTIMIZER}
    return build("model", {TARGET: path, **parts, **options, **own})


@torch.no_grad()
def give_head(system: System, tensors: dict[str, Tensor]) -> None:
    """Copies tensors that are not the backbone's into a system."""
    for name, tensor in tensors.items():
        system.get_parameter(name).copy_(tensor)
