"""One query's beam search watched from outside: where the gold is lost, and what a step costs."""

import time
from collections import defaultdict
from collections.abc import Callable

import torch
from torch import Tensor

from gr_mvdr.decoding.beam_search import BeamSearchResult, Hypotheses, Step, Successors


class SearchTrace:
    """Follows the gold documents' hypotheses through the search of one query.

    A hypothesis agrees with the gold if it is one of its prefixes. The gold is alive after a step
    while such a hypothesis goes on or has ended.

        trace = SearchTrace(system.gold_prefixes(document))
        trace.end(system.search([tokens], trace.observe, trace.timed))

    Args:
        gold: every token sequence on the way to a gold document, its whole identifier included.

    Attributes:
        alive: after each step, whether the gold is alive.
        ranks: at each step, the rank (from 1) of the best agreeing successor among all successors,
            None if the constraint offered none.
    """

    def __init__(self, gold: set[tuple[int, ...]]):
        self.gold = gold
        self.alive: list[bool] = []
        self.ranks: list[int | None] = []
        self._next = defaultdict(list)
        for prefix in gold:
            self._next[prefix[:-1]].append(prefix[-1])
        self._since: float | None = None  # when the model's or the observer's last turn ended
        self._model_seconds = self._constraint_seconds = 0.0

    def observe(self, depth: int, live: Hypotheses, successors: Successors, scores: Tensor) -> None:
        """The search's `observer`: what there was to choose from at a step."""
        self._constraint_seconds += _clock() - self._since
        prefixes = list(map(tuple, live.tokens.tolist()))
        if depth > 1:  # what is live now is what the last step left
            self.alive.append(not self.gold.isdisjoint(prefixes))
        agreeing = torch.zeros_like(successors.row, dtype=torch.bool)
        for row, prefix in enumerate(prefixes):
            wanted = successors.token.new_tensor(self._next.get(prefix, []))
            agreeing |= (successors.row == row) & torch.isin(successors.token, wanted)
        self.ranks.append(_rank_of_best(scores, agreeing))
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
        found = [tuple(tokens) for tokens, _ in result.final.of(0)]
        ended = min((len(tokens) for tokens in found if tokens in self.gold), default=None)
        self.alive.append(ended is not None)
        if ended is not None:
            self.alive[ended - 1 :] = [True] * len(self.alive[ended - 1 :])

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


def _rank_of_best(scores: Tensor, agreeing: Tensor) -> int | None:
    """Equal scores keep the order in which the search prefers them."""
    numbers = agreeing.nonzero().squeeze(1)
    if not len(numbers):
        return None
    best = scores[numbers].max()
    first = numbers[scores[numbers] == best][0]
    return 1 + int((scores > best).sum()) + int((scores[:first] == best).sum())


def _clock() -> float:
    if torch.cuda.is_initialized():  # kernels run on after their call
        torch.cuda.synchronize()
    return time.perf_counter()
