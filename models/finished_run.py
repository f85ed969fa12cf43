"""A finished run opened again: its model, its data, its index, its vectors of documents."""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gr_mvdr.backbones import hash_weights
from gr_mvdr.batch import batch_by_size
from gr_mvdr.files import read_arrays, read_checkpoint, reading, write_arrays
from gr_mvdr.identifiers.document_embeddings import DocumentEmbeddings, normalise_rows
from gr_mvdr.identifiers.scheme import Encode
from gr_mvdr.options import TARGET, admitting, build, check_parts, find_part, make_printable, part
from gr_mvdr.progress import track
from gr_mvdr.run_files import (
    CHECKPOINT,
    VERSION,
    check_finished,
    read_config,
    read_provenance,
)
from gr_mvdr.template import TextTemplate
from gr_mvdr.token_index.neighbours import FOLDER as INVERTED_FILE
from gr_mvdr.tokenizers import load_tokenizer
from models.base import System, Table
from models.multi_vector import MultiVector

IDENTIFIERS = "identifiers"
# Documents whose tokens are compared with those that a stage was trained on.
_SAMPLE = 50


@dataclass(frozen=True)
class FinishedRun:
    """What a stage is made from.

    Attributes:
        key: the user's, "model.stages.0.run=outputs/…", which errors name.
        path: the run's folder; config, provenance: its files.
        trust: whether classes may be built that are not this library's, as the folder names them.
    """

    key: str
    path: Path
    config: dict[str, Any]
    provenance: dict[str, Any]
    trust: bool = False

    @staticmethod
    def read(key: str, path: str | Path, trust: bool = False) -> "FinishedRun":
        """Reads a run's folder.

        Raises:
            FileNotFoundError: no such folder; ValueError: the run in it is unfinished, or broken.
        """
        path, key = Path(path), f"{key}={path}"
        check_finished(key, path)
        return FinishedRun(key, path, read_config(path), read_provenance(path), trust)

    def check_collection(self, record: dict[str, Any], name: str) -> None:
        """Raises ValueError if the run's texts are not those of another provenance."""
        with reading(self.key):
            own, other = _texts(self.provenance), _texts(record)
        for text in sorted(own.keys() | other.keys()):
            if own.get(text) != other.get(text):
                raise ValueError(
                    f"{self.key}: was made of {self.provenance['collection']} with {text} "
                    f"{own.get(text)}, must be {other.get(text)}, as in {name}"
                )

    def check_documents(self, documents: Table) -> None:
        """Raises ValueError if the run had another number of documents."""
        if self.provenance.get("documents") != len(documents):
            raise ValueError(
                f"{self.key}: was made of {self.provenance.get('documents', 0):,} documents of "
                f"{self.provenance['collection']}, must be of this run's {len(documents):,}"
            )

    def check_tokenizer(self, documents: Table) -> None:
        """Raises ValueError if the run's tokeniser reads the documents otherwise."""
        rows = list(range(0, len(documents), -(-len(documents) // _SAMPLE)))
        sample = documents[rows]
        tokenizer = load_tokenizer(self.path / "tokenizer")
        found = tokenizer(sample["text"], add_special_tokens=False)["input_ids"]
        if found != [list(tokens) for tokens in sample["tokens"]]:
            raise ValueError(
                f"{self.key}: was trained with another tokeniser, must be this run's "
                "(see backbone.name and tokenizer in both configurations)"
            )

    def load_model(self, documents: Table | None, known: Sequence[int] = ()) -> System:
        """The run's model as its last checkpoint left it, prepared on the documents.

        Nothing is written into the folder, and nothing runs that it names besides this library's
        parts (`gr_mvdr.options`), unless it is trusted.

        Args:
            documents, known: see `System.prepare`; None = not prepared, a dense model can encode.

        Raises:
            ValueError: a trained system has no checkpoint, a part of the folder is broken, or it
                names a class that is not this library's.
        """
        path, state = self.path / CHECKPOINT, None
        settings = self.config.get("model", {})
        if path.is_file():
            state = read_checkpoint(path)
            # Those of the configuration ask for a vocabulary's size, these have the real one.
            settings = {TARGET: settings.get(TARGET), **state["hyper_parameters"]}
        settings = update_settings(settings)
        with self.trusting(settings):
            check_parts("model", settings)
            model = build("model", self._at_home(settings))
            self._check_complete(model, state)
            if documents is not None:
                model.prepare(documents, known, self.path / IDENTIFIERS)
        if state is not None:
            model.on_load_checkpoint(state)
            model.load_state_dict(state["state_dict"])
        return model.eval()

    def open_index(self, model: System, documents: Table, directory: Path) -> None:
        """Opens the run's own index where that is possible, else makes one in `directory`.

        What search needs besides the index's files is made here, unless the run is trusted.
        """
        try:
            with reading(f"{self.path / 'index'}"):
                model.open_index(documents, self._linked_index(directory))
            return
        except (OSError, ValueError) as error:
            print(f"{self.path}: an index of its own is made: {make_printable(error)}")
        directory.mkdir(parents=True, exist_ok=True)
        with reading(self.key):
            model.index(documents, directory / "made")

    def _linked_index(self, directory: Path) -> Path:
        """The run's index where it can be opened without writing into the run's folder.

        Of a run that is not trusted without faiss's inverted file, which no reader checks.
        """
        found = self.path / "index"
        if self.trust or not found.is_dir():
            return found
        links = directory / "opened"
        for file in found.rglob("*"):
            link = links / file.relative_to(found)
            if file.parent.name == INVERTED_FILE:
                continue
            if file.is_file() and not file.is_symlink() and not os.path.lexists(link):
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(file.resolve())
        return links

    def trusting(self, settings: Any) -> AbstractContextManager[None]:
        """Where what these settings of the folder name may be built, if it is trusted."""
        return admitting(settings) if self.trust else nullcontext()

    def _at_home(self, settings: dict[str, Any]) -> dict[str, Any]:
        """A model's settings, less what a folder has no say in: places, and trust in others."""
        settings = dict(settings)
        if "tokenizer" in settings:
            settings["tokenizer"] = str(self.path / "tokenizer")
        if isinstance(stages := settings.get("stages"), list) and not self.trust:
            settings["stages"] = [
                {k: v for k, v in s.items() if k != "trust"} if isinstance(s, dict) else s
                for s in stages
            ]
        return settings

    def _check_complete(self, model: System, state: dict[str, Any] | None) -> None:
        if model.trainable and state is None:
            raise ValueError(f"{self.key}: must be a finished run, it has no {CHECKPOINT}")
        # It would get identifiers of its own, written into the folder.
        if hasattr(model, "identifiers") and not (self.path / IDENTIFIERS).is_dir():
            raise ValueError(f"{self.key}: must be a finished run, it has no {IDENTIFIERS}")


class RunEmbeddings(DocumentEmbeddings):
    """The mean of the token vectors that a finished multi-vector run gives a document.

    T5-ColBERT's (by salience, where the run has one), DPR's one vector: RIPOR's case, embeddings
    that were trained for relevance. The run's own tokeniser reads the texts, in its own length.
    """

    def __init__(self, run: str):
        """run: its folder, opened when the first documents are embedded."""
        self.run = run
        self.weights: str | None = None  # the model's hash, once it is known
        self._opened: tuple[MultiVector, Any] | None = None

    def transform(self, documents: Table, encode: Encode | None = None) -> np.ndarray:
        """See `DocumentEmbeddings`.

        Raises:
            FileNotFoundError: no such folder. ValueError: the run is unfinished, encodes no
                documents, or is not the one that the known documents were embedded by.
        """
        model, tokenizer = self._open()
        tokens = tokenizer(documents["text"][:], add_special_tokens=False)["input_ids"]
        texts = [model.cut_document(document) for document in tokens]
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        batches = list(batch_by_size([texts[number] for number in order]))
        means = [
            model.encode_texts(batch).mean().cpu()
            for batch in track(batches, "embedding batches of documents")
        ]
        vectors = np.empty((len(texts), model.hparams.dimension), dtype=np.float32)
        vectors[order] = torch.cat(means).numpy()
        return normalise_rows(vectors)

    def _open(self) -> tuple[MultiVector, Any]:
        if self._opened is None:
            run = FinishedRun.read("model.identifiers.embeddings.run", self.run)
            kind = find_part("model", run.config.get("model", {}).get(TARGET))
            if not issubclass(kind, MultiVector):
                system = run.provenance["system"]
                raise ValueError(f"{run.key}: must be a multi-vector run, it is one of {system}")
            # Its weights are drawn before they are read: a resumed run would draw others after it.
            with reading(run.key), torch.random.fork_rng():
                model = run.load_model(None)
            found = hash_weights(model)
            if self.weights not in (None, found):
                rule = f"must hold the weights {self.weights} that the docids were made with"
                raise ValueError(f"{run.key}: {rule}, it holds {found}")
            self.weights = found
            model.to("cuda" if torch.cuda.is_available() else "cpu")
            self._opened = model, load_tokenizer(run.path / "tokenizer")
        return self._opened

    def save(self, folder: str | Path) -> None:
        write_arrays(Path(folder), {}, {"weights": self.weights})

    def load(self, folder: str | Path) -> None:
        self.weights = read_arrays(Path(folder), ())[1].get("weights")


@part("embeddings", otherwise="embeddings")
def embed_by_run(run: str | None, otherwise: DocumentEmbeddings) -> DocumentEmbeddings:
    """The vectors of a finished run, or where there is none, those of `otherwise`."""
    return otherwise if run is None else RunEmbeddings(run)


def update_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """A model's settings by today's names.

    `sentinel_id` was the expansion of a T5's queries; T5SEAL had what `MultiViewSEAL` has.
    """
    settings, backbone = dict(settings), settings.get("backbone")
    if settings.get(TARGET) == "models.t5_seal.T5SEAL":
        names = ("special_tokens", "query_ngrams", "bonus")
        views = {name: settings.pop(name) for name in names if name in settings}
        if any(views.values()):
            settings |= {**views, TARGET: "models.beyond.views.MultiViewSEAL"}
    expansion = settings.pop("sentinel_id", None)
    if expansion is not None and isinstance(backbone, dict):
        settings["backbone"] = backbone | {"template": TextTemplate(expansion=expansion).settings}
    return settings


def _texts(record: dict[str, Any]) -> dict[str, str]:
    """What a provenance says of the collection's texts: hashes by file name, and the fields."""
    # A file's name, not its path: a copy elsewhere holds the same texts.
    sources = {Path(name).name: str(value) for name, value in record["sources"].items()}
    return sources | {"text_fields": ", ".join(record["text_fields"])}


def restore_run(run: Path, version: str | None = None, trust: bool = False) -> tuple[System, Any]:
    """The run's model, as it was after training, and the data module that it describes.

    Args:
        run: a finished run's folder.
        version: of this library that made it; None = what its provenance says.
        trust: whether the folder may name classes that are not this library's (docs/security.md).

    Raises:
        FileNotFoundError: a trained system has no checkpoint, or a file of the data is missing.
        ValueError: this version cannot restore the run, or the folder names other code.
    """
    finished = FinishedRun.read("run", run, trust)
    version = version or finished.provenance.get("version", "0.1")
    found = "cannot be restored"
    if version != VERSION:
        found = f"made by gr-mvdr {version}, which {VERSION} cannot restore"
    with reading(f"run={run}: {found}"):
        _check_checkpoint(finished)
        with finished.trusting(finished.config):
            data = build("data", _data_at_home(finished.config["data"], trust))
        if (own := finished.path / "tokenizer").is_dir():
            # One that is trained anew may differ. Earlier versions did not save `prefix_space`.
            data.tokenizer = load_tokenizer(own, data.tokenizer_options.get("prefix_space"))
        return finished.load_model(data.documents, data.known_documents), data


def _check_checkpoint(run: FinishedRun) -> None:
    weights = run.path / CHECKPOINT
    if find_part("model", run.config["model"].get(TARGET)).trainable and not weights.is_file():
        taken = run.config.get("weights")
        reason = f", as it was searched with weights={taken}: name that run" if taken else ""
        raise FileNotFoundError(
            f"{weights} is missing: a run without a checkpoint cannot be restored{reason}"
        )


def _data_at_home(settings: dict[str, Any], trust: bool) -> dict[str, Any]:
    """The data's settings; what is built of them goes where the user's own caches are."""
    if trust:
        return settings
    settings = {**settings, "store": None}
    path = settings.get("path")
    if isinstance(path, str) and Path(path).suffix == ".zip":  # it would be unpacked next to itself
        folder = Path(path).expanduser().with_suffix("")
        if not folder.is_dir():
            raise ValueError(f"data.path={path}: must be unpacked first, as {folder}")
        settings["path"] = str(folder)
    return settings
