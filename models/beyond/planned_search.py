"""Planned search: documents scored at once say which prefixes are worth keeping (PAG, Zeng 2024).

A prefix gets the bonus weight · max score of the documents below it in the trie. It changes what a
beam keeps and no log-probability, so that search, reranking and `score` still give one number.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gr_mvdr.decoding.trie import Trie
from gr_mvdr.files import temporary_folder
from gr_mvdr.heads.plain import Head
from gr_mvdr.options import NonNegative, Size, Text, part
from gr_mvdr.texts import TextTable
from gr_mvdr.token_index.costs import SearchCosts
from models.base import Table
from models.rerank_pipeline import Stage

FIRST_STEP = "first_step"
_KEY = "model.search.plan"


class SearchPlan:
    """The bonus of every prefix, once a query, from scores of all documents.

    A subclass defines `prepare` and `index`, called before training and with the collection, and
    `scores(queries, first, rows)` → (D, B) of the documents `rows` (D,), on the device of `first`
    (B, V), the first step's log-probabilities. A document that is no candidate may have −inf.

    Attributes:
        weight: of the bonus; 0 = the search without a plan. candidates: only this many best
            documents, and ties with the last, can be retrieved; None = all.
        n_bytes: of the scorer's index, after `index`.
    """

    scores: Callable[..., Tensor]
    n_bytes = 0

    def __init__(self, weight: float, candidates: int | None):
        self.weight, self.candidates = weight, candidates
        self.restart()

    def restart(self) -> None:
        """Sets the costs to zero."""
        self.costs = SearchCosts()

    def guide(
        self, queries: TextTable, trie: Trie, weight: float | None = None
    ) -> Callable[[Tensor], Tensor] | None:
        """The `plan` of a beam search in a trie; None where the weight is 0.

        Args:
            queries: a table with `id`, `tokens` and, where it is known, `text`.
            weight: replaces the plan's own.
        """
        weight = self.weight if weight is None else weight
        return (lambda first: self._bonus(queries, trie, weight, first)) if weight else None

    def _bonus(self, queries: TextTable, trie: Trie, weight: float, first: Tensor) -> Tensor:
        """(nodes, B)."""
        with self.costs.timed():
            scores = self.scores(queries, first, trie.documents)
            if self.candidates is not None and self.candidates < len(scores):
                least = scores.topk(self.candidates, dim=0).values[-1]
                scores = scores.masked_fill(scores < least, -torch.inf)
            bonus = trie.best_below(weight * scores)
        self.costs.add(len(scores) * len(queries), 0, 0.0, len(queries))
        return bonus

    def statistics(self) -> dict[str, float]:
        """The plan's mean costs of a query; empty before the first query."""
        if not (queries := self.costs.queries):
            return {}
        means = {"ms": 1000 * self.costs.seconds, "documents": self.costs.candidates}
        metrics = {f"cost/plan_{name}": total / queries for name, total in means.items()}
        return metrics | {"cost/plan_bytes": float(self.n_bytes)}


class FirstStepPlan(SearchPlan):
    """Scores a document by the mean log-probability of its rarest terms at the first step.

    PAG sums weights ≥ 0 of a head of its own; a sum of log-probabilities would put short documents
    first.
    """

    def __init__(self, weight: float, candidates: int | None, terms: int):
        """
        Args:
            terms: tokens kept of a document, those of the highest IDF.
        """
        super().__init__(weight, candidates)
        self.terms = terms

    def prepare(self, system: Any, documents: Table, known: Sequence[int]) -> None:
        if type(system.head) is not Head or system.normalise != "vocabulary":
            rule = "must be a run's folder where the head has no row of a text's tokens"
            raise ValueError(f"{_KEY}.scores={FIRST_STEP}: {rule}")

    def index(self, documents: Table, directory: Path) -> None:
        self.bags, self.sizes = choose_terms(documents["tokens"][:], self.terms)
        self.n_bytes = self.bags.nbytes + self.sizes.nbytes

    def scores(self, queries: TextTable, first: Tensor, rows: np.ndarray) -> Tensor:
        self.bags, self.sizes = (x.to(first.device) for x in (self.bags, self.sizes))
        begins = self.sizes.cumsum(0) - self.sizes
        means = F.embedding_bag(self.bags, first.T.contiguous(), begins, mode="mean")
        # A document without text gets the query's lowest score.
        means = means.where(self.sizes.bool()[:, None], means.amin(0))
        return means[torch.tensor(rows).to(first.device)]


class RunPlan(SearchPlan):
    """Scores documents by a finished run of any system that retrieves."""

    def __init__(self, weight: float, candidates: int | None, run: str):
        """
        Args:
            run: the run's folder, of the same collection.

        Raises:
            FileNotFoundError: no such folder; ValueError: the run is unfinished.
        """
        super().__init__(weight, candidates)
        self.stage = Stage(f"{_KEY}.scores", run)
        self.run = self.stage.run

    def prepare(self, system: Any, documents: Table, known: Sequence[int]) -> None:
        self.stage.prepare(documents, known)

    def index(self, documents: Table, directory: Path) -> None:
        """Opens or makes the run's index; ValueError if the run is of another collection."""
        self.run.check_index_owner(directory)
        self.stage.index(documents, temporary_folder("plan"))
        files = (self.run.path / "index").rglob("*")
        self.n_bytes = sum(path.stat().st_size for path in files if path.is_file())
        self.names = documents["id"][:]

    def scores(self, queries: TextTable, first: Tensor, rows: np.ndarray) -> Tensor:
        self.stage.model.to(first.device)
        names = [self.names[row] for row in rows.tolist()]
        asked = min(self.candidates or len(names), len(names))
        among = names if len(names) < len(self.names) else None
        ranking = self.stage.model.retrieve(queries, asked, among)
        columns = []
        for query in queries["id"]:
            retrieved = ranking.scores(query)
            # What a lexical search leaves out shares no word: 0, or the last score below 0.
            lowest = min([0.0, *retrieved.values()]) if len(retrieved) < asked else -math.inf
            columns.append([retrieved.get(name, lowest) for name in names])
        return torch.tensor(columns).T.to(first.device)


@part("plan")
def make_plan(
    scores: Text | None,
    weight: NonNegative = 1.0,
    candidates: Size | None = None,
    terms: Size = 64,
) -> SearchPlan:
    """The plan of `model.search.plan`, whose options it takes.

    Args:
        scores: "first_step", or a finished run's folder; with None the configuration has no plan.
        weight, candidates: see `SearchPlan`; terms: see `FirstStepPlan`.

    Raises:
        FileNotFoundError, ValueError: the folder holds no finished run.
    """
    if scores == FIRST_STEP:
        return FirstStepPlan(weight, candidates, terms)
    return RunPlan(weight, candidates, scores)


def choose_terms(texts: Sequence[Sequence[int]], most: int) -> tuple[Tensor, Tensor]:
    """Each text's distinct tokens of the highest IDF; ties go to the smallest token.

    Returns:
        (terms,) int64, text after text; (texts,) int64 the number of terms of each text, ≤ `most`.
    """
    frequency = Counter(token for text in texts for token in {*text})  # of documents
    kept = [sorted({*text}, key=lambda token: (frequency[token], token))[:most] for text in texts]
    terms = torch.tensor([token for text in kept for token in text], dtype=torch.int64)
    return terms, torch.tensor([*map(len, kept)])
