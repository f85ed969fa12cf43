"""Unary salience: how much a token counts, whatever it is aligned with (aligner §3.2).

Every salience is called as ``salience(vectors, ids, mask)``: token vectors (B, L, d), their tokens
(B, L) int64 and the mask (B, L) bool → u ≥ 0, (B, L) fp32, zero at padding.
"""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from gr_mvdr.parts import build, part
from gr_mvdr.relaxed_top_k import Solver, check_solver, relaxed_top_k, residual
from gr_mvdr.tokenizers import UNK_ID

__all__ = [
    "FrequencySalience",
    "IdfSalience",
    "LearnedSalience",
    "relaxed_top_k",
    "residual",
    "top_share",
]

Gate = Literal["lp", "relu", "hard", "l1"]
GATES = ", ".join(get_args(Gate))


def top_share(salience: Tensor, mask: Tensor, share: float) -> Tensor:
    """The ⌈β·m⌉ most salient of the m real tokens of every text: what pruning keeps (aligner §3.2).

    Args:
        salience: (…, L) float; of equal ones the first are kept.
        mask: (…, L) bool.
        share: 0 < β ≤ 1, so that a text with a token keeps one.

    Returns:
        (…, L) bool.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share={share}: must be > 0 and ≤ 1")
    ordered = salience.masked_fill(~mask, -torch.inf).sort(dim=-1, descending=True, stable=True)
    rank = ordered.indices.argsort(-1)
    return mask & (rank < _share_of(mask, share).unsqueeze(-1))


def _share_of(mask: Tensor, share: float) -> Tensor:
    """(…) int64 ⌈share · m⌉."""
    return (share * mask.sum(-1).double()).ceil().long()


@part("salience")
class LearnedSalience(nn.Module):
    """u = λ · ReLU(w·x + b) with a gate λ in [0, 1] (aligner Eq. 3; the gates of its Figure 6).

    It begins with w = 0 and b = 1: all tokens count alike, and no ReLU is dead. With a prior, a
    salience that is not learned, u begins as that: u = λ · prior · ReLU(w·x + b).
    """

    def __init__(
        self,
        size: int,
        gate: Gate = "lp",
        sparsity: float = 0.4,
        epsilon: float = 0.002,
        solver: Solver = "exact",
        iterations: int = 100,
        l1: float = 0.01,
        prior: dict[str, Any] | None = None,
    ):
        """
        Args:
            size: d, of the token vectors.
            gate: "lp": λ is the relaxed top-k of ⌈α·m⌉ tokens (Eq. 4). "hard": 1 at those tokens.
                "relu": 1 everywhere. "l1": as "relu", with a penalty on u.
            sparsity: α, of "lp" and "hard".
            epsilon, solver, iterations: of "lp", see `relaxed_top_k`.
            l1: the penalty's coefficient, of "l1".
            prior: another salience of this file, as a dict with `_target_`; None = 1 everywhere.

        Raises:
            ValueError: a value out of range.
        """
        super().__init__()
        if gate not in get_args(Gate):
            raise ValueError(f"model.salience.gate={gate}: must be one of {GATES}")
        if not 0 < sparsity <= 1:
            raise ValueError(f"model.salience.sparsity={sparsity}: must be > 0 and ≤ 1")
        if gate == "l1" and not l1 > 0:
            raise ValueError(f"model.salience.l1={l1}: must be > 0")
        check_solver(epsilon, solver, iterations, "model.salience.")
        self.gate, self.sparsity, self.l1 = gate, sparsity, l1
        self.solver = {"epsilon": epsilon, "solver": solver, "iterations": iterations}
        self.weight = nn.Parameter(torch.zeros(size))
        self.bias = nn.Parameter(torch.ones(()))
        self.prior = build("salience", prior, size) if prior else None

    def forward(self, vectors: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        # Outside autocast: in bf16 scores around 1 lie further apart than ε.
        with torch.autocast(vectors.device.type, enabled=False):
            scores = (vectors.to(self.weight.dtype) @ self.weight + self.bias).relu()
            if self.prior is not None:
                scores = scores * self.prior(vectors, ids, mask)
        return self._gates(scores, mask) * scores * mask

    def _gates(self, scores: Tensor, mask: Tensor) -> Tensor | float:
        """(B, L) λ."""
        if self.gate == "lp":
            return relaxed_top_k(scores, _share_of(mask, self.sparsity), mask=mask, **self.solver)
        return top_share(scores, mask, self.sparsity) if self.gate == "hard" else 1.0

    def fit(self, documents: Sequence[Sequence[int]], vocabulary_size: int) -> None:
        """Only a prior has something to count."""
        if self.prior is not None:
            self.prior.fit(documents, vocabulary_size)

    def penalty(self, salience: Tensor, mask: Tensor) -> Tensor:
        """() what to add to the loss: of the gate "l1", its coefficient · the mean of u."""
        if self.gate != "l1":
            return salience.new_zeros(())
        return self.l1 * salience.sum() / mask.sum().clamp(min=1)


@part("salience")
class IdfSalience(nn.Module):
    """u = the token's inverse document frequency: not learned, what learned ones must beat.

    idf(t) = ln(1 + (D − df + ½) / (df + ½)), divided by its mean over the collection's token
    occurrences. Special tokens count 0; learned tokens of a pooling, beyond the vocabulary, 1.
    """

    def __init__(self, size: int):
        """
        Args:
            size: d; every salience is built with it, this one asks only for the token's id.
        """
        super().__init__()
        self.register_buffer("idf", torch.empty(0))

    def forward(self, vectors: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        if not len(self.idf):
            raise ValueError("IdfSalience: call fit with the collection's documents first")
        known = ids < len(self.idf)
        return torch.where(known, self.idf[ids * known], 1.0) * mask

    def fit(self, documents: Sequence[Sequence[int]], vocabulary_size: int) -> None:
        """Counts the document frequencies.

        Args:
            documents: the token ids of each.
            vocabulary_size: V; all ids are below it.
        """
        counts, frequencies = np.zeros((2, vocabulary_size))
        for document in documents:
            tokens, times = np.unique(np.asarray(document, dtype=np.int64), return_counts=True)
            counts[tokens] += times
            frequencies[tokens] += 1
        idf = np.log1p((len(documents) - frequencies + 0.5) / (frequencies + 0.5))
        idf[: UNK_ID + 1] = counts[: UNK_ID + 1] = 0
        if counts.any():
            idf /= np.average(idf, weights=counts)
        self.idf = torch.from_numpy(idf).to(self.idf)

    def penalty(self, salience: Tensor, mask: Tensor) -> Tensor:
        """() zero: there is nothing to learn."""
        return salience.new_zeros(())

    def _load_from_state_dict(self, state_dict, prefix, *others):
        # A new module holds no table yet; the checkpoint knows its size.
        if (saved := state_dict.get(prefix + "idf")) is not None:
            self.idf = self.idf.new_empty(saved.shape)
        super()._load_from_state_dict(state_dict, prefix, *others)


@part("salience")
class FrequencySalience(nn.Module):
    """u = BM25's saturated term frequency of the token in its own text: not learned.

    u = (k1 + 1) tf / (tf + k1 (1 − b + b m / mean m)): 1 for a token that occurs once in a text of
    mean length. With it on documents, IDF on queries and vectors that are equal or orthogonal,
    MaxSim *is* BM25 (a test holds this); vectors that are neither make it soft.
    """

    def __init__(self, size: int, k1: float = 1.5, b: float = 0.75):
        """
        Args:
            size: d; every salience is built with it, this one asks only for the tokens.
            k1: saturation of the term frequency; b: strength of the length normalisation.
        """
        super().__init__()
        if k1 < 0:
            raise ValueError(f"model.salience.k1={k1}: must be ≥ 0")
        if not 0 <= b <= 1:
            raise ValueError(f"model.salience.b={b}: must be ≥ 0 and ≤ 1")
        self.k1, self.b = k1, b
        self.register_buffer("mean_length", torch.tensor(torch.nan))

    def forward(self, vectors: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        if self.mean_length.isnan():
            raise ValueError("FrequencySalience: call fit with the collection's documents first")
        equal = ids.unsqueeze(-1) == ids.unsqueeze(-2)
        frequency = (equal & mask.unsqueeze(-2)).sum(-1, dtype=torch.float32)
        length = mask.sum(-1, keepdim=True) / self.mean_length
        saturated = frequency + self.k1 * (1 - self.b + self.b * length)
        return (self.k1 + 1) * frequency / saturated * mask

    def fit(self, documents: Sequence[Sequence[int]], vocabulary_size: int) -> None:
        """Takes the documents' mean length; they are token lists, as the model reads them."""
        self.mean_length.fill_(sum(map(len, documents)) / max(1, len(documents)))

    def penalty(self, salience: Tensor, mask: Tensor) -> Tensor:
        """() zero: there is nothing to learn."""
        return salience.new_zeros(())
