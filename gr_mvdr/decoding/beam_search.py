"""Constrained beam search over all hypotheses of a batch at once (used by SEAL, GENRE and DSI).

The constraint lists the allowed next tokens of all hypotheses in one call. The search gathers their
log-probabilities from the model's, which are normalised over the whole vocabulary, and chooses each
query's best with tensor operations. Python never loops over the hypotheses.
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

# The model; each call decodes one position. `step(tokens, parents)` returns the log-probabilities
# (R, V) of the next token, −inf for tokens that must not be chosen. The result is a tensor or is
# indexed like one (`LogProbs`), and is valid until the next call. tokens: (R,) int64, the last
# token of each hypothesis; R ≤ B × beam may change. parents: (R,) int64, the row of the previous
# call that each hypothesis continues (to reorder a cache). The first call has one row for each
# query, and parents 0 … B−1.
Step = Callable[[Tensor, Tensor], Any]


@dataclass(frozen=True)
class Successors:
    """The allowed next tokens of H hypotheses, n in all, ordered by hypothesis, then by token.

    Attributes:
        row: (n,) int64, the hypothesis that is extended.
        token: (n,) int64.
        state: the n extended hypotheses; like every state, an int64 or boolean tensor indexes it.
        counts: the number of next tokens of each hypothesis; they sum to n.
    """

    row: Tensor
    token: Tensor
    state: Any
    counts: list[int]


class Constraint(Protocol):
    """A set of token sequences, read from the left; a state holds H prefixes of them.

    An n-gram index allows every n-gram of a corpus; a trie allows every identifier.
    """

    def root(self, batch: int, device: torch.device | str) -> Any:
        """Returns the state of `batch` empty prefixes; `state[index]` selects some prefixes.

        Successors and their states are on `device`; tensors that index a state must be there, too.
        """

    def expand(self, state: Any) -> Successors:
        """Returns all allowed one-token extensions; a prefix without any adds no row."""

    def reachable(self, state: Any) -> np.ndarray:
        """Returns the numbers of the documents that a state of one prefix can still lead to."""


@dataclass
class Hypotheses:
    """Token sequences generated for a batch of queries, ordered by query.

    Attributes:
        query: (n,) int64, the number of the query.
        tokens: (n, length) int64, −1 after a sequence's end.
        log_probs: (n,) float, log p(sequence | query).
    """

    query: Tensor
    tokens: Tensor
    log_probs: Tensor

    def __len__(self) -> int:
        return len(self.query)

    @property
    def lengths(self) -> Tensor:
        """(n,) int64, the number of tokens of each sequence."""
        return (self.tokens >= 0).sum(1)

    def __getitem__(self, index: Tensor) -> "Hypotheses":
        return Hypotheses(*(values[index] for values in vars(self).values()))

    def of(self, query: int) -> list[tuple[list[int], float]]:
        """Returns one query's sequences and their log-probabilities as plain Python numbers."""
        mine = self[self.query == query]
        columns = mine.tokens.tolist(), mine.lengths.tolist(), mine.log_probs.tolist()
        return [(tokens[:length], score) for tokens, length, score in zip(*columns, strict=True)]


# Called at every step before pruning: `observer(depth, live, successors, scores, preferred)`.
# depth: the length of the extended hypotheses (1, 2, …). live: the hypotheses that the step
# extends. successors: all their successors. scores: (n,) log p of each extended hypothesis.
# preferred: (n,) the values by which the step chooses: scores, plus the bonus, if there is one.
Observer = Callable[[int, Hypotheses, Successors, Tensor, Tensor], None]


@dataclass
class BeamSearchResult:
    """The sequences that a beam search generated.

    Attributes:
        final: the hypotheses that ended (with the end token, without a successor, or at the length
            limit), each query's best first.
        candidates: the best 2 × beam hypotheses of every step (SEAL's keys), ordered by query, then
            by step, then best first.
        first_log_probs: (B, V) the log-probabilities of the first step (SEAL's unigrams).
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
    bonus: Tensor | None = None,
) -> BeamSearchResult:
    """Finds probable sequences within the constraint, for B queries at once (SEAL's decoding).

    Every step keeps the best 2 × beam candidates of each query. Candidates with the end token are
    finished; the best `beam_size` others continue. Ties are broken by the rank of the extended
    hypothesis, then by token, so that the log-probabilities alone determine the result. A
    hypothesis without a successor ends there; a query may end without any sequence.

    Args:
        length: the maximum length of a sequence in tokens, end token included.
        end_token: a sequence that ends with it is finished; None = there is no such token.
        bonus: (states, B) the bonus of every prefix, whose state must be a number. A step chooses
            by log p + bonus, and never chooses −inf. Bonuses do not add up over steps and are not
            part of any log-probability (PAG, Zeng et al. 2024).

    Raises:
        ValueError: a size is below 1, a log-probability is nan, or the constraint cannot check
            sequences of `length` tokens.
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
    for depth in range(1, length + 1):
        log_probs = step(last, parents)
        first = log_probs[:] if first is None else first
        successors = constraint.expand(state)
        scores = live.log_probs[successors.row] + log_probs[successors.row, successors.token]
        del log_probs  # the largest tensor: freed before the model makes the next one
        preferred = scores
        if bonus is not None:
            preferred = scores + bonus[successors.state, live.query[successors.row]]
        if observer is not None:
            observer(depth, live, successors, scores, preferred)
        if preferred.isnan().any():  # otherwise the search would silently find nothing
            rule = "its weights or inputs are broken"
            raise ValueError(f"the model's log-probabilities are nan: {rule}")
        if depth > 1:  # the empty sequence is not a result
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
    """Finds the k best scores of each group, the best first; equal scores keep their order.

    Args:
        scores: (n,) without nan, ordered by group; −inf is never chosen.
        counts: the number of scores in each group.

    Returns:
        (groups, min(k, size of the largest group)) int64 indices into `scores`, padded with −1.
    """
    if len(set(counts)) == 1:
        table = scores.view(len(counts), counts[0])
    else:
        table = pad_sequence(scores.split(counts), batch_first=True, padding_value=-torch.inf)
    k = min(k, table.shape[1])
    if not k:
        return torch.empty(len(counts), 0, dtype=torch.int64, device=scores.device)
    # topk breaks ties arbitrarily; here ties with the k-th score go to the lowest index.
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
