"""What evaluation reads of a collection: token tables, test queries, judgements, candidates."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
from datasets import Dataset, concatenate_datasets

from data_modules.candidates import read_candidates
from data_modules.collection import Collection, judged_triples
from data_modules.columns import TokenColumn
from data_modules.layout import Layout
from data_modules.lexical import LazyBM25
from data_modules.store import collect
from data_modules.tokenisation import (
    add_tokens,
    clean,
    collection_tokenizer,
    join_fields,
    mark_tokens,
)
from gr_mvdr.bm25 import BM25Index, words
from gr_mvdr.progress import track


class CollectionData(pl.LightningDataModule):
    """A collection as systems read it: one tokeniser, its tables, and what search is judged by.

    A subclass for each source of collections gives `read`.
    """

    def __init__(
        self,
        test_split: str | list[str] | None,
        tokenizer: dict[str, Any],
        new_documents: Sequence[str] = (),
        train_split: str | None = "train",
        validation_split: str | None = None,
        text_fields: tuple[str, ...] = ("title", "text"),
        cleaning: Sequence[str] = (),
        empty_documents: str = "refuse",
        store: str | None = None,
        query_length: int = 64,
        document_length: int = 256,
        candidates: int = 100,
        candidates_run: str | None = None,
        drop_identical: bool = False,
        max_test_queries: int | None = None,
        max_rerank_queries: int | None = None,
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
            candidates: BM25 documents a query in reranking; the relevant ones are added.
            candidates_run: a file that names the documents to rerank (a TREC run, candidate.json);
                None = the collection's own, and BM25's where it has none.
            drop_identical: a hit whose id is the query's own is none (ArguAna, Quora).
            max_test_queries, max_rerank_queries: random samples of the test queries; None = all.
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
        self.candidate_depth, self.candidates_run = candidates, candidates_run
        self.drop_identical = drop_identical
        self.max_test_queries, self.max_rerank_queries = max_test_queries, max_rerank_queries
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
        if self.candidates_run and not Path(self.candidates_run).expanduser().is_file():
            raise FileNotFoundError(f"data.candidates_run={self.candidates_run}: no such file")

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
    def marks(self) -> dict[str, list[int]]:
        """The token ids of the texts of `tokenizer.marks`, by name."""
        return mark_tokens(self.options["tokenizer"].get("marks") or {}, self.tokenizer)

    @cached_property
    def _texts(self) -> Dataset:
        fields, cleaning = self.options["text_fields"], self.options["cleaning"]
        return join_fields(clean(self.collection.documents, cleaning), fields)

    def _split_queries(self, split: str) -> Dataset:
        return clean(self.collection.split_queries(split), self.options["cleaning"])

    def queries(self, split: str) -> Dataset:
        """The queries with judgements in a split: id, text, tokens."""
        return add_tokens(self._split_queries(split), self.tokenizer)

    def test_queries(self, split: str) -> Dataset:
        """The queries of a test split, or a sample of `max_test_queries`, the same every time."""
        return self._sample(self.queries(split), self.max_test_queries)

    def rerank_queries(self, split: str) -> Dataset:
        """The queries that are reranked: a sample of `max_rerank_queries`."""
        return self._sample(self.test_queries(split), self.max_rerank_queries)

    def judgements(self, split: str, queries: Dataset) -> dict[str, dict[str, int]]:
        """The qrels of a split, of the given queries only."""
        grades = self.collection.judgements(split)
        return {query: grades[query] for query in queries["id"][:]}

    def candidates(self, split: str, queries: Dataset) -> dict[str, list[str]]:
        """Query id → the documents that are reranked, the relevant ones among them (§6.3)."""
        grades = self.judgements(split, queries)
        given = self._given_candidates(split, queries)
        lists = {}
        rows = zip(queries["id"][:], queries["text"][:], strict=True)
        for query, text in track(rows, "candidates", total=len(queries)):
            if given is None:
                found = self.bm25.best(words(text), self.candidate_depth + self.drop_identical)
            else:
                found = given[query]
            relevant = [document for document, grade in grades[query].items() if grade > 0]
            lists[query] = list(dict.fromkeys([*self.kept(query, found), *relevant]))
        return lists

    def _given_candidates(self, split: str, queries: Dataset) -> dict[str, list[str]] | None:
        """The candidates that a file or the collection names; None = BM25 has to find them."""
        file = self.candidates_run or self.collection.candidates.get(split)
        if file is None:
            return None
        return read_candidates(Path(file).expanduser(), queries["id"][:], self._texts["id"][:])

    @property
    def candidates_from(self) -> dict[str, str]:
        """Where the candidates of each test split come from: a file, or BM25."""
        own = self.collection.candidates
        return {s: str(self.candidates_run or own.get(s, "BM25")) for s in self.test_splits}

    def kept(self, query: str, documents: Iterable[str]) -> list[str]:
        """A query's documents without the query itself, if `drop_identical` says so."""
        return [found for found in documents if not (self.drop_identical and found == query)]

    @property
    def unjudged(self) -> dict[str, int]:
        """What is never, or never well, answered: queries without a judgement in any split, and of
        each test split the queries that have judgements and no relevant document."""
        judged = set().union(*(table["query_id"][:] for table in self.collection.qrels.values()))
        found = {"in no split": len(self.collection.queries) - len(judged)}
        for split in self.test_splits:
            grades = self.collection.judgements(split).values()
            found[f"{split}: none relevant"] = sum(max(g.values()) < 1 for g in grades)
        return {name: count for name, count in found.items() if count}

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

    def _sample(self, queries: Dataset, limit: int | None) -> Dataset:
        if limit is None or limit >= len(queries):
            return queries
        # Whatever the seed: runs of several seeds are measured on the same queries.
        chosen = np.random.default_rng(0).permutation(len(queries))[:limit]
        return queries.select(sorted(chosen.tolist()))


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
