"""MUVERA: one vector for each text whose inner product estimates MaxSim (Dhulipala et al. 2024).

The vectors are called fixed-dimensional encodings. In each of R repetitions, k random planes cut
the space into 2ᵏ blocks. For each block, a query has the sum of its token vectors there, projected
to p dimensions, and a document the mean of its own. Two similar tokens mostly share a block, so the
inner product over all blocks is close to Σ_j max_i S_ij.

Tokens that all point in nearly one direction, as some encoders' do, are separated by no plane.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from gr_mvdr.alignment import MaxSim
from gr_mvdr.files import open_tensors, write_tensors
from gr_mvdr.options import Seed, Size, part
from gr_mvdr.progress import track
from gr_mvdr.relevance import Scoring
from gr_mvdr.token_index.search import Proposal, Proposer, Query
from gr_mvdr.token_index.store import TokenStore
from gr_mvdr.token_vectors import PackedTokens, TokenVectors, stack

FILE = "fde.safetensors"
_TOKENS = 4096  # encoded at once
_NUMBERS = 1 << 22  # numbers of stored vectors that are compared at once


@dataclass(frozen=True)
class Encoding:
    """The random map from a text's tokens to one vector, shared by documents and queries.

    Attributes:
        planes: (R, k, d) normals of the planes; the signs of a token's products with them are the
            bits of its block's number.
        projections: (R, d, p) matrices that keep inner products in expectation; None = p is d.
        sketch: a count-sketch of the n = R · 2ᵏ · p numbers: the place (n,) int64 of each in a
            shorter vector, its sign (n,), and the size of that vector; None = all numbers are kept.
    """

    planes: Tensor
    projections: Tensor | None = None
    sketch: tuple[Tensor, Tensor, int] | None = None

    @classmethod
    def draw(cls, dimension: int, options: "OneVector") -> "Encoding":
        """Draws Gaussian planes and projections of ±1/√p; d = `dimension`."""
        # RandomState is frozen, so every version of numpy draws the map of a stored index.
        random = np.random.RandomState(options.seed)
        r, p = options.repetitions, options.projection
        planes = torch.from_numpy(random.standard_normal((r, options.planes, dimension)))
        projections = sketch = None
        if p is not None:
            projections = torch.from_numpy(random.choice([-1.0, 1.0], (r, dimension, p)) / p**0.5)
        if (size := options.size) is not None:
            count = r * 2**options.planes * (p or dimension)
            places, signs = random.randint(size, size=count), random.choice([-1.0, 1.0], count)
            sketch = torch.from_numpy(places.astype(np.int64)), torch.from_numpy(signs), size
        return cls(planes, projections, sketch)

    @property
    def size(self) -> int:
        """E, the size of an encoded text."""
        if self.sketch is not None:
            return self.sketch[2]
        r, k, d = self.planes.shape
        return r * 2**k * (d if self.projections is None else self.projections.shape[2])

    def queries(self, tokens: PackedTokens) -> Tensor:
        """Encodes b queries as (b, E), divided by R so that an inner product estimates MaxSim.

        A token's salience scales its vector and does not change its block.
        """
        cells, values, shape = self._projected(tokens)
        sums = values.new_zeros(shape.numel(), values.shape[-1])
        sums.index_add_(0, cells.flatten(), values.flatten(0, 1))
        return self._joined(sums, shape) / shape[1]

    def documents(self, tokens: PackedTokens) -> Tensor:
        """Encodes b documents of at least one token as (b, E).

        An empty block takes the document's token whose signs differ least from the block's; ties
        go to the first token. A token's salience scales its vector.
        """
        cells, values, shape = self._projected(tokens)
        flat = cells.flatten()
        means = values.new_zeros(shape.numel(), values.shape[-1])
        means.index_add_(0, flat, values.flatten(0, 1))
        counts = torch.bincount(flat, minlength=len(means))
        means /= counts.clamp(min=1).unsqueeze(1)
        empty = (counts == 0).nonzero()[:, 0]
        repetition = empty // shape[2] % shape[1]
        means[empty] = values[_nearest_tokens(cells, shape)[empty], repetition]
        return self._joined(means, shape)

    def _projected(self, tokens: PackedTokens) -> tuple[Tensor, Tensor, torch.Size]:
        """Returns each token's cell (t, R) and projection (t, R, p) in each repetition, and the
        shape (texts, R, blocks) that numbers the cells."""
        vectors = _compared(tokens)
        r, k = self.planes.shape[:2]
        signs = (vectors @ self.planes.to(vectors).flatten(0, 1).T).view(len(vectors), r, k) > 0
        blocks = (signs << torch.arange(k, device=vectors.device)).sum(-1)  # (t, R)
        shape = torch.Size((len(tokens.counts), r, 2**k))
        texts = torch.arange(shape[0], device=vectors.device).repeat_interleave(tokens.counts)
        cells = (texts.unsqueeze(1) * r + torch.arange(r, device=vectors.device)) * 2**k + blocks
        if tokens.salience is not None:
            vectors = vectors * tokens.salience.unsqueeze(1)
        if self.projections is None:
            return cells, vectors.unsqueeze(1).expand(-1, r, -1), shape
        matrix = self.projections.to(vectors).transpose(0, 1).flatten(1)  # (d, R · p)
        return cells, (vectors @ matrix).view(len(vectors), r, matrix.shape[1] // r), shape

    def _joined(self, cells: Tensor, shape: torch.Size) -> Tensor:
        """Joins cells (b · R · 2ᵏ, p) into encodings (b, E), sketched if there is a sketch."""
        joined = cells.view(shape[0], -1)
        if self.sketch is None:
            return joined
        places, signs, size = self.sketch
        short = joined.new_zeros(len(joined), size)
        return short.index_add_(1, places.to(joined.device), joined * signs.to(joined))


def _compared(tokens: PackedTokens | TokenVectors) -> Tensor:
    """The vectors whose products make the alignment: the keys, if there are keys."""
    return tokens.vectors if tokens.keys is None else tokens.keys


def _nearest_tokens(cells: Tensor, shape: torch.Size) -> Tensor:
    """Finds, for each cell (b · R · 2ᵏ,), the text's token whose signs differ least from it.

    A key is distance · t + token. A block's nearest token is its own or that of a neighbour that
    differs in one sign, at a distance greater by 1; one pass for each sign reaches all blocks.
    """
    t, blocks = len(cells), shape[2]
    steps = blocks.bit_length() - 1
    rows = torch.arange(t, device=cells.device).unsqueeze(1).expand_as(cells).flatten()
    keys = cells.new_full((shape.numel(),), t * (steps + 1))
    keys = keys.scatter_reduce_(0, cells.flatten(), rows, "amin").view(-1, blocks)
    places = torch.arange(blocks, device=cells.device)
    for step in range(steps):
        keys = keys.minimum(keys[:, places ^ (1 << step)] + t)
    return keys.flatten() % max(1, t)


@part("proposer")
@dataclass(frozen=True)
class OneVector(Proposer):
    """Proposes the documents whose one vector is nearest to the query's (MUVERA).

    Attributes:
        repetitions, planes: R and k; planes cut the space into 2ᵏ blocks, R times.
        projection: p, the size of a block's vector; None = d.
        size: the size of a shorter vector of a text, by a sketch; None = R · 2ᵏ · p.
        precision: the type of the stored numbers.
        seed: random seed of the planes, the projections and the sketch.
    """

    repetitions: Size = 20
    planes: Literal[1, 2, 3, 4, 5, 6, 7, 8, 9, 10] = 5
    projection: Size | None = 16
    size: Size | None = None
    precision: Literal["float32", "float16"] = "float16"
    seed: Seed = 0

    def open(self, searcher: Any) -> "DocumentVectors":
        """Opens the documents' vectors, or computes them."""
        return DocumentVectors(searcher.store, self)

    def propose(
        self,
        opened: "DocumentVectors",
        queries: Sequence[Query],
        scoring: Scoring,
        scorer: Any,
        kept: Tensor | None = None,
    ) -> list[Proposal]:
        """Proposes all documents with the estimates Σ_j u_j max_i S_ij (no Z)."""
        numbers = torch.arange(len(opened.store)) if kept is None else kept
        estimates = opened.estimates(stack([query.vectors for query in queries]))[numbers]
        count = min(scorer.refine or len(numbers), len(numbers))
        return [Proposal(numbers, own, count) for own in estimates.T]

    def check(self, scoring: Scoring, scorer: Any, salience: Mapping[str, Any] | None) -> None:
        """See `Proposer.check`."""
        if scoring.alignment != MaxSim():
            rule = f"supports only MaxSim; with {scoring.alignment} use another proposer"
            raise ValueError(f"model.search.proposer=OneVector: {rule}")


class DocumentVectors:
    """One vector for each document of a store.

    They are kept in a memory-mapped file of the index, and are computed again if the options or the
    documents change.

    Attributes:
        rows: (D, E) in `precision`, by document number.
    """

    def __init__(self, store: TokenStore, options: OneVector):
        """
        Raises:
            ValueError: the stored file is damaged, or float16 cannot hold an encoding.
        """
        self.store, file = store, store.directory / FILE
        self.encoding = Encoding.draw(store.sizes[store.searched], options)
        made_from = [vars(options), store.revision]
        tensors, saved = open_tensors(file) if file.is_file() else ({}, None)
        if saved != made_from:
            tensors = {"rows": self._encode(options.precision)}
            write_tensors(file, tensors, made_from)
        self.rows = tensors["rows"]

    @property
    def size_in_bytes(self) -> int:
        return self.rows.nbytes

    def _encode(self, dtype: str) -> Tensor:
        """Computes the vectors (D, E) of all documents."""
        encoded = torch.empty(len(self.store), self.encoding.size, dtype=getattr(torch, dtype))
        blocks = list(self.store.blocks(_TOKENS))
        for documents in track(blocks, "encoding documents as one vector"):
            encoded[documents] = self.encoding.documents(self.store.read(documents)).to(encoded)
            if not encoded[documents].isfinite().all():
                rule = "must be float32, some numbers are too large"
                raise ValueError(f"model.search.proposer.precision={dtype}: {rule}")
        return encoded

    def estimates(self, queries: TokenVectors) -> Tensor:
        """Estimates MaxSim (D, Q) fp32 of queries (Q, N, …), on the CPU."""
        encoded = self.encoding.queries(queries.pack())
        blocks = self.rows.split(max(1, _NUMBERS // self.encoding.size))
        return torch.cat([(rows.to(encoded.device).float() @ encoded.T).cpu() for rows in blocks])
