"""The LightningDataModule: training pairs in batches, beside what evaluation reads."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

from torch.utils.data import DataLoader

from data_modules.collection import relevant_pairs
from data_modules.epoch import Epoch, collate
from data_modules.evaluation_data import EvaluationData
from data_modules.examples import DocumentExamples
from data_modules.indexing import Indexing
from data_modules.tasks import Example, Examples, Task, TrainingTables
from gr_mvdr.batch import PairBatch, cut
from gr_mvdr.distributed.ranks import rank, world_size
from gr_mvdr.parts import part
from gr_mvdr.tokenizers import EOS_ID


@part("data", examples="examples", indexing="indexing")
class RetrievalDataModule(EvaluationData):
    """Everything that a run reads, from one collection."""

    def __init__(
        self,
        examples: Examples | None = None,
        indexing: Indexing | None = None,
        batch_size: int = 64,
        num_workers: int = 0,
        seed: int = 0,
        mask_relevant: bool = True,
        **options: Any,
    ):
        """
        Args:
            examples: source, targets and negatives of a training pair; None = query and document.
            indexing: further examples, made from documents; None = retrieval pairs only.
            batch_size: training examples a step, of all processes together.
            num_workers: loader processes.
            seed: of the order of the examples and of what they draw.
            mask_relevant: no document that is known to be relevant to a query is a negative of it
                within a batch; False = copies of its positive alone are none (the papers).
            options: of `EvaluationData`.
        """
        super().__init__(**options)
        self.examples, self.indexing = examples or DocumentExamples(), indexing
        self.batch_size, self.num_workers, self.seed = batch_size, num_workers, seed
        self.mask_relevant = mask_relevant
        if self.batch_size < world_size():
            rule = (
                f"must be ≥ {world_size()}, the number of processes"
                if world_size() > 1
                else "must be ≥ 1"
            )
            raise ValueError(f"data.batch_size={self.batch_size}: {rule}")

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
            special_tokens=self.special_tokens,
            known=self.known_documents,
            negatives=self.collection.negatives,
            bm25=self._lazy_bm25,
            training=split == self.options["train_split"],
            mask_relevant=self.mask_relevant,
            drop_identical=self.drop_identical,
        )

    def _loader(self, epoch: Epoch, shuffle: bool = True) -> DataLoader:
        return DataLoader(
            epoch,
            batch_sampler=epoch.batches(self.batch_size, shuffle, rank(), world_size()),
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
