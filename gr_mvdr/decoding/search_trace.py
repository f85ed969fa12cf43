"""One query's beam search observed: where it loses a document, its time, what may follow."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from gr_mvdr.decoding.beam_search import BeamSearchResult, Constraint, Hypotheses, Step, Successors

_EXAMPLES = 10  # documents listed of those that a prefix can lead to


@dataclass(frozen=True)
class Hypothesis:
    """A token sequence of a search.

    Attributes:
        tokens: its token ids, one or more.
        log_prob: log p(tokens | query).
        last_log_prob: log p(last token | query, the tokens before it).
    """

    tokens: tuple[int, ...]
    log_prob: float
    last_log_prob: float

    @property
    def probability(self) -> float:
        """p(tokens | query), by which a beam chooses."""
        return math.exp(self.log_prob)


@dataclass(frozen=True)
class PathStep:
    """One step of a search, seen from a gold document.

    Attributes:
        alive: whether a gold hypothesis is kept, or has ended before.
        best: the best gold successor; None if the constraint offered none.
        rank: its rank (from 1) among all successors.
        kept: the hypotheses that go on or end here, the best first.
        limit: the least probable one that goes on: the last place of the beam. What ends takes no
            place, so that a kept hypothesis may be less probable.
    """

    alive: bool
    best: Hypothesis | None
    rank: int | None
    kept: tuple[Hypothesis, ...]
    limit: Hypothesis | None


@dataclass(frozen=True)
class Generated:
    """A sequence that a search ended with.

    Attributes:
        tokens: token ids; log_prob: log p(tokens | query).
        documents: some of the documents that it names: numbers, or ids from a `Retriever`.
        n_documents: how many it names.
    """

    tokens: tuple[int, ...]
    log_prob: float
    documents: tuple[Any, ...] = ()
    n_documents: int = 0


@dataclass(frozen=True)
class SearchPath:
    """One query's search, seen from its gold documents.

    Attributes:
        steps: in their order.
        generated: the sequences that the search ended with, the best first.
        model_ms: mean time of the model in a step, without the query's encoding.
        constraint_ms: mean time of everything else in a step but the last: the constraint, top-k.
    """

    steps: tuple[PathStep, ...]
    generated: tuple[Generated, ...]
    model_ms: float = 0.0
    constraint_ms: float = 0.0

    @property
    def lost(self) -> int | None:
        """The step, from 1, after which no gold hypothesis was alive; None if one is generated."""
        alive = [step.alive for step in self.steps]
        return None if all(alive) else alive.index(False) + 1

    @property
    def lost_step(self) -> PathStep | None:
        """The step that lost the gold: `best` left the beam, `kept[0]` to `limit` replaced it."""
        return self.steps[self.lost - 1] if self.lost else None


class SearchTrace:
    """Follows the hypotheses of gold documents through the search of one query.

    A hypothesis is gold if it is a prefix of a gold document's identifier. The gold is alive after
    a step while such a hypothesis goes on or has ended.

        trace = SearchTrace(names.gold_prefixes(document), system.template.stop)
        path = trace.path(search.search([tokens], observer=trace.observe, wrap=trace.timed))

    Args:
        gold: every prefix of a gold identifier, the whole identifier included.
        end: the token that ends a sequence.
    """

    def __init__(self, gold: set[tuple[int, ...]], end: int):
        self.gold, self.end_token = gold, end
        self._best: list[tuple[Hypothesis | None, int | None]] = []  # and its rank, at each step
        self._live: list[dict[tuple[int, ...], float]] = []  # before each step
        self._next = defaultdict(list)
        for prefix in gold:
            self._next[prefix[:-1]].append(prefix[-1])
        self._since: float | None = None  # when the model's or the observer's last turn ended
        self._model_seconds = self._constraint_seconds = 0.0

    def observe(
        self,
        depth: int,
        live: Hypotheses,
        successors: Successors,
        scores: Tensor,
        preferred: Tensor,
    ) -> None:
        """The search's `observer`: the successors among which a step chooses."""
        self._constraint_seconds += _clock() - self._since
        prefixes = list(map(tuple, live.tokens.tolist()))
        self._live.append(dict(zip(prefixes, live.log_probs.tolist(), strict=True)))
        gold = torch.zeros_like(successors.row, dtype=torch.bool)
        for row, prefix in enumerate(prefixes):
            wanted = successors.token.new_tensor(self._next.get(prefix, []))
            gold |= (successors.row == row) & torch.isin(successors.token, wanted)
        place, rank = _rank_of_best(preferred, gold)
        best = None
        if place is not None:
            prefix = prefixes[int(successors.row[place])]
            tokens = (*prefix, int(successors.token[place]))
            best = self._hypothesis(tokens, float(scores[place]))
        self._best.append((best, rank))
        self._since = _clock()

    def timed(self, step: Step) -> Callable[[Tensor, Tensor], Tensor]:
        """The search's step, its time measured."""

        def measured(tokens: Tensor, parents: Tensor) -> Tensor:
            start = _clock()
            self._constraint_seconds += 0.0 if self._since is None else start - self._since
            log_probs = step(tokens, parents)
            self._since = _clock()
            self._model_seconds += self._since - start
            return log_probs

        return measured

    def path(
        self,
        result: BeamSearchResult,
        named: Callable[[tuple[int, ...]], Sequence[int]] = lambda tokens: (),
        examples: int = 0,
    ) -> SearchPath:
        """The whole search, once it has ended.

        Args:
            named: token ids → numbers of the documents that they name.
            examples: how many of these are listed at most.
        """
        final = {tuple(tokens): log_prob for tokens, log_prob in result.final.of(0)}
        generated = []
        for tokens, log_prob in final.items():
            documents = named(tokens)
            some = tuple(int(number) for number in documents[:examples])
            generated.append(Generated(tokens, log_prob, some, len(documents)))
        ended = min((len(tokens) for tokens in final if tokens in self.gold), default=math.inf)
        steps = [self._step(number, final, ended) for number in range(len(self._best))]
        ms = 1000 / max(1, len(steps))
        times = self._model_seconds * ms, self._constraint_seconds * ms
        return SearchPath(tuple(steps), tuple(generated), *times)

    def _step(self, number: int, final: dict[tuple[int, ...], float], ended: float) -> PathStep:
        """The step of that number, from 0; what it kept is what the next one began with.

        Args:
            final: what the search ended with; ended: the length of the shortest gold one.
        """
        ends = {t: p for t, p in final.items() if len(t) == number + 1}
        last = number + 1 == len(self._live)
        if last:  # sequences cut off at the longest length go on
            going_on = {t: p for t, p in ends.items() if t[-1] != self.end_token}
        else:
            going_on = self._live[number + 1]
        alive = ended <= number + 1 or not (last or self.gold.isdisjoint(going_on))
        kept = sorted((ends | going_on).items(), key=lambda pair: -pair[1])
        limit = min(going_on.items(), key=lambda pair: pair[1], default=None)
        best, rank = self._best[number]
        return PathStep(
            alive,
            best,
            rank,
            tuple(self._hypothesis(*pair) for pair in kept),
            None if limit is None else self._hypothesis(*limit),
        )

    def _hypothesis(self, tokens: tuple[int, ...], log_prob: float) -> Hypothesis:
        return Hypothesis(tokens, log_prob, log_prob - self._live[len(tokens) - 1][tokens[:-1]])


def _rank_of_best(scores: Tensor, gold: Tensor) -> tuple[int | None, int | None]:
    """The place of the best gold successor, and its rank from 1; ties go to the lowest place."""
    numbers = gold.nonzero().squeeze(1)
    if not len(numbers):
        return None, None
    best = scores[numbers].max()
    first = int(numbers[scores[numbers] == best][0])
    return first, 1 + int((scores > best).sum()) + int((scores[:first] == best).sum())


def _clock() -> float:
    if torch.cuda.is_initialized():  # kernels run on after their call
        torch.cuda.synchronize()
    return time.perf_counter()


# What may follow a prefix -----------------------------------------------------------------------


@dataclass(frozen=True)
class Continuation:
    """A token that may follow a prefix.

    Attributes:
        token: its id; text: as it is written, from a `Retriever`.
        probability: p(token | query, prefix), over the whole vocabulary.
        allowed: whether the constraint has it; a search chooses no other token.
        n_documents: how many documents can still be reached after it.
        documents: some of them: numbers, or ids from a `Retriever`.
    """

    token: int
    probability: float
    allowed: bool
    n_documents: int = 0
    documents: tuple[Any, ...] = ()
    text: str = ""


class Reaching(Constraint, Protocol):
    """A constraint that knows which documents a prefix can lead to: a trie, an n-gram index."""

    def reachable(self, state: Any) -> np.ndarray:
        """The numbers of the documents that one prefix can still lead to."""


@torch.no_grad()
def continue_prefix(
    step: Step,
    constraint: Reaching,
    prefix: Sequence[int],
    k: int,
    device: torch.device | str = "cpu",
) -> list[Continuation]:
    """The most probable tokens after a prefix, the most probable first; [] where a sequence ends.

    Args:
        step: a fresh one for one query; prefix: token ids, [] = the beginning.
        k: the k most probable allowed tokens are listed, and forbidden ones among the k most
            probable of all.

    Raises:
        ValueError: the constraint does not allow the prefix.
    """
    row = torch.zeros(1, dtype=torch.int64, device=device)
    log_probs = step(row, row)[row][0]  # before the first token any will do
    successors = constraint.expand(constraint.root(1, device))
    for token in prefix:
        chosen = (successors.token == token).nonzero().squeeze(1)
        if not len(chosen):
            raise ValueError(f"prefix={list(prefix)}: must be one that a search can generate")
        successors = constraint.expand(successors.state[chosen])
        log_probs = step(row + token, row)[row][0]
    if not len(successors.token):
        return []
    best = log_probs.argsort(descending=True, stable=True)
    allowed = torch.isin(best, successors.token)
    first_k = torch.arange(len(best), device=best.device) < k
    listed = (allowed & (allowed.cumsum(0) <= k)) | (first_k & ~allowed)
    continuations = []
    for token in best[listed & (log_probs[best] > -torch.inf)].tolist():
        state, probability = successors.state[successors.token == token], log_probs[token].exp()
        documents = constraint.reachable(state) if len(state) else np.empty(0, dtype=np.int64)
        some = tuple(documents[:_EXAMPLES].tolist())
        one = Continuation(token, float(probability), len(state) > 0, len(documents), some)
        continuations.append(one)
    return continuations
