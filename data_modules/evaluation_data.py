"""What search is judged by: test queries, their judgements, and the candidates to rerank."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from data_modules.candidates import read_candidates
from data_modules.collection_data import CollectionData
from data_modules.columns import arrow_column
from gr_mvdr.evaluation.bm25 import split_words
from gr_mvdr.evaluation.metrics import METRICS, rank_of
from gr_mvdr.progress import track


class EvaluationData(CollectionData):
    """The test splits of a collection (gr_as_mvdr §6.3)."""

    def __init__(
        self,
        candidates: int = 100,
        candidates_run: str | None = None,
        add_relevant: bool = True,
        drop_identical: bool = False,
        metrics: Sequence[str] = METRICS,
        max_test_queries: int | None = None,
        max_rerank_queries: int | None = None,
        **options: Any,
    ):
        """
        Args:
            candidates: BM25 documents a query in reranking.
            candidates_run: a file that names the documents to rerank (a TREC run, candidate.json);
                None = the collection's own, and BM25's where it has none.
            add_relevant: the relevant documents are candidates, found or not (gr_as_mvdr §6.3);
                False = a reranking finds only what the candidates hold (mva §5).
            drop_identical: a hit whose id is the query's own is none (ArguAna, Quora).
            metrics: of the rankings, such as recall@1000; see `gr_mvdr.evaluation.metrics.KINDS`.
            max_test_queries, max_rerank_queries: random samples of the test queries; None = all.
            options: of `CollectionData`.

        Raises:
            FileNotFoundError: there is no such file of candidates.
            ValueError: there is no such metric.
        """
        super().__init__(**options)
        self.add_relevant = add_relevant
        self.candidate_depth, self.candidates_run = candidates, candidates_run
        self.drop_identical, self.metrics = drop_identical, _known(metrics)
        self._given_of: dict[str, dict[str, list[str]]] = {}
        self.max_test_queries, self.max_rerank_queries = max_test_queries, max_rerank_queries
        if candidates_run and not Path(candidates_run).expanduser().is_file():
            raise FileNotFoundError(f"data.candidates_run={candidates_run}: no such file")

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
        """Query id → the documents that are reranked, best first; see `add_relevant`.

        A relevant document that the collection lacks is none of them.
        """
        grades, given = self.judgements(split, queries), self._given(split)
        known = set(self._texts["id"][:]) if self.add_relevant else set()
        lists = {}
        rows = zip(queries["id"][:], queries["text"][:], strict=True)
        for query, text in track(rows, "candidates", total=len(queries)):
            found = given.get(query)
            if found is None:
                found = self.bm25.best(
                    split_words(text), self.candidate_depth + self.drop_identical
                )
            relevant = [d for d, grade in grades[query].items() if grade > 0 and d in known]
            lists[query] = list(dict.fromkeys([*self.kept(query, found), *relevant]))
        return lists

    def _given(self, split: str) -> dict[str, list[str]]:
        """What a file, or the collection itself, names for the reranked queries of a test split.

        Raises:
            ValueError: the user's file has no candidate for a query.
        """
        if split not in self._given_of:
            ids, documents = self.rerank_queries(split)["id"][:], self._texts["id"][:]
            file = self.candidates_run or self.collection.candidates.get(split)
            path = None if file is None else Path(file).expanduser()
            found = {} if path is None else read_candidates(path, ids, documents)
            missing = [query for query in ids if query not in found]
            if missing and self.candidates_run:
                raise ValueError(
                    f"data.candidates_run={file}: {len(missing):,} of {len(ids):,} queries have no "
                    f"candidate in the collection, the first is {missing[0]!r}"
                )
            self._given_of[split] = found
        return self._given_of[split]

    @property
    def candidates_from(self) -> dict[str, str]:
        """Where the candidates of each test split's queries come from; reads the files."""
        return {split: self._candidates_from(split) for split in self.test_splits}

    def _candidates_from(self, split: str) -> str:
        file = self.candidates_run or self.collection.candidates.get(split)
        missing = len(self.rerank_queries(split)) - len(self._given(split))
        if file is None:
            return "BM25"
        return f"{file}; {missing:,} queries from BM25" if missing else str(file)

    def kept(self, query: str, documents: Iterable[str]) -> list[str]:
        """A query's documents without the query itself, if `drop_identical` says so."""
        return [found for found in documents if not (self.drop_identical and found == query)]

    @property
    def unjudged(self) -> dict[str, int]:
        """Queries that nothing can answer: of no split, and of each test split those that have
        judgements and no relevant document, or none that the collection has."""
        tables = self.collection.qrels
        judged = [arrow_column(table, "query_id").combine_chunks() for table in tables.values()]
        known = pc.is_in(arrow_column(self.collection.queries, "id"), pa.concat_arrays(judged))
        documents = arrow_column(self.collection.documents, "id")
        found = {"in no split": len(known) - pc.sum(known).as_py()}
        for split in self.test_splits:
            names = ("query_id", "document_id", "relevance")
            query, document, relevance = (arrow_column(tables[split], name) for name in names)
            there = pc.is_in(document, documents)
            relevance = pc.if_else(there, relevance, 0)
            table = pa.table({"query_id": query, "relevance": relevance})
            best = table.group_by("query_id").aggregate([("relevance", "max")])["relevance_max"]
            found[f"{split}: none relevant"] = pc.sum(pc.less(best, 1)).as_py()
        return {name: count for name, count in found.items() if count}

    def _sample(self, queries: Dataset, limit: int | None) -> Dataset:
        if limit is None or limit >= len(queries):
            return queries
        # Whatever the seed: runs of several seeds are measured on the same queries.
        chosen = np.random.default_rng(0).permutation(len(queries))[:limit]
        return queries.select(sorted(chosen.tolist()))


def _known(metrics: Sequence[str]) -> tuple[str, ...]:
    if not metrics or isinstance(metrics, str):
        raise ValueError(f"data.metrics={metrics}: must be a list, such as [recall@1000]")
    try:
        list(map(rank_of, metrics))
    except ValueError as error:
        raise ValueError(f"data.metrics: {error}") from None
    return tuple(metrics)
