"""Planned search: scores of whole documents guide which prefixes a beam keeps (PAG, Zeng 2024).

The bonus of a prefix is weight · the maximum score of the documents below it in the trie. It
changes the hypotheses that a beam keeps but no log-probability, so search, reranking and `score`
still agree. PAG's own model scores the documents at once; here a finished run does.
"""

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gr_mvdr.decoding.trie import Trie
from gr_mvdr.evaluation.ranking import SearchCosts
from gr_mvdr.files import temporary_folder
from gr_mvdr.measures import Measured, costs
from gr_mvdr.options import NonNegative, Size, Text, part
from gr_mvdr.texts import TextTable
from models.base import Table
from models.rerank_pipeline import Stage


class SearchPlan:
    """Computes the bonus of every prefix, once for each query, from the scores of all documents.

    Attributes:
        weight: the weight of the bonus; 0 = a search without a plan.
        candidates: only this many best documents, and ties with the last, can be retrieved; None =
            all.
        n_bytes: the size of the run's index, after `index`.
        costs: running totals of all searches; assign a new `SearchCosts()` to start at zero.
    """

    n_bytes = 0

    def __init__(self, run: str, weight: float, candidates: int | None):
        """
        Args:
            run: the folder of a finished run of any system that retrieves, of the same collection.

        Raises:
            FileNotFoundError: no such folder; ValueError: the run is unfinished.
        """
        self.stage = Stage("model.search.plan.scores", run)
        self.weight, self.candidates, self.costs = weight, candidates, SearchCosts()

    def prepare(self, documents: Table) -> None:
        """Loads the run's model; see `System.prepare`."""
        self.stage.prepare(documents)

    def index(self, documents: Table, directory: Path) -> None:
        """Opens or builds the run's index.

        Raises:
            ValueError: the run is of another collection.
        """
        if self.stage.model is None:  # the system was opened, not prepared
            self.prepare(documents)
        run = self.stage.run
        run.check_index_owner(directory)
        run.open_index(self.stage.model, documents, temporary_folder("plan"))
        files = (run.path / "index").rglob("*")
        self.n_bytes = sum(path.stat().st_size for path in files if path.is_file())
        self.names, self.costs = documents["id"][:], SearchCosts()

    def bonus(
        self, queries: TextTable, trie: Trie, device: torch.device, weight: float | None = None
    ) -> Tensor | None:
        """Computes the bonus (nodes, B) of a trie's prefixes on the device; None = no weight.

        Args:
            queries: a table with `id`, `tokens` and, if known, `text`.
            weight: replaces the plan's own.
        """
        weight = self.weight if weight is None else weight
        if not weight:
            return None
        with self.costs.timed():
            scores = self.scores(queries, trie.documents, device).to(device)
            if self.candidates is not None and self.candidates < len(scores):
                least = scores.topk(self.candidates, dim=0).values[-1]
                scores = scores.masked_fill(scores < least, -torch.inf)
            bonus = trie.best_below(weight * scores)
        self.costs.add(len(scores) * len(queries), 0, 0.0, len(queries))
        return bonus

    def scores(self, queries: TextTable, rows: np.ndarray, device: torch.device) -> Tensor:
        """Computes the scores (D, B) of the documents `rows` (D,); −inf = not a candidate."""
        self.stage.model.to(device)
        names = [self.names[row] for row in rows.tolist()]
        asked = min(self.candidates or len(names), len(names))
        among = names if len(names) < len(self.names) else None
        # Rows of the table, which may be passages, whatever `passages` the model was given.
        ranking = self.stage.model._retrieve(queries, asked, among, with_shares=False)
        columns = []
        for query in queries["id"]:
            retrieved = ranking.scores(query)
            # A document that a lexical search omits shares no word: 0, or the lowest negative.
            lowest = min([0.0, *retrieved.values()]) if len(retrieved) < asked else -math.inf
            columns.append([retrieved.get(name, lowest) for name in names])
        return torch.tensor(columns).T

    def statistics(self) -> list[Measured]:
        """Returns the plan's mean costs per query; empty before the first query."""
        if not (queries := self.costs.queries):
            return []
        means = {"plan_ms": 1000 * self.costs.seconds / queries}
        means |= {"plan_documents": self.costs.candidates / queries, "plan_bytes": self.n_bytes}
        return costs(means)


@part("plan")
def make_plan(
    scores: Text | None, weight: NonNegative = 1.0, candidates: Size | None = None
) -> SearchPlan:
    """Makes the plan that `model.search.plan` describes.

    Args:
        scores: a finished run's folder; None = no plan, and nothing calls this.
        weight, candidates: see `SearchPlan`.

    Raises:
        FileNotFoundError, ValueError: the folder holds no finished run.
    """
    return SearchPlan(scores, weight, candidates)
