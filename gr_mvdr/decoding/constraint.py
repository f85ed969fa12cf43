"""What a constrained search needs to know of the set of allowed token sequences.

An n-gram index allows every n-gram of a corpus, a trie every identifier; the beam search sees only
`Constraint`. All hypotheses of a batch are extended in one call, so that no Python runs for each.
Everything that passes between the two is a tensor on the search's device.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor


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


def ragged_range(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All integers of the intervals [low, high), one interval after the other.

    Args:
        low, high: (H,) integers, low ≤ high.
    Returns:
        The intervals' numbers and the integers, both (Σ (high − low),) int64.
    """
    lengths = np.asarray(high, dtype=np.int64) - low
    row = np.repeat(np.arange(len(lengths)), lengths)
    first = np.cumsum(lengths) - lengths
    return row, np.arange(len(row)) + np.repeat(low - first, lengths)
