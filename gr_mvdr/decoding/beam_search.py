"""Constrained beam search over all hypotheses of a batch at once (SEAL, GENRE and DSI decode so).

The constraint lists the allowed tokens of every hypothesis in one call; their log-probabilities are
gathered from the model's, which are normalised over the whole vocabulary, and the best of each
query are chosen by tensor operations. No Python runs for a single hypothesis, and everything that
passes between model, constraint and search is a tensor on the search's device. Two numbers decide
the shapes of a step: how many successors there are, and how many hypotheses go on. A CPU is asked
for them. An accelerator would have to be waited for: there both are taken at their most (`widths`
of the constraint, the beam), and what is too many has the log-probability −∞ and is never chosen.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


@dataclass(frozen=True)
class Successors:
    """The allowed next tokens of H hypotheses, n in all, ordered by hypothesis, then by token.

    row (n,) int64, the hypothesis that is extended; token (n,) int64; state: the n extended
    hypotheses, indexable by an int64 or boolean tensor like every state; counts: how many of the n
    each hypothesis has, where the constraint knows it without asking a device; real: (n,) bool, the
    others fill all hypotheses up to one number of successors; None = all are.
    """

    row: Tensor
    token: Tensor
    state: Any
    counts: list[int] | None = None
    real: Tensor | None = None

    def counts_of(self, hypotheses: int) -> list[int]:
        """How many successors each of H hypotheses has."""
        if self.counts is not None:
            return self.counts
        begins = torch.arange(hypotheses + 1, device=self.row.device)
        return torch.searchsorted(self.row, begins).diff().tolist()


class Constraint(Protocol):
    """A set of token sequences, walked from the left; a state is one of H prefixes.

    An n-gram index allows every n-gram of a corpus, a trie every identifier. One on a device has
    `widths`, of a prefix of each length the most successors, and fills up to them: `Trie.expand`.
    """

    def root(self, batch: int, device: torch.device | str) -> Any:
        """The state of `batch` empty prefixes; `state[index]` selects some of the prefixes.

        Successors and their states stay on `device`; so must the tensors that index a state.
        """

    def expand(self, state: Any) -> Successors:
        """Every allowed one-token extension; a prefix that cannot be extended adds no row."""


@dataclass
class Hypotheses:
    """Token sequences generated for a batch of queries, ordered by query.

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

    def only(self, wanted: Tensor) -> "Hypotheses":
        """The same, with log-probability −∞ where `wanted`, (n,) bool, is false."""
        return replace(self, log_probs=self.log_probs.masked_fill(~wanted, -torch.inf))

    def of(self, query: int) -> list[tuple[list[int], float]]:
        """One query's sequences and their log-probabilities, as plain Python numbers."""
        mine = self[self.query == query]
        columns = mine.tokens.tolist(), mine.lengths.tolist(), mine.log_probs.tolist()
        return [(tokens[:length], score) for tokens, length, score in zip(*columns, strict=True)]


class Step(Protocol):
    """The model, one position a call."""

    def __call__(self, tokens: Tensor, parents: Tensor) -> Any:
        """The log-probabilities (R, V) of what follows, −inf for what must not be chosen.

        A tensor, or what is indexed like one (`LogProbs`). They are valid until the next call.

        Args:
            tokens: (R,) int64, the last token of each hypothesis; R ≤ B × beam may change.
            parents: (R,) int64, which row of the previous call each continues (so that a cache can
                be reordered). The first call has one row a query, and parents 0 … B−1.
        """


class Observer(Protocol):
    """Is called at every step of a search before the pruning."""

    def __call__(
        self,
        depth: int,
        live: Hypotheses,
        successors: Successors,
        scores: Tensor,
        preferred: Tensor,
    ) -> None:
        """
        Args:
            depth: the length of the hypotheses that the step makes (1, 2, …); live: those it
                extends; successors: all theirs; scores: (n,) log p of each successor's hypothesis.
            preferred: (n,) what the best are chosen by: scores, under a plan with its bonus.
        """


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
    plan: Callable[[Tensor], Tensor] | None = None,
    fixed_shapes: bool | None = None,
) -> BeamSearchResult:
    """Finds probable sequences within the constraint, for B queries at once (SEAL's decoding).

    Every step keeps the best 2 × beam candidates of each query; those that end are finished, the
    best `beam_size` others go on. Equal candidates are ordered by their hypothesis' rank, then by
    token, so the result depends on nothing but the log-probabilities. A hypothesis that the
    constraint does not extend ends where it is; a query without any sequence finds nothing.

    Args:
        length: of the longest sequence, in tokens, the end token included.
        end_token: a sequence that ends with it is finished; None: no such token.
        plan: from the first step's log-probabilities (B, V) to a bonus (states, B) of every prefix,
            whose state must be a number. A step chooses by log p + bonus; bonuses do not add up
            over steps and are in no log-probability (PAG, Zeng et al. 2024). −inf: never chosen.
        fixed_shapes: whether a step asks the device for no number; None: on an accelerator, in a
            constraint that knows its `widths`, unless it is observed. The result is the same.
    Raises:
        ValueError: a size below 1; a log-probability that is not a number; what the constraint
            raises for a `length` it cannot check.
    """
    beams = _Beams(batch_size, beam_size, length, end_token, start_token, device)
    state, first_log_probs = constraint.root(batch_size, device), None
    bonus: Tensor | None = None
    if fixed_shapes is None:
        fixed_shapes = torch.device(device).type != "cpu" and observer is None
    widths = getattr(constraint, "widths", None) if fixed_shapes else None
    for depth in range(1, length + 1):
        log_probs = step(beams.last, beams.parents)
        first_log_probs = log_probs[:] if first_log_probs is None else first_log_probs
        width = () if widths is None else (widths[min(depth, len(widths)) - 1],)
        successors = constraint.expand(state, *width)
        scores = beams.live.log_probs[successors.row] + log_probs[successors.row, successors.token]
        if successors.real is not None:
            scores = scores.masked_fill(~successors.real, -torch.inf)
        del log_probs  # the largest tensor: freed before the model makes the next one
        preferred = scores
        if plan is not None:
            bonus = plan(first_log_probs) if bonus is None else bonus
            preferred = scores + bonus[successors.state, beams.live.query[successors.row]]
        if observer is not None:
            observer(depth, beams.live, successors, scores, preferred)
        going_on = beams.extend(successors, scores, preferred)
        if depth == length or not len(beams.live):
            break
        state = successors.state[going_on]
    return beams.result(first_log_probs)


class _Beams:
    """The hypotheses of a search.

    Attributes:
        live: those that go on, and in fixed shapes some of log-probability −∞; last: (R,) their
            last tokens; parents: (R,) the rows they extend; sizes: how many each query has.
        final, candidates: of every step so far, see `BeamSearchResult`; some of log-probability −∞
            are no hypotheses.
    """

    def __init__(
        self,
        batch_size: int,
        beam_size: int,
        length: int,
        end_token: int | None,
        start_token: int,
        device: torch.device | str,
    ):
        sizes = dict(batch_size=batch_size, beam_size=beam_size, length=length)
        for name, value in sizes.items():
            if value < 1:
                raise ValueError(f"{name}={value}: must be ≥ 1")
        self.beam_size, self.length = beam_size, length
        self.end = -1 if end_token is None else end_token
        self.queries = self.parents = torch.arange(batch_size, device=device)
        self.sizes = [1] * batch_size
        self.last = torch.full_like(self.parents, start_token)
        nothing = 0 * self.parents
        self.live = Hypotheses(self.parents, nothing[:, None][:, :0], nothing, 0.0 * nothing)
        self.final: list[Hypotheses] = []
        self.candidates: list[Hypotheses] = []
        self.is_broken = torch.zeros((), dtype=torch.bool, device=device)

    def extend(self, successors: Successors, scores: Tensor, preferred: Tensor) -> Tensor:
        """Replaces the live hypotheses by the best successors; returns their numbers (R,).

        Args:
            scores, preferred: (n,) see `Observer`.
        """
        self.is_broken |= preferred.isnan().any()
        counts = successors.counts_of(len(self.live))
        if self.live.tokens.shape[1]:  # the empty sequence is no result
            self.final.append(self._dead_ends(counts, successors.real))
        of_query = [sum(part) for part in _split(counts, self.sizes)]
        chosen = take_best_of_each(preferred, of_query, 2 * self.beam_size)  # (B, k)
        candidates = self._hypotheses(successors, scores, chosen)
        last = candidates.tokens[:, -1]
        goes_on = ((candidates.log_probs > -torch.inf) & (last != self.end)).view_as(chosen)
        goes_on &= goes_on.cumsum(1) <= self.beam_size
        going_on = self._select(goes_on, fixed=successors.real is not None)
        self.candidates.append(candidates)
        self.final.append(candidates.only(last == self.end))
        rows = chosen.flatten()[going_on]
        self.live = candidates.only(goes_on.flatten())[going_on]
        self.parents = successors.row[rows]
        self.last = last[going_on]
        return rows

    def _dead_ends(self, counts: list[int], real: Tensor | None) -> Hypotheses:
        """The live hypotheses without successors; in fixed shapes among others of −∞."""
        if real is not None:
            return self.live.only(~real.view(len(counts), -1).any(1)) if len(real) else self.live
        ended = [row for row, count in enumerate(counts) if not count]
        return self.live[_on(ended, self.live.log_probs.device)]

    def _select(self, goes_on: Tensor, fixed: bool) -> Tensor:
        """The places in (B, k) that go on, query by query; fixed: the same number of each query."""
        queries, k = goes_on.shape
        if not fixed:
            self.sizes = goes_on.sum(1).tolist()
            return goes_on.flatten().nonzero_static(size=sum(self.sizes)).squeeze(1)
        width = min(self.beam_size, k)
        self.sizes = [width] * queries
        first = (~goes_on).byte().argsort(dim=1, stable=True)[:, :width]
        return (first + k * torch.arange(queries, device=first.device)[:, None]).flatten()

    def _hypotheses(self, successors: Successors, scores: Tensor, chosen: Tensor) -> Hypotheses:
        """The chosen successors (B, k) as hypotheses; those numbered −1 have log-probability −∞."""
        is_there, chosen = chosen.flatten() >= 0, chosen.flatten().clamp(min=0)
        parents = successors.row[chosen]
        tokens = torch.cat([self.live.tokens[parents], successors.token[chosen, None]], dim=1)
        lengths = self.live.lengths[parents] + 1
        chosen = Hypotheses(self.live.query[parents], tokens, lengths, scores[chosen])
        return chosen.only(is_there)

    def result(self, first_log_probs: Tensor) -> BeamSearchResult:
        if self.is_broken:  # it would never be chosen, and a search find nothing
            raise ValueError(
                "the model's log-probabilities are nan: its weights or inputs are broken"
            )
        final = _concatenate([*self.final, self.live], self.length)
        final = final[final.log_probs.argsort(descending=True, stable=True)]
        candidates = _concatenate(self.candidates, self.length)
        final, candidates = (part[part.query.argsort(stable=True)] for part in (final, candidates))
        return BeamSearchResult(final, candidates, first_log_probs)


def _split(values: list[int], sizes: list[int]) -> Iterator[list[int]]:
    """Consecutive parts of a list."""
    rest = iter(values)
    return (list(islice(rest, size)) for size in sizes)


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
    tokens = [
        torch.nn.functional.pad(part.tokens, (0, length - part.tokens.shape[1]), value=-1)
        for part in parts
    ]
    joined = Hypotheses(
        torch.cat([part.query for part in parts]),
        torch.cat(tokens),
        torch.cat([part.lengths for part in parts]),
        torch.cat([part.log_probs for part in parts]),
    )
    return joined[joined.log_probs > -torch.inf]
