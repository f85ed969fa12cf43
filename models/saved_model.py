"""A system on disk: how it is saved, opened again, and its weights reused.

The folder of a saved model holds:

    config.json, model.safetensors    the backbone, as transformers saves it
    tokenizer.json and others         the tokeniser
    gr_mvdr.json                      the system's class and options, how it reads texts
    gr_mvdr.safetensors               its other weights, and the rows of its head
    identifiers/                      those of a docid system

A run keeps it in `model/`, an export adds what other libraries read (`models.export`), and
`Retriever.save` adds the documents and their index. No file is a pickle; what a folder names is
built only if it is a part of this library (docs/design.md).
"""

import copy
import json
import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gr_mvdr.backbones import find_start_token
from gr_mvdr.files import (
    CONFIG,
    PROVENANCE,
    VERSION,
    check_finished,
    open_tensors,
    read_config,
    read_json,
    read_provenance,
    reading,
    write_json,
    write_tensors,
)
from gr_mvdr.heads.plain import Vocabulary
from gr_mvdr.options import TARGET, admitting, build, check_parts, exists, find_part, make_printable
from gr_mvdr.passages import Passages
from gr_mvdr.progress import quiet_libraries
from gr_mvdr.template import TextTemplate, read_template
from gr_mvdr.texts import TextReader
from gr_mvdr.token_index.engine import EDGE
from gr_mvdr.token_index.neighbours import FOLDER as CLUSTERS
from gr_mvdr.token_index.search import SearchOptions
from gr_mvdr.token_vectors import SIDES
from gr_mvdr.tokenizers import load_tokenizer
from models.base import System, Table, find_backbone
from models.docid import SAVED, Docid
from models.generative import GenerativeSystem, continues_prompts
from models.sentence_transformers import PublishedWeights, find_folder, is_model, is_published

MODEL, ADAPTER = "model", "adapter"  # in a run's folder
WEIGHTS, SETTINGS, PARTS = "model.safetensors", "gr_mvdr.json", "gr_mvdr.safetensors"
IDENTIFIERS = "identifiers"
ROWS = "head_rows."  # before the names of a head's tensors that are no parameters
# Options of a system that its index does not depend on; of the search, `SearchOptions.stored`.
_NOT_INDEXED = {"alignment", "training_alignment", "loss", "optimizer", "gradient_cache", "search"}
# The number of documents that are tokenised to compare a run's tokeniser with this run's.
_SAMPLE = 50


# Saving ---------------------------------------------------------------------------------------


@quiet_libraries()
def save_model(
    system: System,
    folder: Path,
    tokenizer: PreTrainedTokenizerBase | None,
    texts: Mapping[str, Any],
    **more: Any,
) -> None:
    """Saves a system into an empty folder, in fp32; of an untrained system only the options.

    Args:
        tokenizer: the folder's tokeniser appends the end token itself; None = none is saved.
        texts: options of `gr_mvdr.texts.TextReader`.
        more: further plain values for gr_mvdr.json.
    """
    if tokenizer is not None:
        template = getattr(system, "template", None)
        write_tokenizer(tokenizer, folder, template, continues_prompts(system))
    if system.trainable:
        name, backbone = find_backbone(system)
        write_backbone(backbone, folder)
        own = {key: x for key, x in system.state_dict().items() if not key.startswith(f"{name}.")}
        rows = own.pop("head._extra_state", {})  # PAWA's
        if isinstance(system, GenerativeSystem):
            rows = system.head.table_state() or rows
        made_from = {"collection": rows.pop("collection", None)}
        tensors = own | {ROWS + key: value for key, value in rows.items()}
        copies = {  # safetensors refuses a projection that both sides share
            key: (value.float() if value.is_floating_point() else value).clone().cpu()
            for key, value in tensors.items()
        }
        write_tensors(folder / PARTS, copies, made_from)
    if isinstance(system, Docid):
        system.save_identifiers(folder / IDENTIFIERS)
    settings = {
        "system": f"{type(system).__module__}.{type(system).__qualname__}",
        "hyper_parameters": dict(system.hparams),
        "texts": dict(texts),
    }
    write_json(folder / SETTINGS, settings | more)


def save_options(system: System, folder: Path) -> None:
    """Saves options of a saved system that changed since, such as those of a tuned search."""
    settings = read_json(folder / SETTINGS)
    write_json(folder / SETTINGS, settings | {"hyper_parameters": dict(system.hparams)})


def write_backbone(backbone: PreTrainedModel, folder: Path) -> None:
    """Writes config.json, model.safetensors and, for an encoder-decoder, generation_config.json."""
    if any(weight.dtype != torch.float32 for weight in backbone.parameters()):
        backbone = copy.deepcopy(backbone).float()
    decodes = backbone.get_output_embeddings() is not None
    if decodes and backbone.config.is_encoder_decoder:
        # What every system here reads first; some configurations leave it open.
        start = find_start_token(backbone)
        for config in (backbone.config, backbone.generation_config):
            config.decoder_start_token_id = start
    backbone.save_pretrained(folder)
    if decodes:  # transformers 5 always writes that the output table is the input's
        tables = backbone.get_input_embeddings(), backbone.get_output_embeddings()
        tied = {"tie_word_embeddings": tables[0].weight is tables[1].weight}
        write_json(folder / "config.json", read_json(folder / "config.json") | tied)


def write_tokenizer(
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    template: TextTemplate | None = None,
    prompts: bool = False,
) -> None:
    """Writes a tokeniser that ends a text by default as the template does, None = its own.

    Those of this library and of decoder-only models add no end token.

    Args:
        prompts: whether it also begins a text as the template begins queries, and pads on the
            left, for `generate` of a causal language model.
    """
    tokenizer = copy.deepcopy(tokenizer)
    own = read_template(tokenizer)
    end = (template or own).suffix
    if prompts:
        tokenizer.padding_side = tokenizer.init_kwargs["padding_side"] = "left"
    if end and (prompts or not tokenizer("")["input_ids"][len(own.target) :]):
        around = {"before": list(template.query if prompts else own.target), "after": list(end)}
        kept = [*filter(around.get, around)]
        one, other = (
            [name for name in ("before", text, "after") if name not in around or name in kept]
            for text in ("$A", "$B")
        )
        special = [
            {"id": n, "ids": around[n], "tokens": tokenizer.convert_ids_to_tokens(around[n])}
            for n in kept
        ]
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(one, one + other, special)
    tokenizer.save_pretrained(folder)


# Opening --------------------------------------------------------------------------------------


def open_model(folder: str | Path, trust: bool = False, searches: bool = True) -> System:
    """Opens a saved model, which gives the same scores as when it was saved.

    It scores, aligns and, after indexing documents, searches. To continue training its backbone,
    name the folder as `backbone.name`.

    Args:
        trust: whether the folder may name classes outside this library, whose code then runs, and
            the address of a database.
        searches: whether the model will search; otherwise the address is not looked at.

    Raises:
        FileNotFoundError: the folder, or a file in it, is missing.
        ValueError: a file is damaged, files do not belong together, or trust is needed.
    """
    folder = Path(folder)
    with reading(f"{folder}: cannot be loaded"):
        settings = read_json(folder / SETTINGS)
        options = {TARGET: settings["system"], **settings["hyper_parameters"]}
        with admitting(options if trust else None):
            check_parts("model", options)
            source = (options.get("search") or {}).get("source") or {}
            address = source.get("address", EDGE)
            if searches and address != EDGE and not trust:
                rule = "an address is asked only with trust=True"
                raise ValueError(f"its vectors are at {address}: {rule}")
            system = build("model", _localise(options, folder, trust))
            if system.trainable:
                _load_weights(system, folder)
    return system.eval()


def _localise(options: dict[str, Any], folder: Path, trust: bool) -> dict[str, Any]:
    """Points options to this folder's files; without trust, drops trust in stages."""
    options = dict(options)
    if "backbone" in options:  # the folder holds the whole of it: no new decoder is made
        here = {"name": str(folder.resolve()), "shape": None, "from_encoder": None, "adapter": None}
        options["backbone"] = options["backbone"] | here
    if "tokenizer" in options:
        options["tokenizer"] = str(folder)
    if "decoder_layers" in options:
        options["decoder_layers"] = None
    if "stages" in options and not trust:
        options["stages"] = [{k: s[k] for k in s if k != "trust"} for s in options["stages"]]
    return options


def _load_weights(system: System, folder: Path) -> None:
    """Loads identifiers, head and weights into a system on the saved backbone."""
    tensors, made_from = open_tensors(folder / PARTS)
    names = [name for name in tensors if name.startswith(ROWS)]
    rows = {name.removeprefix(ROWS): tensors.pop(name) for name in names}
    if isinstance(system, Docid):
        system.load_identifiers(folder / IDENTIFIERS)
    if rows:  # else row v is token v
        _make_head(system, rows | made_from)
    missing, unexpected = system.load_state_dict(tensors, strict=False)
    loaded = f"{find_backbone(system)[0]}.", "head._extra_state"
    missing = [name for name in missing if not name.startswith(loaded)]
    if missing or unexpected:
        raise ValueError(f"{PARTS} lacks {missing}, holds unknown {unexpected}")


def _make_head(system: GenerativeSystem, state: dict[str, Any]) -> None:
    """Gives a system on the saved backbone the saved head, its parameters still untrained."""
    docids = isinstance(system, Docid)
    known = [system.scheme.first_token, system.scheme.width] if docids else []
    vocabulary = Vocabulary(state["row_tokens"], *known)
    system.head = build("head", system.hparams.head, system.backbone, vocabulary=vocabulary)
    if "table" in state:
        system.head.renew_table(state)
    elif docids:  # tokens of documents that came after training
        system.head.extend(system.identifiers.tokens)


def open_index(
    system: System, documents: Table, index: Path, directory: Path, trust: bool = False
) -> None:
    """Opens a saved index if possible, else builds one in `directory`.

    The folder of the index is not changed: unless it is trusted, files that a search adds go to
    `directory`.
    """
    try:
        with reading(f"{index}"):
            system.open_index(documents, _link_index(index, directory / "opened", trust))
        return
    except (OSError, ValueError) as error:
        print(f"{index.parent}: its index is made again: {make_printable(error)}")
    directory.mkdir(parents=True, exist_ok=True)
    system.index(documents, directory / "made")


def _link_index(
    index: Path, links: Path, trust: bool = False, link_file: Callable = os.symlink
) -> Path:
    """Links an index into a new folder.

    The links omit clusters, which no reader validates. An engine writes into its
    files, so they are copied, which also lets several processes open them. A trusted index is used
    directly, unless it is an engine's.
    """
    if not index.is_dir() or (trust and not (index / EDGE).is_dir()):
        return index
    for file in index.rglob("*"):
        link = links / file.relative_to(index)
        if file.parent.name == CLUSTERS:
            continue
        if file.is_file() and not file.is_symlink() and not os.path.lexists(link):
            link.parent.mkdir(parents=True, exist_ok=True)
            place = shutil.copyfile if EDGE in file.relative_to(index).parts else link_file
            place(file.resolve(), link)
    return links


def _share_file(file: Path, link: Path) -> None:
    """Makes a file that stays when the other is deleted; it takes no space on the same disk."""
    try:
        os.link(file, link)
    except OSError:  # another disk
        shutil.copyfile(file, link)


# Finished runs --------------------------------------------------------------------------------


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
            FileNotFoundError: no such folder.
            ValueError: the run is unfinished, damaged, or of a version that kept no `model/`.
        """
        path, key = Path(path), f"{key}={path}"
        check_finished(key, path)
        run = FinishedRun(key, path, read_config(path), read_provenance(path), trust)
        if not (path / MODEL).is_dir():
            again = shlex.join(["python", "train.py", *run.provenance.get("overrides", ())])
            rule = f"has no {MODEL}/, as a run of an older version; make it again"
            raise ValueError(f"{key}: {rule}: {again}")
        return run

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The run's tokeniser; None = made of the collection's words."""
        folder = self.path / "tokenizer"
        return load_tokenizer(folder) if folder.is_dir() else None

    def check_collection(self, record: dict[str, Any], name: str) -> None:
        """Raises ValueError if the run's texts differ from those of another provenance."""
        with reading(self.key):
            own, other = _texts(self.provenance), _texts(record)
        for text in sorted(own.keys() | other.keys()):
            if own.get(text) != other.get(text):
                raise ValueError(
                    f"{self.key}: {text} of {self.provenance['collection']} differs from that of "
                    f"{name} ({own.get(text)}, expected {other.get(text)})"
                )

    def check_index_owner(self, index: Path) -> None:
        """Raises ValueError if an index folder belongs to a run with other texts."""
        if index.with_name(PROVENANCE).is_file():
            self.check_collection(read_provenance(index.parent), "this run")

    def check_documents(self, documents: Table) -> None:
        """Raises ValueError if the run's number of documents or its tokeniser differs."""
        kind = "passages" if self.provenance.get("passages") else "documents"
        if (number := self.provenance.get(kind, 0)) != len(documents):
            raise ValueError(
                f"{self.key}: has {number:,} {kind} of {self.provenance['collection']}, must "
                f"have this run's {len(documents):,}"
            )
        if (tokenizer := self.tokenizer) is not None:
            sample = documents[list(range(0, len(documents), -(-len(documents) // _SAMPLE)))]
            joined = read_json(self.path / MODEL / SETTINGS)["texts"].get("joined")
            tokens = TextReader(tokenizer, joined=joined).tokenise(sample["text"], "document")
            check_tokenizer(self.key, tokens == [list(tokens) for tokens in sample["tokens"]])

    def load_model(
        self, documents: Table | None = None, passages: Passages = System.passages
    ) -> System:
        """Opens the run's model; nothing is written into the folder.

        Args:
            documents: what a pipeline, which is not saved, is prepared on; None = another system.
            passages: see `System`.

        Raises: as `open_model`.
        """
        system = open_model(self.path / MODEL, self.trust)
        system.passages = passages
        if documents is not None and not system.trainable:
            system.prepare(documents, range(len(documents)), self.path / IDENTIFIERS)
        return system

    def restore(self, path: str | None = None) -> tuple[System, Any]:
        """Restores the model as it was after training, and the run's data module.

        Args:
            path: the place of the collection's files; None = where the run read them or, if they
                are gone, what was built of them.

        Raises:
            FileNotFoundError: a file of the model or the data is missing.
            ValueError: this version cannot restore the run, or the folder names other code.
        """
        version = self.provenance.get("version", "0.1")
        by = "" if version == VERSION else f" by {VERSION}, it was made by {version}"
        with reading(f"{self.key}: cannot be restored{by}"):
            with admitting(self.config if self.trust else None):
                data = build("data", self._data_settings(path))
            made_from = self.provenance["sources"].values()
            if path and {*data.collection.sources.values()} != {*made_from}:
                raise ValueError(f"path={path}: must hold the files that the run was made from")
            if (tokenizer := self.tokenizer) is not None:
                data.tokenizer = tokenizer  # one trained again may differ
            return self.load_model(data.documents, data.evaluation.passage_map), data

    def _data_settings(self, path: str | None) -> dict[str, Any]:
        # Without trust, anything built from the data goes into the user's own caches.
        # Runs of before `data.language` read words as they are.
        settings = (
            {"language": "none"} | self.config["data"] | ({} if self.trust else {"store": None})
        )
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

    def open_index(self, model: System, documents: Table, directory: Path) -> None:
        """Opens the run's own index if possible; see `open_index`."""
        with reading(self.key):
            open_index(model, documents, self.path / "index", directory, self.trust)


def restore_run(path: str | Path, trust: bool = False) -> tuple[System, Any]:
    """Restores the model of a finished run and its data module; see `FinishedRun.restore`."""
    return FinishedRun.read("run", path, trust).restore()


def text_options(source: Any) -> dict[str, Any]:
    """Returns the options of a `TextReader`, of one or of a data module."""
    options = {name: list(getattr(source, name)) for name in ("text_fields", "cleaning", "views")}
    options["joined"] = dict(source.joined)
    return options | {"passages": source.passages and asdict(source.passages)}


def make_reader(data: Any) -> TextReader:
    """Returns the reader of texts as a data module reads its collection's."""
    options = data.text_fields, data.cleaning, tuple(data.views), data.passages, data.joined
    return TextReader(data.tokenizer, *options)


def _texts(record: dict[str, Any]) -> dict[str, str]:
    """Returns what identifies a run's texts: hashes by file name, and the text fields."""
    # By name instead of path, since a copy elsewhere holds the same texts.
    sources = {Path(name).name: str(value) for name, value in record["sources"].items()}
    return sources | {"text_fields": ", ".join(record["text_fields"])}


def check_tokenizer(key: str, same: bool) -> None:
    """Raises ValueError unless `same`: whether a run's tokeniser is also this run's."""
    if not same:
        raise ValueError(
            f"{key}: was trained with another tokeniser, must be this run's "
            "(see backbone.name and tokenizer in both configurations)"
        )


# Weights for another run ----------------------------------------------------------------------


class SavedWeights:
    """A saved model's weights: all of them (`weights=`), or those that fit (`initial=`).

    Attributes:
        key: the user's key and value, "initial=outputs/…", which errors name.
        run: the run that holds the model; None = an exported folder.
        file: the weights of the backbone.
    """

    def __init__(self, option: str, folder: Path):
        """
        Args:
            option: "weights" or "initial".

        Raises:
            FileNotFoundError: no such folder; ValueError: it holds no trained model.
        """
        self.key, self.all = f"{option}={folder}", option == "weights"
        saved = (folder / SETTINGS).is_file()
        self.run = None if saved else FinishedRun.read(option, folder)
        self.model = folder if saved else folder / MODEL
        self.tokenizer = folder if saved else folder / "tokenizer"
        self.file, self.config = self.model / WEIGHTS, self.run.config if self.run else {}
        if not self.file.is_file():
            raise ValueError(f"{self.key}: must be a trained system, it has no {WEIGHTS}")

    def settings(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the configuration keys of the model's tokeniser and its scheme of docids.

        Raises:
            ValueError: a study asks for documents that the run may have known in training.
        """
        known = self.config.get("data", {}).get("new_documents")
        if (wanted := (config.get("study") or {}).get("splits", known)) != known:
            rule = f"must be with {wanted}"
            raise ValueError(f"{self.key}: was trained with data.new_documents={known}, {rule}")
        scheme = self._shared_scheme(config).items()
        names = {f"model.identifiers.{key}": value for key, value in scheme if key != TARGET}
        if any((c.get("backbone") or {}).get("name") for c in (config, self.config)):
            return names  # a pretrained backbone brings its own tokeniser
        return names | {"tokenizer.path": str(self.tokenizer / "tokenizer.json")}

    def _shared_scheme(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the model's options of identifiers; {} if this configuration's scheme differs."""
        options = read_json(self.model / SETTINGS)["hyper_parameters"].get("identifiers") or {}
        ours = config["model"].get("identifiers") or {}
        files = (c.get("data", {}).get("identifiers") for c in (config, self.config))
        same = ours.get(TARGET) == options.get(TARGET) and len({*files}) == 1
        return {key: options[key] for key in ours if key in options} if same else {}

    def give_identifiers(
        self, model: System, config: Mapping[str, Any], documents: Table, directory: Path
    ) -> None:
        """Copies the identifiers to a new folder if scheme and documents are the same.

        Raises:
            ValueError: the identifiers are damaged, or were made with other settings.
        """
        source = self.model / IDENTIFIERS
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
        own_tokenizer = load_tokenizer(self.tokenizer)
        check_tokenizer(self.key, own_tokenizer.get_vocab() == tokenizer.get_vocab())
        # Building it draws random weights, which must not change the run's random state.
        with reading(self.key), torch.random.fork_rng():
            other = open_model(self.model, searches=False)
        for side in SIDES:
            own, given = getattr(model.template, side), getattr(other.template, side)
            if own != given:
                raise ValueError(
                    f"{self.key}: was trained with the tokens {list(given)} before a {side}, "
                    f"must be with {list(own)}: tokenizer.markers.{side} must be this run's"
                )
        ours, theirs = model.state_dict(), other.state_dict()
        sizes, wanted = _sizes(theirs), _sizes(ours)
        for name in sorted(sizes | wanted) if self.all else ():
            self._check_size(name, wanted.get(name, "missing"), sizes.get(name, "missing"))
        names = [getattr(one, IDENTIFIERS, None) for one in (model, other)]
        alike = names[0] is None or (names[1] is not None and names[0].hash == names[1].hash)
        whole = self.all or (alike and sizes == wanted)
        chosen = theirs if whole else self._choose_fitting(model, other)
        with reading(self.key):
            model.load_state_dict(chosen, strict=whole)
            if head is not None:
                head.renew_table(other.head.table_state() if whole else None)
        new = {name.partition(".")[0] for name in wanted.keys() - chosen.keys()}
        if not whole and names[0] is not None:
            new.add("docid tokens")
        rest = f", not all of: {', '.join(sorted(new))}" if new else ""
        return f"{self.key}: {len(chosen):,} of {len(ours):,} tensors are taken over{rest}"

    def open_index(self, model: System, documents: Table, directory: Path) -> bool:
        """Opens the run's index as the model's own if the model would build the same one.

        Weights and documents are compared as the index recorded them, and the options of both
        models here. The folder gets links to the files; the run's folder is not changed.

        Returns:
            Whether it was opened; if not, the folder is as it was.
        """
        index = self.model.with_name("index")
        if not self.all or self.run is None or not index.is_dir():
            return False
        theirs = read_json(self.model / SETTINGS)["hyper_parameters"]
        ours = json.loads(json.dumps(dict(model.hparams)))
        differ = {key for key in theirs.keys() | ours.keys() if theirs.get(key) != ours.get(key)}
        both = (one.get("search") or {} for one in (theirs, ours))
        searches = [one for one in both if "source" in one]  # of vectors
        on_server = any((one["source"] or {}).get("address", EDGE) != EDGE for one in searches)
        stored = {SearchOptions(**one).stored for one in searches}
        if on_server or len(stored) > 1 or differ - _NOT_INDEXED:
            return False
        is_new = not directory.exists()
        try:
            if is_new:
                _link_index(index, directory, link_file=_share_file)
            model.open_index(documents, directory)
        except (OSError, ValueError):  # of other documents or weights
            if is_new:
                shutil.rmtree(directory, ignore_errors=True)
            return False
        print(f"{self.key}: its index is searched, no document is encoded again")
        return True

    def _check_size(self, name: str, ours: Any, theirs: Any) -> None:
        if ours != theirs:
            raise ValueError(
                f"{self.key}: {name} is {theirs} there, must be {ours}: "
                "its model, size and groups must be this run's"
            )

    def _choose_fitting(self, model: System, other: System) -> dict[str, Tensor]:
        """Returns the other system's tensors that fit the system, by the system's names."""
        (name, backbone), prefix = find_backbone(model), f"{find_backbone(other)[0]}."
        own = f"{name}."
        named = {
            own + key.removeprefix(prefix) if key.startswith(prefix) else key: tensor
            for key, tensor in other.state_dict().items()
            if not key.startswith("head.")
        }
        tables = backbone.get_input_embeddings(), backbone.get_output_embeddings()
        words = {id(table.weight) for table in tables if table is not None}
        scheme = getattr(model, "scheme", None)
        text_rows = backbone.config.vocab_size - (scheme.n_tokens if scheme else 0)
        chosen = {}
        for key, value in model.state_dict(keep_vars=True).items():
            if (theirs := named.get(key)) is None:
                continue
            if id(value) in words and value.shape[1:] == theirs.shape[1:]:
                rows = min(len(value), len(theirs), text_rows)
                theirs = torch.cat([theirs[:rows].to(value), value.detach()[rows:]])
            if value.shape == theirs.shape:
                chosen[key] = theirs
            elif key.startswith(own):
                self._check_size(key, tuple(value.shape), tuple(theirs.shape))
        if not any(key.startswith(own) for key in chosen):
            rule = "must be of a system with this backbone, has none of its tensors"
            raise ValueError(f"{self.key}: {rule}")
        return chosen


def _sizes(state: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in state.items() if hasattr(value, "shape")}


def find_weights(option: str, name: str | None) -> SavedWeights | PublishedWeights | None:
    """Finds the weights of a folder, or of a published model on the hub.

    Args:
        option: "weights" or "initial".
        name: a folder or a name on the hub; None = returns None.

    Raises:
        FileNotFoundError: there is no such folder or model.
        ValueError: it has no weights.
    """
    if name is None:
        return None
    folder = find_folder(name)
    own = (folder / CONFIG).is_file() or (folder / SETTINGS).is_file() or not is_model(folder)
    if own and (option == "initial" or not is_published(folder)):
        return SavedWeights(option, folder)  # raises an error that says what is missing
    return PublishedWeights(f"{option}={name}", folder)
