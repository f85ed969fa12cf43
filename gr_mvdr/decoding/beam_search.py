"""Constrained beam search over all hypotheses of a batch at once (SEAL, GENRE and DSI decode so).

The constraint lists the allowed tokens of every hypothesis in one call; their log-probabilities are
gathered from the model's, which are normalised over the whole vocabulary, and tensor operations
choose the best of each query. No Python runs for a single hypothesis.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from gr_mvdr.options import Size, checked

# The model, one position a call: `step(tokens, parents)` are the log-probabilities (R, V) of the
# next token, −inf for what must not be chosen: a tensor, or what is indexed like one (`LogProbs`),
# valid until the next call. tokens: (R,) int64, the last token of each hypothesis; R ≤ B × beam may
# change. parents: (R,) int64, the row of the previous call that each continues (to reorder a
# cache). The first call has one row a query, and parents 0 … B−1.
Step = Callable[[Tensor, Tensor], Any]


@dataclass(frozen=True)
class Successors:
    """The allowed next tokens of H hypotheses, n in all, ordered by hypothesis, then by token.

    row (n,) int64, the hypothesis that is extended; token (n,) int64; state: the n extended
    hypotheses, indexable by an int64 or boolean tensor like every state; counts: how many of the n
    each hypothesis has.
    """

    row: Tensor
    token: Tensor
    state: Any
    counts: list[int]


class Constraint(Protocol):
    """A set of token sequences, read from the left; a state is one of H prefixes.

    An n-gram index allows every n-gram of a corpus, a trie every identifier.
    """

    def root(self, batch: int, device: torch.device | str) -> Any:
        """The state of `batch` empty prefixes; `state[index]` selects some of the prefixes.

        Successors and their states stay on `device`; so must the tensors that index a state.
        """

    def expand(self, state: Any) -> Successors:
        """Every allowed one-token extension; a prefix that cannot be extended adds no row."""

    def reachable(self, state: Any) -> np.ndarray:
        """The numbers of the documents that one prefix can still lead to."""


@dataclass
class Hypotheses:
    """Token sequences generated for a batch of queries, ordered by query.

    query: (n,) int64, which query; tokens: (n, length) int64, −1 after a sequence's end;
    log_probs: (n,) float, log p(sequence | query).
    """

    query: Tensor
    tokens: Tensor
    log_probs: Tensor

    def __len__(self) -> int:
        return len(self.query)

    @property
    def lengths(self) -> Tensor:
        """(n,) int64, in tokens."""
        return (self.tokens >= 0).sum(1)

    def __getitem__(self, index: Tensor) -> "Hypotheses":
        return Hypotheses(*(values[index] for values in vars(self).values()))

    def of(self, query: int) -> list[tuple[list[int], float]]:
        """One query's sequences and their log-probabilities, as plain Python numbers."""
        mine = self[self.query == query]
        columns = mine.tokens.tolist(), mine.lengths.tolist(), mine.log_probs.tolist()
        return [(tokens[:length], score) for tokens, length, score in zip(*columns, strict=True)]


# Is called at every step before the pruning: `observer(depth, live, successors, scores, preferred)`
# with the length of the hypotheses that the step makes (1, 2, …), those that it extends, all their
# successors, (n,) log p of each successor's hypothesis, and (n,) what the best are chosen by:
# scores, under a plan with its bonus.
Observer = Callable[[int, Hypotheses, Successors, Tensor, Tensor], None]


@dataclass
class BeamSearchResult:
    """The sequences that a beam search generated.

    final: the hypotheses that ended (with the end token, for want of a successor, or at the length
    limit), the best of each query first. candidates: the best 2 × beam of every step, SEAL's keys,
    step after step within a query, the best first within a step. first_log_probs: (B, V), the first
    step's log-probabilities, SEAL's unigrams.
    """

    final: Hypotheses
    candidates: Hypotheses
    first_log_probs: Tensor


@torch.no_grad()
@checked
def beam_search(
    step: Step,
    constraint: Constraint,
    batch_size: Size,
    beam_size: Size,
    length: Size,
    end_token: int | None,
    device: torch.device | str = "cpu",
    observer: Observer | None = None,
    plan: Callable[[Tensor], Tensor] | None = None,
) -> BeamSearchResult:
    """Finds probable sequences within the constraint, for B queries at once (SEAL's decoding).

    Every step keeps the best 2 × beam candidates of each query; those that end are finished, the
    best `beam_size` others go on. Equal candidates are ordered by their hypothesis' rank, then by
    token, so the result depends on nothing but the log-probabilities. A hypothesis that the
    constraint does not extend ends where it is; a query may end without any sequence.

    Args:
        length: of the longest sequence, in tokens, the end token included.
        end_token: a sequence that ends with it is finished; None: no such token.
        plan: from the first step's log-probabilities (B, V) to a bonus (states, B) of every prefix,
            whose state must be a number. A step chooses by log p + bonus; bonuses do not add up
            over steps and are in no log-probability (PAG, Zeng et al. 2024). −inf: never chosen.

    Raises:
        ValueError: a size below 1; a log-probability that is not a number; what the constraint
            raises for a `length` it cannot check.
    """
    parents = queries = torch.arange(batch_size, device=device)
    last, sizes = torch.zeros_like(queries), [1] * batch_size
    tokens = torch.full((batch_size, length), -1, device=device)
    live = Hypotheses(queries, tokens, torch.zeros(batch_size, device=device))
    state = constraint.root(batch_size, device)
    # Hypotheses that have ended, and the candidates of every step.
    ended: list[Hypotheses] = []
    candidates: list[Hypotheses] = []
    first: Any = None
    bonus: Any = None
    for depth in range(1, length + 1):
        log_probs = step(last, parents)
        first = log_probs[:] if first is None else first
        successors = constraint.expand(state)
        scores = live.log_probs[successors.row] + log_probs[successors.row, successors.token]
        del log_probs  # the largest tensor: freed before the model makes the next one
        preferred = scores
        if plan is not None:
            bonus = plan(first) if bonus is None else bonus
            preferred = scores + bonus[successors.state, live.query[successors.row]]
        if observer is not None:
            observer(depth, live, successors, scores, preferred)
        if preferred.isnan().any():  # it would never be chosen, and the search find nothing
            rule = "its weights or inputs are broken"
            raise ValueError(f"the model's log-probabilities are nan: {rule}")
        if depth > 1:  # the empty sequence is no result
            ends = [row for row, count in enumerate(successors.counts) if not count]
            ended.append(live[torch.tensor(ends, dtype=torch.int64, device=device)])
        counts = iter(successors.counts)
        of_query = [sum(islice(counts, size)) for size in sizes]
        chosen = take_best_of_each(preferred, of_query, 2 * beam_size)  # (B, k)
        is_there, places = chosen >= 0, chosen.flatten().clamp(min=0)
        row = successors.row[places]
        tokens, token = live.tokens[row], successors.token[places]
        tokens[:, depth - 1] = token
        best = Hypotheses(live.query[row], tokens, scores[places])
        is_end = (token == (-1 if end_token is None else end_token)).view_as(chosen)
        goes_on = is_there & ~is_end
        goes_on &= goes_on.cumsum(1) <= beam_size
        candidates.append(best[is_there.flatten()])
        ended.append(best[(is_there & is_end).flatten()])
        sizes = goes_on.sum(1).tolist()
        going_on = goes_on.flatten().nonzero().squeeze(1)
        live, last, parents = best[going_on], token[going_on], row[going_on]
        if depth == length or not len(live):
            break
        state = successors.state[places[going_on]]
    final, best = _concatenate([*ended, live]), _concatenate(candidates)
    final = final[final.log_probs.argsort(descending=True, stable=True)]
    final, best = (part[part.query.argsort(stable=True)] for part in (final, best))
    return BeamSearchResult(final, best, first)


def take_best_of_each(scores: Tensor, counts: list[int], k: int) -> Tensor:
    """The k best scores of each group, the best first; equal scores keep their order.

    Args:
        scores: (n,) without nan, group after group; −inf is never chosen.
        counts: how many scores each group has.

    Returns:
        (groups, k or the size of the largest group) int64 indices, −1 where a group has no more.
    """
    if len(set(counts)) == 1:
        table = scores.view(len(counts), counts[0])
    else:
        table = pad_sequence(scores.split(counts), batch_first=True, padding_value=-torch.inf)
    k = min(k, table.shape[1])
    if not k:
        return torch.empty(len(counts), 0, dtype=torch.int64, device=scores.device)
    # topk breaks ties arbitrarily: here ties with the k-th go to the lowest index.
    least = table.topk(k, dim=1).values[:, -1:]
    above, equal = table > least, table == least
    equal &= equal.cumsum(1) <= k - above.sum(1, keepdim=True)
    column = (above | equal).nonzero()[:, 1].view(-1, k)
    best, order = table.gather(1, column).sort(dim=1, descending=True, stable=True)
    begins = torch.tensor([0, *accumulate(counts)][:-1], device=scores.device)
    return (begins.unsqueeze(1) + column.gather(1, order)).masked_fill(best == -torch.inf, -1)


def _concatenate(parts: list[Hypotheses]) -> Hypotheses:
    every = zip(*(vars(part).values() for part in parts), strict=True)
    return Hypotheses(*map(torch.cat, every))
