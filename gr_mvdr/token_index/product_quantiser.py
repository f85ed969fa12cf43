"""Product quantisation: a vector as one byte for each of its parts, after Jégou et al. (2011)."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

_CENTROIDS = 256  # what one byte tells apart
# Vectors a centroid is trained on, as faiss asks for.
_SAMPLE = 256


class ProductQuantiser:
    """Codebooks (bytes, 256, d / bytes): part p of a vector is the number of a row of table p."""

    def __init__(self, codebooks: Tensor):
        self.codebooks = codebooks
        self._rows = codebooks.flatten(0, 1)
        self._starts = _CENTROIDS * torch.arange(len(codebooks))

    @staticmethod
    def sample_size() -> int:
        """Vectors that `train` can use."""
        return _CENTROIDS * _SAMPLE

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
        if len(sample) < _CENTROIDS:  # then every vector of it becomes a centroid
            sample = sample.repeat(-(-_CENTROIDS // len(sample)), 1)[:_CENTROIDS]
        quantiser = faiss.ProductQuantizer(size, n_bytes, 8)
        quantiser.cp.seed, quantiser.cp.min_points_per_centroid = seed, 1
        quantiser.train(np.ascontiguousarray(sample.numpy()))
        centroids = torch.from_numpy(faiss.vector_to_array(quantiser.centroids).copy())
        return cls(centroids.view(n_bytes, _CENTROIDS, -1))

    def encode(self, vectors: Tensor) -> Tensor:
        """(t, d) → codes (t, bytes) uint8, the nearest rows."""
        return torch.from_numpy(self.faiss().compute_codes(vectors.float().numpy()))

    def decode(self, codes: Tensor) -> Tensor:
        """Codes (t, bytes) uint8 → (t, d) fp32."""
        return self._rows.index_select(0, (codes + self._starts).flatten()).view(len(codes), -1)

    def faiss(self):
        """The same quantiser as a `faiss.ProductQuantizer`."""
        import faiss

        parts, _, width = self.codebooks.shape
        quantiser = faiss.ProductQuantizer(parts * width, parts, 8)
        faiss.copy_array_to_vector(self.codebooks.flatten().numpy(), quantiser.centroids)
        return quantiser

    @classmethod
    def load(cls, path: Path) -> "ProductQuantiser":
        return cls(torch.from_numpy(np.load(path, allow_pickle=False)))
