"""Vectors in few bytes: product quantisation, of whole vectors or of what a centroid leaves."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gr_mvdr.files import check, check_file, write_array
from gr_mvdr.token_index.clusters import Clusters, n_clusters

_ROWS = 256  # what one byte of a code tells apart
# Vectors that a row of a codebook is trained on, as faiss asks for, and that a centroid is.
_PER_ROW, _PER_CENTROID = 256, 64
_UNIT = 1e-3  # how far from 1 the length of a unit vector may be
_BLOCK = 1024  # vectors decoded at once, which then stay in a CPU's cache


class ProductQuantiser:
    """A vector as one byte for each of its parts, after Jégou et al. (2011).

    Codebooks (bytes, 256, d / bytes): part p of a vector is the number of a row of table p.
    """

    FILES: tuple[str, ...] = ("codebook",)

    def __init__(self, codebooks: Tensor):
        self.codebooks = codebooks
        self._rows = codebooks.flatten(0, 1).numpy()
        self._starts = _ROWS * np.arange(len(codebooks))

    @classmethod
    def train(cls, sample: Tensor, n_bytes: int, seed: int) -> "ProductQuantiser":
        """Learns the codebooks by k-means (faiss) from a sample (n, d) fp32, n ≥ 1.

        Raises:
            ValueError: the bytes do not divide the vector.
        """
        import faiss

        size = sample.shape[1]
        if n_bytes < 1 or size % n_bytes:
            raise ValueError(f"model.search.pq_bytes={n_bytes}: must divide the {size} dimensions")
        if len(sample) < _ROWS:  # then every vector of it becomes a row
            sample = sample.repeat(-(-_ROWS // len(sample)), 1)[:_ROWS]
        quantiser = faiss.ProductQuantizer(size, n_bytes, 8)
        quantiser.cp.seed, quantiser.cp.min_points_per_centroid = seed, 1
        quantiser.train(np.ascontiguousarray(sample.numpy()))
        rows = torch.from_numpy(faiss.vector_to_array(quantiser.centroids).copy())
        return cls(rows.view(n_bytes, _ROWS, -1))

    def encode(self, vectors: Tensor) -> tuple[Tensor, ...]:
        """(t, d) → codes (t, bytes) uint8, the nearest rows."""
        import faiss

        parts, _, width = self.codebooks.shape
        quantiser = faiss.ProductQuantizer(parts * width, parts, 8)
        faiss.copy_array_to_vector(self.codebooks.flatten().numpy(), quantiser.centroids)
        return (torch.from_numpy(quantiser.compute_codes(vectors.float().numpy())),)

    def decode(self, codes: Tensor, found: Tensor | None = None) -> Tensor:
        """Codes (t, bytes) uint8 → (t, d) fp32, written to `found` where that is given."""
        parts, _, width = self.codebooks.shape
        if found is None:
            found = torch.empty(len(codes), parts * width)
        # numpy's take is five times as fast as torch's index_select for rows of a few bytes.
        out = found.view(len(codes), parts, width).numpy()
        self._rows.take(codes.numpy() + self._starts, 0, out=out, mode="clip")
        return found


class ResidualQuantiser:
    """A vector as the nearest of K centroids and codes of what that leaves (ColBERTv2 §3.3).

    All of it is held in a basis of its own: the principal axes of what is left, dealt to the parts
    of a code so that all have about the same variance. Inner products are the same in any basis;
    a search turns its queries into this one instead of the vectors out of it.

    Attributes:
        centroids: (K, d) fp32 in this basis, with the digits of fp16.
        basis: (d, d) fp32, orthogonal: a vector x is held as x @ basis.
        is_unit: the vectors have length 1, and what is decoded is brought to it.
    """

    FILES = ("codebook", "centroids", "basis")

    def __init__(self, product: ProductQuantiser, centroids: Tensor, basis: Tensor, is_unit: bool):
        self.product, self.basis, self.is_unit = product, basis, is_unit
        self.centroids = centroids.float()
        self._clusters: Clusters | None = None  # made when something is encoded

    @classmethod
    def train(
        cls, sample: Tensor, n_bytes: int, seed: int, tokens: int, lists: int | None
    ) -> "ResidualQuantiser":
        """Learns centroids, basis and codebooks from a sample (n, d) fp32 in random order, n ≥ 1.

        Args:
            tokens: vectors that there will be; lists: K, None = `n_clusters`.

        Raises:
            ValueError: the bytes do not divide the vector.
        """
        clusters = Clusters.train(sample, n_clusters(tokens, lists), seed)
        some = sample[: _ROWS * _PER_ROW]
        left = some - clusters.centroids[clusters.assign(some)]
        basis = _dealt_axes(left, max(n_bytes, 1))
        centroids = (clusters.centroids @ basis).half()
        product = ProductQuantiser.train(left @ basis, n_bytes, seed)
        for rows in product.codebooks:  # so that what is a centroid remains one
            rows[rows.square().sum(1).argmin()] = 0.0
        lengths = torch.linalg.vector_norm(some, dim=1)
        return cls(product, centroids, basis, bool(((lengths - 1).abs() < _UNIT).all()))

    def encode(self, vectors: Tensor) -> tuple[Tensor, ...]:
        """(t, d) → codes (t, bytes) uint8 and numbers of centroids (t,) uint16."""
        if self._clusters is None:
            self._clusters = Clusters(self.centroids)
        turned = vectors.float() @ self.basis
        numbers = self._clusters.assign(turned)
        (codes,) = self.product.encode(turned - self.centroids[numbers])
        return codes, torch.from_numpy(numbers.numpy().astype(np.uint16))

    def decode(self, codes: Tensor, numbers: Tensor) -> Tensor:
        """Codes (t, bytes) uint8, numbers (t,) int64 → (t, d) fp32 in this basis."""
        found = torch.empty(len(codes), len(self.basis))
        for start in range(0, len(codes), _BLOCK):
            part = slice(start, start + _BLOCK)
            vectors = self.product.decode(codes[part], found[part])
            vectors += self.centroids.index_select(0, numbers[part])
            if self.is_unit:
                vectors /= torch.linalg.vector_norm(vectors, dim=1, keepdim=True).clamp_(min=_UNIT)
        return found


Quantiser = ProductQuantiser | ResidualQuantiser


def save(quantiser: Quantiser, directory: Path, name: str) -> list[str]:
    """Writes the files of a column's quantiser; returns their names."""
    if isinstance(quantiser, ProductQuantiser):
        parts = [quantiser.codebooks]
    else:
        parts = [quantiser.product.codebooks, quantiser.centroids.half(), quantiser.basis]
    names = [f"{name}.{file}.npy" for file in quantiser.FILES]
    for file, part in zip(names, parts, strict=True):
        write_array(directory / file, part.numpy())
    return names


def load(directory: Path, name: str, dtype: str, n_bytes: int, size: int, unit: bool) -> Quantiser:
    """
    Args:
        dtype: the store's, "pq" or "residual"; size: d; unit: `ResidualQuantiser.is_unit`.

    Raises:
        ValueError: a file is not of such vectors.
    """
    kind = ResidualQuantiser if dtype == "residual" else ProductQuantiser
    paths = [directory / f"{name}.{file}.npy" for file in kind.FILES]
    parts = [torch.from_numpy(np.load(check_file(path), allow_pickle=False)) for path in paths]
    fits = parts[0].shape == (n_bytes, _ROWS, size // n_bytes)
    check(fits, paths[0], "must fit the vectors")
    product = ProductQuantiser(parts[0])
    if dtype == "pq":
        return product
    check(parts[1].shape[1] == size, paths[1], "must fit the vectors")
    check(parts[2].shape == (size, size), paths[2], "must fit the vectors")
    return ResidualQuantiser(product, parts[1], parts[2], unit)


def sample_size(dtype: str, tokens: int, lists: int | None = None) -> int:
    """Vectors that the quantiser of a store can learn from, where there are so many in all."""
    if dtype not in ("pq", "residual"):
        return tokens
    centroids = n_clusters(tokens, lists) if dtype == "residual" else 0
    return min(tokens, max(_ROWS * _PER_ROW, _PER_CENTROID * centroids))


def sample_first(lengths: Sequence[int], dtype: str, lists: int | None = None) -> list[int]:
    """The places of documents of so many tokens, shortest first (nothing to pad).

    Before them come those, of all lengths, that a store learns its codes from.
    """
    total, order = sum(lengths), sorted(range(len(lengths)), key=lengths.__getitem__)
    step = max(1, total // max(1, sample_size(dtype, total, lists)))
    return [n for first in range(2) for i, n in enumerate(order) if (i % step > 0) == first]


def default_bytes(dtype: str, size: int) -> int:
    """Bytes of a code of a vector (size,): one for 8 dimensions, for 4 of a residual."""
    most = size // (4 if dtype == "residual" else 8)
    return next((count for count in range(most, 1, -1) if size % count == 0), 1)


def _dealt_axes(left: Tensor, parts: int) -> Tensor:
    """(d, d) principal axes of residuals (n, d), in an order in which each part of a code gets its
    share of the large and the small: Σ log σ² of a part's axes is what its 8 bits must hold."""
    variances, axes = torch.linalg.eigh((left.T.double() @ left.double()) / len(left))
    logs = variances.clamp(min=1e-12 * float(variances[-1]) + 1e-30).log().flip(0).tolist()
    dealt: list[list[int]] = [[] for _ in range(parts)]
    room, sums = len(logs) // parts, [0.0] * parts
    for axis, log in enumerate(logs):  # the largest left goes where the least is
        free = [part for part in range(parts) if len(dealt[part]) < max(room, 1)] or [0]
        part = min(free, key=lambda part: sums[part] if dealt[part] else -np.inf)
        dealt[part].append(axis)
        sums[part] += log - logs[-1]
    order = torch.tensor([axis for part in dealt for axis in part])
    return axes.flip(1)[:, order].float()
