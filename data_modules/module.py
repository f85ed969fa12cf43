"""The LightningDataModule: training pairs, the corpus, test queries, rerank candidates."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pytorch_lightning as pl
from datasets import Dataset, concatenate_datasets
from torch.utils.data import DataLoader

from data_modules.collection import Collection, judged_triples, relevant_pairs
from data_modules.epoch import Epoch, collate
from data_modules.examples import DocumentExamples
from data_modules.indexing import Indexing
from data_modules.lexical import LazyBM25
from data_modules.tasks import Example, Examples, Task, TrainingTables
from data_modules.tokenisation import (
    add_title_tokens,
    add_tokens,
    collection_tokenizer,
    join_fields,
    mark_tokens,
)
from gr_mvdr.batch import PairBatch, cut
from gr_mvdr.bm25 import BM25Index, words
from gr_mvdr.progress import track
from gr_mvdr.tokenizers import EOS_ID


class RetrievalDataModule(pl.LightningDataModule):
    """Everything that a run reads, from one collection.

    A subclass for each source of collections gives `read`.
    """

    def __init__(
        self,
        test_split: str | list[str],
        tokenizer: dict[str, Any],
        examples: Examples | None = None,
        indexing: Indexing | None = None,
        new_documents: Sequence[str] = (),
        train_split: str = "train",
        validation_split: str | None = None,
        text_fields: tuple[str, ...] = ("title", "text"),
        query_length: int = 64,
        document_length: int = 256,
        batch_size: int = 64,
        candidates: int = 100,
        max_test_queries: int | None = None,
        max_rerank_queries: int | None = None,
        num_workers: int = 0,
        seed: int = 0,
    ):
        """
        Args:
            test_split: the split that is retrieved and reranked; a list adds further ones.
            tokenizer: arguments of `collection_tokenizer` (backbone, path, unit, …).
            examples: source, targets and negatives of a training pair; None = query and document.
            indexing: further examples, made from documents; None = retrieval pairs only.
            new_documents: splits whose documents arrive after training.
            train_split, validation_split: splits of the collection; None = no validation.
            text_fields: what a document's text is made of, joined with " | ".
            query_length, document_length: tokens kept of a text, the end token included.
            batch_size: training examples a step.
            candidates: BM25 documents a query in reranking; the relevant ones are added.
            max_test_queries, max_rerank_queries: random samples of the test queries; None = all.
            num_workers: loader processes.
            seed: of the order of the examples and of what they draw.
        """
        super().__init__()
        self.test_splits, self.new_documents = _splits(test_split), _splits(new_documents)
        self.examples, self.indexing = examples or DocumentExamples(), indexing
        self.options = {
            "train_split": train_split,
            "validation_split": validation_split,
            "tokenizer": dict(tokenizer),
            "text_fields": list(text_fields),
        }
        self.query_length, self.document_length = query_length, document_length
        self.batch_size, self.num_workers, self.seed = batch_size, num_workers, seed
        self.candidate_depth = candidates
        self.max_test_queries, self.max_rerank_queries = max_test_queries, max_rerank_queries
        self._check()

    def _check(self) -> None:
        """Refuses options that no collection can meet (ValueError)."""
        if self.batch_size < 1:
            raise ValueError(f"data.batch_size={self.batch_size}: must be ≥ 1")
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

    @cached_property
    def collection(self) -> Collection:
        """The collection as it was read; every split that will be needed is looked up at once."""
        collection = self.read()
        named = [("test_split", split) for split in self.test_splits]
        named += [("new_documents", split) for split in self.new_documents]
        named += [(key, self.options[key]) for key in ("train_split", "validation_split")]
        for key, split in named:
            if split is not None and split not in collection.qrels:
                present = ", ".join(sorted(collection.qrels))
                raise ValueError(f"data.{key}={split}: must be one of {present}")
        return collection

    @cached_property
    def tokenizer(self):
        """The run's tokeniser: the backbone's, a given vocabulary, or one trained here."""
        training = self.collection.split_queries(self.options["train_split"])
        return collection_tokenizer(self._texts, training, **self.options["tokenizer"])

    @cached_property
    def documents(self) -> Dataset:
        """The corpus: id, title, text (the joined fields), tokens (all), word_starts, title_tokens.

        The title's tokens are those of the title alone.
        """
        return add_title_tokens(add_tokens(self._texts, self.tokenizer), self.tokenizer)

    @cached_property
    def known_documents(self) -> np.ndarray:
        """(known,) int64: rows of the documents that are there in training.

        All but those that a split of `new_documents` judges relevant and the train split does not.
        """
        new = {d for split in self.new_documents for d in self._relevant(split)}
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
        return join_fields(self.collection.documents, self.options["text_fields"])

    def queries(self, split: str) -> Dataset:
        """The queries with judgements in a split: id, text, tokens."""
        return add_tokens(self.collection.split_queries(split), self.tokenizer)

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
        """Query id → the best BM25 documents and the relevant ones (gr_as_mvdr §6.3)."""
        grades = self.judgements(split, queries)
        lists = {}
        rows = zip(queries["id"][:], queries["text"][:], strict=True)
        for query, text in track(rows, "BM25 candidates", total=len(queries)):
            relevant = [document for document, grade in grades[query].items() if grade > 0]
            found = [*self.bm25.best(words(text), self.candidate_depth), *relevant]
            lists[query] = list(dict.fromkeys(found))
        return lists

    @property
    def bm25(self) -> BM25Index:
        """BM25 over the joined fields, the source of candidates and of negatives."""
        return self._lazy_bm25()

    @cached_property
    def _lazy_bm25(self) -> LazyBM25:
        return LazyBM25(self._texts)

    def train_dataloader(self) -> DataLoader:
        """The examples of an epoch in an order drawn from (seed, epoch).

        The trainer asks for a new loader every epoch (`reload_dataloaders_every_n_epochs: 1`), so
        that a resumed run sees what an unbroken one would.
        """
        return self._loader(self.epoch(self.trainer.current_epoch if self.trainer else 0))

    def val_dataloader(self) -> DataLoader | list:
        """Pairs of the validation split, always the same ones; none without such a split."""
        if self.options["validation_split"] is None:
            return []
        return self._loader(Epoch([self.validation_task], self.seed, 0), shuffle=False)

    def epoch(self, number: int) -> Epoch:
        """The training examples of one epoch: all retrieval pairs and a share of documents."""
        return Epoch(self.training_tasks, self.seed, number)

    @cached_property
    def training_tasks(self) -> list[Task]:
        """The (query, relevant document) pairs of the train split; documents to index."""
        tables = self._tables(self.options["train_split"])
        retrieval = self.examples.prepare(tables)
        if self.indexing is None or self.indexing.ratio == 0:
            return [retrieval]
        return [retrieval, self.indexing.prepare(tables, retrieval, self.known_documents)]

    @cached_property
    def validation_task(self) -> Task:
        """The pairs of the validation split."""
        return self.examples.prepare(self._tables(self.options["validation_split"]))

    @property
    def training_sources(self) -> dict[str, str]:
        """The SHA-256 of each file besides the collection that training reads, by its path."""
        indexing = self.indexing.inputs.sources if self.indexing else {}
        return self.examples.sources | indexing

    def _tables(self, split: str) -> TrainingTables:
        queries = self.queries(split)
        return TrainingTables(
            pairs=relevant_pairs(self.collection.qrels[split], queries, self.documents),
            queries=queries,
            documents=self.documents,
            query_length=self.query_length,
            document_length=self.document_length,
            tokenizer=self.tokenizer,
            marks=self.marks,
            known=self.known_documents,
            bm25=self._lazy_bm25,
            training=split == self.options["train_split"],
        )

    def _loader(self, epoch: Epoch, shuffle: bool = True) -> DataLoader:
        return DataLoader(
            epoch,
            batch_sampler=epoch.batches(self.batch_size, shuffle),
            num_workers=self.num_workers,
            collate_fn=collate,
        )

    def test_pairs(
        self,
        split: str,
        limit: int,
        batch_size: int = 16,
        covers: Callable[[int], bool] = lambda row: True,
    ) -> tuple[list[tuple[str, str]], list[PairBatch]]:
        """Pairs of test query and relevant document for analysis, `limit` at most.

        Args:
            covers: whether the system knows the document of a row; other pairs are left out.

        Returns:
            (query id, document id) of every pair, and the pairs in batches of `batch_size`.
        """
        queries = self._sample(self.test_queries(split), limit)
        rows = relevant_pairs(self.collection.qrels[split], queries, self.documents)
        names, items = [], []
        for row in rows.select(range(min(limit, len(rows)))):
            if not covers(row["document_row"]):
                continue
            query, document = queries[row["query_row"]], self.documents[row["document_row"]]
            names.append((query["id"], document["id"]))
            source = cut(query["tokens"], self.query_length, EOS_ID)
            target = cut(document["tokens"], self.document_length, EOS_ID)
            items.append(Example(source, [target], row["document_row"]))
        starts = range(0, len(items), batch_size)
        return names, [collate(items[start : start + batch_size]) for start in starts]

    def cut_texts(self) -> dict[str, int]:
        """How many texts are longer than the limits and are cut: reported, never fatal."""
        longest = {"queries": self.query_length, "documents": self.document_length}
        splits = [self.options["train_split"], *self.test_splits]
        queries = concatenate_datasets([self.queries(split) for split in splits])
        tables = {"queries": queries, "documents": self.documents}
        return {
            name: sum(
                len(tokens) >= longest[name]
                for rows in table.iter(1000)
                for tokens in rows["tokens"]
            )
            for name, table in tables.items()
        }

    def _sample(self, queries: Dataset, limit: int | None) -> Dataset:
        if limit is None or limit >= len(queries):
            return queries
        # Whatever the seed: runs of several seeds are measured on the same queries.
        chosen = np.random.default_rng(0).permutation(len(queries))[:limit]
        return queries.select(sorted(chosen.tolist()))


def _splits(named: str | Sequence[str]) -> list[str]:
    """Names of splits; one alone may stand without a list."""
    return [named] if isinstance(named, str) else list(named)
