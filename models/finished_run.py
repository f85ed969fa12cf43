"""Opens a finished run: its model, its data, its index."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gr_mvdr.files import (
    CHECKPOINT,
    PROVENANCE,
    SEARCH,
    VERSION,
    check_file,
    check_finished,
    read_checkpoint,
    read_config,
    read_json,
    read_provenance,
    reading,
    sha256,
)
from gr_mvdr.options import (
    TARGET,
    admitting,
    build,
    check_parts,
    exists,
    find_part,
    make_printable,
)
from gr_mvdr.token_index.engine import EDGE
from gr_mvdr.token_index.neighbours import FOLDER as INVERTED_FILE
from gr_mvdr.tokenizers import load_tokenizer
from models.base import System, Table

IDENTIFIERS = "identifiers"
# Options whose values in the configuration are not those of the model: they name texts, not tokens.
_RESOLVED = "backbone", "special_tokens"
# The number of documents that are tokenised to compare a run's tokeniser with this run's.
_SAMPLE = 50


@dataclass(frozen=True)
class FinishedRun:
    """The folder of a finished run.

    Attributes:
        key: the user's key and value, "model.stages.0.run=outputs/…", which errors name.
        path, config, provenance: the run's folder, and its files.
        trust: whether the folder may name classes outside this library (docs/design.md).
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
            FileNotFoundError: no such folder; ValueError: the run is unfinished or damaged.
        """
        path, key = Path(path), f"{key}={path}"
        check_finished(key, path)
        return FinishedRun(key, path, read_config(path), read_provenance(path), trust)

    def check_collection(self, record: dict[str, Any], name: str) -> None:
        """Raises ValueError if the run's texts differ from those of another provenance."""
        with reading(self.key):
            own, other = _texts(self.provenance), _texts(record)
        for text in sorted(own.keys() | other.keys()):
            if own.get(text) != other.get(text):
                raise ValueError(
                    f"{self.key}: was made of {self.provenance['collection']} with {text} "
                    f"{own.get(text)}, must be {other.get(text)}, as in {name}"
                )

    def check_index_owner(self, index: Path) -> None:
        """Raises ValueError if an index folder belongs to a run with other texts."""
        if index.with_name(PROVENANCE).is_file():
            self.check_collection(read_provenance(index.parent), "this run")

    def check_documents(self, documents: Table) -> None:
        """Raises ValueError if the run's number of documents or its tokeniser differs."""
        if self.provenance.get("documents") != len(documents):
            raise ValueError(
                f"{self.key}: was made of {self.provenance.get('documents', 0):,} documents of "
                f"{self.provenance['collection']}, must be of this run's {len(documents):,}"
            )
        if not (self.path / "tokenizer").is_dir():
            return
        rows = list(range(0, len(documents), -(-len(documents) // _SAMPLE)))
        sample = documents[rows]
        tokenizer = load_tokenizer(self.path / "tokenizer")
        tokens = tokenizer(sample["text"], add_special_tokens=False)["input_ids"]
        self.check_tokenizer(tokens == [list(tokens) for tokens in sample["tokens"]])

    def check_tokenizer(self, same: bool) -> None:
        """Raises ValueError unless `same`: whether the run's tokeniser is also this run's."""
        if not same:
            raise ValueError(
                f"{self.key}: was trained with another tokeniser, must be this run's "
                "(see backbone.name and tokenizer in both configurations)"
            )

    def load_model(self, documents: Table | None, known: Sequence[int] = ()) -> System:
        """Loads the run's model from its last checkpoint and prepares it on the documents.

        It writes nothing into the folder. Unless the run is trusted, it builds only this library's
        parts (`gr_mvdr.options`).

        Args:
            documents, known: see `System.prepare`; None = not prepared, which suffices for a dense
                model to encode texts.

        Raises:
            FileNotFoundError: a trained system has no checkpoint, or no identifiers.
            ValueError: the folder is damaged, or names a class outside this library or the address
                of an engine without being trusted.
        """
        path, state, taken = self.path / CHECKPOINT, None, None
        settings = self.config.get("model", {})
        if not path.is_file() and (taken := self._find_taken()):
            path = taken
        if path.is_file():
            state = read_checkpoint(path)
            # The configuration has the requested vocabulary size, the checkpoint the actual one.
            own = {k: v for k, v in settings.items() if k not in _RESOLVED} if taken else {}
            settings = {TARGET: settings.get(TARGET), **state["hyper_parameters"], **own}
        if (self.path / SEARCH).is_file():  # tuned after training
            settings = {**settings, "search": read_json(check_file(self.path / SEARCH, self.path))}
        with admitting(settings if self.trust else None):
            check_parts("model", settings)
            address = ((settings.get("search") or {}).get("source") or {}).get("address", EDGE)
            if address != EDGE and not self.trust:
                rule = "an address is asked only with trust=True"
                raise ValueError(f"{self.key}: its vectors are at {address}: {rule}")
            if state is None and find_part("model", settings.get(TARGET)).trainable:
                used = self.config.get("weights")
                reason = f", and weights={used} is missing or was trained again" if used else ""
                raise FileNotFoundError(f"{self.key}: has no {CHECKPOINT}{reason}")
            model = build("model", self._localise(settings))
            # If the identifiers are missing, the model would write new ones into the folder.
            if hasattr(model, "identifiers") and not (self.path / IDENTIFIERS).is_dir():
                raise FileNotFoundError(f"{self.key}: has no {IDENTIFIERS}")
            if documents is not None:
                model.prepare(documents, known, self.path / IDENTIFIERS)
        if state is not None:
            if not taken:  # its identifiers may be of other documents
                model.on_load_checkpoint(state)
            model.load_state_dict(state["state_dict"])
        return model.eval()

    def _find_taken(self) -> Path | None:
        """Finds the checkpoint of the run whose weights this run searched with, by its hash.

        The other run is where `weights` names it, or beside this run. No hash is known if this run
        trained itself.
        """
        if not (taken := self.config.get("weights")):
            return None
        known = {*self.provenance.get("training_sources", {}).values()}
        places = (
            Path(taken).expanduser() / CHECKPOINT,
            self.path.parent / Path(taken).name / CHECKPOINT,
        )
        return next((p for p in places if p.is_file() and sha256(p) in known), None)

    def _data_settings(self, path: str | None) -> dict[str, Any]:
        """Returns the settings of the data; `path` as in `restore`."""
        # Without trust, anything built from the data goes into the user's own caches.
        settings = self.config["data"] | ({} if self.trust else {"store": None})
        options = settings.get("tokenizer_options") or {}
        if options.get("path") and not exists(options["path"]):  # of the run in `weights`
            settings["tokenizer_options"] = {**options, "path": None}
        named = settings.get("path") or []
        missing = [p for p in ([named] if isinstance(named, str) else named) if not exists(p)]
        if missing and path is None:
            source = find_part("data", settings.get(TARGET))
            path = source.find_built(settings.get("store"), self.provenance.get("built") or "")
            if path is None:
                rule = "pass its place: Retriever.load(…, path=…)"
                raise FileNotFoundError(f"{self.key}: data.path={missing[0]}: is missing, {rule}")
        return settings if path is None else settings | {"path": str(path)}

    def restore(self, path: str | None = None) -> tuple[System, Any]:
        """Restores the model as it was after training, and the run's data module.

        Args:
            path: the place of the collection's files; None = where the run read them or, if they
                are gone, what was built of them.

        Raises:
            FileNotFoundError: a trained system has no checkpoint, or a file of the data is missing.
            ValueError: this version cannot restore the run, or the folder names other code.
        """
        version = self.provenance.get("version", "0.1")
        fault = f"made by gr-mvdr {version}, which {VERSION} cannot restore"
        if version == VERSION:
            fault = "cannot be restored"
        with reading(f"{self.key}: {fault}"):
            with admitting(self.config if self.trust else None):
                data = build("data", self._data_settings(path))
            made_from = self.provenance["sources"].values()
            if path and {*data.collection.sources.values()} != {*made_from}:
                raise ValueError(f"path={path}: must hold the files that the run was made from")
            if (own := self.path / "tokenizer").is_dir():
                data.tokenizer = load_tokenizer(own)  # one trained again may differ
            return self.load_model(data.documents, data.known_documents), data

    def open_index(self, model: System, documents: Table, directory: Path) -> None:
        """Opens the run's own index if possible, else builds one in `directory`.

        Unless the run is trusted, files that the search adds to the index go to `directory`.
        """
        try:
            with reading(f"{self.path / 'index'}"):
                model.open_index(documents, self._linked_index(directory))
            return
        except (OSError, ValueError) as error:
            print(f"{self.path}: its index is made again: {make_printable(error)}")
        directory.mkdir(parents=True, exist_ok=True)
        with reading(self.key):
            model.index(documents, directory / "made")

    def _linked_index(self, directory: Path) -> Path:
        """Links the run's index into a new folder, so that the run's folder is not changed.

        The links omit faiss's inverted file, which no reader validates. An engine writes into its
        files, so they are copied, which also lets several processes open them. A trusted run's
        index is used directly, unless it is an engine's.
        """
        own = self.path / "index"
        if not own.is_dir() or (self.trust and not (own / EDGE).is_dir()):
            return own
        links = directory / "opened"
        for file in own.rglob("*"):
            link = links / file.relative_to(own)
            if file.parent.name == INVERTED_FILE:
                continue
            if file.is_file() and not file.is_symlink() and not os.path.lexists(link):
                link.parent.mkdir(parents=True, exist_ok=True)
                place = shutil.copyfile if EDGE in file.relative_to(own).parts else os.symlink
                place(file.resolve(), link)
        return links

    def _localise(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Points settings to this folder's tokeniser; without trust, drops trust in stages.

        A decoder made from an encoder begins with random cross-attention: the weights that training
        began with take long to compute, and the checkpoint replaces them.
        """
        settings = dict(settings)
        if made := (settings.get("backbone") or {}).get("from_encoder"):
            made = {**made, "cross_attention": "random"}
            settings["backbone"] = {**settings["backbone"], "from_encoder": made}
        if "tokenizer" in settings:
            settings["tokenizer"] = str(self.path / "tokenizer")
        if "stages" in settings and not self.trust:
            stages = settings["stages"]
            settings["stages"] = [{k: s[k] for k in s if k != "trust"} for s in stages]
        return settings


def _texts(record: dict[str, Any]) -> dict[str, str]:
    """Returns what identifies a run's texts: hashes by file name, and the text fields."""
    # By name instead of path, since a copy elsewhere holds the same texts.
    sources = {Path(name).name: str(value) for name, value in record["sources"].items()}
    return sources | {"text_fields": ", ".join(record["text_fields"])}


def restore_run(path: str | Path, trust: bool = False) -> tuple[System, Any]:
    """Restores the model of a finished run and its data module; see `FinishedRun.restore`.

    Raises:
        FileNotFoundError: the folder does not exist. Otherwise see `FinishedRun.restore`.
    """
    return FinishedRun.read("run", path, trust).restore()
