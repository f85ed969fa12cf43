"""Reuse of trained weights: `weights=`, which replaces training, and `initial=`, which starts it.

`weights=` names a finished run, a published dense checkpoint, or an encoder or encoder-decoder of
transformers. `initial=` names a finished run of any system with the same backbone, from whose
weights training starts.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gr_mvdr.backbones import read_backbone_config
from gr_mvdr.files import CHECKPOINT, CONFIG, open_tensors, read_checkpoint, reading
from gr_mvdr.options import TARGET, name_some
from gr_mvdr.pooling import AllTokens
from gr_mvdr.template import TextTemplate, read_template
from gr_mvdr.token_vectors import SIDES
from gr_mvdr.tokenizers import load_tokenizer
from models.base import System, Table, find_backbone
from models.docid import SAVED
from models.finished_run import IDENTIFIERS, FinishedRun
from models.generative import GenerativeSystem
from models.multi_vector import MultiVector
from models.sentence_transformers import (
    POOLINGS,
    find_folder,
    is_model,
    is_published,
    read_published,
    take_projection,
)
from models.training import CheckpointFile

# The backbone's prefix in checkpoints of multi-vector systems, generative ones, cross-encoders.
_BACKBONES = ("encoder.backbone.", "backbone.", "encoder.")


class PublishedWeights:
    """A published dense checkpoint, encoder or encoder-decoder, loaded through `backbone.name`.

    A dense system reads its token vectors from the encoder's states by the published projection,
    or by the identity if it has no projection. How they are pooled and aligned is the system's own
    choice, except that a single vector must be the published one.

    Attributes:
        key: the user's key and value, "weights=NAME", which errors name.
    """

    is_run = False

    def __init__(self, key: str, folder: Path):
        self.key, self.folder = key, folder
        self.published, self.projection = {}, None
        self.config = read_backbone_config(str(folder), None, key)
        with reading(key):
            if is_published(folder):
                self.published, self.projection = read_published(folder)
            else:
                template = read_template(load_tokenizer(folder, key=""))
                self.published = {"backbone.template": template.settings}

    def settings(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the configuration values, by key, that the weights require.

        Raises:
            ValueError: the system has a single vector for a text, and the weights have another.
        """
        published, model = dict(self.published), config["model"]
        published.pop("model.alignment", None)
        projections = published.pop("model.projections", None)
        pooling = published.pop("model.pooling", {})
        dense = "projections" in model
        for side, own in (model["pooling"] if dense else {}).items():
            if own not in POOLINGS.values():
                continue
            if own != pooling.get(side):
                known = f"{pooling[side][TARGET]}, the published one, or " if pooling else ""
                raise ValueError(
                    f"{self.key}: model.pooling.{side}={own[TARGET]}: must be {known}AllTokens"
                )
            published["model.projections"] = projections
        named = {"system": Path(self.key.partition("=")[2]).name, "backbone.shape": None}
        named["backbone.name"] = str(self.folder.resolve())
        if (config.get("backbone") or {}).get("from_encoder"):
            named["backbone.from_encoder"] = None  # its decoder would be searched untrained
        if self.projection is None and dense:
            named["model.dimension"] = self.config.hidden_size
        return named | published

    def give(self, model: System, tokenizer: Any) -> None:
        """Gives a dense system its projection; checks that another learns its backbone alone.

        Raises:
            ValueError: the system learns parameters that the weights lack, or leaves some out that
                its scores need.
        """
        if not isinstance(model, MultiVector) and model.paradigm != "generative":
            raise ValueError(
                f"{self.key}: must be taken over by a multi-vector or a generative system, "
                "this one trains from backbone.name"
            )
        left_out = find_backbone(model)[1].left_out
        if self.projection is not None:  # the published parts were read
            single = type(model.encoder.pooling["query"]) is not AllTokens
            left_out = [] if single else [name for name in left_out if name.endswith(".pt")]
        if left_out:
            raise ValueError(
                f"{self.key}: holds {name_some(left_out)}, which {type(model).__name__} does not "
                "read: its scores would differ; backbone.name trains without them"
            )
        if isinstance(model, MultiVector):
            states = torch.eye(self.config.hidden_size)
            with reading(self.key):
                take_projection(model, states if self.projection is None else self.projection)
            return
        learned = [n for n, _ in model.named_parameters() if not n.startswith("backbone.")]
        if model.backbone.config.vocab_size > self.config.vocab_size:
            learned.append("tokens of its identifiers")
        if learned:
            raise ValueError(
                f"{self.key}: must hold all that the system learns, {learned[0]} included; to "
                "train the system, name the model as backbone.name instead"
            )


class RunWeights:
    """The weights of a finished run: all of them (`weights=`), or those that fit (`initial=`).

    Attributes:
        key: the user's key and value, "initial=outputs/…", which errors name.
        checkpoint: the run's checkpoint file.
    """

    is_run = True

    def __init__(self, option: str, folder: Path):
        """
        Args:
            option: "weights" or "initial".

        Raises:
            FileNotFoundError: no such folder; ValueError: it holds no trained run.
        """
        self.run, self.all = FinishedRun.read(option, folder), option == "weights"
        self.key, self.folder, self.checkpoint = self.run.key, folder, folder / CHECKPOINT
        if not self.checkpoint.is_file():
            raise ValueError(f"{self.key}: must be a trained run, it has no {CHECKPOINT}")

    def settings(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the configuration keys of the run's tokeniser and its scheme of docids.

        Raises:
            ValueError: a study asks for documents that the run may have known in training.
        """
        known = self.run.config["data"].get("new_documents")
        if (wanted := (config.get("study") or {}).get("splits", known)) != known:
            rule = f"must be with {wanted}"
            raise ValueError(f"{self.key}: was trained with data.new_documents={known}, {rule}")
        scheme = self._shared_scheme(config).items()
        names = {f"model.identifiers.{key}": value for key, value in scheme if key != TARGET}
        if any((c.get("backbone") or {}).get("name") for c in (config, self.run.config)):
            return names  # a pretrained backbone brings its own tokeniser
        return names | {
            "tokenizer.path": str(self.folder / "tokenizer" / "tokenizer.json"),
            "tokenizer.vocab_size": self.run.config["tokenizer"]["vocab_size"],
        }

    def _shared_scheme(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the run's options of identifiers; {} if this configuration's scheme differs."""
        theirs = self.run.config
        ours, options = (c["model"].get("identifiers") or {} for c in (config, theirs))
        files = (c["data"].get("identifiers") for c in (config, theirs))
        same = ours.get(TARGET) == options.get(TARGET) and len({*files}) == 1
        return {key: options[key] for key in ours if key in options} if same else {}

    def give_identifiers(
        self, model: System, config: Mapping[str, Any], documents: Table, directory: Path
    ) -> None:
        """Copies the run's identifiers to a new folder if scheme and documents are the same.

        Raises:
            ValueError: the identifiers are damaged, or were made with other settings.
        """
        source = self.folder / IDENTIFIERS
        if self._shared_scheme(config) and not directory.is_dir():
            names = documents["id"][:]
            if open_tensors(source / SAVED)[1].get("document_ids") == names:
                model.load_identifiers(source, names)
                model.save_identifiers(directory)

    def give(self, model: System, tokenizer: Any) -> str:
        """Loads all weights into a system or, under `initial=`, those that fit.

        The same system with the same identifiers gets all weights. Another system gets the
        backbone's tensors that both have (in embedding tables, the rows of the tokeniser's tokens),
        and other tensors of the same name and size; its head and docid tokens stay as initialised.

        Returns:
            A message that says how many tensors were loaded.

        Raises:
            ValueError: the system is not trained, has another tokeniser or backbone, or lacks a
                tensor of `weights=`.
        """
        if not model.trainable:
            raise ValueError(f"{self.key}: must be null, nothing of this system is trained")
        head = model.head if isinstance(model, GenerativeSystem) else None
        if self.all and head is not None and head.table_state() is not None:
            raise ValueError(
                f"{self.key}: must not be a run of NP decoding, whose table is made of the "
                "documents that it was trained on"
            )
        checkpoint = self._read_checkpoint(model, tokenizer)
        theirs, ours = checkpoint["state_dict"], model.state_dict()
        sizes, wanted = _sizes(theirs), _sizes(ours)
        for name in sorted(sizes | wanted) if self.all else ():
            self._check_size(name, wanted.get(name, "missing"), sizes.get(name, "missing"))
        identifiers = getattr(model, "identifiers", None)
        alike = identifiers is None or checkpoint.get("identifiers") == identifiers.hash
        whole = self.all or (alike and sizes == wanted)
        chosen = theirs if whole else self._choose_fitting(model, theirs)
        with reading(self.key):
            model.load_state_dict(chosen, strict=whole)
            if head is not None:
                head.renew_table(checkpoint.get("table") if whole else None)
        new = {name.partition(".")[0] for name in wanted.keys() - chosen.keys()}
        if not whole and identifiers is not None:
            new.add("docid tokens")
        rest = f", not all of: {', '.join(sorted(new))}" if new else ""
        return f"{self.key}: {len(chosen):,} of {len(ours):,} tensors are taken over{rest}"

    def _read_checkpoint(self, model: System, tokenizer: Any) -> dict[str, Any]:
        """Reads the checkpoint; raises ValueError if the run reads texts in another way."""
        theirs = load_tokenizer(self.folder / "tokenizer").get_vocab()
        self.run.check_tokenizer(theirs == tokenizer.get_vocab())
        checkpoint = read_checkpoint(self.checkpoint)
        settings = checkpoint["hyper_parameters"].get("backbone") or {}
        template = TextTemplate(**(settings.get("template") or {}))
        for side in SIDES:
            own, other = getattr(model.template, side), getattr(template, side)
            if own != other:
                raise ValueError(
                    f"{self.key}: was trained with the tokens {list(other)} before a {side}, "
                    f"must be with {list(own)}: tokenizer.markers.{side} must be this run's"
                )
        return checkpoint

    def _check_size(self, name: str, ours: Any, theirs: Any) -> None:
        if ours != theirs:
            raise ValueError(
                f"{self.key}: {name} is {theirs} there, must be {ours}: "
                "its model, size and groups must be this run's"
            )

    def _choose_fitting(self, model: System, theirs: dict[str, Any]) -> dict[str, Tensor]:
        """Returns the run's tensors that fit the system, by the system's names."""
        name, backbone = find_backbone(model)
        prefixes = (
            prefix for prefix in _BACKBONES if any(key.startswith(prefix) for key in theirs)
        )
        own, prefix = f"{name}.", next(prefixes, "")
        named = {
            own + key.removeprefix(prefix) if key.startswith(prefix) else key: tensor
            for key, tensor in theirs.items()
            if not key.startswith("head.")
        }
        tables = backbone.get_input_embeddings(), backbone.get_output_embeddings()
        words = {id(table.weight) for table in tables if table is not None}
        scheme = getattr(model, "scheme", None)
        text_rows = backbone.config.vocab_size - (scheme.n_tokens if scheme else 0)
        chosen = {}
        for key, value in model.state_dict(keep_vars=True).items():
            if (other := named.get(key)) is None:
                continue
            if id(value) in words and value.shape[1:] == other.shape[1:]:
                rows = min(len(value), len(other), text_rows)
                other = torch.cat([other[:rows].to(value), value.detach()[rows:]])
            if value.shape == other.shape:
                chosen[key] = other
            elif key.startswith(own):
                self._check_size(key, tuple(value.shape), tuple(other.shape))
        if not any(key.startswith(own) for key in chosen):
            rule = "must be of a system with this backbone, has none of its tensors"
            raise ValueError(f"{self.key}: {rule}")
        return chosen


Weights = PublishedWeights | RunWeights


@contextmanager
def naming(taken: Weights | None) -> Iterator[None]:
    """Names `weights=…`, which the user typed, in errors about the backbone that it sets."""
    try:
        yield
    except (ValueError, OSError) as error:
        own = f"backbone.name={taken.folder.resolve()}" if taken is not None else ""
        if not own or taken.is_run or own not in str(error):
            raise
        kind = type(error) if isinstance(error, OSError) else ValueError
        raise kind(str(error).replace(own, taken.key)) from error


def find_weights(option: str, name: str | None) -> Weights | None:
    """Finds the weights of a folder, or of a published model on the hub.

    Args:
        option: "weights", or "initial", which accepts only a run.
        name: a folder or a name on the hub; None = returns None.

    Raises:
        FileNotFoundError: there is no such folder or model.
        ValueError: it has no weights.
    """
    if name is None:
        return None
    folder = Path(name) if option == "initial" else find_folder(name)
    if option == "initial" or (folder / CONFIG).is_file():
        return RunWeights(option, folder)
    if is_model(folder):
        return PublishedWeights(f"{option}={name}", folder)
    return RunWeights(option, folder)  # raises an error that says what is missing


def save_weights(model: System, run: Path) -> None:
    """Saves the weights that a system reused as the checkpoint of a run without training."""
    checkpoint = {"state_dict": model.state_dict(), "hyper_parameters": dict(model.hparams)}
    model.on_save_checkpoint(checkpoint)
    CheckpointFile().save_checkpoint(checkpoint, run / CHECKPOINT)


def _sizes(state: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in state.items() if hasattr(value, "shape")}
