"""What a model would write next, and what of it a constraint allows: one step of a search, opened.

The probabilities are those of the search, over the whole vocabulary, before the constraint.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from gr_mvdr.decoding.beam_search import Constraint, Step, Successors

_EXAMPLES = 10  # documents that are listed of those that can be reached


@dataclass(frozen=True)
class Continuation:
    """A token that may follow a prefix.

    Attributes:
        token: its id; probability: p(token | query, prefix).
        allowed: whether the constraint has it; a search never chooses another.
        n_documents: how many documents can still be reached after it; documents: some of them.
    """

    token: int
    probability: float
    allowed: bool
    n_documents: int = 0
    documents: tuple[int, ...] = ()


class Reaching(Constraint, Protocol):
    """A constraint that knows where a prefix can lead: a trie, an n-gram index."""

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
    """The most probable tokens after a prefix, the most probable first.

    Args:
        step: a fresh one for one query; prefix: token ids, [] = the beginning.
        k: so many of the allowed tokens; those forbidden ones that are among the k most probable
            of all come too.

    Returns:
        Nothing where the constraint ends.

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
    tokens = best[listed & (log_probs[best] > -torch.inf)].tolist()
    return [_continued(constraint, successors, t, float(log_probs[t].exp())) for t in tokens]


def _continued(
    constraint: Reaching, successors: Successors, token: int, probability: float
) -> Continuation:
    state = successors.state[successors.token == token]
    if not len(state):
        return Continuation(token, probability, allowed=False)
    documents = constraint.reachable(state)
    some = tuple(documents[:_EXAMPLES].tolist())
    return Continuation(token, probability, True, len(documents), some)
