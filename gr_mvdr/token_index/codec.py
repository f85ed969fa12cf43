"""Vectors in few bytes by faiss: product quantisation, of whole vectors or of residuals."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

_ROWS = 256  # rows of a codebook, numbered by one byte
# Training vectors for each row of a codebook, as faiss recommends, and for each centroid: faiss's
# default of 256 takes longer and finds no better centroids.
_PER_ROW, PER_CENTROID = 256, 64
ITERATIONS = 5  # of a k-means: ten take twice as long and leave 1 % less error
_CELLS = 8  # cells searched for a vector's nearest centroid; √K cells hold the K centroids
_BLOCK = 1024  # vectors decoded at once: they stay in a CPU's cache
_UNIT = 1e-3  # largest difference of a unit vector's length from 1
# Least tokens for each centroid, on average: faiss's rule for a sample.
TOKENS_PER_CENTROID, _MOST_CENTROIDS = 39, 65_536


class Storage(NamedTuple):
    """How an index stores its vectors.

    Attributes:
        dtype: "float32", "float16", "pq" or "residual"; the last two are codes, see `Codec`.
        pq_bytes: bytes of a code, without the centroid's number; None = one byte for every 8
            dimensions, or for every 4 dimensions of a residual.
        seed: random seed of the k-means.
        lists: number of centroids of residual codes; None = a power of two up to 4 √T for T tokens.
    """

    dtype: str = "float32"
    pq_bytes: int | None = None
    seed: int = 0
    lists: int | None = None

    @property
    def is_coded(self) -> bool:
        return self.dtype in ("pq", "residual")

    def centroids(self, tokens: int) -> int:
        """The number of centroids for this many tokens; 0 = codes are of whole vectors."""
        if self.dtype != "residual":
            return 0
        count = self.lists or 1 << int(np.log2(4 * tokens**0.5))
        return max(1, min(count, tokens // TOKENS_PER_CENTROID, _MOST_CENTROIDS))

    def sample_size(self, tokens: int) -> int:
        """The number of vectors from which a store of this many tokens learns its codec."""
        most = max(_ROWS * _PER_ROW, PER_CENTROID * self.centroids(tokens))
        return min(tokens, most) if self.is_coded else tokens

    def sample_first(self, lengths: Sequence[int]) -> list[int]:
        """Orders documents with these numbers of tokens for encoding, and returns their places.

        A sample of all lengths comes first: the store learns its codec from it. The other documents
        follow. Both parts are sorted by length, so that batches need little padding.
        """
        total, order = sum(lengths), sorted(range(len(lengths)), key=lengths.__getitem__)
        step = max(1, total // max(1, self.sample_size(total)))
        return [n for first in range(2) for i, n in enumerate(order) if (i % step > 0) == first]

    def code_bytes(self, size: int) -> int:
        """The bytes of the code of a vector (size,).

        Raises:
            ValueError: `pq_bytes` does not divide the size.
        """
        if self.pq_bytes is None:
            most = size // (4 if self.dtype == "residual" else 8)
            return next((count for count in range(most, 1, -1) if size % count == 0), 1)
        if self.pq_bytes < 1 or size % self.pq_bytes:
            rule = f"must divide the {size} dimensions"
            raise ValueError(f"model.search.pq_bytes={self.pq_bytes}: {rule}")
        return self.pq_bytes


class Codec:
    """Encodes vectors as codes of faiss.

    A code has one byte for each part of the vector (product quantisation, Jégou et al. 2011). A
    residual code has the number of the nearest of K centroids, and such bytes for the residual
    (ColBERTv2 §3.3).

    Residuals are stored in the basis of their principal axes. The axes are distributed over the
    parts of a code so that the parts have the same Σ log σ². Inner products are the same in every
    orthogonal basis, so a search turns its queries rather than the decoded vectors.

    Attributes:
        tensors: codebooks (parts, 256, d / parts) fp32. For residuals, also centroids (K, d) fp16
            and an orthogonal basis (d, d) fp32: a vector x is stored as x @ basis.
        size: d.
        code_size: bytes of a code.
        is_unit: whether the vectors have length 1; decoded vectors are then normalised.
    """

    def __init__(self, tensors: dict[str, Tensor], is_unit: bool):
        import faiss

        self.tensors, self.is_unit, self._basis = tensors, is_unit, tensors.get("basis")
        parts, _, width = tensors["codebooks"].shape
        self.size = parts * width
        if self._basis is None:
            self._index: Any = self._with_codebooks(faiss.IndexPQ(self.size, parts, 8))
        else:
            coarse = faiss.IndexFlatIP(self.size)
            coarse.add(tensors["centroids"].float().numpy())
            self._index = self._inverted_file(coarse)
        self.code_size = self._index.sa_code_size()

    @classmethod
    def train(cls, sample: Tensor, storage: Storage, tokens: int) -> "Codec":
        """Learns the codec for a store of this many tokens from a sample (n, d) fp32, n ≥ 1."""
        n_bytes, seed = storage.code_bytes(sample.shape[1]), storage.seed
        if not (centroids := storage.centroids(tokens)):
            return cls({"codebooks": _codebooks(sample, n_bytes, seed)}, is_unit=False)
        means = torch.from_numpy(k_means(sample.numpy(), centroids, seed))
        some = sample[: _ROWS * _PER_ROW]
        residuals = some - means[_cells_of(means).search(some.numpy(), 1)[1][:, 0]]
        basis = _dealt_axes(residuals, n_bytes)
        tensors = {
            "codebooks": _codebooks(residuals @ basis, n_bytes, seed),
            "centroids": (means @ basis).half(),
            "basis": basis,
        }
        lengths = torch.linalg.vector_norm(some, dim=1)
        return cls(tensors, is_unit=bool(((lengths - 1).abs() < _UNIT).all()))

    def encode(self, vectors: Tensor) -> Tensor:
        """(t, d) → codes (t, code_size) uint8."""
        turned = self.turn(vectors.float()).contiguous().numpy()
        return torch.from_numpy(self._encoder.sa_encode(turned))

    def decode(self, codes: Tensor, turned: bool = False, out: Tensor | None = None) -> Tensor:
        """Codes (t, code_size) → (t, d) fp32.

        Args:
            turned: whether to return the vectors in the codec's basis, as from `turn`.
            out: (t, d) memory for the vectors.
        """
        vectors = torch.empty(len(codes), self.size) if out is None else out
        for block, part in zip(codes.split(_BLOCK), vectors.split(_BLOCK), strict=True):
            self._index.sa_decode(block.numpy(), part.numpy())
            if self.is_unit:
                normalize(part, dim=1, out=part)
        return vectors if turned or self._basis is None else vectors @ self._basis.T

    def turn(self, vectors: Tensor) -> Tensor:
        """Turns vectors (…, d) into the codec's basis."""
        return vectors if self._basis is None else vectors @ self._basis.to(vectors.device)

    def inverted_file(self, codes: Tensor, rows: Tensor) -> Any:
        """Returns faiss's inverted file of residual codes (t, code_size) with the ids `rows` (t,).

        Nothing is computed, since a code names its list.
        """
        import faiss

        index = faiss.clone_index(self._index)
        index.add_sa_codes(codes.numpy(), rows.numpy())
        return index

    @cached_property
    def _encoder(self) -> Any:
        """The index for encoding: it finds the nearest centroid faster, by Euclidean distance."""
        if self._basis is None:
            return self._index
        return self._inverted_file(_cells_of(self.tensors["centroids"].float()))

    def _inverted_file(self, coarse: Any) -> Any:
        import faiss

        parts, centroids = len(self.tensors["codebooks"]), len(self.tensors["centroids"])
        metric = faiss.METRIC_INNER_PRODUCT
        return self._with_codebooks(
            faiss.IndexIVFPQ(coarse, self.size, centroids, parts, 8, metric)
        )

    def _with_codebooks(self, index: Any) -> Any:
        import faiss

        faiss.copy_array_to_vector(self.tensors["codebooks"].flatten().numpy(), index.pq.centroids)
        index.is_trained = True
        return index


def k_means(vectors: np.ndarray, count: int, seed: int, spherical: bool = False) -> np.ndarray:
    """(K, d) fp32 centroids of vectors (n, d) fp32, by faiss; the vectors themselves if K ≥ n.

    Args:
        spherical: the nearest centroid is the one with the largest inner product, and centroids
            have length 1.
    """
    import faiss

    if count >= len(vectors):
        return vectors
    means = faiss.Kmeans(
        vectors.shape[1],
        count,
        niter=ITERATIONS,
        seed=seed,
        spherical=spherical,
        min_points_per_centroid=1,  # no warning for small collections
        max_points_per_centroid=PER_CENTROID,
    )
    means.train(np.ascontiguousarray(vectors))
    return means.centroids


def _cells_of(centroids: Tensor) -> Any:
    """A faiss index of centroids (K, d) in √K cells; a search for the nearest visits a few."""
    import faiss

    index: Any = faiss.index_factory(centroids.shape[1], f"IVF{round(len(centroids) ** 0.5)},Flat")
    index.nprobe, index.cp.niter, index.cp.min_points_per_centroid = _CELLS, ITERATIONS, 1
    index.make_direct_map()
    index.train(centroids.numpy())
    index.add(centroids.numpy())
    return index


def _codebooks(sample: Tensor, parts: int, seed: int) -> Tensor:
    """(parts, 256, d / parts) the rows of product quantisation of vectors (n, d), by faiss."""
    import faiss

    if len(sample) < _ROWS:  # every vector becomes a row
        sample = sample.repeat(-(-_ROWS // len(sample)), 1)[:_ROWS]
    quantiser = faiss.ProductQuantizer(sample.shape[1], parts, 8)
    quantiser.cp.seed, quantiser.cp.min_points_per_centroid = seed, 1
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
