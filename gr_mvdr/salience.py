"""Unary salience: a weight for each token, the same for every alignment (aligner §3.2).

Every salience is called as ``salience(vectors, ids, mask)``: token vectors (B, L, d), token ids
(B, L) int64 and the mask (B, L) bool → u ≥ 0, (B, L) fp32, zero at padding. A learned salience is
gated by the relaxed top-k (aligner Eq. 4, Appendix A.1).
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from gr_mvdr.alignment import Solver, exact_floor, relaxed_top_k
from gr_mvdr.options import Fraction, NonNegative, Positive, Proportion, Size, build, checked, part
from gr_mvdr.token_vectors import TokenVectors

Gate = Literal["lp", "relu", "hard", "l1"]
Texts = Sequence[Sequence[int]]  # token ids
_CHUNK = 4096  # texts whose tokens are counted at a time: bounds memory, whatever the corpus


@checked
def top_share(salience: Tensor, mask: Tensor, share: Proportion) -> Tensor:
    """Selects the ⌈β·m⌉ most salient of the m real tokens of each text, for pruning (aligner §3.2).

    Args:
        salience: (…, L) float; ties go to the lowest position.
        mask: (…, L) bool.
        share: β; a text that has tokens keeps at least one.

    Returns:
        (…, L) bool, True = selected.
    """
    return strongest(salience, mask, _share_of(mask, share).unsqueeze(-1))


def strongest(values: Tensor, mask: Tensor, k: int | Tensor) -> Tensor:
    """(…, L) bool: the k real tokens with the largest values; ties go to the lowest position."""
    ordered = values.masked_fill(~mask, -torch.inf).sort(dim=-1, descending=True, stable=True)
    return mask & (ordered.indices.argsort(-1) < k)


def keep_salient(query: TokenVectors, share: float) -> TokenVectors:
    """Keeps the most salient tokens of a query (N, …) for the search (aligner §3.2, β_q)."""
    if share == 1:
        return query
    return query[top_share(query.salience, query.mask, share)]


def _share_of(mask: Tensor, share: float) -> Tensor:
    """(…) int64 ⌈share · m⌉."""
    return -exact_floor(-share, mask.sum(-1))


class Salience(nn.Module):
    """The base class of all saliences; a subclass defines `forward`.

    Its weights and tables stay in fp32 at least when a model is cast to half precision: in bf16,
    the gap between numbers near 1 is larger than ε, and token statistics lose their digits.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Salience":
        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return tensor.to(moved.device) if moved.itemsize < tensor.itemsize else moved

        return super()._apply(move, recurse)

    def fit(self, documents: Texts, vocabulary_size: int, special: Sequence[int]) -> None:
        """Computes the collection's statistics before training.

        Args:
            documents: the token ids of each document, as the model reads them.
            vocabulary_size: V; all ids are smaller.
            special: ids of special tokens.
        """

    def penalty(self, salience: Tensor, mask: Tensor) -> Tensor:
        """() a term of the loss."""
        return salience.new_zeros(())


@part("salience")
class LearnedSalience(Salience):
    """u = λ · ReLU(w·x + b) with a gate λ in [0, 1] (aligner Eq. 3; the gates of its Figure 6).

    Initially w = 0 and b = 1, so that all tokens have equal weight and no ReLU is dead. A prior is
    a salience that multiplies the scores: u = λ · prior · ReLU(w·x + b) starts as λ · prior.
    """

    def __init__(
        self,
        size: int,
        gate: Gate = "lp",
        sparsity: Proportion = 0.4,
        epsilon: Positive = 0.002,
        solver: Solver = "exact",
        iterations: Size = 100,
        l1: Positive = 0.01,
        prior: dict[str, Any] | None = None,
    ):
        """
        Args:
            size: d, the size of a token vector.
            gate: "lp": λ is the relaxed top-k with k = ⌈α·m⌉ (Eq. 4). "hard": λ = 1 for the ⌈α·m⌉
                most salient tokens, else 0. "relu": λ = 1 everywhere. "l1": like "relu", with a
                penalty on u.
            sparsity: α of the gates "lp" and "hard".
            epsilon, solver, iterations: options of the gate "lp", see `relaxed_top_k`.
            l1: coefficient of the penalty of the gate "l1".
            prior: another salience of this file, as a dict with `_target_`; None = 1 everywhere.
        """
        super().__init__()
        self.gate, self.sparsity, self.l1 = gate, sparsity, l1
        self.epsilon, self.solver, self.iterations = epsilon, solver, iterations
        self.weight = nn.Parameter(torch.zeros(size))
        self.bias = nn.Parameter(torch.ones(()))
        self.prior = build("salience", prior, size) if prior else None

    def forward(self, vectors: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        with torch.autocast(vectors.device.type, enabled=False):
            scores = (vectors.to(self.weight.dtype) @ self.weight + self.bias).relu()
            if self.prior is not None:
                scores = scores * self.prior(vectors, ids, mask)
        gates: Tensor | float = 1.0  # λ
        if self.gate == "lp":
            how = _share_of(mask, self.sparsity), self.epsilon, mask, self.solver, self.iterations
            gates = relaxed_top_k(scores, *how)
        elif self.gate == "hard":
            gates = top_share(scores, mask, self.sparsity)
        return gates * scores * mask

    def fit(self, documents: Texts, vocabulary_size: int, special: Sequence[int]) -> None:
        if self.prior is not None:
            self.prior.fit(documents, vocabulary_size, special)

    def penalty(self, salience: Tensor, mask: Tensor) -> Tensor:
        """() the coefficient times the mean of u under the gate "l1", else 0."""
        if self.gate != "l1":
            return super().penalty(salience, mask)
        return self.l1 * salience.sum() / mask.sum().clamp(min=1)


def count_tokens(documents: Texts, vocabulary_size: int) -> np.ndarray:
    """Returns (2, V) int64: how often each token id occurs, and in how many documents.

    Args:
        documents: read in slices.
        vocabulary_size: V; all ids are below it.
    """
    counts = np.zeros((2, vocabulary_size), dtype=np.int64)
    for start in range(0, len(documents), _CHUNK):
        texts = documents[start : start + _CHUNK]
        ids = np.fromiter(chain.from_iterable(texts), dtype=np.int64)
        owners = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
        distinct = np.unique(owners * vocabulary_size + ids) % vocabulary_size
        counts += [np.bincount(each, minlength=vocabulary_size) for each in (ids, distinct)]
    return counts


def inverse_document_frequency(frequencies: np.ndarray, n_documents: int) -> np.ndarray:
    """Computes idf = ln(1 + (D − df + ½) / (df + ½)), always positive; fp64, same shape."""
    return np.log1p((n_documents - frequencies + 0.5) / (frequencies + 0.5))


@part("salience")
class IdfSalience(Salience):
    """u = the token's inverse document frequency: a baseline for learned saliences.

    idf(t) = ln(1 + (D − df + ½) / (df + ½)), divided by its mean over the collection's token
    occurrences. Special tokens have u = 0. The learned tokens of a pooling, whose ids are beyond
    the vocabulary, have u = 1.
    """

    idf: Tensor

    def __init__(self, size: int):
        """
        Args:
            size: d; unused, but every salience is built with it.
        """
        super().__init__()
        self.register_buffer("idf", torch.empty(0))

    def forward(self, vectors: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        if not len(self.idf):
            raise ValueError("IdfSalience: call fit with the collection's documents first")
        known = ids < len(self.idf)
        return torch.where(known, self.idf[ids * known], 1.0) * mask

    def fit(self, documents: Texts, vocabulary_size: int, special: Sequence[int]) -> None:
        counts, frequencies = count_tokens(documents, vocabulary_size)
        idf = inverse_document_frequency(frequencies, len(documents))
        idf[list(special)] = counts[list(special)] = 0
        if counts.any():
            idf /= np.average(idf, weights=counts)
        self.idf = torch.from_numpy(idf).to(self.idf)

    def _load_from_state_dict(self, state_dict, prefix, *others):
        # A new module has an empty table; the checkpoint determines its size.
        if (saved := state_dict.get(prefix + "idf")) is not None:
            self.idf = self.idf.new_empty(saved.shape)
        super()._load_from_state_dict(state_dict, prefix, *others)


@part("salience")
class FrequencySalience(Salience):
    """u = BM25's saturated term frequency of the token in its own text.

    u = (k1 + 1) tf / (tf + k1 (1 − b + b m / mean m)), which is 1 for a token that occurs once in a
    text of mean length. With this salience on documents, IDF on queries, and vectors that are equal
    or orthogonal, MaxSim *is* BM25 (tested). With other vectors it is a soft BM25.
    """

    mean_length: Tensor

    def __init__(self, size: int, k1: NonNegative = 1.5, b: Fraction = 0.75):
        """
        Args:
            size: d; unused, but every salience is built with it.
            k1: saturation of the term frequency; b: strength of the length normalisation.
        """
        super().__init__()
        self.k1, self.b = k1, b
        self.register_buffer("mean_length", torch.tensor(torch.nan))

    def forward(self, vectors: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        equal = ids.unsqueeze(-1) == ids.unsqueeze(-2)
        frequency = (equal & mask.unsqueeze(-2)).sum(-1, dtype=torch.float32)
        length = mask.sum(-1, keepdim=True) / self.mean_length
        saturated = frequency + self.k1 * (1 - self.b + self.b * length)
        return (self.k1 + 1) * frequency / saturated * mask

    def fit(self, documents: Texts, vocabulary_size: int, special: Sequence[int]) -> None:
        self.mean_length.fill_(sum(map(len, documents)) / max(1, len(documents)))
