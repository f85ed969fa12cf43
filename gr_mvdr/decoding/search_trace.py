"""One query's beam search watched from outside: where the gold is lost, and what a step costs."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gr_mvdr.decoding.beam_search import BeamSearchResult, Hypotheses, Step, Successors


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


@dataclass(frozen=True)
class PathStep:
    """One step of a search, on the way to the gold or past it.

    Attributes:
        alive: whether a hypothesis that agrees with the gold is kept, or has ended before.
        best: the best successor that agrees with the gold; None if the constraint offered none.
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
    """What a search generated in the end.

    Attributes:
        tokens: token ids; log_prob: log p(tokens | query).
        documents: numbers of some of the documents that it names; n_documents: how many it names.
    """

    tokens: tuple[int, ...]
    log_prob: float
    documents: tuple[int, ...]
    n_documents: int


@dataclass(frozen=True)
class SearchPath:
    """One query's search, seen from one gold document.

    Attributes:
        steps: in their order.
        lost: the step, from 1, after which the gold was no longer alive; None if it is found.
        generated: the sequences that the search ended with, the best first.
    """

    steps: tuple[PathStep, ...]
    lost: int | None
    generated: tuple[Generated, ...]

    @property
    def lost_step(self) -> PathStep | None:
        """The step that lost the gold: `best` left the beam, `kept[0]` to `limit` replaced it."""
        return self.steps[self.lost - 1] if self.lost else None


class SearchTrace:
    """Follows the gold documents' hypotheses through the search of one query.

    A hypothesis agrees with the gold if it is one of its prefixes. The gold is alive after a step
    while such a hypothesis goes on or has ended.

        trace = SearchTrace(system.gold_prefixes(document), system.template.stop)
        trace.end(system.search([tokens], observer=trace.observe, wrap=trace.timed))

    Args:
        gold: every token sequence on the way to a gold document, its whole identifier included.
        end: the token that ends a sequence.

    Attributes:
        alive: after each step, whether the gold is alive.
        best, ranks: at each step, the best agreeing successor and its rank (from 1) among all
            successors, None if the constraint offered none.
        final: the sequences that the search ended with and their log-probabilities, best first.
    """

    def __init__(self, gold: set[tuple[int, ...]], end: int):
        self.gold, self.end_token = gold, end
        self.alive: list[bool] = []
        self.best: list[Hypothesis | None] = []
        self.ranks: list[int | None] = []
        self.final: dict[tuple[int, ...], float] = {}
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
        """The search's `observer`: what there was to choose from at a step."""
        self._constraint_seconds += _clock() - self._since
        prefixes = list(map(tuple, live.tokens.tolist()))
        self._live.append(dict(zip(prefixes, live.log_probs.tolist(), strict=True)))
        if depth > 1:  # what is live now is what the last step left
            self.alive.append(not self.gold.isdisjoint(prefixes))
        agreeing = torch.zeros_like(successors.row, dtype=torch.bool)
        for row, prefix in enumerate(prefixes):
            wanted = successors.token.new_tensor(self._next.get(prefix, []))
            agreeing |= (successors.row == row) & torch.isin(successors.token, wanted)
        place, rank = _rank_of_best(preferred, agreeing)
        self.ranks.append(rank)
        self.best.append(None)
        if place is not None:
            prefix = prefixes[int(successors.row[place])]
            tokens = (*prefix, int(successors.token[place]))
            self.best[-1] = self._hypothesis(tokens, float(scores[place]))
        self._since = _clock()

    def timed(self, step: Step) -> Callable[[Tensor, Tensor], Tensor]:
        """The search's step, with a watch on it."""

        def measured(tokens: Tensor, parents: Tensor) -> Tensor:
            start = _clock()
            self._constraint_seconds += 0.0 if self._since is None else start - self._since
            log_probs = step(tokens, parents)
            self._since = _clock()
            self._model_seconds += self._since - start
            return log_probs

        return measured

    def end(self, result: BeamSearchResult) -> None:
        """Ends the trace with what the search found."""
        self.final = {tuple(tokens): log_prob for tokens, log_prob in result.final.of(0)}
        found = [len(tokens) for tokens in self.final if tokens in self.gold]
        self.alive.append(bool(found))
        if found:
            ended = min(found)
            self.alive[ended - 1 :] = [True] * len(self.alive[ended - 1 :])

    def path(self, named: Callable[[tuple[int, ...]], Sequence[int]], examples: int) -> SearchPath:
        """The whole search in plain numbers, once it has ended.

        Args:
            named: token ids → numbers of the documents that they name.
            examples: of these at most so many are listed.
        """
        generated = []
        for tokens, log_prob in self.final.items():
            documents = named(tokens)
            some = tuple(int(number) for number in documents[:examples])
            generated.append(Generated(tokens, log_prob, some, len(documents)))
        steps = tuple(self._step(number) for number in range(len(self.ranks)))
        return SearchPath(steps, self.lost, tuple(generated))

    def _step(self, number: int) -> PathStep:
        """The step of that number, from 0; what it kept is what the next one began with."""
        ended = {t: p for t, p in self.final.items() if len(t) == number + 1}
        if number + 1 < len(self._live):
            going_on = self._live[number + 1]
        else:  # cut off at the longest length
            going_on = {t: p for t, p in ended.items() if t[-1] != self.end_token}
        kept = sorted((ended | going_on).items(), key=lambda pair: -pair[1])
        limit = min(going_on.items(), key=lambda pair: pair[1], default=None)
        return PathStep(
            self.alive[number],
            self.best[number],
            self.ranks[number],
            tuple(self._hypothesis(*pair) for pair in kept),
            None if limit is None else self._hypothesis(*limit),
        )

    def _hypothesis(self, tokens: tuple[int, ...], log_prob: float) -> Hypothesis:
        return Hypothesis(tokens, log_prob, log_prob - self._live[len(tokens) - 1][tokens[:-1]])

    @property
    def lost(self) -> int | None:
        """The step, from 1, after which the gold was no longer alive; None if it is found."""
        return None if all(self.alive) else self.alive.index(False) + 1

    @property
    def lost_rank(self) -> int | None:
        """The best agreeing successor's rank at that step; None if there was no such successor."""
        return self.ranks[self.lost - 1] if self.lost else None

    @property
    def model_ms(self) -> float:
        """The model's part of a step; the query's encoding, once a search, is none."""
        return 1000 * self._model_seconds / len(self.ranks)

    @property
    def constraint_ms(self) -> float:
        """All else in a step: the constraint, and choosing the best (but for the last step's)."""
        return 1000 * self._constraint_seconds / len(self.ranks)


def _rank_of_best(scores: Tensor, agreeing: Tensor) -> tuple[int | None, int | None]:
    """The place of the best that agrees, and its rank from 1.

    Equal scores keep the order in which the search prefers them.
    """
    numbers = agreeing.nonzero().squeeze(1)
    if not len(numbers):
        return None, None
    best = scores[numbers].max()
    first = int(numbers[scores[numbers] == best][0])
    return first, 1 + int((scores > best).sum()) + int((scores[:first] == best).sum())


def _clock() -> float:
    if torch.cuda.is_initialized():  # kernels run on after their call
        torch.cuda.synchronize()
    return time.perf_counter()
