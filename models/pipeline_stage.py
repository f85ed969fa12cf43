"""One stage of a rerank pipeline: the model of a finished run, and what it reads of a table."""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.files.printable import printable
from gr_mvdr.files.reading import read_checkpoint, reading
from gr_mvdr.files.run_files import PARTS, read_config, read_provenance
from gr_mvdr.parts import TARGET, admitting, build, check_parts
from gr_mvdr.tokenizers import load_tokenizer, word_tokenizer
from models.base import System, Table
from models.identified import IdentifiedSystem

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
        if not path.is_dir():
            raise FileNotFoundError(f"{key}: no such run folder")
        for part in PARTS:
            if not (path / part).is_file():
                raise ValueError(f"{key}: must be a finished run, it has no {part}")
        return FinishedRun(key, path, read_config(path), read_provenance(path), trust)

    def check_collection(self, record: dict[str, Any], name: str) -> None:
        """Raises ValueError if the run's texts are not those of another provenance."""
        with reading(self.key):
            own, other = _texts(self.provenance), _texts(record)
        for part in sorted(own.keys() | other.keys()):
            if own.get(part) != other.get(part):
                raise ValueError(
                    f"{self.key}: was made of {self.provenance['collection']} with {part} "
                    f"{own.get(part)}, must be {other.get(part)}, as in {name}"
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

    def load_model(self, documents: Table, known: Sequence[int]) -> System:
        """The run's model as its last checkpoint left it, prepared on the documents.

        Nothing is written into the folder, and nothing runs that it names besides this library's
        parts (`gr_mvdr.parts`), unless it is trusted.

        Raises:
            ValueError: a trained system has no checkpoint, a part of the folder is broken, or it
                names a class that is not this library's.
        """
        path, state = self.path / "checkpoints/last.ckpt", None
        settings = self.config.get("model", {})
        if path.is_file():
            state = read_checkpoint(path)
            # Those of the configuration ask for a vocabulary's size, these have the real one.
            settings = {TARGET: settings.get(TARGET), **state["hyper_parameters"]}
        with self.trusting(settings):
            check_parts("model", settings)
            model = build("model", self._at_home(settings))
            self._check_complete(model, state)
            model.prepare(documents, known, self.path / IDENTIFIERS)
        if state is not None:
            model.on_load_checkpoint(state)
            model.load_state_dict(state["state_dict"])
        return model.eval()

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
            raise ValueError(f"{self.key}: must be a finished run, it has no checkpoints/last.ckpt")
        # It would get identifiers of its own, written into the folder.
        if isinstance(model, IdentifiedSystem) and not (self.path / IDENTIFIERS).is_dir():
            raise ValueError(f"{self.key}: must be a finished run, it has no {IDENTIFIERS}")


def _texts(record: dict[str, Any]) -> dict[str, str]:
    """What a provenance says of the collection's texts: hashes by file name, and the fields."""
    # A file's name, not its path: a copy elsewhere holds the same texts.
    sources = {Path(name).name: str(value) for name, value in record["sources"].items()}
    return sources | {"text_fields": ", ".join(record["text_fields"])}


class WordTable:
    """A table's columns, with words for tokens: what a lexical stage was indexed with."""

    def __init__(self, table: Table, tokenizer: Any):
        self.table, self.tokenizer = table, tokenizer

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, column: str) -> Any:
        if column != "tokens":
            return self.table[column]
        return self.tokenizer(self.table["text"][:], add_special_tokens=False)["input_ids"]


class Stage:
    """A system of the pipeline, in the form in which its run reranked (the first one)."""

    def __init__(self, run: FinishedRun, name: str, documents: Table, known: Sequence[int]):
        """
        Args:
            run: of the collection of the documents.
            name: of the stage in metrics and folders.
            documents, known: see `System.prepare`.

        Raises:
            ValueError: the run is of other documents or had another tokeniser.
        """
        run.check_documents(documents)
        self.run, self.name, self.words = run, name, None
        if (run.path / "tokenizer").is_dir():
            run.check_tokenizer(documents)
        elif run.config.get("tokenizer", {}).get("unit") == "word":
            # Words that no document has match nothing, so that these make the run's own terms.
            self.words = word_tokenizer(documents["text"])
        with reading(run.key):
            self.model = run.load_model(documents, known)
            form = next(iter((run.config.get("rerank") or {}).values()), {})
            with run.trusting(form):
                self.form = {key: _built(key, value) for key, value in form.items()}

    def index(self, documents: Table, directory: Path) -> None:
        """Opens the run's own index where that is possible, else makes one in `directory`."""
        if hasattr(self.model, "open_index"):
            try:
                with reading(f"{self.run.path / 'index'}"):
                    self.model.open_index(documents, self._vectors(directory))
                return
            except (OSError, ValueError) as error:
                print(f"{self.name}: makes an index of its own: {printable(error)}")
        with reading(self.run.key):
            self.model.index(self._table(documents), directory)

    def _vectors(self, directory: Path) -> Path:
        """Where the run's token vectors can be opened without writing into its folder.

        What search needs besides them (faiss's inverted file, which no reader checks) is made here
        and not taken over, unless the run is trusted.
        """
        found = self.run.path / "index"
        if self.run.trust or not found.is_dir():
            return found
        directory.mkdir(parents=True, exist_ok=True)
        for file in found.iterdir():
            own = file.is_file() and not file.is_symlink()
            if own and not os.path.lexists(directory / file.name):
                (directory / file.name).symlink_to(file.resolve())
        return directory

    def retrieve(self, queries: Table, k: int) -> Ranking:
        """See `System.retrieve`."""
        return self.model.retrieve(self._table(queries), k)

    def rerank(
        self, queries: Table, documents: Table, candidates: dict[str, Sequence[str]]
    ) -> Ranking:
        """See `System.rerank`."""
        return self.model.rerank(self._table(queries), documents, candidates, **self.form)

    def _table(self, table: Table) -> Table:
        return table if self.words is None else WordTable(table, self.words)


def _built(kind: str, value: Any) -> Any:
    return build(kind, value) if isinstance(value, dict) and TARGET in value else value
