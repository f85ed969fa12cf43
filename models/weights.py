"""Weights that are taken over: `weights=`, with which nothing is trained, and `initial=`.

`weights=` names a finished run, a published multi-vector checkpoint, or an encoder-decoder of
transformers. `initial=` names a finished run of any system with the same backbone, from whose
weights training starts.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel

from gr_mvdr.files import new_file, read_arrays, read_checkpoint, reading
from gr_mvdr.options import TARGET
from gr_mvdr.run_files import CHECKPOINT, CONFIG
from gr_mvdr.template import TextTemplate
from gr_mvdr.token_vectors import SIDES
from gr_mvdr.tokenizers import load_tokenizer
from models.base import System, Table, find_backbone
from models.docid import Docid
from models.export.sentence_transformers import (
    Published,
    find_folder,
    is_published,
    read_published,
    take_projection,
)
from models.finished_run import IDENTIFIERS, FinishedRun, update_settings
from models.generative import GenerativeSystem

# Where a system's state dict has its backbone: generative, multi-vector, a cross-encoder.
_BACKBONES = ("backbone.", "encoder.backbone.", "encoder.")


@dataclass(frozen=True)
class Weights:
    """What `weights=` names.

    Attributes:
        settings: values of the configuration, by key, that go with the weights.
        give: gives a model, prepared on its collection, the weights. Takes the model and the
            collection's tokeniser. Raises ValueError if they do not fit.
        is_run: whether a finished run holds the weights.
    """

    settings: dict[str, Any]
    give: Callable[[System, Any], None]
    is_run: bool = False


def find_weights(name: str | None) -> Weights | None:
    """The weights of a folder, or of a published model on the hub; None without a name.

    Raises:
        FileNotFoundError: no such folder or model. ValueError: it has no weights.
    """
    if name is None:
        return None
    folder, key = find_folder(name), f"weights={name}"
    if not (folder / CONFIG).is_file():
        settings = {"system": Path(name).name}
        with reading(key):
            if is_published(folder):
                published = read_published(folder)
                give = partial(_give_projection, key, published)
                return Weights(settings | published.settings, give)
        if (folder / "config.json").is_file():
            settings |= {"backbone.name": str(folder.resolve()), "backbone.shape": None}
            return Weights(settings, partial(_check_pretrained, key, folder))
    run = RunWeights.find("weights", folder)
    return Weights(run.tokenizer_settings, run.give_all, is_run=True)


def _give_projection(key: str, published: Published, model: System, tokenizer: Any) -> None:
    """The encoder has read the weights of a published checkpoint; the projection is left."""
    with reading(key):
        take_projection(model, published)


def _check_pretrained(key: str, folder: Path, model: System, tokenizer: Any) -> None:
    """The backbone has read the weights of an encoder-decoder; nothing else may be trained."""
    if model.paradigm != "generative":
        raise ValueError(
            f"{key}: must have a projection to be taken over by a dense system, "
            "which trains from backbone.name"
        )
    learned = [n for n, _ in model.named_parameters() if not n.startswith("backbone.")]
    rows = AutoConfig.from_pretrained(folder, trust_remote_code=False).vocab_size
    if model.backbone.config.vocab_size > rows:
        learned.append("tokens of its identifiers")
    if learned:
        raise ValueError(
            f"{key}: must hold all that the system learns, {learned[0]} is trained from "
            "backbone.name"
        )


def save_weights(model: System, run: Path) -> None:
    """Writes what a system took over as the checkpoint of a run that trained nothing."""
    checkpoint = {"state_dict": model.state_dict(), "hyper_parameters": dict(model.hparams)}
    model.on_save_checkpoint(checkpoint)
    (run / CHECKPOINT).parent.mkdir(exist_ok=True)
    with new_file(run / CHECKPOINT) as file:
        torch.save(checkpoint, file)


@dataclass(frozen=True)
class RunWeights:
    """The weights of a finished run: all of them (`weights=`), or those that fit (`initial=`)."""

    run: FinishedRun

    @classmethod
    def find(cls, key: str, folder: str | Path) -> "RunWeights":
        """The weights in a run's folder.

        Raises:
            FileNotFoundError: no such folder; ValueError: it holds no trained run.
        """
        run = FinishedRun.read(key, folder)
        if not (run.path / CHECKPOINT).is_file():
            raise ValueError(f"{run.key}: must be a trained run, it has no {CHECKPOINT}")
        return cls(run)

    @property
    def sources(self) -> dict[str, str]:
        """The SHA-256 of the run's checkpoint, by its path."""
        file = self.run.path / CHECKPOINT
        with file.open("rb") as stream:
            return {str(file): hashlib.file_digest(stream, "sha256").hexdigest()}

    @property
    def tokenizer_settings(self) -> dict[str, Any]:
        """The keys that name the run's tokeniser; {} where its pretrained backbone brings it."""
        config = self.run.config
        if (config.get("backbone") or {}).get("name"):
            return {}
        return {
            "tokenizer.path": str(self.run.path / "tokenizer" / "tokenizer.json"),
            "tokenizer.vocab_size": config["tokenizer"]["vocab_size"],
        }

    def initial_settings(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The keys that name the run's tokeniser and its scheme of docids."""
        pretrained = (config.get("backbone") or {}).get("name")  # it brings its own tokeniser
        scheme = self._shared_scheme(config)
        names = {f"model.identifiers.{key}": v for key, v in scheme.items() if key != TARGET}
        return names if pretrained else self.tokenizer_settings | names

    def _shared_scheme(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The run's options of identifiers; {} if this configuration has others or another file."""
        theirs = self.run.config
        models = config["model"], update_settings(theirs["model"])
        ours, options = (model.get("identifiers") or {} for model in models)
        files = (c["data"].get("identifiers") for c in (config, theirs))
        same = ours.get(TARGET) == options.get(TARGET) and len({*files}) == 1
        return {key: options[key] for key in ours if key in options} if same else {}

    def give_identifiers(
        self, model: System, config: Mapping[str, Any], documents: Table, directory: Path
    ) -> None:
        """Copies the run's identifiers to the system's folder of identifiers, if both are alike.

        Raises:
            ValueError: they are damaged, or were made with other settings.
        """
        source = self.run.path / IDENTIFIERS
        if isinstance(model, Docid) and self._shared_scheme(config) and not directory.is_dir():
            names = documents["id"][:]
            if read_arrays(source / "identifiers", ())[1].get("document_ids") == names:
                model.load_identifiers(source, names)
                model.save_identifiers(directory)

    def give_all(self, model: System, tokenizer: Any) -> None:
        """Gives the system all weights of the run; search and alignment stay the system's own.

        Raises:
            ValueError: the system has another tokeniser, or tensors of other names or sizes.
        """
        head = getattr(model, "head", None)
        if head is not None and head.table_state() is not None:
            raise ValueError(
                f"{self.run.key}: must not be a run of NP decoding, whose table is made of the "
                "documents that it was trained on"
            )
        state = self._read_checkpoint(model, tokenizer)["state_dict"]
        ours, theirs = _sizes(model.state_dict()), _sizes(state)
        for name in sorted(ours.keys() | theirs.keys()):
            self._check_size(name, ours.get(name), theirs.get(name))
        with reading(self.run.key):
            model.load_state_dict(state)

    def give_fitting(self, model: System, tokenizer: Any) -> str:
        """Gives the system the weights that fit; returns a sentence about them.

        The same system with the same identifiers gets all. Another one gets the tensors of the
        backbone that both have, of tables the rows of the tokeniser's tokens, and other tensors of
        the same name and size; heads and docid tokens start from new random rows.

        Raises:
            ValueError: the system is not trained, or has another tokeniser or backbone.
        """
        if not model.trainable:
            raise ValueError(f"{self.run.key}: must be null, nothing of this system is trained")
        checkpoint = self._read_checkpoint(model, tokenizer)
        theirs, ours = checkpoint["state_dict"], model.state_dict()
        identifiers = getattr(model, "identifiers", None)
        alike = identifiers is None or checkpoint.get("identifiers") == identifiers.hash
        whole = alike and _sizes(ours) == _sizes(theirs)
        chosen = theirs if whole else self._choose_fitting(model, theirs)
        with reading(self.run.key):
            model.load_state_dict(chosen, strict=whole)
            if isinstance(model, GenerativeSystem):
                model.head.renew_table(checkpoint.get("table") if whole else None)
        new = {name.partition(".")[0] for name in _sizes(ours).keys() - chosen.keys()}
        if not whole and identifiers is not None:
            new.add("docid tokens")
        rest = f", not all of: {', '.join(sorted(new))}" if new else ""
        return f"{self.run.key}: {len(chosen):,} of {len(ours):,} tensors are taken over{rest}"

    def _read_checkpoint(self, model: System, tokenizer: Any) -> dict[str, Any]:
        """The run's checkpoint; raises ValueError unless it reads texts as this system does."""
        key = self.run.key
        if load_tokenizer(self.run.path / "tokenizer").get_vocab() != tokenizer.get_vocab():
            raise ValueError(
                f"{key}: was trained with another tokeniser, must be this run's "
                "(see backbone.name and tokenizer in both configurations)"
            )
        checkpoint = read_checkpoint(self.run.path / CHECKPOINT)
        settings = update_settings(checkpoint["hyper_parameters"]).get("backbone") or {}
        theirs = TextTemplate(**(settings.get("template") or {}))
        for side in SIDES:
            own, other = getattr(model.template, side), getattr(theirs, side)
            if own != other:
                raise ValueError(
                    f"{key}: was trained with the tokens {list(other)} before a {side}, "
                    f"must be with {list(own)}: tokenizer.markers.{side} must be this run's"
                )
        return checkpoint

    def _check_size(self, name: str, ours: Any, theirs: Any) -> None:
        if ours != theirs:
            raise ValueError(
                f"{self.run.key}: {name} is {theirs} there, must be {ours}: "
                "its model, size and groups must be this run's"
            )

    def _choose_fitting(self, model: System, theirs: dict[str, Any]) -> dict[str, Tensor]:
        name, backbone = find_backbone(model)
        ours = model.state_dict(keep_vars=True)
        ends = [key.removeprefix(f"{name}.") for key in ours if key.startswith(f"{name}.")]
        there = max(_BACKBONES, key=lambda place: sum(place + end in theirs for end in ends))
        places = {f"{name}.{end}": there + end for end in ends}
        tables = backbone.get_input_embeddings(), backbone.get_output_embeddings()
        words = {id(table.weight) for table in tables if table is not None}
        chosen = {}
        for key, value in ours.items():
            other = theirs.get(places.get(key, "" if key.startswith("head.") else key))
            if not (isinstance(value, Tensor) and isinstance(other, Tensor)):
                continue
            if id(value) in words:
                widths = (tuple(table.shape[1:]) for table in (value, other))
                self._check_size(f"a row of {key}", *widths)
                rows = min(len(value), len(other), _text_rows(model, backbone))
                other = torch.cat([other[:rows].to(value), value.detach()[rows:]])
            if key in places:
                self._check_size(key, tuple(value.shape), tuple(other.shape))
            if value.shape == other.shape:
                chosen[key] = other
        if not chosen.keys() & places.keys():
            rule = "must be of a system with this backbone, has none of its tensors"
            raise ValueError(f"{self.run.key}: {rule}")
        return chosen


def _sizes(state: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in state.items() if hasattr(value, "shape")}


def _text_rows(model: System, backbone: PreTrainedModel) -> int:
    """Rows of the embedding table before those of docid tokens."""
    scheme = getattr(model, "scheme", None)
    return backbone.config.vocab_size - (scheme.n_tokens if scheme else 0)
