"""Constrained beam search over all hypotheses of a batch at once (SEAL, GENRE and DSI decode so).

The constraint lists the allowed tokens of every hypothesis in one call; their log-probabilities are
gathered from the model's, which were normalised over the whole vocabulary before, and the best of
each query are chosen by tensor operations. No Python runs for a single hypothesis.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


@dataclass(frozen=True)
class Successors:
    """The allowed next tokens of H hypotheses, n in all, ordered by hypothesis, then by token.

    row (n,) int64, the hypothesis that is extended; token (n,) int64; state: the n extended
    hypotheses, indexable by an int64 or boolean tensor like every state.
    """

    row: Tensor
    token: Tensor
    state: Any


class Constraint(Protocol):
    """A set of token sequences, walked from the left; a state stands for H prefixes."""

    def root(self, batch: int, device: torch.device | str) -> Any:
        """The state of `batch` empty prefixes; `state[index]` selects some of the prefixes.

        Successors and their states stay on `device`; so must the tensors that index a state.
        """

    def expand(self, state: Any) -> Successors:
        """Every allowed one-token extension; a prefix that cannot be extended adds no row."""


# step(tokens (R,), parents (R,)) -> log-probabilities (R, V): see `beam_search`.
Step = Callable[[Tensor, Tensor], Tensor]


@dataclass
class Hypotheses:
    """Token sequences found for a batch of queries, ordered by query.

    query: (n,) int64, which query; tokens: (n, length) int64, −1 after a sequence's end;
    lengths: (n,) int64, at least 1; log_probs: (n,) float, log p(sequence | query).
    """

    query: Tensor
    tokens: Tensor
    lengths: Tensor
    log_probs: Tensor

    def __len__(self) -> int:
        return len(self.query)

    def __getitem__(self, index: Tensor) -> "Hypotheses":
        return Hypotheses(
            self.query[index], self.tokens[index], self.lengths[index], self.log_probs[index]
        )

    def of(self, query: int) -> list[tuple[list[int], float]]:
        """One query's sequences and their log-probabilities, as plain Python numbers."""
        mine = self[self.query == query]
        columns = mine.tokens.tolist(), mine.lengths.tolist(), mine.log_probs.tolist()
        return [(tokens[:length], score) for tokens, length, score in zip(*columns, strict=True)]


# observer(depth, live, successors, scores (n,)): see `beam_search`.
Observer = Callable[[int, Hypotheses, Successors, Tensor], None]


@dataclass
class SearchResult:
    """What a beam search found.

    final: the hypotheses that ended (with the end token, for want of a successor, or at the length
    limit), the best of each query first. candidates: the best 2 × beam of every step, SEAL's keys,
    step after step within a query, the best first within a step. first_log_probs: (B, V), the first
    step's log-probabilities, SEAL's unigrams.
    """

    final: Hypotheses
    candidates: Hypotheses
    first_log_probs: Tensor


@torch.no_grad()
def beam_search(
    step: Step,
    constraint: Constraint,
    batch_size: int,
    beam_size: int,
    length: int,
    end_token: int | None,
    start_token: int = 0,
    device: torch.device | str = "cpu",
    observer: Observer | None = None,
) -> SearchResult:
    """Finds probable sequences within the constraint, for B queries at once (SEAL's decoding).

    Every step keeps the best 2 × beam candidates of each query; those that end are finished, the
    best `beam_size` others go on. Equal candidates are ordered by their hypothesis' rank, then by
    token, so the result depends on nothing but the log-probabilities. A hypothesis that the
    constraint does not extend ends where it is; a query without any sequence finds nothing.

    Args:
        step: the model. It receives the last token of each of R hypotheses and, for each, which row
            of the previous call it continues (so that a cache can be reordered), both (R,) int64 on
            `device`; it returns log-probabilities (R, V), −inf for what must not be chosen. The
            first call has one row a query, the start token, and parents 0 … B−1. R changes from
            call to call, R ≤ B × beam.
        constraint: the allowed sequences.
        end_token: a sequence that ends with it is finished; None: no such token.
        length: the longest sequence, in tokens, the end token included.
        observer: is shown every step before the pruning: the length of the hypotheses that the step
            makes (1, 2, …), those it extends, all their successors, and the log-probability of each
            successor's hypothesis, (n,).
    Raises:
        ValueError: a size below 1; a log-probability that is not a number; what the constraint
            raises for a `length` it cannot check.
    """
    _check_sizes(batch_size=batch_size, beam_size=beam_size, length=length)
    parents = torch.arange(batch_size, device=device)
    last = torch.full_like(parents, start_token)
    live = Hypotheses(parents, parents[:, None][:, :0], 0 * parents, 0.0 * parents)
    state, candidates, final = constraint.root(batch_size, device), [], []
    first_log_probs = None
    for depth in range(1, length + 1):
        log_probs = step(last, parents)
        first_log_probs = log_probs if first_log_probs is None else first_log_probs
        successors = constraint.expand(state)
        scores = _scores(live, log_probs, successors)
        del log_probs  # the largest tensor: freed before the model makes the next one
        if observer is not None:
            observer(depth, live, successors, scores)
        chosen, dead_ends = _best(live, successors, scores, batch_size, 2 * beam_size)
        found, parents = _extend(live, successors, scores, chosen)
        candidates.append(found)
        last = found.tokens[:, -1]
        ended = last == (-1 if end_token is None else end_token)
        final += [dead_ends, found[ended]]
        going_on = _first_of_each(found.query, ~ended, beam_size)
        live, parents, last = found[going_on], parents[going_on], last[going_on]
        if depth == length or not len(live):
            break
        state = successors.state[chosen[going_on]]
    final = _sorted_by_query(_concatenate([*final, live], length), best_first=True)
    return SearchResult(final, _sorted_by_query(_concatenate(candidates, length)), first_log_probs)


def _check_sizes(**sizes: int) -> None:
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name}={value}: must be ≥ 1")


def _best(
    live: Hypotheses, successors: Successors, scores: Tensor, batch_size: int, most: int
) -> tuple[Tensor, Hypotheses]:
    """The numbers of each query's best successors, and the hypotheses that have no successor."""
    begins = _begins(successors.row, len(live))
    counts = begins[_begins(live.query, batch_size)].diff().tolist()
    dead_ends = live[(begins.diff() == 0) & (live.lengths > 0)]
    return best_of_each(scores, counts, most), dead_ends


def _scores(live: Hypotheses, log_probs: Tensor, successors: Successors) -> Tensor:
    """(n,) the log-probability of each successor's hypothesis."""
    index = successors.row * log_probs.shape[1] + successors.token
    scores = log_probs.flatten().index_select(0, index)
    if scores.isnan().any():  # it would never be chosen, and a search find nothing
        raise ValueError("the model's log-probabilities are nan: its weights or inputs are broken")
    return live.log_probs.index_select(0, successors.row) + scores


def _begins(group: Tensor, n_groups: int) -> Tensor:
    """Where each group of the ascending group numbers begins, and where the last one ends."""
    return torch.searchsorted(group, torch.arange(n_groups + 1, device=group.device))


def _extend(
    live: Hypotheses, successors: Successors, scores: Tensor, chosen: Tensor
) -> tuple[Hypotheses, Tensor]:
    """The hypotheses that the chosen successors make, and the numbers of those they extend."""
    parents = successors.row[chosen]
    tokens = torch.cat([live.tokens[parents], successors.token[chosen, None]], dim=1)
    lengths = live.lengths[parents] + 1
    return Hypotheses(live.query[parents], tokens, lengths, scores[chosen]), parents


def best_of_each(scores: Tensor, counts: list[int], k: int) -> Tensor:
    """The k best scores of each group, the best first; equal scores keep their order.

    Args:
        scores: (n,), group after group; −inf is never chosen. counts: how many each group has.
    Returns:
        (m,) int64 indices, m ≤ k × groups, group after group.
    """
    if not len(scores):
        return torch.empty(0, dtype=torch.long, device=scores.device)
    table = pad_sequence(scores.split(counts), batch_first=True, padding_value=-torch.inf)
    least = table.topk(min(k, table.shape[1]), dim=1).values[:, -1:]
    # topk breaks ties as it likes: take all that reach the k-th score and sort these few stably.
    group, column = ((table >= least) & (table > -torch.inf)).nonzero(as_tuple=True)
    order = table[group, column].argsort(descending=True, stable=True)
    order = order[group[order].argsort(stable=True)]
    group, column = group[order], column[order]
    best = _first_of_each(group, torch.ones_like(group, dtype=torch.bool), k)
    sizes = torch.tensor(counts, device=scores.device)
    return (sizes.cumsum(0) - sizes)[group[best]] + column[best]


def _first_of_each(group: Tensor, wanted: Tensor, k: int) -> Tensor:
    """The indices of the first k wanted rows of each group (rows ordered by group)."""
    rows = wanted.nonzero().squeeze(1)
    mine = group[rows]
    rank = torch.arange(len(rows), device=rows.device) - torch.searchsorted(mine, mine)
    return rows[rank < k]


def _concatenate(parts: list[Hypotheses], length: int) -> Hypotheses:
    def padded(tokens: Tensor) -> Tensor:
        return torch.nn.functional.pad(tokens, (0, length - tokens.shape[1]), value=-1)

    return Hypotheses(
        torch.cat([part.query for part in parts]),
        torch.cat([padded(part.tokens) for part in parts]),
        torch.cat([part.lengths for part in parts]),
        torch.cat([part.log_probs for part in parts]),
    )


def _sorted_by_query(hypotheses: Hypotheses, best_first: bool = False) -> Hypotheses:
    """Orders by query, keeping the given order within a query or putting the best first."""
    if best_first:
        hypotheses = hypotheses[hypotheses.log_probs.argsort(descending=True, stable=True)]
    return hypotheses[hypotheses.query.argsort(stable=True)]
