"""`weights=`: a model that is taken over, so that nothing is trained.

A finished run, a published multi-vector checkpoint, or an encoder-decoder of transformers. Each has
`settings`, what it says of the configuration, and `give`, which hands its tensors to a system.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import AutoConfig

from gr_mvdr.files.reading import read_checkpoint, reading
from gr_mvdr.files.run_files import CHECKPOINT
from gr_mvdr.files.writing import new_file
from gr_mvdr.template import TextTemplate
from gr_mvdr.tokenizers import load_tokenizer
from models.base import System
from models.export.published import (
    Published,
    describe_settings,
    find_folder,
    find_layout,
    read_published,
    take_projection,
)
from models.export.published_parts import SIDES
from models.finished_run import FinishedRun, update_settings


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
            if find_layout(folder):
                return PublishedWeights(name, read_published(folder))
        if (folder / "config.json").is_file():
            return PretrainedWeights(name, folder)
    run = FinishedRun.read("weights", folder)
    if not (folder / CHECKPOINT).is_file():
        raise ValueError(f"{run.key}: must be a trained run, it has no {CHECKPOINT}")
    return RunWeights(run)


def save_weights(model: System, run: Path) -> None:
    """Writes what a system took over as the checkpoint of a run that trained nothing."""
    checkpoint = {"state_dict": model.state_dict(), "hyper_parameters": dict(model.hparams)}
    model.on_save_checkpoint(checkpoint)
    (run / CHECKPOINT).parent.mkdir(exist_ok=True)
    with new_file(run / CHECKPOINT) as file:
        torch.save(checkpoint | {"train_seconds": 0.0}, file)


@dataclass(frozen=True)
class RunWeights:
    """Those of a finished run; search and alignment stay the model's own."""

    run: FinishedRun
    trained_here = True

    @property
    def settings(self) -> dict[str, Any]:
        return {}

    def give(self, model: System, tokenizer: Any) -> None:
        """See `Weights`."""
        run = self.run
        head = getattr(model, "head", None)
        if head is not None and head.table_state() is not None:
            raise ValueError(
                f"{run.key}: must not be a run of NP decoding, whose table is made of the "
                "documents that it was trained on"
            )
        if load_tokenizer(run.path / "tokenizer").get_vocab() != tokenizer.get_vocab():
            raise ValueError(
                f"{run.key}: was trained with another tokeniser, must be this run's "
                "(see backbone.name and tokenizer in both configurations)"
            )
        checkpoint = read_checkpoint(run.path / CHECKPOINT)
        self._check_template(model.template, checkpoint["hyper_parameters"])
        found = checkpoint["state_dict"]
        ours, theirs = _sizes(model.state_dict()), _sizes(found)
        for name in sorted(ours.keys() | theirs.keys()):
            if ours.get(name) != theirs.get(name):
                raise ValueError(
                    f"{run.key}: {name} is {theirs.get(name)} there, must be {ours.get(name)}: "
                    "its model, size and groups must be this run's"
                )
        with reading(run.key):
            model.load_state_dict(found)

    def _check_template(self, ours: TextTemplate, trained: dict[str, Any]) -> None:
        settings = (update_settings(trained).get("backbone") or {}).get("template") or {}
        theirs = TextTemplate(**settings)
        for side in SIDES:
            own, other = getattr(ours, side), getattr(theirs, side)
            if own != other:
                raise ValueError(
                    f"{self.run.key}: was trained with the tokens {list(other)} before a {side}, "
                    f"must be with {list(own)}: tokenizer.markers.{side} must be this run's"
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
        return {"system": Path(self.name).name, **describe_settings(self.published)}

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
