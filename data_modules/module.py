"""The LightningDataModule: training pairs, the corpus, test queries, rerank candidates."""

from functools import cached_property
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from datasets import Dataset, concatenate_datasets
from torch.utils.data import DataLoader

from data_modules.collection import Collection, judged_triples
from data_modules.examples import DocumentExamples, Targets, TrainingTables
from data_modules.tokenisation import add_tokens, collection_tokenizer, join_fields
from gr_mvdr.batch import PairBatch, cut, pad
from gr_mvdr.bm25 import BM25Index, words
from gr_mvdr.progress import track
from gr_mvdr.tokenizers import EOS_ID

# Pairs are sorted by length within pools of so many batches.
_POOL_BATCHES = 16


class RetrievalDataModule(pl.LightningDataModule):
    """Everything that a run reads, from one collection.

    A subclass for each source of collections gives `read`.
    """

    def __init__(
        self,
        test_split: str | list[str],
        tokenizer: dict[str, Any],
        examples: Any = None,
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
            examples: what stands on the document side of a training pair; None = the document.
            train_split, validation_split: splits of the collection; None = no validation.
            text_fields: what a document's text is made of, joined with " | ".
            query_length, document_length: tokens kept of a text, the end token included.
            batch_size: training pairs a step.
            candidates: BM25 documents a query in reranking; the relevant ones are added.
            max_test_queries, max_rerank_queries: random samples of the test queries; None = all.
            num_workers: loader processes.
            seed: of the order of the pairs and of what `examples` draws.
        """
        super().__init__()
        if batch_size < 1:
            raise ValueError(f"data.batch_size={batch_size}: must be ≥ 1")
        for key, value in (("query_length", query_length), ("document_length", document_length)):
            if value < 2:
                raise ValueError(f"{key}={value}: must be ≥ 2 (a token and the end token)")
        self.test_splits = [test_split] if isinstance(test_split, str) else list(test_split)
        self.examples = examples or DocumentExamples()
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

    def read(self) -> Collection:
        """The collection itself."""
        raise NotImplementedError

    @cached_property
    def collection(self) -> Collection:
        """The collection as it was read; every split that will be needed is looked up at once."""
        collection = self.read()
        named = [("test_split", split) for split in self.test_splits]
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
        """The corpus: id, title, text (the joined fields), tokens (all of them), word_starts."""
        return add_tokens(self._texts, self.tokenizer)

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

    @cached_property
    def bm25(self) -> BM25Index:
        """BM25 over the joined fields, the source of candidates."""
        return BM25Index(self._texts["id"][:], [words(text) for text in self._texts["text"][:]])

    def train_dataloader(self) -> DataLoader:
        """Pairs of the train split in an order drawn from (seed, epoch).

        The trainer asks for a new loader every epoch (`reload_dataloaders_every_n_epochs: 1`), so
        that a resumed run sees what an unbroken one would.
        """
        epoch = self.trainer.current_epoch if self.trainer else 0
        return self._loader(self.training_pairs, epoch, shuffle=True)

    def val_dataloader(self) -> DataLoader | list:
        """Pairs of the validation split, always the same ones; none without such a split."""
        if self.options["validation_split"] is None:
            return []
        return self._loader(self.validation_pairs, epoch=0, shuffle=False)

    @cached_property
    def training_pairs(self) -> "Pairs":
        """The (query, relevant document) pairs of the train split."""
        return self._pairs(self.options["train_split"])

    @cached_property
    def validation_pairs(self) -> "Pairs":
        """The pairs of the validation split."""
        return self._pairs(self.options["validation_split"])

    def _pairs(self, split: str) -> "Pairs":
        queries = self.queries(split)
        pairs = relevant_pairs(self.collection.qrels[split], queries, self.documents)
        tables = TrainingTables(pairs, queries, self.documents, self.document_length)
        return Pairs(tables, self.examples.prepare(tables), self.seed)

    def _loader(self, pairs: "Pairs", epoch: int, shuffle: bool) -> DataLoader:
        pairs.epoch = epoch
        return DataLoader(
            pairs,
            batch_sampler=pairs.batches(self.batch_size, shuffle),
            num_workers=self.num_workers,
            collate_fn=self.collate,
        )

    def collate(self, items: list[tuple[list[int], list[list[int]], int]]) -> PairBatch:
        """Cuts, ends and pads (query tokens, target token lists, document number) triples."""
        queries = [cut(query, self.query_length, EOS_ID) for query, _, _ in items]
        targets = [
            cut(target, self.document_length, EOS_ID) for _, found, _ in items for target in found
        ]
        index = torch.tensor([document for _, _, document in items])
        return PairBatch(*pad(queries), *pad(targets), index)

    def test_pairs(
        self, split: str, limit: int, batch_size: int = 16
    ) -> tuple[list[tuple[str, str]], list[PairBatch]]:
        """Pairs of test query and relevant document for analysis, `limit` at most.

        Returns:
            (query id, document id) of every pair, and the pairs in batches of `batch_size`.
        """
        queries = self._sample(self.test_queries(split), limit)
        rows = relevant_pairs(self.collection.qrels[split], queries, self.documents)
        names, items = [], []
        for row in rows.select(range(min(limit, len(rows)))):
            query, document = queries[row["query_row"]], self.documents[row["document_row"]]
            names.append((query["id"], document["id"]))
            items.append((query["tokens"], [document["tokens"]], row["document_row"]))
        starts = range(0, len(items), batch_size)
        return names, [self.collate(items[start : start + batch_size]) for start in starts]

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


class Pairs(torch.utils.data.Dataset):
    """Training pairs as (query tokens, target token lists, document number).

    `epoch` enters the random draws, so that every epoch sees fresh targets and its own order.
    """

    def __init__(self, tables: TrainingTables, targets: Targets, seed: int):
        self.query_rows = tables.pairs["query_row"][:]
        self.document_rows = tables.pairs["document_row"][:]
        self.query_tokens = tables.queries["tokens"][:]
        self.targets, self.seed, self.epoch = targets, seed, 0

    def __len__(self) -> int:
        return len(self.query_rows)

    def __getitem__(self, pair: int) -> tuple[list[int], list[list[int]], int]:
        rng = np.random.default_rng((self.seed, self.epoch, pair))
        query = self.query_tokens[self.query_rows[pair]]
        return query, self.targets.draw(pair, rng), self.document_rows[pair]

    def batches(self, size: int, shuffle: bool) -> list[list[int]]:
        """Pair numbers in batches of like length, so that little is padding.

        Args:
            size: pairs a batch; the last one may have fewer, no pair is lost.
            shuffle: random pools of pairs, sorted within, and the batches in random order.
        """
        if not shuffle:
            numbers = np.arange(len(self))
            return [numbers[i : i + size].tolist() for i in range(0, len(self), size)]
        rng = np.random.default_rng((self.seed, self.epoch, len(self)))  # no pair's own stream
        numbers = rng.permutation(len(self))
        pool = np.arange(len(self)) // (_POOL_BATCHES * size)
        numbers = numbers[np.lexsort((self._lengths[numbers], pool))]
        found = [numbers[i : i + size].tolist() for i in range(0, len(self), size)]
        return [found[i] for i in rng.permutation(len(found))]

    @cached_property
    def _lengths(self) -> np.ndarray:
        queries = np.array([len(tokens) for tokens in self.query_tokens])
        return queries[self.query_rows] + self.targets.lengths()


def relevant_pairs(judgements: Dataset, queries: Dataset, documents: Dataset) -> Dataset:
    """The relevant (grade > 0) judgements as row numbers.

    Args:
        judgements: columns query_id, document_id, relevance.
        queries, documents: tables with an id column; judgements of other queries are left out.

    Returns:
        A table with the columns query_row and document_row.
    """
    query_rows = {identifier: row for row, identifier in enumerate(queries["id"][:])}
    document_rows = {identifier: row for row, identifier in enumerate(documents["id"][:])}
    pairs = [
        (query_rows[query], document_rows[document])
        for query, document, grade in judged_triples(judgements)
        if grade > 0 and query in query_rows
    ]
    columns = zip(*pairs, strict=True) if pairs else ([], [])
    return Dataset.from_dict(
        dict(zip(("query_row", "document_row"), map(list, columns), strict=True))
    )
