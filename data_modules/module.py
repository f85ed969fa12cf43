"""The LightningDataModule: a collection's texts → tokens → training examples → batches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytorch_lightning as pl
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase

from data_modules.collection import (
    BUILT,
    Collection,
    TrainingTables,
    collect,
    find_store,
    open_collection,
)
from data_modules.evaluation import Different, EvaluationData, EvaluationOptions, split_names
from data_modules.examples import DocumentExamples, Epoch, Examples, Task, collate
from data_modules.formats.layout import Layout
from data_modules.formats.named_pairs import ScoredLists
from data_modules.indexing import Indexing
from data_modules.tokenisation import (
    add_tokens,
    add_views,
    choose_tokenizer,
    clean_table,
    encode_special_tokens,
    join_fields,
    replace_titles,
    split_documents,
)
from data_modules.validation import FOUND, HELD_OUT, LEAST_HELD_OUT, ValidationOptions
from gr_mvdr.analyzer import Analyzer, Language
from gr_mvdr.evaluation.metrics import name_metric
from gr_mvdr.files import sha256
from gr_mvdr.options import AtLeast, Count, ExistingPath, Rule, Seed, Size, Text, part
from gr_mvdr.passages import PassageOptions, document_ids
from gr_mvdr.ranks import rank, world_size
from gr_mvdr.template import TextTemplate, read_template
from gr_mvdr.token_vectors import SIDES

Length = Annotated[int, AtLeast(2)]  # at least one token and the end token
Fields = Annotated[
    Sequence[Literal["title", "text"]],
    Rule("a list of title, text or both", lambda names: len(names) == len({*names}) > 0),
]


@part("data", examples="examples", indexing="indexing")
@dataclass(kw_only=True, eq=False, repr=False)
class RetrievalDataModule(EvaluationOptions, pl.LightningDataModule):
    """All data that a run reads from one collection; each source is a subclass with its own `read`.

    Args:
        new_documents: splits whose documents arrive after training.
        train_split, validation_split: None = no training, no validation; "auto" = the dev split,
            else training queries that are held out (`ValidationOptions.hold_out`).
        validation: arguments of `ValidationOptions`.
        store: folder of built collections; None = next to the cache of ``datasets``.
        identifiers: a file of lines `docid<TAB>text`; these texts identify the documents instead
            of their titles.
        views: name → a file of further texts that are identifiers (`models.beyond.views`).
        empty_documents: "refuse", or "keep" documents without title and text.
        tokenizer_options: arguments of `choose_tokenizer` (backbone, path, unit, …).
        passages: arguments of `PassageOptions`, which split documents; None = they are not split.
        text_fields: the fields that make up a document's text, joined with " | ".
        cleaning: steps of `clean_text`, applied to documents and queries.
        language: of the texts, see `Analyzer`; "auto" = guessed from the documents.
        query_length, document_length: maximum length in tokens, template tokens included; longer
            texts are cut.
        training_length: tokens of a document that training reads; None = document_length.
        examples: source, targets and negatives of a training pair; None = query and document.
        indexing: further examples, made from documents; None = retrieval pairs only.
        batch_size: training examples per step, summed over all processes.
        num_workers: loader processes.
        seed: random seed of the examples' order and draws.
        mask_relevant: exclude every known relevant document from a query's in-batch negatives;
            False = exclude only copies and further passages of its positive (the papers).

    Raises:
        ValueError: options contradict each other, or a metric is unknown.
    """

    tokenizer_options: Annotated[dict[str, Any], choose_tokenizer]
    new_documents: Text | Different = ()
    train_split: Text | None = "train"
    validation_split: Text | None = None
    validation: Annotated[dict[str, Any], ValidationOptions] = field(default_factory=dict)
    store: Text | None = None
    identifiers: ExistingPath | None = None
    views: Mapping[str, ExistingPath] = field(default_factory=dict)
    empty_documents: Literal["refuse", "keep"] = "refuse"
    passages: Annotated[dict[str, Any], PassageOptions] | None = None
    text_fields: Fields = ("title", "text")
    cleaning: Sequence[Literal["html", "unicode", "punctuation"]] = ()
    language: Language = "auto"
    query_length: Length = 64
    document_length: Length = 256
    training_length: Length | None = None
    examples: Examples | None = None
    indexing: Indexing | None = None
    batch_size: Size = 64
    num_workers: Count = 0
    seed: Seed = 0
    mask_relevant: bool = True

    def __post_init__(self):
        pl.LightningDataModule.__init__(self)
        self.evaluation = EvaluationData(self)
        self.test_split = split_names(self.test_split)
        self.new_documents = split_names(self.new_documents)
        self.text_fields, self.cleaning = list(self.text_fields), list(self.cleaning)
        self.tokenizer_options = dict(self.tokenizer_options)
        self.passages = PassageOptions(**self.passages) if self.passages else None
        self.validation = ValidationOptions(**self.validation)
        # Searches are tuned on training queries unless a validation split is named.
        self.named_validation = self.validation_split if self.validation_split != "auto" else None
        self.examples = self.examples or DocumentExamples()
        self.metrics = tuple(dict.fromkeys(map(name_metric, self.metrics)))
        if (split := self.validation_split) in self.new_documents:
            rule = "must not be one of data.new_documents, which arrive after training"
            raise ValueError(f"data.validation_split={split}: {rule}")
        if self.batch_size < (least := world_size()):
            rule = f"must be ≥ {least}" + (", the number of processes" if least > 1 else "")
            raise ValueError(f"data.batch_size={self.batch_size}: {rule}")

    # The collection: texts and their tokens

    def read(self) -> Collection:
        """Returns the collection; each subclass implements this."""
        raise NotImplementedError

    def collect(self, layout: Layout) -> Collection:
        """Returns the collection of a layout, from the store if it was built before."""
        return collect(layout, self.store, self.empty_documents)

    @staticmethod
    def find_built(store: str | None, name: str) -> Path | None:
        """Finds a built collection by its folder's name, which then serves as `path`.

        Only the store holds built collections: a folder elsewhere may be anybody's, and tables are
        written into the folder of a built collection.
        """
        folder = find_store(store) / Path(name).name
        return folder if all((folder / file).is_file() for file in BUILT) else None

    @cached_property
    def collection(self) -> Collection:
        """The collection; raises ValueError if a split that an option names is missing.

        Without the default train split, nothing can be trained (`check_splits`).
        """
        path = getattr(self, "path", None)
        built = self.find_built(self.store, path) if isinstance(path, str) else None
        collection = open_collection(built) if built and built == Path(path) else self.read()
        missing = self.train_split not in collection.qrels
        if missing and (self.train_split == "train" or not collection.qrels):
            self.train_split = None
        if self.validation_split == "auto":
            collection = self._choose_validation(collection)
        for key in ("test_split", "new_documents", "train_split", "validation_split"):
            for split in split_names(getattr(self, key)):
                if split not in collection.qrels:
                    present = ", ".join(sorted(collection.qrels))
                    rule = f"one of {present}" if present else "null, there are no judgements"
                    raise ValueError(f"data.{key}={split}: must be {rule}")
        return collection

    def _choose_validation(self, collection: Collection) -> Collection:
        """Finds the validation split, or holds out training queries; returns the collection."""
        self.validation_split, train = None, self.train_split
        if train is None:
            return collection
        tested = self.test_split or [collection.default_test_split(train)]
        free = collection.qrels.keys() - {train, *tested, *self.new_documents}
        if found := [split for split in FOUND if split in free]:
            self.validation_split = found[0]
        elif share := self.validation.hold_out:
            rest = collection.hold_out(train, share, HELD_OUT)
            if len({*rest.qrels[HELD_OUT]["query_id"]}) >= LEAST_HELD_OUT:
                collection, self.validation_split = rest, HELD_OUT
        return collection

    @cached_property
    def analyzer(self) -> Analyzer:
        """Makes the terms of BM25 and of its candidates."""
        whole = join_fields(self._cleaned, self.text_fields)  # a passage may be a list of names
        return Analyzer.of(self.language, whole["text"])

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The run's tokeniser: the backbone's, a given vocabulary, or one trained here.

        A tokeniser is trained on the documents except those that arrive after training. A
        tokeniser of whole words (BM25) only numbers words, so it reads all documents.
        """
        collection = self.collection  # read first: it sets train_split to None without judgements
        split = self.train_split
        training = self._split_queries(split) if split else collection.queries.select([])
        texts = self.texts
        if self.tokenizer_options["unit"] != "word" and self.new_documents:
            texts = texts.select(self.known_documents)
        language = self.analyzer.language if self.tokenizer_options["unit"] == "word" else "none"
        return choose_tokenizer(texts, training, language, **self.tokenizer_options)

    @cached_property
    def template(self) -> TextTemplate:
        """The tokens around texts: those given with a reused model, else the tokeniser's.

        Markers, tokens to skip and a token for expansion may be chosen for a reused model, too.
        """
        options = self.tokenizer_options
        named = ("markers", "skip", "expansion", "prompt")
        own = read_template(self.tokenizer, *map(options.get, named))
        if given := options.get("template"):
            typed = {**options, **(options.get("markers") or {})}
            typed |= {f"{side}_text": typed.get(side) for side in SIDES}
            names = (*SIDES, *(f"{side}_text" for side in SIDES), "skip", "expansion")
            chosen = {name: getattr(own, name) for name in names if typed.get(name)}
            return replace(TextTemplate(**given), **chosen)
        return own

    @property
    def joined(self) -> dict[str, str]:
        """See `TextTemplate.joined`; {} = texts are tokenised alone."""
        options = self.tokenizer_options
        has_prompts = options.get("template") or any((options.get("markers") or {}).values())
        return self.template.joined if has_prompts else {}

    @cached_property
    def special_tokens(self) -> dict[str, list[int]]:
        """Name → token ids, for each text of `tokenizer.special_tokens`."""
        texts = self.tokenizer_options.get("special_tokens") or {}
        return encode_special_tokens(texts, self.tokenizer)

    @cached_property
    def texts(self) -> Dataset:
        """What systems rank: a row for each document or, with `passages`, for each passage."""
        return join_fields(split_documents(self._cleaned, self.passages), self.text_fields)

    @property
    def _cleaned(self) -> Dataset:
        return clean_table(self.collection.documents, self.cleaning)

    @cached_property
    def documents(self) -> Dataset:
        """The corpus: id, title, text (the joined fields), tokens (all), word_starts, title_tokens.

        `identifiers` replaces title_tokens. Each of `views` adds a column NAME_tokens, which holds
        a list of token lists for each document.
        """
        table = add_tokens(self.texts, self.tokenizer, self.joined.get("document", ""))
        table = replace_titles(table, self.identifiers, self.tokenizer)
        return add_views(table, self.views, self.tokenizer)

    @cached_property
    def known_documents(self) -> np.ndarray:
        """(known,) int64: rows of the documents that training may see.

        Every document, except those that only queries of `new_documents` ask for.
        """
        new = {d for name in self.new_documents for d in self.collection.relevant_documents(name)}
        for split in self.collection.qrels.keys() & {self.train_split, HELD_OUT}:
            new -= self.collection.relevant_documents(split)
        if not new:
            return np.arange(len(self.texts))
        return np.flatnonzero([name not in new for name in document_ids(self.texts)])

    def _split_queries(self, split: str) -> Dataset:
        return clean_table(self.collection.split_queries(split), self.cleaning)

    def queries(self, split: str) -> Dataset:
        """The queries with judgements in a split: id, text, tokens."""
        return add_tokens(self._split_queries(split), self.tokenizer, self.joined.get("query", ""))

    @property
    def text_options(self) -> dict[str, Any]:
        """The options that determine the tokens of a collection's texts."""
        splits = ("train_split", "validation_split", "new_documents")
        names = (*splits, "tokenizer_options", "language", "text_fields", "cleaning")
        names += ("passages",) if self.passages else ()
        names += ("validation",) if self.validation_split == HELD_OUT else ()
        return {name: getattr(self, name) for name in names}

    # Training

    def train_dataloader(self) -> DataLoader:
        """Loads the examples of one epoch, in an order drawn from (seed, epoch).

        The trainer asks for a new loader every epoch (`reload_dataloaders_every_n_epochs: 1`), so
        that a resumed run reads the same batches as an uninterrupted one.
        """
        return self._loader(self.epoch(self.trainer.current_epoch if self.trainer else 0))

    def validation_loader(self, queries: Dataset) -> DataLoader:
        """Loads the pairs of some queries of the validation split."""
        pairs = self.examples.prepare(self._tables(self.validation_split, queries))
        return self._loader(Epoch([pairs], self.seed, 0), shuffle=False)

    def _loader(self, epoch: Epoch, shuffle: bool = True) -> DataLoader:
        return DataLoader(
            epoch,
            batch_sampler=epoch.batches(self.batch_size, shuffle, rank(), world_size()),
            num_workers=self.num_workers,
            collate_fn=collate,
        )

    def epoch(self, number: int) -> Epoch:
        """The training examples of one epoch: retrieval pairs and indexing examples."""
        return Epoch(self.training_tasks, self.seed, number)

    @cached_property
    def training_tasks(self) -> list[Task]:
        """The train split's (query, relevant document) pairs, and documents to index, if any."""
        tables = self._tables(self.train_split)
        retrieval = self.examples.prepare(tables)
        if self.indexing is None or self.indexing.ratio == 0:
            return [retrieval]
        return [retrieval, self.indexing.prepare(tables, retrieval)]

    def check_splits(self, trained: bool, study: bool) -> None:
        """Raises ValueError if the collection lacks queries that a run needs.

        Args:
            trained: whether the run trains its system.
            study: whether it runs a study, which needs judgements.
        """
        splits = ", ".join(sorted(self.collection.qrels))
        if trained and self.train_split is None:
            has = splits or "no training queries"
            rule = f"must be a split to train on, {self.collection.name} has {has}"
            ways = "weights=RUN takes over a trained model, model=bm25 needs no training"
            raise ValueError(f"data.train_split=null: {rule}: {ways}")
        if trained and (split := self.validation_split) in self.evaluation.test_splits:
            rule = "must not be tested: the kept step would be chosen on it"
            raise ValueError(f"data.validation_split={split}: {rule}")
        if study and not self.evaluation.test_splits:
            name = self.collection.name
            raise ValueError(f"study: must be null, {name} has no queries with judgements")

    def check_system(self, model: Any, trained: bool) -> None:
        """Checks that a system (`models.base.System`) can work with these data.

        Args:
            trained: whether the run trains the system.

        Raises:
            ValueError: it cannot; the message names the data option at fault.
        """
        if model.trainable and self.new_documents and self.tokenizer_options["unit"] == "word":
            rule = f"must be piece with data.new_documents={self.new_documents}"
            reason = "a vocabulary of words would contain the words of the new documents"
            raise ValueError(f"tokenizer.unit=word: {rule}: {reason}")
        tested = self.evaluation.test_splits
        if named := model.tuning_split:
            others = sorted(self.collection.qrels.keys() - {*tested})
            if named not in others:
                rule = f"must be a split that is not tested, one of {', '.join(others)}"
                raise ValueError(f"model.tune={named}: {rule}")
        elif model.tunes_search and (split := self.evaluation.tuning_split) in tested:
            raise ValueError(
                f"data.test_split=[{', '.join(tested)}]: must not name {split}, on which "
                "model.search.recall tunes the search: name another data.validation_split, or set "
                "model.search.recall=null"
            )
        if not (trained and model.needs_negatives and self.examples.negatives is None):
            return
        # A training batch must be able to contain a negative.
        reason = "the loss compares documents, and data.examples.negatives names no hard negatives"
        if self.batch_size == 1:
            raise ValueError(f"data.batch_size=1: must be ≥ 2: {reason}")
        if self.train_split is None or self.indexing is not None:
            return
        if (count := len(self.collection.relevant_documents(self.train_split))) < 2:
            rule = f"must have ≥ 2 relevant documents, has {count}: {reason}"
            raise ValueError(f"data.train_split={self.train_split}: {rule}")

    def _tables(self, split: str, queries: Dataset | None = None) -> TrainingTables:
        queries = queries or self.queries(split)
        pairs, passages = self.evaluation.relevant_pairs(split, queries)
        return TrainingTables(
            pairs=pairs,
            passages=passages,
            queries=queries,
            documents=self.documents,
            query_length=self.query_length,
            document_length=min(self.document_length, self.training_length or self.document_length),
            tokenizer=self.tokenizer,
            template=self.template,
            special_tokens=self.special_tokens,
            known=self.known_documents,
            negatives=self.collection.negatives,
            training=split == self.train_split,
            mask_relevant=self.mask_relevant,
            drop_identical=self.drop_identical,
            language=self.analyzer.language,
        )

    @property
    def training_sources(self) -> dict[str, str]:
        """Path → SHA-256, for each file that training reads besides the collection."""
        named = [Path(f).expanduser() for f in (self.identifiers, *self.views.values()) if f]
        named += [*self.examples.files, *(self.indexing.inputs.files if self.indexing else ())]
        lists = ((file, ScoredLists.find(file)) for file in named)
        files = [file for place, one in lists for file in (one.files if one else [place])]
        return {str(file): sha256(file) for file in files}
