"""Constrained beam search over all hypotheses of a batch at once (SEAL, GENRE and DSI decode so).

The constraint lists the allowed tokens of every hypothesis in one call; their log-probabilities are
gathered from the model's, which are normalised over the whole vocabulary, and tensor operations
choose the best of each query. No Python runs for a single hypothesis.

Two numbers decide the shapes of a step: how many successors there are, and how many hypotheses go
on. A CPU counts them. To count them on an accelerator, the search would have to wait for it: there
both are taken at their maximum (`widths` of the constraint, the beam), and what is not real has the
log-probability −∞ and is never chosen.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
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
    each hypothesis has; real: (n,) bool, False for entries that only fill all hypotheses up to one
    count; None = all are real.
    """

    row: Tensor
    token: Tensor
    state: Any
    counts: list[int]
    real: Tensor | None = None


class Constraint(Protocol):
    """A set of token sequences, read from the left; a state is one of H prefixes.

    An n-gram index allows every n-gram of a corpus, a trie every identifier. One that can fill up
    to a fixed number of successors has `widths`, the most of a prefix of each length, and takes
    such a number as a second argument of `expand`: see `Trie`.
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

    def only(self, wanted: Tensor) -> "Hypotheses":
        """The same, with log-probability −∞ where `wanted`, (n,) bool, is false."""
        return replace(self, log_probs=self.log_probs.masked_fill(~wanted, -torch.inf))

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
    start_token: int = 0,
    device: torch.device | str = "cpu",
    observer: Observer | None = None,
    plan: Callable[[Tensor], Tensor] | None = None,
    fixed_shapes: bool | None = None,
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
        fixed_shapes: whether a step waits for no number of the device; None: on an accelerator,
            unless the search is observed or the constraint lacks `widths`. The result is the same.
    Raises:
        ValueError: a size below 1; a log-probability that is not a number; what the constraint
            raises for a `length` it cannot check.
    """
    if fixed_shapes is None:
        fixed_shapes = torch.device(device).type != "cpu" and observer is None
    widths = getattr(constraint, "widths", None) if fixed_shapes else None
    parents = queries = torch.arange(batch_size, device=device)
    last, sizes = torch.full_like(queries, start_token), [1] * batch_size
    live = Hypotheses(queries, queries[:, None][:, :0], torch.zeros(batch_size, device=device))
    state, is_broken = constraint.root(batch_size, device), torch.zeros_like(queries[0]).bool()
    # Hypotheses that have ended, and the candidates of every step; some have log-probability −∞.
    ended: list[Hypotheses] = []
    candidates: list[Hypotheses] = []
    first: Any = None
    bonus: Any = None
    for depth in range(1, length + 1):
        log_probs = step(last, parents)
        first = log_probs[:] if first is None else first
        width = () if widths is None else (widths[min(depth, len(widths)) - 1],)
        successors = constraint.expand(state, *width)
        scores = live.log_probs[successors.row] + log_probs[successors.row, successors.token]
        del log_probs  # the largest tensor: freed before the model makes the next one
        if successors.real is not None:
            scores = scores.masked_fill(~successors.real, -torch.inf)
        preferred = scores
        if plan is not None:
            bonus = plan(first) if bonus is None else bonus
            preferred = scores + bonus[successors.state, live.query[successors.row]]
        if observer is not None:
            observer(depth, live, successors, scores, preferred)
        is_broken |= preferred.isnan().any()
        if depth > 1:  # the empty sequence is no result
            ended.append(_dead_ends(live, successors))
        counts = iter(successors.counts)
        of_query = [sum(islice(counts, size)) for size in sizes]
        chosen = take_best_of_each(preferred, of_query, 2 * beam_size)  # (B, k)
        places = chosen.flatten().clamp(min=0)
        row = successors.row[places]
        tokens = torch.cat([live.tokens[row], successors.token[places, None]], dim=1)
        best = Hypotheses(live.query[row], tokens, scores[places]).only(chosen.flatten() >= 0)
        ends = tokens[:, -1] == (-1 if end_token is None else end_token)
        candidates.append(best)
        ended.append(best.only(ends))
        goes_on = ((best.log_probs > -torch.inf) & ~ends).view_as(chosen)
        goes_on &= goes_on.cumsum(1) <= beam_size
        fixed = None if successors.real is None else beam_size
        going_on, sizes = _select(goes_on, fixed)
        live = best.only(goes_on.flatten())[going_on]
        last, parents = tokens[going_on, -1], row[going_on]
        if depth == length or not len(live):
            break
        state = successors.state[places[going_on]]
    if is_broken:  # nan is never chosen: the search would silently find nothing
        raise ValueError("the model's log-probabilities are nan: its weights or inputs are broken")
    final = _concatenate([*ended, live], length)
    final = final[final.log_probs.argsort(descending=True, stable=True)]
    best = _concatenate(candidates, length)
    final, best = (part[part.query.argsort(stable=True)] for part in (final, best))
    return BeamSearchResult(final, best, first)


def _dead_ends(live: Hypotheses, successors: Successors) -> Hypotheses:
    """The hypotheses without successors; in fixed shapes among others of log-probability −∞."""
    if successors.real is not None:
        return live.only(~successors.real.view(len(live), successors.counts[0]).any(1))
    ended = [row for row, count in enumerate(successors.counts) if not count]
    return live[_on(ended, live.query.device)]


def _select(goes_on: Tensor, fixed: int | None) -> tuple[Tensor, list[int]]:
    """The places in a flattened (B, k) that are true, query by query, and how many each query has.

    Args:
        fixed: this many of each query, further ones that are false; None = those that are true.
    """
    queries, k = goes_on.shape
    if fixed is None:
        sizes = goes_on.sum(1).tolist()
        return goes_on.flatten().nonzero_static(size=sum(sizes)).squeeze(1), sizes
    width = min(fixed, k)
    first = (~goes_on).byte().argsort(dim=1, stable=True)[:, :width]
    begins = k * torch.arange(queries, device=first.device)
    return (first + begins[:, None]).flatten(), [width] * queries


def _on(numbers: list[int], device: torch.device) -> Tensor:
    """Numbers as a tensor on a device; the copy is not waited for."""
    return torch.tensor(numbers, dtype=torch.int64).to(device, non_blocking=True)


def take_best_of_each(scores: Tensor, counts: list[int], k: int) -> Tensor:
    """The k best scores of each group, the best first; equal scores keep their order.

    Args:
        scores: (n,), group after group; −inf is never chosen. counts: how many each group has.
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
    place = (above | equal).nonzero_static(size=k * len(table), fill_value=0)  # fewer under nan
    column = place[:, 1].view(-1, k)
    best, order = table.gather(1, column).sort(dim=1, descending=True, stable=True)
    begins = _on([0, *accumulate(counts)][:-1], scores.device)
    return (begins.unsqueeze(1) + column.gather(1, order)).masked_fill(best == -torch.inf, -1)


def _concatenate(parts: list[Hypotheses], length: int) -> Hypotheses:
    """All hypotheses but those of log-probability −∞, their tokens padded to (n, length)."""
    tokens = [pad(part.tokens, (0, length - part.tokens.shape[1]), value=-1) for part in parts]
    query, log_probs = ([vars(part)[name] for part in parts] for name in ("query", "log_probs"))
    joined = Hypotheses(torch.cat(query), torch.cat(tokens), torch.cat(log_probs))
    return joined[joined.log_probs > -torch.inf]
