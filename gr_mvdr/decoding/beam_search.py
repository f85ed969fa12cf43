"""Constrained beam search over all hypotheses of a batch at once (SEAL, GENRE and DSI decode so).

The constraint lists the allowed tokens of every hypothesis in one call; their log-probabilities are
gathered from the model's, which were normalised over the whole vocabulary before, and the best of
each query are chosen by tensor operations. No Python runs for a single hypothesis, and everything
that passes between model, constraint and search is a tensor on the search's device.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, EncoderDecoderCache

from gr_mvdr.heads.plain import Head
from gr_mvdr.products import fast_products
from gr_mvdr.relevance import at_least_float32


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
    """A set of token sequences, walked from the left; a state is one of H prefixes.

    An n-gram index allows every n-gram of a corpus, a trie every identifier.
    """

    def root(self, batch: int, device: torch.device | str) -> Any:
        """The state of `batch` empty prefixes; `state[index]` selects some of the prefixes.

        Successors and their states stay on `device`; so must the tensors that index a state.
        """

    def expand(self, state: Any) -> Successors:
        """Every allowed one-token extension; a prefix that cannot be extended adds no row."""


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


class Step(Protocol):
    """The model, one position a call."""

    def __call__(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """The log-probabilities (R, V) of what follows, −inf for what must not be chosen.

        Args:
            tokens: (R,) int64, the last token of each hypothesis; R ≤ B × beam may change.
            parents: (R,) int64, which row of the previous call each continues (so that a cache can
                be reordered). The first call has one row a query, and parents 0 … B−1.
        """


class Observer(Protocol):
    """Is shown every step of a search before the pruning."""

    def __call__(
        self, depth: int, live: Hypotheses, successors: Successors, scores: Tensor
    ) -> None:
        """
        Args:
            depth: the length of the hypotheses that the step makes (1, 2, …); live: those it
                extends; successors: all theirs; scores: (n,) log p of each successor's hypothesis.
        """


@dataclass
class BeamSearchResult:
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
) -> BeamSearchResult:
    """Finds probable sequences within the constraint, for B queries at once (SEAL's decoding).

    Every step keeps the best 2 × beam candidates of each query; those that end are finished, the
    best `beam_size` others go on. Equal candidates are ordered by their hypothesis' rank, then by
    token, so the result depends on nothing but the log-probabilities. A hypothesis that the
    constraint does not extend ends where it is; a query without any sequence finds nothing.

    Args:
        length: of the longest sequence, in tokens, the end token included.
        end_token: a sequence that ends with it is finished; None: no such token.
    Raises:
        ValueError: a size below 1; a log-probability that is not a number; what the constraint
            raises for a `length` it cannot check.
    """
    beams = _Beams(batch_size, beam_size, length, end_token, start_token, device)
    state, first_log_probs = constraint.root(batch_size, device), None
    for depth in range(1, length + 1):
        log_probs = step(beams.last, beams.parents)
        first_log_probs = log_probs if first_log_probs is None else first_log_probs
        successors = constraint.expand(state)
        scores = _scores(beams.live, log_probs, successors)
        del log_probs  # the largest tensor: freed before the model makes the next one
        if observer is not None:
            observer(depth, beams.live, successors, scores)
        going_on = beams.extend(successors, scores)
        if depth == length or not len(beams.live):
            break
        state = successors.state[going_on]
    return beams.result(first_log_probs)


class _Beams:
    """The hypotheses of a search.

    Attributes:
        live: those that go on; last: (R,) their last tokens; parents: (R,) the rows they extend.
        final, candidates: of every step so far, see `BeamSearchResult`.
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
        self.batch_size, self.beam_size, self.length = batch_size, beam_size, length
        self.end = -1 if end_token is None else end_token
        self.parents = torch.arange(batch_size, device=device)
        self.last = torch.full_like(self.parents, start_token)
        nothing = 0 * self.parents
        self.live = Hypotheses(self.parents, nothing[:, None][:, :0], nothing, 0.0 * nothing)
        self.final: list[Hypotheses] = []
        self.candidates: list[Hypotheses] = []

    def extend(self, successors: Successors, scores: Tensor) -> Tensor:
        """Replaces the live hypotheses by the best successors; returns their numbers (R,)."""
        begins = _begins(successors.row, len(self.live))
        counts = begins[_begins(self.live.query, self.batch_size)].diff().tolist()
        dead_ends = self.live[(begins.diff() == 0) & (self.live.lengths > 0)]
        chosen = take_best_of_each(scores, counts, 2 * self.beam_size)
        parents = successors.row[chosen]
        tokens = torch.cat([self.live.tokens[parents], successors.token[chosen, None]], dim=1)
        lengths = self.live.lengths[parents] + 1
        found = Hypotheses(self.live.query[parents], tokens, lengths, scores[chosen])
        self.candidates.append(found)
        last = found.tokens[:, -1]
        ended = last == self.end
        self.final += [dead_ends, found[ended]]
        going_on = _first_of_each(found.query, ~ended, self.beam_size)
        self.live, self.parents, self.last = found[going_on], parents[going_on], last[going_on]
        return chosen[going_on]

    def result(self, first_log_probs: Tensor) -> BeamSearchResult:
        final = _concatenate([*self.final, self.live], self.length)
        final = final[final.log_probs.argsort(descending=True, stable=True)]
        candidates = _concatenate(self.candidates, self.length)
        final, candidates = (part[part.query.argsort(stable=True)] for part in (final, candidates))
        return BeamSearchResult(final, candidates, first_log_probs)


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


def take_best_of_each(scores: Tensor, counts: list[int], k: int) -> Tensor:
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
    tokens = [
        torch.nn.functional.pad(part.tokens, (0, length - part.tokens.shape[1]), value=-1)
        for part in parts
    ]
    return Hypotheses(
        torch.cat([part.query for part in parts]),
        torch.cat(tokens),
        torch.cat([part.lengths for part in parts]),
        torch.cat([part.log_probs for part in parts]),
    )


# The step of a decoder ---------------------------------------------------------------------------


class DecodingStep:
    """(tokens (R,), parents (R,)) → log-probabilities (R, V) over tokens, with a cache.

    The softmax runs over the head's rows. A token has the probability of all its rows together, and
    the decoder goes on with their mean, weighted by their probabilities: every row of a token is a
    candidate, and all row paths of a token sequence are one hypothesis. So log p(sequence | query)
    depends on the sequence alone, in a search of any width (docs/generative.md has the other ways).
    """

    def __init__(self, head: Head, queries: Tensor, query_mask: Tensor):
        """
        Args:
            head: of the decoder; queries: (B, N, d) the encoder's; query_mask: (B, N) bool.
        """
        self.head, self.queries, self.mask = head, queries, query_mask
        self.cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        self.inputs: Any = None
        self.scores: Any = None

    def __call__(self, tokens: Tensor, parents: Tensor) -> Tensor:
        return self.head.by_token(self.row_scores(tokens, parents))

    @torch.no_grad()
    def row_scores(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """(R, rows) log-probabilities of the head's rows after these tokens."""
        self._extend(tokens, parents)
        hidden = self.head.backbone.get_decoder()(
            inputs_embeds=self.inputs[:, -1:],
            encoder_hidden_states=self.queries,
            encoder_attention_mask=self.mask.long(),
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state[:, 0]
        context = self.head.context(self.inputs)
        position = torch.full_like(parents, self.inputs.shape[1] - 1)
        context = None if context is None else context[:, -1]
        with fast_products(hidden.device):
            logits = self.head.logits(hidden, context, position)
        logits = at_least_float32(logits)
        # In place: the largest tensor of the search would otherwise be there twice.
        self.scores = torch.log_softmax(logits, -1, out=logits)
        return self.scores

    def _extend(self, tokens: Tensor, parents: Tensor) -> None:
        """Every hypothesis' decoder inputs (R, t, d): its parent's, and the vector of its token."""
        if self.inputs is None:
            self.inputs = self.head.start_vector.expand(len(tokens), 1, -1)
            return
        self.cache.reorder_cache(parents)
        self.queries, self.mask = self.queries[parents], self.mask[parents]
        vectors = self.head.expected_inputs(self.scores, parents, tokens).to(self.inputs)
        self.scores = None  # not kept while the next ones are made
        self.inputs = torch.cat([self.inputs[parents], vectors[:, None]], dim=1)


def score_tokens(step: Step, ids: Tensor, mask: Tensor) -> Tensor:
    """(B, M) log p(token | query, tokens before it), zero at padding.

    The sum of a row is the number that a search gives the sequence if it finds it: teacher forcing
    along tokens, not along given rows.

    Args:
        step: a fresh one for B queries; ids, mask: (B, M) a sequence for each.
    """
    pairs = torch.arange(len(ids), device=ids.device)
    last = pairs  # before the first token any will do
    found = []
    for token, real in zip(ids.unbind(1), mask.unbind(1), strict=True):
        found.append(step(last, pairs)[pairs, token].masked_fill(~real, 0.0))
        last = token
    return torch.stack(found, 1)
