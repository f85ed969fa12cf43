"""Search by constrained decoding: identifiers are generated, and documents are what they name (§4).

A search may be narrowed to some of the documents (`among`): then only their identifiers can be
generated. Nothing in the system changes while it searches.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gr_mvdr.batch import pad
from gr_mvdr.decoding.beam_search import (
    BeamSearchResult,
    Constraint,
    Observer,
    Step,
    beam_search,
)
from gr_mvdr.decoding.decoding_step import DecodingStep
from gr_mvdr.decoding.search_trace import (
    Continuation,
    SearchPath,
    SearchTrace,
    continue_prefix,
)
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.files import temporary_folder
from gr_mvdr.progress import track
from gr_mvdr.texts import TextTable
from models.base import Share, Shares, Table
from models.generative import GenerativeSystem

_QUERY_BATCH = 16  # queries decoded at once
_EXAMPLES = 10  # documents that are listed of those that a generated sequence names


@dataclass(frozen=True)
class Scope:
    """What one search can find.

    Attributes:
        constraint: what may be generated; length: tokens of it at most.
        documents: the numbers of the documents that may be found; None = all.
    """

    constraint: Constraint
    length: int
    documents: frozenset[int] | None = None


class ConstrainedSearch(GenerativeSystem):
    """A generative system that searches by constrained beam search: `Docid`, `T5SEAL`.

    A subclass says what its identifiers are: `whole` and `within`, `documents_of` and `shares_of`,
    `named_documents` and `gold_prefixes`.
    """

    plan: Any = None  # scores prefixes before a search (planned search); None = no plan
    targets_are_ngrams = False  # any n-gram of `target_source`, or the whole of it

    def retrieve(self, queries: Table, k: int = 100, **options: Any) -> Ranking:
        """Constrained beam search, then from what was generated to documents.

        Args:
            options: of this search, in place of the system's own: `beam_size`, `plan_weight`.
        """
        found = self._searches(queries, None, **options)
        return Ranking({query: self._named(scores) for query, _, _, scores in found}).top(k)

    def retrieve_with_shares(
        self, queries: Table, k: int = 100, among: Sequence[str] | None = None
    ) -> tuple[Ranking, Shares]:
        """`retrieve`, and what made each score in that very search; see `System`.

        Raises:
            ValueError: an id of `among` is no document's.
        """
        results, shares = {}, {}
        for query, result, number, scores in self._searches(queries, among):
            best = Ranking({query: self._named(scores)}).top(k).scores(query)
            row = {self.document_ids[document]: document for document in scores}
            parts = self.shares_of(result, number, [row[name] for name in best]) if best else {}
            results[query], shares[query] = best, {name: parts[row[name]] for name in best}
        return Ranking(results), shares

    def _named(self, scores: dict[int, float]) -> dict[str, float]:
        return {self.document_ids[document]: score for document, score in scores.items()}

    @torch.inference_mode()
    def _searches(
        self, queries: Table, among: Sequence[str] | None, **options: Any
    ) -> Iterator[tuple[str, BeamSearchResult | None, int, dict[int, float]]]:
        """Of each query its id, the search it was in, its number there, and document → score."""
        scope = self.scope(among)
        self.eval()
        for start in track(range(0, len(queries), _QUERY_BATCH), "searching"):
            rows = queries[start : start + _QUERY_BATCH]
            result = None
            if scope is not None:
                result = self.search(rows["tokens"], scope, texts=rows["text"], **options)
            for number, query in enumerate(rows["id"]):
                scores = {} if result is None else self.documents_of(result, number, scope)
                yield query, result, number, scores

    # What can be found ----------------------------------------------------------------------------

    def scope(self, among: Sequence[str] | None = None) -> Scope | None:
        """What a search can find: all documents, or those of these ids; None if that is nothing.

        Raises:
            ValueError: nothing is indexed, or an id of `among` is no document's.
        """
        if self.searcher is None:
            raise ValueError(f"system={type(self).__name__}: index the documents first")
        if among is None:
            return self.whole()
        row = {name: number for number, name in enumerate(self.document_ids)}
        for name in among:
            if name not in row:
                raise ValueError(f"among: {name!r} must be the id of an indexed document")
        numbers = frozenset(row[name] for name in among)
        return self.within(numbers) if any(map(self.covers, numbers)) else None

    def whole(self) -> Scope:
        """A search for all documents."""
        return Scope(self.searcher, self.search_length)

    def within(self, documents: frozenset[int]) -> Scope:
        """A search for some documents alone, of which one or more can be found."""
        raise NotImplementedError

    # The search -----------------------------------------------------------------------------------

    def search(
        self,
        queries: Sequence[Sequence[int]],
        scope: Scope | None = None,
        texts: Sequence[str] | None = None,
        plan_weight: float | None = None,
        **options: Any,
    ) -> BeamSearchResult:
        """Beam search for queries, given as tokens.

        Args:
            texts: the queries', which a plan may read; plan_weight: None = the plan's own.
            options: `beam_size`, `observer` and `wrap` of `beam`.
        """
        sources, scope = [self.prepare_query(query) for query in queries], scope or self.whole()
        if self.plan is not None:
            columns = dict(id=list(map(str, range(len(queries)))), tokens=queries, text=texts)
            table = TextTable({name: list(c) for name, c in columns.items() if c is not None})
            options["plan"] = self.plan.guide(table, scope.constraint, plan_weight)
        return self.beam(sources, scope.constraint, scope.length, **options)

    def beam(
        self,
        sources: Sequence[Sequence[int]],
        constraint: Constraint,
        length: int,
        beam_size: int | None = None,
        observer: Observer | None = None,
        wrap: Callable[[Step], Step] = lambda step: step,
        plan: Callable[[Tensor], Tensor] | None = None,
    ) -> BeamSearchResult:
        """Beam search within a constraint; see `gr_mvdr.decoding.beam_search`.

        Args:
            sources: token ids as the encoder reads them; length: tokens a hypothesis at most.
            beam_size: None = the system's own.
            observer: sees every step; wrap: of the step function, to time it; plan: see there.
        """
        ids, mask = (x.to(self.device) for x in pad(sources))
        return beam_search(
            wrap(self.decoding_step(ids, mask)),
            constraint,
            batch_size=len(sources),
            beam_size=beam_size or self.hparams.beam_size,
            length=length,
            end_token=self.template.stop,
            device=self.device,
            observer=observer,
            plan=plan,
        )

    def decoding_step(self, query_ids: Tensor, query_mask: Tensor) -> DecodingStep:
        """The step function of the search for queries (B, N)."""
        return DecodingStep(self.head, self.encode(query_ids, query_mask), query_mask)

    def documents_of(
        self, found: BeamSearchResult, number: int, scope: Scope | None = None
    ) -> dict[int, float]:
        """Document number → score, for query `number` of a search; scope: that it was made in."""
        raise NotImplementedError

    def shares_of(
        self, found: BeamSearchResult, number: int, documents: Sequence[int]
    ) -> dict[int, list[Share]]:
        """What made the scores of documents that query `number` of a search found."""
        raise NotImplementedError

    def named_documents(self, tokens: Sequence[int]) -> np.ndarray:
        """(n,) int64, the numbers of the documents that a generated sequence names."""
        raise NotImplementedError

    def is_identifier(self, tokens: Sequence[int]) -> bool:
        """Whether a generated sequence names a document."""
        return len(self.named_documents(tokens)) > 0

    def gold_prefixes(self, document: int) -> set[tuple[int, ...]]:
        """Every token sequence that a search may hold on its way to a document."""
        raise NotImplementedError

    def score_all(self, queries: Sequence[Sequence[int]]) -> Tensor | None:
        """(documents, queries) log p(identifier | query); None where it cannot be had."""
        return None

    def target_source(self, document: int) -> list[int]:
        """The tokens that the document's targets are cut from."""
        raise NotImplementedError

    # What a search did ----------------------------------------------------------------------------

    @torch.inference_mode()
    def explain_search(
        self, query: Sequence[int], document: int, text: str | None = None
    ) -> SearchPath:
        """The search for a query, step by step, seen from a document: where was it lost, to what?

        T5-SEAL counts the keys of all steps: a document that is lost may be found all the same.

        Args:
            query: token ids; document: the document's number; text: the query's, for a plan.

        Raises:
            ValueError: the query is empty, there is no such document, or it has no identifier.
        """
        self._check_query(query)
        if not 0 <= document < len(self.document_ids):
            raise ValueError(f"document={document}: must be ≥ 0 and < {len(self.document_ids)}")
        gold = self.gold_prefixes(document) if self.covers(document) else set()
        if not gold:
            name = self.document_ids[document]
            raise ValueError(f"document {name!r} has no identifier: no search can find it")
        trace = SearchTrace(gold, self.template.stop)
        texts = None if text is None else [text]
        watched = dict(observer=trace.observe, wrap=trace.timed)
        result = self.eval().search([query], texts=texts, **watched)
        return trace.path(result, self.named_documents, _EXAMPLES)

    @torch.inference_mode()
    def continuations(
        self, query: Sequence[int], prefix: Sequence[int] = (), k: int = 10
    ) -> list[Continuation]:
        """What the model would write after a prefix, and what of it the constraint allows.

        Args:
            query, prefix: token ids; k: see `continue_prefix`.

        Returns:
            The most probable tokens; none after the end of an identifier.

        Raises:
            ValueError: the query is empty, or no search can generate the prefix.
        """
        self._check_query(query)
        if len(prefix) >= self.search_length:
            return []
        ids, mask = (x.to(self.device) for x in pad([self.prepare_query(query)]))
        step = self.eval().decoding_step(ids, mask)
        return continue_prefix(step, self.searcher, prefix, k, self.device)

    def _check_query(self, query: Sequence[int]) -> None:
        self.scope()  # refuses a search without an index
        if not len(query):
            raise ValueError("query: must have at least one token, it is empty")


def clear_index_folder(directory: str | Path | None, *parts: str) -> Path:
    """Where an index is kept, None = a temporary folder; what lies there of `parts` is removed."""
    directory = Path(directory or temporary_folder("index"))
    for part in parts:
        shutil.rmtree(directory / part, ignore_errors=True)
    return directory
