"""Planned search: documents scored at once say which prefixes are worth keeping (PAG, Zeng 2024).

A prefix gets the bonus weight · max score of the documents below it in the trie. It changes what a
beam keeps and no log-probability, so that search, reranking and `score` still give one number.
"""

import time
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
from gr_mvdr.run_files import PROVENANCE, read_provenance
from gr_mvdr.texts import TextTable
from models.base import Table
from models.rerank_pipeline import Stage

FIRST_STEP = "first_step"
_KEY = "model.search.plan"


class SearchPlan:
    """The bonus of every prefix, once a query, from scores of all documents.

    Attributes:
        weight: of the bonus; 0 = the search without a plan. candidates: only this many best
            documents, and ties with the last, can be retrieved; None = all.
    """

    def __init__(self, weight: float, candidates: int | None):
        self.weight, self.candidates = weight, candidates
        self.restart()

    def restart(self) -> None:
        """Sets the costs to zero."""
        self.queries, self.documents, self.seconds = 0, 0, 0.0

    def prepare(self, system: Any, documents: Table, known: Sequence[int]) -> None:
        """Prepares the scorer before training; see `System.prepare`.

        Raises:
            ValueError: this system or these documents cannot be planned.
        """
        raise NotImplementedError

    def index(self, documents: Table, directory: Path) -> None:
        """Indexes the scorer; `directory`: of the system's own index."""
        raise NotImplementedError

    def scores(self, queries: TextTable, first: Tensor, rows: np.ndarray) -> Tensor:
        """(D, B) scores of the documents `rows` (D,), on the device of `first`.

        Args:
            first: (B, V) the first step's log-probabilities.

        Returns:
            A document that is no candidate may have −inf.
        """
        raise NotImplementedError

    @property
    def n_bytes(self) -> int:
        """Bytes of the scorer's index."""
        raise NotImplementedError

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
        start = time.perf_counter()
        scores = self.scores(queries, first, trie.documents)
        if self.candidates is not None and self.candidates < len(scores):
            least = scores.topk(self.candidates, dim=0).values[-1]
            scores = scores.masked_fill(scores < least, -torch.inf)
        bonus = trie.best_below(weight * scores)
        self.queries, self.documents = self.queries + len(queries), len(scores)
        self.seconds += time.perf_counter() - start
        return bonus

    def statistics(self) -> dict[str, float]:
        """The plan's mean costs of a query; empty before the first query."""
        if not self.queries:
            return {}
        return {
            "cost/plan_ms": 1000 * self.seconds / self.queries,
            "cost/plan_documents": float(self.documents),
            "cost/plan_bytes": float(self.n_bytes),
        }


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
            raise ValueError(
                f"{_KEY}.scores={FIRST_STEP}: must be a run's folder under head=pawa, "
                "head=non_parametric and model.search.normalise=reachable, whose tables hold the "
                "identifiers' tokens alone"
            )

    def index(self, documents: Table, directory: Path) -> None:
        self.bags, self.sizes = choose_terms(documents["tokens"][:], self.terms)

    def scores(self, queries: TextTable, first: Tensor, rows: np.ndarray) -> Tensor:
        self.bags, self.sizes = (x.to(first.device) for x in (self.bags, self.sizes))
        begins = self.sizes.cumsum(0) - self.sizes
        means = F.embedding_bag(self.bags, first.T.contiguous(), begins, mode="mean")
        # A document without text gets the query's lowest score.
        means = means.where(self.sizes.bool()[:, None], means.amin(0))
        return means[torch.tensor(rows).to(first.device)]

    @property
    def n_bytes(self) -> int:
        return self.bags.nbytes + self.sizes.nbytes


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
        own = directory.with_name(PROVENANCE)
        if own.is_file():
            self.run.check_collection(read_provenance(own.parent), "this run")
        self.stage.index(documents, temporary_folder("plan"))
        self.names = documents["id"][:]
        self.row = {name: row for row, name in enumerate(self.names)}

    def scores(self, queries: TextTable, first: Tensor, rows: np.ndarray) -> Tensor:
        if self.stage.words is not None and "text" not in queries.columns:
            raise ValueError(f"{self.run.key}: reads words, must be given the queries' texts")
        self.stage.model.to(first.device)
        among = None if len(rows) == len(self.names) else [self.names[n] for n in rows.tolist()]
        asked = min(self.candidates or len(rows), len(rows))
        ranking = self.stage.retrieve(queries, asked, among)
        scores = torch.full((len(queries), len(self.names)), -torch.inf)
        for number, name in enumerate(queries["id"]):
            retrieved = ranking.scores(name)
            # What a lexical search leaves out shares no word: 0, or the last score below 0.
            if len(retrieved) < asked:
                scores[number] = min([0.0, *retrieved.values()])
            where = torch.tensor([self.row[document] for document in retrieved], dtype=torch.int64)
            scores[number, where] = torch.tensor(list(retrieved.values()), dtype=scores.dtype)
        return scores.T[torch.tensor(rows)].to(first.device)

    @property
    def n_bytes(self) -> int:
        files = (self.run.path / "index").rglob("*")
        return sum(path.stat().st_size for path in files if path.is_file())


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
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    tokens = np.array([token for text in texts for token in text], dtype=np.int64)
    pairs = np.unique(np.stack([np.repeat(np.arange(len(texts)), lengths), tokens]), axis=1)
    frequency = np.bincount(pairs[1])[pairs[1]]  # of documents
    text, term = pairs[:, np.lexsort((pairs[1], frequency, pairs[0]))]
    counts = np.bincount(text, minlength=len(texts))
    kept = np.arange(len(text)) - np.repeat(np.cumsum(counts) - counts, counts) < most
    return torch.from_numpy(term[kept]), torch.from_numpy(np.minimum(counts, most))
