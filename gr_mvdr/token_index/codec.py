"""Centroids by token type, and vectors in few bytes: product-quantised residuals by faiss."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

_ROWS = 256  # rows of a codebook, numbered by one byte
_SAMPLE = 65_536  # residuals from which codebooks are learned: 256 for each row, as faiss advises
# Training vectors for each centroid: faiss's default of 256 takes longer and finds none better.
_PER_CENTROID = 64
_ITERATIONS = 5  # of a k-means: ten take twice as long and leave 1 % less error
# The share of vectors that become centroids, and the most centroids, of all types and of one.
TOKENS_PER_CENTROID, _MOST, _MOST_OF_TYPE = 64, 2**18, 2**12
_LEARNED = 16  # vectors for each centroid, from which codes are learned
_BLOCK = 65_536  # vectors read at once
_UNIT = 1e-3  # largest difference of a unit vector's length from 1


class Storage(NamedTuple):
    """How an index stores its vectors.

    Attributes:
        dtype: "float32", "float16" or "codes", see `Codec`.
        code_bytes: bytes of a code, without the centroid's number; None = one byte for every 4
            dimensions.
    """

    dtype: str = "float32"
    code_bytes: int | None = None

    @property
    def is_coded(self) -> bool:
        return self.dtype == "codes"

    def sample_size(self, tokens: int) -> int:
        """The number of vectors from which a store of this many tokens learns its codec."""
        most = max(_SAMPLE, int(_LEARNED * _budget(tokens)))
        return min(tokens, most) if self.is_coded else tokens

    def sample_first(self, lengths: Sequence[int]) -> list[int]:
        """Orders documents with these numbers of tokens for encoding, and returns their places.

        A sample of all lengths comes first: the store learns its codec from it. The other documents
        follow. Both parts are sorted by length, so that batches need little padding.
        """
        total, order = sum(lengths), sorted(range(len(lengths)), key=lengths.__getitem__)
        step = max(1, total // max(1, self.sample_size(total)))
        return [n for first in range(2) for i, n in enumerate(order) if (i % step > 0) == first]

    def bytes_of(self, size: int) -> int:
        """The bytes of the code of a vector (size,).

        Raises:
            ValueError: `code_bytes` does not divide the size.
        """
        if self.code_bytes is None:
            return next((count for count in range(size // 4, 1, -1) if size % count == 0), 1)
        if size % self.code_bytes:
            rule = f"must divide the {size} dimensions"
            raise ValueError(f"model.search.source.code_bytes={self.code_bytes}: {rule}")
        return self.code_bytes


def _budget(tokens: int) -> float:
    return min(tokens / TOKENS_PER_CENTROID, _MOST)


class Clusters(NamedTuple):
    """Centroids of the vectors of each token type (Martinico et al. 2026).

    A token's id says most of its vector's direction, so one small k-means for each type costs
    little and gives many good centroids. A type has centroids in proportion to its tokens, at least
    one. Vectors of one type, such as those of [CLS], have one k-means.

    Attributes:
        centroids: (K, d) bf16; those of a type are adjacent.
        types: (Y,) int64 token ids, ascending.
        starts: (Y + 1,) int64; type y has the centroids starts[y] to starts[y + 1] − 1.
    """

    centroids: Tensor
    types: Tensor
    starts: Tensor

    @classmethod
    def learn(cls, read: Callable[[Tensor], Tensor], ids: Tensor, tokens: int) -> "Clusters":
        """Learns the centroids for a store of this many tokens.

        Args:
            read: returns the vectors (n, d) fp32 of rows (n,) int64.
            ids: (t,) int64 the token ids of all rows that can be read, a fair sample of all tokens.
        """
        ordered, order = ids.sort(stable=True)
        types, counts = ordered.unique_consecutive(return_counts=True)
        sizes = (counts * (_budget(tokens) / len(ids))).round().long().clamp(1, _MOST_OF_TYPE)
        ends, centroids, first = counts.cumsum(0), [], 0
        while first < len(types):  # as many types as fit into a block
            start = int(ends[first] - counts[first])
            last = max(first + 1, int(torch.searchsorted(ends, start + _BLOCK, right=True)))
            rows, own = order[start : ends[last - 1]], counts[first:last].tolist()
            if len(own) == 1 and (step := own[0] // (_PER_CENTROID * int(sizes[first]))) > 1:
                rows = rows[::step]
                own = [len(rows)]
            for vectors, size in zip(read(rows).split(own), sizes[first:last], strict=True):
                centroids.append(torch.from_numpy(k_means(vectors.numpy(), int(size))))
            first = last
        starts = torch.tensor([0, *map(len, centroids)]).cumsum(0)
        return cls(torch.cat(centroids).bfloat16(), types, starts)

    def assign(self, vectors: Tensor, ids: Tensor) -> Tensor:
        """(t,) int64 the nearest centroid of each vector (t, d) fp32, of its own token type.

        A vector of an unknown type gets the nearest centroid of all.
        """
        place = torch.searchsorted(self.types, ids).clamp(max=len(self.types) - 1)
        numbers, sizes = self.starts[place], self.starts.diff()
        known = self.types[place] == ids
        (rows,) = (known & (sizes[place] > 1)).nonzero(as_tuple=True)
        place, order = place[rows].sort(stable=True)
        kinds, counts = place.unique_consecutive(return_counts=True)
        bounds = zip(self.starts[kinds].tolist(), self.starts[kinds + 1].tolist(), strict=True)
        groups = [*zip(rows[order].split(counts.tolist()), bounds, strict=True)]
        groups.append(((~known).nonzero()[:, 0], (0, len(self.centroids))))
        for rows, (start, end) in groups:
            centroids = self.centroids[start:end].float()
            lengths = centroids.square().sum(1) / 2
            for some in rows.split(max(1, (1 << 22) // (end - start))):
                near = torch.addmm(-lengths, vectors[some], centroids.T).argmax(1)
                numbers[some] = start + near
        return numbers


class Codec:
    """Encodes vectors as codes: the number of a centroid, and a residual (ColBERTv2 §3.3).

    The residual has one byte for each part of the vector (product quantisation, Jégou et al. 2011),
    in the basis of the residuals' principal axes. The axes are distributed over the parts so that
    the parts have the same Σ log σ². Inner products are the same in every orthogonal basis, so a
    search turns its queries rather than the decoded vectors.

    Attributes:
        tensors: "codebooks" (parts, 256, d / parts) fp32; "basis" (d, d) fp32: a vector x is stored
            as x @ basis; and those of `clusters`, which are in this basis, too.
        size: d.
        is_unit: whether the vectors have length 1; decoded vectors are then normalised.
    """

    def __init__(self, tensors: dict[str, Tensor], is_unit: bool):
        import faiss

        self.tensors, self.is_unit, self._basis = tensors, is_unit, tensors["basis"]
        self.clusters = Clusters(*(tensors[name] for name in Clusters._fields))
        parts, _, width = tensors["codebooks"].shape
        self.size = parts * width
        self._number_bytes = -(-(len(self.clusters.centroids) - 1).bit_length() // 8) or 1
        self._quantiser: Any = faiss.ProductQuantizer(self.size, parts, 8)
        codebooks = tensors["codebooks"].flatten().numpy()
        faiss.copy_array_to_vector(codebooks, self._quantiser.centroids)

    @classmethod
    def train(cls, sample: Tensor, ids: Tensor, storage: Storage, tokens: int) -> "Codec":
        """Learns the codec for a store of this many tokens.

        Args:
            sample: (n, d) fp32 vectors, n ≥ 1, with the token ids (n,).
        """
        n_bytes = storage.bytes_of(sample.shape[1])
        clusters = Clusters.learn(sample.__getitem__, ids, tokens)
        rows = torch.arange(0, len(ids), max(1, len(ids) // _SAMPLE))
        some = sample[rows]
        residuals = some - clusters.centroids[clusters.assign(some, ids[rows])]
        basis = _dealt_axes(residuals, n_bytes)
        turned = clusters._replace(centroids=(clusters.centroids.float() @ basis).bfloat16())
        codebooks = _codebooks(residuals @ basis, n_bytes)
        tensors = {"codebooks": codebooks, "basis": basis, **turned._asdict()}
        lengths = torch.linalg.vector_norm(some, dim=1)
        return cls(tensors, is_unit=bool(((lengths - 1).abs() < _UNIT).all()))

    def encode(self, vectors: Tensor, ids: Tensor) -> Tensor:
        """(t, d) and token ids (t,) → codes (t, code size) uint8."""
        turned = self.turn(vectors.float())
        numbers = self.clusters.assign(turned, ids)
        residuals = (turned - self.clusters.centroids[numbers]).numpy()
        held = numbers.numpy().astype("<i8")[:, None].view(np.uint8)[:, : self._number_bytes]
        return torch.from_numpy(np.hstack([held, self._quantiser.compute_codes(residuals)]))

    def numbers(self, codes: Tensor) -> Tensor:
        """(t,) int64 the centroid of each code."""
        held = np.zeros((len(codes), 8), np.uint8)
        held[:, : self._number_bytes] = codes[:, : self._number_bytes]
        return torch.from_numpy(held.view("<i8")[:, 0])

    def decode(self, codes: Tensor, turned: bool = False) -> Tensor:
        """Codes (t, code size) → (t, d) fp32.

        Args:
            turned: whether to return the vectors in the codec's basis, as from `turn`.
        """
        own = np.ascontiguousarray(codes[:, self._number_bytes :].numpy())
        residuals = torch.from_numpy(self._quantiser.decode(own))
        vectors = residuals.add_(self.clusters.centroids[self.numbers(codes)])
        if self.is_unit:
            normalize(vectors, dim=1, out=vectors)
        return vectors if turned else vectors @ self._basis.T

    def turn(self, vectors: Tensor) -> Tensor:
        """Turns vectors (…, d) into the codec's basis."""
        return vectors @ self._basis.to(vectors.device)


def k_means(vectors: np.ndarray, count: int, spherical: bool = False) -> np.ndarray:
    """(K, d) fp32 centroids of vectors (n, d) fp32, by faiss; the vectors themselves if K ≥ n.

    Args:
        spherical: the nearest centroid is the one with the largest inner product, and centroids
            have length 1.
    """
    import faiss

    if count >= len(vectors):
        return vectors
    if count == 1 and not spherical:
        return vectors.mean(0, keepdims=True)
    means = faiss.Kmeans(
        vectors.shape[1],
        count,
        niter=_ITERATIONS,
        seed=0,
        spherical=spherical,
        min_points_per_centroid=1,  # no warning for small collections
        max_points_per_centroid=_PER_CENTROID,
    )
    means.train(np.ascontiguousarray(vectors))
    return means.centroids


def _codebooks(sample: Tensor, parts: int) -> Tensor:
    """(parts, 256, d / parts) the rows of product quantisation of vectors (n, d), by faiss."""
    import faiss

    if len(sample) < _ROWS:  # every vector becomes a row
        sample = sample.repeat(-(-_ROWS // len(sample)), 1)[:_ROWS]
    quantiser = faiss.ProductQuantizer(sample.shape[1], parts, 8)
    quantiser.cp.seed, quantiser.cp.min_points_per_centroid = 0, 1
    quantiser.train(np.ascontiguousarray(sample.numpy()))
    return torch.from_numpy(faiss.vector_to_array(quantiser.centroids).copy()).view(
        parts, _ROWS, -1
    )


def _dealt_axes(residuals: Tensor, parts: int) -> Tensor:
    """(d, d) principal axes of residuals (n, d), distributed over the parts of a code.

    Every part gets about the same Σ log σ² of its axes, which is what its 8 bits must describe.
    (faiss balances Σ σ², which leaves 3 % more error.)
    """
    variances, axes = torch.linalg.eigh(residuals.T.double() @ residuals.double())
    logs = variances.clamp(min=1e-12 * float(variances[-1]) + 1e-30).log().flip(0)
    logs = (logs - logs[-1]).tolist()  # largest first, none below 0
    dealt: list[list[int]] = [[] for _ in range(parts)]
    for axis in range(len(logs)):
        free = [part for part in dealt if len(part) < len(logs) // parts]
        min(free, key=lambda part: sum(logs[a] for a in part)).append(axis)
    return axes.flip(1)[:, [axis for part in dealt for axis in part]].float()
