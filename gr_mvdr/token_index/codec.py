"""Vectors in few bytes by faiss: product quantisation, of whole vectors or of residuals."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

_ROWS = 256  # of a codebook, which one byte numbers
# Training vectors a row of a codebook, as faiss asks for, and a centroid: faiss's default of 256
# takes longer and finds no better centroids.
_PER_ROW, PER_CENTROID = 256, 64
ITERATIONS = 10  # of a k-means
_CELLS = 8  # searched for a vector's nearest centroid; √K cells hold the K centroids
_BLOCK = 1024  # vectors decoded at once, which stay in a CPU's cache
_UNIT = 1e-3  # how far from 1 the length of a unit vector may be
# Tokens a centroid at least, on average: faiss's rule for a sample.
TOKENS_PER_CENTROID, _MOST_CENTROIDS = 39, 65_536


class Codec:
    """A vector as a code of faiss: one byte a part (product quantisation, Jégou et al. 2011), or
    the number of the nearest of K centroids and such bytes of the residual (ColBERTv2 §3.3).

    Residuals are held in their principal axes, dealt to the parts of a code so that each has about
    the same variance. Inner products are the same in any basis: a search turns its queries and not
    the decoded vectors.

    Attributes:
        tensors: codebooks (parts, 256, d / parts) fp32; of residuals also centroids (K, d) fp16 and
            basis (d, d) fp32, orthogonal: a vector x is held as x @ basis.
        size: d; code_size: bytes of a code.
        is_unit: the vectors have length 1, and decoded ones are brought to it.
    """

    def __init__(self, tensors: dict[str, Tensor], is_unit: bool):
        """
        Raises:
            ValueError: the tensors' shapes do not fit each other.
        """
        import faiss

        self.tensors, self.is_unit = tensors, is_unit
        codebooks, self._basis = tensors["codebooks"], tensors.get("basis")
        parts, rows, width = codebooks.shape
        self.size = parts * width
        fits = rows == _ROWS and codebooks.dtype == torch.float32
        if self._basis is None:
            self._index: Any = faiss.IndexPQ(self.size, parts, 8)
        else:
            self._centroids = tensors["centroids"].float()
            fits &= len(self._centroids) > 0 and self._centroids.shape[1:] == (self.size,)
            fits &= self._basis.shape == (self.size, self.size)
            coarse = faiss.IndexFlatIP(self._centroids.shape[1])
            coarse.add(self._centroids.numpy())
            self._index = self._inverted_file(coarse)
        if not fits:
            raise ValueError(f"a codec of {self.size} dimensions: its tables must fit each other")
        self._set_codebooks(self._index)
        self.code_size = self._index.sa_code_size()

    @classmethod
    def train(
        cls, sample: Tensor, n_bytes: int | None, centroids: int | None, seed: int
    ) -> "Codec":
        """Learns a codec from a sample (n, d) fp32, n ≥ 1.

        Args:
            n_bytes: of a code, without the centroid's number; None = `default_bytes`.
            centroids: K at most; None = whole vectors are coded.

        Raises:
            ValueError: the bytes do not divide the vector.
        """
        size = sample.shape[1]
        n_bytes = default_bytes(size, centroids is not None) if n_bytes is None else n_bytes
        if n_bytes < 1 or size % n_bytes:
            raise ValueError(f"model.search.pq_bytes={n_bytes}: must divide the {size} dimensions")
        if centroids is None:
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

    def decode(self, codes: Tensor, turned: bool = False) -> Tensor:
        """Codes (t, code_size) → (t, d) fp32.

        Args:
            turned: in the codec's basis, that of `turn`.
        """
        codes = self._checked(codes)
        vectors = torch.empty(len(codes), self.size)
        for start in range(0, len(codes), _BLOCK):
            block = vectors[start : start + _BLOCK]
            self._index.sa_decode(codes[start : start + _BLOCK], block.numpy())
            if self.is_unit:
                normalize(block, dim=1, out=block)
        return vectors if turned or self._basis is None else vectors @ self._basis.T

    def turn(self, vectors: Tensor) -> Tensor:
        """Vectors (…, d) in the codec's basis."""
        return vectors if self._basis is None else vectors @ self._basis.to(vectors.device)

    def inverted_file(self, codes: Tensor, rows: Tensor) -> Any:
        """faiss's inverted file of these residual codes (t, code_size) under the ids `rows` (t,).

        Nothing is computed: a code names its list.
        """
        import faiss

        index = faiss.clone_index(self._index)
        index.add_sa_codes(self._checked(codes), rows.numpy())
        return index

    def _checked(self, codes: Tensor) -> np.ndarray:
        """The codes, if every centroid's number exists: with another faiss ends the process."""
        numbers = codes[:, : self.code_size - len(self.tensors["codebooks"])]
        places = 256 ** torch.arange(numbers.shape[1])
        if numbers.numel() and int((numbers * places).sum(1).max()) >= self._index.nlist:
            raise ValueError("a code names a centroid that does not exist: the index is damaged")
        return codes.contiguous().numpy()

    @cached_property
    def _encoder(self) -> Any:
        """The index with a faster way to the nearest centroid, in Euclidean distance."""
        if self._basis is None:
            return self._index
        encoder = self._inverted_file(_cells_of(self._centroids))
        self._set_codebooks(encoder)
        return encoder

    def _inverted_file(self, coarse: Any) -> Any:
        import faiss

        parts = len(self.tensors["codebooks"])
        metric = faiss.METRIC_INNER_PRODUCT
        return faiss.IndexIVFPQ(coarse, self.size, len(self._centroids), parts, 8, metric)

    def _set_codebooks(self, index: Any) -> None:
        import faiss

        faiss.copy_array_to_vector(self.tensors["codebooks"].flatten().numpy(), index.pq.centroids)
        index.is_trained = True


def sample_size(dtype: str, tokens: int, lists: int | None = None) -> int:
    """Vectors that the codec of a store of this many tokens learns from."""
    if dtype not in ("pq", "residual"):
        return tokens
    centroids = n_centroids(tokens, lists) if dtype == "residual" else 0
    return min(tokens, max(_ROWS * _PER_ROW, PER_CENTROID * centroids))


def sample_first(lengths: Sequence[int], dtype: str, lists: int | None = None) -> list[int]:
    """The places of documents with these numbers of tokens, shortest first (nothing to pad).

    Before them come documents of all lengths, from which a store learns its codec.
    """
    total, order = sum(lengths), sorted(range(len(lengths)), key=lengths.__getitem__)
    step = max(1, total // max(1, sample_size(dtype, total, lists)))
    return [n for first in range(2) for i, n in enumerate(order) if (i % step > 0) == first]


def default_bytes(size: int, residual: bool) -> int:
    """Bytes of a code of a vector (size,): one for 8 dimensions, for 4 of a residual."""
    most = size // (4 if residual else 8)
    return next((count for count in range(most, 1, -1) if size % count == 0), 1)


def n_centroids(tokens: int, lists: int | None) -> int:
    """Centroids of this many tokens: a power of two near 4 √T, unless a number is asked for."""
    count = lists or 1 << int(np.log2(4 * tokens**0.5))
    return max(1, min(count, tokens // TOKENS_PER_CENTROID, _MOST_CENTROIDS))


def k_means(vectors: np.ndarray, count: int, seed: int, spherical: bool = False) -> np.ndarray:
    """(K, d) fp32 centroids of vectors (n, d) fp32, by faiss; all vectors where K ≥ n.

    Args:
        spherical: the nearest centroid has the largest inner product, and centroids have length 1.
    """
    import faiss

    if count >= len(vectors):
        return vectors
    clustering = faiss.Clustering(vectors.shape[1], count)
    clustering.spherical = spherical
    clustering.seed, clustering.niter = seed, ITERATIONS
    clustering.min_points_per_centroid = 1  # small collections need no warning
    clustering.max_points_per_centroid = PER_CENTROID
    index = faiss.IndexFlatIP if spherical else faiss.IndexFlatL2
    clustering.train(np.ascontiguousarray(vectors), index(vectors.shape[1]))
    return faiss.vector_to_array(clustering.centroids).reshape(count, -1).copy()


def _cells_of(centroids: Tensor) -> Any:
    """A faiss index of centroids (K, d) in √K cells, which looks for the nearest in a few."""
    import faiss

    index: Any = faiss.index_factory(centroids.shape[1], f"IVF{round(len(centroids) ** 0.5)},Flat")
    index.nprobe, index.cp.niter, index.cp.min_points_per_centroid = _CELLS, ITERATIONS, 1
    index.make_direct_map()
    index.train(centroids.numpy())
    index.add(centroids.numpy())
    return index


def _codebooks(sample: Tensor, parts: int, seed: int) -> Tensor:
    """(parts, 256, d / parts) rows of product quantisation, by faiss, of vectors (n, d)."""
    import faiss

    if len(sample) < _ROWS:  # then every vector becomes a row
        sample = sample.repeat(-(-_ROWS // len(sample)), 1)[:_ROWS]
    quantiser = faiss.ProductQuantizer(sample.shape[1], parts, 8)
    quantiser.cp.seed, quantiser.cp.min_points_per_centroid = seed, 1
    quantiser.train(np.ascontiguousarray(sample.numpy()))
    return torch.from_numpy(faiss.vector_to_array(quantiser.centroids).copy()).view(
        parts, _ROWS, -1
    )


def _dealt_axes(residuals: Tensor, parts: int) -> Tensor:
    """(d, d) principal axes of residuals (n, d), dealt to the parts of a code so that each has the
    same Σ log σ² of its axes, which is what its 8 bits must describe. (faiss balances Σ σ², which
    leaves 3 % more error.)"""
    variances, axes = torch.linalg.eigh(residuals.T.double() @ residuals.double())
    logs = variances.clamp(min=1e-12 * float(variances[-1]) + 1e-30).log().flip(0)
    logs = (logs - logs[-1]).tolist()  # largest first, none below 0
    dealt: list[list[int]] = [[] for _ in range(parts)]
    for axis in range(len(logs)):
        free = [part for part in dealt if len(part) < len(logs) // parts]
        min(free, key=lambda part: sum(logs[a] for a in part)).append(axis)
    return axes.flip(1)[:, [axis for part in dealt for axis in part]].float()
