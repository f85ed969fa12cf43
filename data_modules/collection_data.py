"""A collection as systems read it: one tokeniser and the tables of its tokens."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pytorch_lightning as pl
from datasets import Dataset, concatenate_datasets

from data_modules.collection import Collection, judged_triples
from data_modules.columns import TokenColumn
from data_modules.formats.layout import Layout
from data_modules.lexical import LazyBM25
from data_modules.store import collect
from data_modules.tokenisation import (
    add_tokens,
    clean,
    collection_tokenizer,
    encode_special_tokens,
    join_fields,
)
from gr_mvdr.evaluation.bm25 import BM25Index


class CollectionData(pl.LightningDataModule):
    """Texts and their tokens, of one collection.

    A subclass for each source of collections gives `read`.
    """

    def __init__(
        self,
        test_split: str | list[str] | None,
        tokenizer: dict[str, Any],
        new_documents: str | Sequence[str] = (),
        train_split: str | None = "train",
        validation_split: str | None = None,
        text_fields: tuple[str, ...] = ("title", "text"),
        cleaning: Sequence[str] = (),
        empty_documents: str = "refuse",
        store: str | None = None,
        query_length: int = 64,
        document_length: int = 256,
    ):
        """
        Args:
            test_split: the split that is retrieved and reranked; a list adds further ones; None =
                test, or dev where there is none.
            tokenizer: arguments of `collection_tokenizer` (backbone, path, unit, …).
            new_documents: splits whose documents arrive after training.
            train_split, validation_split: splits of the collection; None = none (a run with
                `weights` trains on nothing).
            text_fields: what a document's text is made of, joined with " | ".
            cleaning: steps of `data_modules.cleaning` that texts and queries go through.
            empty_documents: "refuse", or "keep" documents without title and text.
            store: folder of built collections; None = beside the cache of ``datasets``.
            query_length, document_length: tokens kept of a text, the end token included.
        """
        super().__init__()
        self.asked_splits, self.new_documents = _splits(test_split), _splits(new_documents)
        self.options = {
            "train_split": train_split,
            "validation_split": validation_split,
            "tokenizer": dict(tokenizer),
            "text_fields": list(text_fields),
            "cleaning": list(cleaning),
        }
        self.empty_documents, self.store = empty_documents, store
        self.query_length, self.document_length = query_length, document_length
        self._check_texts()

    def _check_texts(self) -> None:
        """Refuses options that no collection can meet (ValueError)."""
        for key in ("query_length", "document_length"):
            if getattr(self, key) < 2:
                raise ValueError(
                    f"{key}={getattr(self, key)}: must be ≥ 2 (a token and the end token)"
                )
        split = self.options["validation_split"]
        if split in self.new_documents:
            raise ValueError(
                f"data.validation_split={split}: must not be one of data.new_documents, "
                "which arrive after training"
            )

    def read(self) -> Collection:
        """The collection itself."""
        raise NotImplementedError

    def collect(self, layout: Layout) -> Collection:
        """The collection of a layout, from the store if it is there already."""
        return collect(layout, self.store, self.empty_documents)

    @cached_property
    def collection(self) -> Collection:
        """The collection as it was read; every split that will be needed is looked up at once."""
        collection = self.read()
        named = [("test_split", split) for split in self.asked_splits]
        named += [("new_documents", split) for split in self.new_documents]
        named += [(key, self.options[key]) for key in ("train_split", "validation_split")]
        for key, split in named:
            if split is not None and split not in collection.qrels:
                present = ", ".join(sorted(collection.qrels))
                raise ValueError(f"data.{key}={split}: must be one of {present}")
        return collection

    @cached_property
    def test_splits(self) -> list[str]:
        """The splits that are retrieved and reranked, the main one first."""
        return self.asked_splits or [_measured(self.collection, self.options["train_split"])]

    @cached_property
    def tokenizer(self):
        """The run's tokeniser: the backbone's, a given vocabulary, or one trained here."""
        split = self.options["train_split"]
        training = self._split_queries(split) if split else self.collection.queries.select([])
        return collection_tokenizer(self._texts, training, **self.options["tokenizer"])

    @cached_property
    def documents(self) -> Dataset:
        """The corpus: id, title, text (the joined fields), tokens (all), word_starts, title_tokens.

        The title's tokens are those of the title alone.
        """
        return add_tokens(self._texts, self.tokenizer)

    @cached_property
    def known_documents(self) -> np.ndarray:
        """(known,) int64: rows of the documents that are there in training.

        All but those that a split of `new_documents` judges relevant and the train split does not.
        """
        new = {d for split in self.new_documents for d in self._relevant(split)}
        if self.options["train_split"] is not None:
            new -= self._relevant(self.options["train_split"])
        return np.flatnonzero([identifier not in new for identifier in self._texts["id"][:]])

    def _relevant(self, split: str) -> set[str]:
        judged = judged_triples(self.collection.qrels[split])
        return {document for _, document, grade in judged if grade > 0}

    @cached_property
    def special_tokens(self) -> dict[str, list[int]]:
        """The token ids of the texts of `tokenizer.special_tokens`, by name."""
        return encode_special_tokens(
            self.options["tokenizer"].get("special_tokens") or {}, self.tokenizer
        )

    @cached_property
    def _texts(self) -> Dataset:
        fields, cleaning = self.options["text_fields"], self.options["cleaning"]
        return join_fields(clean(self.collection.documents, cleaning), fields)

    def _split_queries(self, split: str) -> Dataset:
        return clean(self.collection.split_queries(split), self.options["cleaning"])

    def queries(self, split: str) -> Dataset:
        """The queries with judgements in a split: id, text, tokens."""
        return add_tokens(self._split_queries(split), self.tokenizer)

    @property
    def bm25(self) -> BM25Index:
        """BM25 over the joined fields, the source of candidates and of negatives."""
        return self._lazy_bm25()

    @cached_property
    def _lazy_bm25(self) -> LazyBM25:
        return LazyBM25(self._texts)

    def cut_texts(self) -> dict[str, int]:
        """How many texts are longer than the limits and are cut: reported, never fatal."""
        longest = {"queries": self.query_length, "documents": self.document_length}
        splits = [split for split in (self.options["train_split"], *self.test_splits) if split]
        queries = concatenate_datasets([self.queries(split) for split in splits])
        tables = {"queries": queries, "documents": self.documents}
        return {
            name: int((TokenColumn(table).lengths >= longest[name]).sum())
            for name, table in tables.items()
        }


def _splits(named: str | Sequence[str] | None) -> list[str]:
    """Names of splits; one alone may stand without a list."""
    return [named] if isinstance(named, str) else list(named or [])


def _measured(collection: Collection, train_split: str | None) -> str:
    """The split that a collection is measured on where nobody says which."""
    others = [split for split in collection.qrels if split != train_split]
    for split in ("test", "dev"):
        if split in others:
            return split
    if len(others) == 1:
        return others[0]
    raise ValueError(
        f"data.test_split=null: must be one of {', '.join(others) or 'none'}, the splits of "
        f"{collection.name} besides the training split"
    )
