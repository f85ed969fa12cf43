"""What a collection is searched, reranked and measured with (gr_as_mvdr §6.3)."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from datasets import Dataset

from data_modules.collection import BestPassages, TokenColumn, find_relevant_pairs, sample_rows
from data_modules.examples import Example, collate
from data_modules.negatives import read_candidates
from data_modules.validation import ValidationSet, choose_validation
from gr_mvdr.batch import PairBatch
from gr_mvdr.evaluation.bm25 import InvertedLists, count_terms
from gr_mvdr.evaluation.metrics import METRICS
from gr_mvdr.options import Count, ExistingPath, Pattern, Rule, Size, Text
from gr_mvdr.passages import Passages
from gr_mvdr.tokenizers import WordTokenizer, keep_terms

Different = Annotated[
    Sequence[Text], Rule("a list of different texts", lambda texts: len(texts) == len({*texts}))
]


@dataclass(kw_only=True, eq=False, repr=False)
class EvaluationOptions:
    """The options of what is searched, reranked and measured.

    Args:
        test_split: the split that is searched and reranked, or a list of splits, the main one
            first; None = test, or dev if there is no test split.
        candidates: number of BM25 documents that are reranked for each query.
        candidates_run: a file that names the documents to rerank (a TREC run, candidate.json);
            None = the collection's own candidates, or BM25's for a query without any.
        add_relevant: add the relevant documents to the candidates (gr_as_mvdr §6.3);
            False = rerank the candidates alone (mva §5).
        drop_identical: leave out the document whose id is the query's own (ArguAna, Quora).
        metrics: metrics of the rankings, such as recall@1000 or nDCG@10; see
            `gr_mvdr.evaluation.metrics`.
        relevance_level: the least grade that binary metrics count as relevant, where a metric's
            name has no `rel`; None = 1.
        groups: a regular expression whose match in the id of a test query is the query's group:
            `macro_…` metrics are means over groups; None = no groups.
        max_test_queries, max_rerank_queries: size of a random sample; None = all.
    """

    test_split: Text | Different | None
    candidates: Count = 100
    candidates_run: ExistingPath | None = None
    add_relevant: bool = True
    drop_identical: bool = False
    metrics: Sequence[Text] = METRICS
    relevance_level: Size | None = None
    groups: Pattern | None = None
    max_test_queries: Size | None = None
    max_rerank_queries: Size | None = None


class EvaluationData:
    """The test splits of a collection: queries, judgements, candidates, and pairs to analyse."""

    def __init__(self, data: Any):
        """
        Args:
            data: a `RetrievalDataModule`: the texts and their tokens, and `EvaluationOptions`.
        """
        self.data = data

    @cached_property
    def test_splits(self) -> list[str]:
        """The splits that are searched and reranked, the main one first; [] without judgements."""
        collection = self.data.collection
        if not collection.qrels:
            return []
        return self.data.test_split or [collection.default_test_split(self.data.train_split)]

    def tuning_queries(self) -> Dataset:
        """Queries of a named validation split, else of training, else documents: to tune on."""
        split = self.tuning_split
        return self.data.queries(split) if split else self.data.documents

    @property
    def tuning_split(self) -> str | None:
        """The split of the tuning queries; None = the documents serve."""
        trained, validated = self.data.train_split, self.data.named_validation
        return trained if validated in self.test_splits else validated or trained

    def test_queries(self, split: str) -> Dataset:
        """The queries of a test split, or a fixed random sample of `max_test_queries` of them."""
        return sample_rows(self.data.queries(split), self.data.max_test_queries)

    def rerank_queries(self, split: str) -> Dataset:
        """The queries that are reranked: a fixed sample of `max_rerank_queries` test queries."""
        return sample_rows(self.test_queries(split), self.data.max_rerank_queries)

    def judgements(self, split: str, queries: Dataset) -> dict[str, dict[str, int]]:
        """The qrels of a split, restricted to these queries."""
        grades = self.data.collection.judgements(split)
        return {query: grades[query] for query in queries["id"][:]}

    def relevant(self, split: str, queries: Dataset) -> dict[str, list[str]]:
        """Query id → the documents of grade ≥ 1, also those that the collection lacks."""
        judged = self.judgements(split, queries).items()
        return {query: [d for d, grade in own.items() if grade > 0] for query, own in judged}

    @cached_property
    def passage_map(self) -> Passages:
        """Makes rankings of documents from those of the data's `texts`; a system holds it, too."""
        return Passages(self.data.passages, self.data.texts)

    def relevant_pairs(self, split: str, queries: Dataset) -> tuple[Dataset, BestPassages | None]:
        """Returns the pairs of `find_relevant_pairs`, and what chose their passages."""
        data, qrels = self.data, self.data.collection.qrels[split]
        if data.passages is None:
            return find_relevant_pairs(qrels, queries, data.documents), None
        passages = BestPassages(data.documents, [*self.terms(queries)], self.bm25)
        return find_relevant_pairs(qrels, queries, data.collection.documents, passages), passages

    def list_candidates(
        self, split: str, queries: Dataset, depth: int | None = None
    ) -> dict[str, list[str]]:
        """Query id → the ids of the documents to rerank, best first.

        Args:
            depth: the number of documents from BM25; None = `candidates`.

        With `add_relevant`, the query's relevant documents follow, except those that the
        collection lacks.
        """
        relevant, (_, named) = self.relevant(split, queries), self._given.get(split, ("", {}))
        known = set(self.data.collection.documents["id"][:]) if self.data.add_relevant else set()
        every = zip(queries["id"][:], self.terms(queries), strict=True)
        terms = {query: own for query, own in every if query not in named}
        depth, lists = depth or self.data.candidates, {}
        found = self.passage_map.search(
            [*terms],
            depth + self.data.drop_identical,
            lambda ids, k, among: self.bm25.search({q: terms[q] for q in ids}, k, among),
        )
        for query in queries["id"][:]:
            if (candidates := named.get(query)) is None:
                candidates = self.keep_hits(query, found.documents(query))[:depth]
            further = [document for document in relevant[query] if document in known]
            lists[query] = list(dict.fromkeys([*self.keep_hits(query, candidates), *further]))
        return lists

    @cached_property
    def _given(self) -> dict[str, tuple[str | Path, dict[str, list[str]]]]:
        """Test split → the file that names its candidates, and query id → the candidates.

        Raises:
            ValueError: `candidates_run` has no candidate for a query.
        """
        given, chosen = {}, self.data.candidates_run
        for split in self.test_splits:
            if (file := chosen or self.data.collection.candidates.get(split)) is None:
                continue
            ids = self.rerank_queries(split)["id"][:]
            candidates = read_candidates(file, ids, self.data.collection.documents["id"][:])
            given[split] = file, candidates
            if chosen and (missing := [query for query in ids if query not in candidates]):
                raise ValueError(
                    f"data.candidates_run={file}: {len(missing):,} of {len(ids):,} queries have no "
                    f"candidate in the collection, the first is {missing[0]!r}"
                )
        return given

    @property
    def candidates_from(self) -> dict[str, str]:
        """Test split → the source of its candidates, as a text for reports; reads the files."""
        sources = dict.fromkeys(self.test_splits, "BM25")
        for split, (file, named) in self._given.items():
            missing = len(self.rerank_queries(split)) - len(named)
            sources[split] = f"{file}; {missing:,} queries from BM25" if missing else str(file)
        return sources

    def choose_validation(self, **read: Any) -> ValidationSet:
        """Chooses what every validation searches; see `data_modules.validation`."""
        return choose_validation(self.data, **read)

    def keep_hits(self, query: str, documents: Iterable[str]) -> list[str]:
        """Returns the documents; `drop_identical` removes the one with the query's own id."""
        return [
            document
            for document in documents
            if not (self.data.drop_identical and document == query)
        ]

    def test_pairs(
        self,
        split: str,
        limit: int,
        batch_size: int = 16,
        covers: Callable[[int], bool] = lambda row: True,
    ) -> tuple[list[tuple[str, str]], list[PairBatch]]:
        """Returns at most `limit` pairs of a test query and a relevant document, for analysis.

        Of a document with passages, BM25's best for the query stands for it.

        Args:
            covers: tells whether the system knows the document of a row; other pairs are left out.

        Returns:
            The (query id, document id) of each pair, and the pairs in batches of `batch_size`.
        """
        queries = sample_rows(self.test_queries(split), limit)
        rows, _ = self.relevant_pairs(split, queries)
        names, items, chosen = [], [], rows.select(range(min(limit, len(rows))))
        for row in chosen:
            if not covers(row["document_row"]):
                continue
            query, document = queries[row["query_row"]], self.data.documents[row["document_row"]]
            names.append((query["id"], document["id"]))
            source = self.data.template.read_query(query["tokens"], self.data.query_length)
            target = self.data.template.read_document(document["tokens"], self.data.document_length)
            items.append(Example(source, [target], row["document_row"]))
        if left_out := len(chosen) - len(items):
            print(f"{left_out:,} of {len(chosen):,} pairs of {split} are left out: no identifier")
        starts = range(0, len(items), batch_size)
        return names, [collate(items[start : start + batch_size]) for start in starts]

    @cached_property
    def bm25(self) -> InvertedLists:
        """BM25 over the joined fields of all documents, the source of candidates."""
        documents = self.data.documents
        return count_terms(documents["id"][:], self.terms(documents)).bm25()

    def terms(self, table: Dataset) -> Iterator[list[Hashable]]:
        """Yields the terms of texts; in a run of words, their tokens are the terms."""
        analyzer = self.data.analyzer
        if isinstance(self.data.tokenizer, WordTokenizer):
            return keep_terms(table["tokens"], analyzer.language)
        return map(analyzer.terms, table["text"])

    def count_cut_texts(self) -> dict[str, int]:
        """Counts the queries and the documents that are cut to their maximum length."""
        splits = dict.fromkeys(filter(None, (self.data.train_split, *self.test_splits)))
        lengths = [TokenColumn(self.data.queries(split)).lengths for split in splits]
        queries = np.concatenate([*lengths, np.array([], np.int64)])
        queries += len(self.data.template.read_query((), 0))
        documents = TokenColumn(self.data.documents).lengths + len(
            self.data.template.read_document((), 0)
        )
        return {
            "queries": int((queries > self.data.query_length).sum()),
            "documents": int((documents > self.data.document_length).sum()),
        }


def split_names(named: str | Sequence[str] | None) -> list[str]:
    """Turns one name of a split, a list of names, or None into a list."""
    return [named] if isinstance(named, str) else list(named or [])
