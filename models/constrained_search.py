"""Search by constrained decoding: a beam generates names, and the names score documents (§4).

A search may be narrowed to some of the documents (`among`): then only their names can be generated.
Nothing in the system changes while it searches.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

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
from gr_mvdr.decoding.names import Names
from gr_mvdr.decoding.search_trace import (
    Continuation,
    SearchPath,
    SearchTrace,
    continue_prefix,
)
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.progress import track
from gr_mvdr.texts import TextTable
from models.base import Share, Shares, Table

_QUERY_BATCH = 16  # queries decoded at once


class ConstrainedSearch:
    """The search of a generative system whose documents are indexed."""

    def __init__(self, system: Any, names: Names, plan: Any = None):
        """
        Args:
            system: a `GenerativeSystem`, which makes the decoding steps.
            names: what may be generated, and which documents it names.
            plan: scores prefixes before a search (planned search); None = no plan.
        """
        self.system, self.names, self.plan = system, names, plan

    def retrieve(self, queries: Table, k: int = 100, **options: Any) -> Ranking:
        """The k best documents of each query.

        Args:
            options: of this search, in place of the system's own: `beam_size`, `plan_weight`.
        """
        searches = self._searches(queries, self.names, **options)
        return Ranking({query: self._by_id(scores) for query, _, _, scores in searches}).top(k)

    def retrieve_with_shares(
        self, queries: Table, k: int = 100, among: Sequence[str] | None = None
    ) -> tuple[Ranking, Shares]:
        """`retrieve`, and what made each score in that very search; see `System`.

        Raises:
            ValueError: an id of `among` is not an indexed document's.
        """
        results, shares = {}, {}
        names = self.narrow(among)
        for query, result, number, scores in self._searches(queries, names):
            best = Ranking({query: self._by_id(scores)}).top(k).scores(query)
            row = {self.system.document_ids[document]: document for document in scores}
            parts = names.shares(result, number, [row[name] for name in best]) if best else {}
            results[query] = best
            shares[query] = {name: [Share(*part) for part in parts[row[name]]] for name in best}
        return Ranking(results), shares

    def _by_id(self, scores: dict[int, float]) -> dict[str, float]:
        return {self.system.document_ids[document]: score for document, score in scores.items()}

    @torch.inference_mode()
    def _searches(
        self, queries: Table, names: Names | None, **options: Any
    ) -> Iterator[tuple[str, BeamSearchResult | None, int, dict[int, float]]]:
        """Of each query its id, the search it was in, its number there, and document → score."""
        self.system.eval()
        for start in track(range(0, len(queries), _QUERY_BATCH), "searching"):
            rows = queries[start : start + _QUERY_BATCH]
            result = None
            if names is not None:
                result = self.search(rows["tokens"], names, texts=rows["text"], **options)
            for number, query in enumerate(rows["id"]):
                scores = {} if names is None else names.scores(result, number)
                yield query, result, number, scores

    def narrow(self, among: Sequence[str] | None) -> Names | None:
        """The names of the documents of these ids, None = of all; None if none of them has a name.

        Raises:
            ValueError: an id is not an indexed document's.
        """
        if among is None:
            return self.names
        row = {name: number for number, name in enumerate(self.system.document_ids)}
        for name in among:
            if name not in row:
                raise ValueError(f"among: {name!r} must be the id of an indexed document")
        numbers = frozenset(row[name] for name in among)
        return self.names.within(numbers) if any(map(self.system.covers, numbers)) else None

    # The search -----------------------------------------------------------------------------------

    def search(
        self,
        queries: Sequence[Sequence[int]],
        names: Names | None = None,
        texts: Sequence[str] | None = None,
        plan_weight: float | None = None,
        **options: Any,
    ) -> BeamSearchResult:
        """Beam search for queries, given as tokens.

        Args:
            names: what may be generated; None = all names.
            texts: the queries', which a plan may read; plan_weight: None = the plan's own.
            options: `beam_size`, `observer` and `wrap` of `beam`.
        """
        names = names or self.names
        sources = [self.system.prepare_query(query) for query in queries]
        if self.plan is not None:
            columns = dict(id=list(map(str, range(len(queries)))), tokens=queries, text=texts)
            table = TextTable({name: list(c) for name, c in columns.items() if c is not None})
            options["plan"] = self.plan.guide(table, names.constraint, plan_weight)
        return self.beam(sources, names.constraint, names.length, **options)

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
            sources: token ids as the encoder reads them; length: the most tokens of a hypothesis.
            beam_size: None = the system's own.
            observer: is shown every step; wrap: of the step function, to time it; plan: see there.
        """
        system = self.system
        ids, mask = (x.to(system.device) for x in pad(sources))
        return beam_search(
            wrap(system.decoding_step(ids, mask)),
            constraint,
            batch_size=len(sources),
            beam_size=beam_size or system.hparams.beam_size,
            length=length,
            end_token=system.template.stop,
            device=system.device,
            observer=observer,
            plan=plan,
        )

    # What a search did ----------------------------------------------------------------------------

    @torch.inference_mode()
    def explain(self, query: Sequence[int], document: int, text: str | None = None) -> SearchPath:
        """The search for a query, step by step, as seen from a document: where did the beam lose
        it, and to which hypotheses?

        T5-SEAL counts the n-grams of all steps: it may find a document that its beam lost.

        Args:
            query: token ids; document: the document's number; text: the query's, for a plan.

        Raises:
            ValueError: the query is empty, or the document does not exist or has no identifier.
        """
        system, names = self.system, self.names
        _check_query(query)
        if not 0 <= document < len(system.document_ids):
            raise ValueError(f"document={document}: must be ≥ 0 and < {len(system.document_ids)}")
        gold = names.gold_prefixes(document) if system.covers(document) else set()
        if not gold:
            name = system.document_ids[document]
            raise ValueError(f"document {name!r} has no identifier: no search can find it")
        trace = SearchTrace(gold, system.template.stop)
        texts = None if text is None else [text]
        system.eval()
        watched = dict(observer=trace.observe, wrap=trace.timed)
        result = self.search([query], texts=texts, **watched)
        return trace.path(result, names.documents_of, system.document_ids)

    @torch.inference_mode()
    def continuations(
        self, query: Sequence[int], prefix: Sequence[int] = (), k: int = 10
    ) -> list[Continuation]:
        """The most probable tokens after a prefix, and which of them the constraint allows.

        Args:
            query, prefix: token ids; k: see `continue_prefix`.

        Returns:
            [] after the end of an identifier.

        Raises:
            ValueError: the query is empty, or no search can generate the prefix.
        """
        system = self.system
        _check_query(query)
        if len(prefix) >= self.names.length:
            return []
        ids, mask = (x.to(system.device) for x in pad([system.prepare_query(query)]))
        step = system.eval().decoding_step(ids, mask)
        names, ids = self.names.constraint, system.document_ids
        return continue_prefix(step, names, prefix, k, ids, system.device)


def search_of(system: Any) -> ConstrainedSearch:
    """The search of a generative system.

    Raises:
        ValueError: it generates no identifiers, or no documents are indexed.
    """
    if getattr(system, "generates", "") != "document":
        raise ValueError(f"system={type(system).__name__}: its search generates no identifiers")
    if system.searcher is None:
        raise ValueError(f"system={type(system).__name__}: index the documents first")
    return system.searcher


def _check_query(query: Sequence[int]) -> None:
    if not len(query):
        raise ValueError("query: must have at least one token, it is empty")
