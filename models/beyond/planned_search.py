"""Planned search: scores of whole documents guide which prefixes a beam keeps (PAG, Zeng 2024).

The bonus of a prefix is weight · the maximum score of the documents below it in the trie. It
changes the hypotheses that a beam keeps but no log-probability, so search, reranking and `score`
still agree.
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
    """Computes the bonus of every prefix, once for each query, from the scores of all documents.

    A subclass defines `prepare`, called before training; `index`, called with the collection; and
    `scores(queries, first, rows)` → (D, B), the scores of the documents `rows` (D,) on the device
    of `first` (B, V), the first step's log-probabilities. A document that is not a candidate may
    have −inf.

    Attributes:
        weight: the weight of the bonus; 0 = a search without a plan.
        candidates: only this many best documents, and ties with the last, can be retrieved; None =
            all.
        n_bytes: the size of the scorer's index, after `index`.
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
        """Returns the `plan` of a beam search in a trie; None if the weight is 0.

        Args:
            queries: a table with `id`, `tokens` and, if known, `text`.
            weight: replaces the plan's own.
        """
        weight = self.weight if weight is None else weight
        return (lambda first: self._bonus(queries, trie, weight, first)) if weight else None

    def _bonus(self, queries: TextTable, trie: Trie, weight: float, first: Tensor) -> Tensor:
        """Computes the bonus (nodes, B)."""
        with self.costs.timed():
            scores = self.scores(queries, first, trie.documents)
            if self.candidates is not None and self.candidates < len(scores):
                least = scores.topk(self.candidates, dim=0).values[-1]
                scores = scores.masked_fill(scores < least, -torch.inf)
            bonus = trie.best_below(weight * scores)
        self.costs.add(len(scores) * len(queries), 0, 0.0, len(queries))
        return bonus

    def statistics(self) -> dict[str, float]:
        """Returns the plan's mean costs per query; empty before the first query."""
        if not (queries := self.costs.queries):
            return {}
        means = {"ms": 1000 * self.costs.seconds, "documents": self.costs.candidates}
        metrics = {f"cost/plan_{name}": total / queries for name, total in means.items()}
        return metrics | {"cost/plan_bytes": float(self.n_bytes)}


class FirstStepPlan(SearchPlan):
    """Scores a document by the mean log-probability of its rarest terms at the first step.

    PAG sums non-negative weights of a separate head; here a sum of log-probabilities would favour
    short documents.
    """

    def __init__(self, weight: float, candidates: int | None, terms: int):
        """
        Args:
            terms: the number of a document's tokens that are kept, those with the highest IDF.
        """
        super().__init__(weight, candidates)
        self.terms = terms

    def prepare(self, system: Any, documents: Table, known: Sequence[int]) -> None:
        if type(system.head) is not Head:
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
        """Opens or builds the run's index.

        Raises:
            ValueError: the run is of another collection.
        """
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
            # A document that a lexical search omits shares no word: 0, or the lowest negative.
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
    """Makes the plan that `model.search.plan` describes.

    Args:
        scores: "first_step", or a finished run's folder; None = no plan, and nothing calls this.
        weight, candidates: see `SearchPlan`.
        terms: see `FirstStepPlan`.

    Raises:
        FileNotFoundError, ValueError: the folder holds no finished run.
    """
    if scores == FIRST_STEP:
        return FirstStepPlan(weight, candidates, terms)
    return RunPlan(weight, candidates, scores)


def choose_terms(texts: Sequence[Sequence[int]], most: int) -> tuple[Tensor, Tensor]:
    """Chooses each text's distinct tokens with the highest IDF; ties go to the smallest token.

    Returns:
        (terms,) int64, ordered by text; (texts,) int64, the number of each text's terms, ≤ `most`.
    """
    frequency = Counter(token for text in texts for token in {*text})  # of documents
    kept = [sorted({*text}, key=lambda token: (frequency[token], token))[:most] for text in texts]
    terms = torch.tensor([token for text in kept for token in text], dtype=torch.int64)
    return terms, torch.tensor([*map(len, kept)])
