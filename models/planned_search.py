"""Planned search: documents scored at once say which prefixes are worth keeping (PAG, Zeng 2024).

A prefix gets the bonus weight · max score of the documents below it in the trie. It changes what a
beam keeps and no log-probability, so that search, reranking and `score` still give one number.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gr_mvdr.decoding.trie import Trie
from gr_mvdr.files import temporary_folder
from gr_mvdr.heads.plain import Head
from gr_mvdr.identifiers.scheme import check_at_least, check_choice
from gr_mvdr.progress import quiet
from gr_mvdr.run_files import PROVENANCE, read_provenance
from gr_mvdr.texts import TextTable
from models.base import Table
from models.finished_run import FinishedRun
from models.rerank_pipeline import Stage

FIRST_STEP = "first_step"
_KEY = "model.search.plan"
_KEYS = ("scores", "weight", "candidates", "terms")


class SearchPlan:
    """The bonus of every prefix, once a query, from scores of all documents.

    Attributes:
        weight: of the bonus; 0 = today's search. candidates: only so many best documents, and those
            that tie with the last, can be found; None = all.
    """

    def __init__(self, weight: float, candidates: int | None):
        self.weight, self.candidates = weight, candidates
        self.restart()

    def restart(self) -> None:
        """Counts costs from here on."""
        self.queries, self.documents, self.seconds = 0, 0, 0.0

    def prepare(self, system: Any, documents: Table, known: Sequence[int]) -> None:
        """What must be known before training; see `System.prepare`. `system`: whose search it is.

        Raises:
            ValueError: it is impossible for this system, or for these documents.
        """
        raise NotImplementedError

    def index(self, documents: Table, directory: Path) -> None:
        """What scores documents; `directory`: of the system's own index."""
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
        """Of what scores documents."""
        raise NotImplementedError

    def guide(
        self, queries: TextTable, trie: Trie, weight: float | None = None
    ) -> Callable[[Tensor], Tensor] | None:
        """The `plan` of a beam search in a trie; None where the weight is 0.

        Args:
            queries: a table with `id`, `tokens` and, where it is known, `text`.
            weight: in place of the plan's own.
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
        """What a plan costs a query; nothing before the first."""
        if not self.queries:
            return {}
        return {
            "cost/plan_ms": 1000 * self.seconds / self.queries,
            "cost/plan_documents": float(self.documents),
            "cost/plan_bytes": float(self.n_bytes),
        }


class FirstStepPlan(SearchPlan):
    """The mean log-probability, at the first step, of a document's most telling terms.

    PAG sums weights ≥ 0 of a head of its own; a sum of log-probabilities would put short documents
    first.
    """

    def __init__(self, weight: float, candidates: int | None, terms: int):
        """
        Args:
            terms: kept of a document's set of tokens, those of the highest IDF.
        """
        super().__init__(weight, candidates)
        self.terms = terms

    def prepare(self, system: Any, documents: Table, known: Sequence[int]) -> None:
        if type(system.head) is not Head or system.normalise != "vocabulary":
            raise ValueError(
                f"{_KEY}.scores={FIRST_STEP}: must be a run's folder under head=pawa, "
                "head=non_parametric and model.search.normalise=reachable, whose rows are of the "
                "identifiers' tokens alone"
            )

    def index(self, documents: Table, directory: Path) -> None:
        self.bags, self.sizes = choose_terms(documents["tokens"][:], self.terms)

    def scores(self, queries: TextTable, first: Tensor, rows: np.ndarray) -> Tensor:
        self.bags, self.sizes = (x.to(first.device) for x in (self.bags, self.sizes))
        begins = self.sizes.cumsum(0) - self.sizes
        found = F.embedding_bag(self.bags, first.T.contiguous(), begins, mode="mean")
        # One without any text has the lowest of the query's own, whoever is in the batch.
        found = found.where(self.sizes.bool()[:, None], found.amin(0))
        return found[torch.tensor(rows).to(first.device)]

    @property
    def n_bytes(self) -> int:
        return self.bags.nbytes + self.sizes.nbytes


class RunPlan(SearchPlan):
    """The scores of a finished run: BM25, DPR, a learned sparse system, any that retrieves."""

    def __init__(self, weight: float, candidates: int | None, run: str):
        """
        Args:
            run: the run's folder, of the same collection.

        Raises:
            FileNotFoundError: no such folder; ValueError: the run in it is unfinished.
        """
        super().__init__(weight, candidates)
        self.run = FinishedRun.read(f"{_KEY}.scores", run)

    def prepare(self, system: Any, documents: Table, known: Sequence[int]) -> None:
        self.stage = Stage(self.run, "plan", documents, known)

    def index(self, documents: Table, directory: Path) -> None:
        """Opens the run's index, or makes one; refuses a run of another collection (ValueError)."""
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
        with quiet():
            ranking = self.stage.retrieve(queries, asked, among)
        scores = torch.full((len(queries), len(self.names)), -torch.inf)
        for number, name in enumerate(queries["id"]):
            found = ranking.scores(name)
            # What a lexical search does not find has no word of the query: 0, at most the last.
            if len(found) < asked:
                scores[number] = min([0.0, *found.values()])
            where = torch.tensor([self.row[document] for document in found], dtype=torch.int64)
            scores[number, where] = torch.tensor(list(found.values()), dtype=scores.dtype)
        return scores.T[torch.tensor(rows)].to(first.device)

    @property
    def n_bytes(self) -> int:
        files = (self.run.path / "index").rglob("*")
        return sum(path.stat().st_size for path in files if path.is_file())


def make_plan(settings: Mapping[str, Any] | None) -> SearchPlan | None:
    """The plan of `model.search.plan`; None = the search is not planned.

    Raises:
        FileNotFoundError, ValueError: a value is impossible, or no finished run is there.
    """
    settings = settings or {}
    for key in settings:
        check_choice(_KEY, key, _KEYS)
    weight, candidates = settings.get("weight", 1.0), settings.get("candidates")
    terms, scores = settings.get("terms", 64), settings.get("scores")
    check_at_least(f"{_KEY}.weight", weight, 0)
    check_at_least(f"{_KEY}.candidates", 1 if candidates is None else candidates, 1)
    check_at_least(f"{_KEY}.terms", terms, 1)
    if scores is None:
        return None
    if scores == FIRST_STEP:
        return FirstStepPlan(weight, candidates, terms)
    return RunPlan(weight, candidates, scores)


def choose_terms(texts: Sequence[Sequence[int]], most: int) -> tuple[Tensor, Tensor]:
    """Each text's distinct tokens of the highest IDF, of equal ones the smallest.

    Returns:
        (terms,) int64, text after text; (texts,) int64 how many of each, `most` at most.
    """
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    tokens = np.array([token for text in texts for token in text], dtype=np.int64)
    pairs = np.unique(np.stack([np.repeat(np.arange(len(texts)), lengths), tokens]), axis=1)
    frequency = np.bincount(pairs[1])[pairs[1]]  # of documents
    text, term = pairs[:, np.lexsort((pairs[1], frequency, pairs[0]))]
    counts = np.bincount(text, minlength=len(texts))
    kept = np.arange(len(text)) - np.repeat(np.cumsum(counts) - counts, counts) < most
    return torch.from_numpy(term[kept]), torch.from_numpy(np.minimum(counts, most))
