"""`weights=`: a model that is taken over, so that nothing is trained; `initial=`: one to train on.

`weights=` names a finished run, a published multi-vector checkpoint, or an encoder-decoder of
transformers. Each has `settings`, what it says of the configuration, and `give`, which hands its
tensors to a system. `initial=` names a finished run of any system with the same backbone.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel

from gr_mvdr.files import new_file, read_arrays, read_checkpoint, reading
from gr_mvdr.identifiers.scheme import hash_collection
from gr_mvdr.options import TARGET
from gr_mvdr.run_files import CHECKPOINT
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


class Weights(Protocol):
    """What `find_weights` finds.

    Attributes:
        trained_here: whether a run of this library holds the checkpoint already.
        settings: values of the configuration, by key, that go with the weights.
    """

    trained_here: bool

    @property
    def settings(self) -> dict[str, Any]: ...

    def give(self, model: System, tokenizer: Any) -> None:
        """Gives a model, prepared on its collection, the weights.

        Args:
            tokenizer: of that collection.

        Raises:
            ValueError: the model has another tokeniser, or parts of other names or sizes.
        """


def find_weights(name: str | None) -> Weights | None:
    """What is to be taken over; None = nothing.

    Args:
        name: a folder, or the name of a published model on the hub.

    Raises:
        FileNotFoundError: there is neither; ValueError: no trained model is in it.
    """
    if name is None:
        return None
    folder = find_folder(name)
    if not (folder / "config.yaml").is_file():
        with reading(f"weights={name}"):
            if is_published(folder):
                return PublishedWeights(name, read_published(folder))
        if (folder / "config.json").is_file():
            return PretrainedWeights(name, folder)
    return RunWeights(_trained_run("weights", folder))


def _trained_run(key: str, folder: Path) -> FinishedRun:
    run = FinishedRun.read(key, folder)
    if not (folder / CHECKPOINT).is_file():
        raise ValueError(f"{run.key}: must be a trained run, it has no {CHECKPOINT}")
    return run


def save_weights(model: System, run: Path) -> None:
    """Writes what a system took over as the checkpoint of a run that trained nothing."""
    checkpoint = {"state_dict": model.state_dict(), "hyper_parameters": dict(model.hparams)}
    model.on_save_checkpoint(checkpoint)
    (run / CHECKPOINT).parent.mkdir(exist_ok=True)
    with new_file(run / CHECKPOINT) as file:
        torch.save(checkpoint | {"train_seconds": 0.0}, file)


@dataclass(frozen=True)
class RunWeights:
    """Those of a finished run, and its tokeniser; search and alignment stay the model's own."""

    run: FinishedRun
    trained_here = True

    @property
    def settings(self) -> dict[str, Any]:
        return _tokenizer_settings(self.run)

    def give(self, model: System, tokenizer: Any) -> None:
        """See `Weights`."""
        run = self.run
        head = getattr(model, "head", None)
        if head is not None and head.table_state() is not None:
            raise ValueError(
                f"{run.key}: must not be a run of NP decoding, whose table is made of the "
                "documents that it was trained on"
            )
        found = _read_fitting(run, model, tokenizer)["state_dict"]
        ours, theirs = _sizes(model.state_dict()), _sizes(found)
        for name in sorted(ours.keys() | theirs.keys()):
            _check_size(run, name, ours.get(name), theirs.get(name))
        with reading(run.key):
            model.load_state_dict(found)


def _tokenizer_settings(run: FinishedRun) -> dict[str, Any]:
    """The keys that name a run's tokeniser; {} where its pretrained backbone brings it."""
    if (run.config.get("backbone") or {}).get("name"):
        return {}
    return {
        "tokenizer.path": str(run.path / "tokenizer" / "tokenizer.json"),
        "tokenizer.vocab_size": run.config["tokenizer"]["vocab_size"],
    }


def _read_fitting(run: FinishedRun, model: System, tokenizer: Any) -> dict[str, Any]:
    """A run's checkpoint, if it reads texts as this system does."""
    if load_tokenizer(run.path / "tokenizer").get_vocab() != tokenizer.get_vocab():
        raise ValueError(
            f"{run.key}: was trained with another tokeniser, must be this run's "
            "(see backbone.name and tokenizer in both configurations)"
        )
    checkpoint = read_checkpoint(run.path / CHECKPOINT)
    settings = update_settings(checkpoint["hyper_parameters"]).get("backbone") or {}
    theirs = TextTemplate(**(settings.get("template") or {}))
    for side in SIDES:
        own, other = getattr(model.template, side), getattr(theirs, side)
        if own != other:
            raise ValueError(
                f"{run.key}: was trained with the tokens {list(other)} before a {side}, "
                f"must be with {list(own)}: tokenizer.markers.{side} must be this run's"
            )
    return checkpoint


def _check_size(run: FinishedRun, name: str, ours: Any, theirs: Any) -> None:
    if ours != theirs:
        raise ValueError(
            f"{run.key}: {name} is {theirs} there, must be {ours}: "
            "its model, size and groups must be this run's"
        )


def _sizes(state: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in state.items() if hasattr(value, "shape")}


@dataclass(frozen=True)
class PublishedWeights:
    """Those of sentence-transformers, PyLate or colbert-ai."""

    name: str
    published: Published
    trained_here = False

    @property
    def settings(self) -> dict[str, Any]:
        return {"system": Path(self.name).name, **self.published.settings}

    def give(self, model: System, tokenizer: Any) -> None:
        """See `Weights`: the encoder has read its own, the projection follows."""
        with reading(f"weights={self.name}"):
            take_projection(model, self.published)


@dataclass(frozen=True)
class PretrainedWeights:
    """An encoder-decoder of transformers, which generates identifiers as it is."""

    name: str
    folder: Path
    trained_here = False

    @property
    def settings(self) -> dict[str, Any]:
        own = {"backbone.name": str(self.folder.resolve()), "backbone.shape": None}
        return {"system": Path(self.name).name, **own}

    def give(self, model: System, tokenizer: Any) -> None:
        """See `Weights`: the backbone has read them, and must be all that the model learns."""
        if model.paradigm != "generative":
            raise ValueError(
                f"weights={self.name}: must have a projection to be taken over by a dense system, "
                "which trains from backbone.name"
            )
        learned = [n for n, _ in model.named_parameters() if not n.startswith("backbone.")]
        rows = AutoConfig.from_pretrained(self.folder, trust_remote_code=False).vocab_size
        if model.backbone.config.vocab_size > rows:
            learned.append("tokens of its identifiers")
        if learned:
            raise ValueError(
                f"weights={self.name}: must hold all that the system learns, {learned[0]} is "
                "trained from backbone.name"
            )


@dataclass(frozen=True)
class InitialWeights:
    """Those of a finished run, with which a training begins."""

    run: FinishedRun

    @staticmethod
    def find(name: str | None) -> "InitialWeights | None":
        """Of a run's folder; None = training begins with random or pretrained weights.

        Raises:
            FileNotFoundError: there is no such folder; ValueError: it holds no trained run.
        """
        return None if name is None else InitialWeights(_trained_run("initial", Path(name)))

    @property
    def sources(self) -> dict[str, str]:
        """The SHA-256 of the run's checkpoint, by its path."""
        file = self.run.path / CHECKPOINT
        with file.open("rb") as stream:
            return {str(file): hashlib.file_digest(stream, "sha256").hexdigest()}

    def settings(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Values of a configuration, by key: the run's tokeniser, and its scheme of docids."""
        theirs, found = self._scheme(config), {}
        if not (config.get("backbone") or {}).get("name"):  # a pretrained one brings its own
            found = _tokenizer_settings(self.run)
        names = {f"model.identifiers.{key}": v for key, v in theirs.items() if key != TARGET}
        return found | names

    def _scheme(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """What names the run's documents, {} where another scheme or file names this one's."""
        found = self.run.config
        ours, theirs = (c["model"].get("identifiers") or {} for c in (config, found))
        files = (c["data"].get("identifiers") for c in (config, found))
        same = ours.get(TARGET) == theirs.get(TARGET) and len({*files}) == 1
        return {key: theirs[key] for key in ours if key in theirs} if same else {}

    def give_identifiers(
        self, model: System, config: Mapping[str, Any], documents: Table, directory: Path
    ) -> None:
        """Puts the run's identifiers where the system looks for its own, if these are alike.

        Raises:
            ValueError: they are damaged, or were made with other settings.
        """
        found = self.run.path / IDENTIFIERS
        if isinstance(model, Docid) and self._scheme(config) and not directory.is_dir():
            names = documents["id"][:]
            if read_arrays(found / "identifiers", ())[1].get("document_ids") == names:
                first = model.backbone.config.vocab_size
                model.load_identifiers(found, hash_collection(names), first)
                model.save_identifiers(directory)

    def give(self, model: System, tokenizer: Any) -> str:
        """Gives a system, prepared on its collection, what fits; says what that was.

        All of it to the same system with the same identifiers. To another the tensors of the
        backbone that both have, of tables the rows of the tokeniser's tokens, and what else has the
        same name and size; heads and docid tokens start from new random rows.

        Raises:
            ValueError: the system is not trained, or has another tokeniser or backbone.
        """
        if not model.trainable:
            raise ValueError(f"{self.run.key}: must be null, nothing of this system is trained")
        checkpoint = _read_fitting(self.run, model, tokenizer)
        theirs, ours = checkpoint["state_dict"], model.state_dict()
        identifiers = getattr(model, "identifiers", None)
        alike = identifiers is None or checkpoint.get("identifiers") == identifiers.hash
        whole = alike and _sizes(ours) == _sizes(theirs)
        chosen = theirs if whole else self._shared(model, ours, theirs)
        with reading(self.run.key):
            model.load_state_dict(chosen, strict=whole)
            if isinstance(model, GenerativeSystem):
                model.head.renew_table(checkpoint.get("table") if whole else None)
        new = {name.partition(".")[0] for name in _sizes(ours).keys() - chosen.keys()}
        if not whole and identifiers is not None:
            new.add("docid tokens")
        rest = f", not all of: {', '.join(sorted(new))}" if new else ""
        return f"{self.run.key}: {len(chosen):,} of {len(ours):,} tensors are taken over{rest}"

    def _shared(self, model: System, ours: dict, theirs: dict) -> dict[str, Tensor]:
        name, backbone = find_backbone(model)
        ends = [key.removeprefix(f"{name}.") for key in ours if key.startswith(f"{name}.")]
        there = max(_BACKBONES, key=lambda place: sum(place + end in theirs for end in ends))
        places = {f"{name}.{end}": there + end for end in ends}
        tables = backbone.get_input_embeddings(), backbone.get_output_embeddings()
        words = {id(table.weight) for table in tables if table is not None}
        found = {}
        for key, value in model.state_dict(keep_vars=True).items():
            other = theirs.get(places.get(key, "" if key.startswith("head.") else key))
            if not (isinstance(value, Tensor) and isinstance(other, Tensor)):
                continue
            if id(value) in words:
                widths = (tuple(table.shape[1:]) for table in (value, other))
                _check_size(self.run, f"a row of {key}", *widths)
                rows = min(len(value), len(other), _text_rows(model, backbone))
                other = torch.cat([other[:rows].to(value), value.detach()[rows:]])
            if key in places:
                _check_size(self.run, key, tuple(value.shape), tuple(other.shape))
            if value.shape == other.shape:
                found[key] = other
        if not found.keys() & places.keys():
            rule = "must be of a system with this backbone, has none of its tensors"
            raise ValueError(f"{self.run.key}: {rule}")
        return found


def _text_rows(model: System, backbone: PreTrainedModel) -> int:
    """Rows of the embedding table before those of docid tokens."""
    scheme = getattr(model, "scheme", None)
    return backbone.config.vocab_size - (scheme.n_tokens if scheme else 0)
