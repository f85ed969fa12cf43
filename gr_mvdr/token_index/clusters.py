"""Many clusters of many vectors: k-means in two levels."""

import numpy as np
import torch
from torch import Tensor

# Of a k-means, and vectors that it looks at for a cluster: faiss's defaults take ten times as long
# and find no better ones.
_ITERATIONS, PER_CLUSTER = 10, 64
# Cells that are looked into for a vector's centroid: one alone would miss it for those near a
# border.
_CELLS, _ROUNDS = 8, 2
_MOST = 65_536  # clusters that 2 bytes tell apart
# A cluster has at least so many tokens on average, faiss's rule for a sample.
TOKENS_PER_CLUSTER = 39


def n_clusters(tokens: int, lists: int | None) -> int:
    """Clusters of so many tokens: 4 √T unless a number is asked for, as a power of two."""
    count = lists or 1 << int(np.log2(4 * tokens**0.5))
    return max(1, min(count, tokens // TOKENS_PER_CLUSTER, _MOST))


class Clusters:
    """K centroids in √K cells, so that a vector's is found among a share of them.

    Attributes:
        centroids: (K, d) fp32.
    """

    def __init__(self, centroids: Tensor):
        import faiss

        self.centroids = centroids
        cells = round(len(centroids) ** 0.5)
        vectors = np.ascontiguousarray(centroids.numpy())
        cell_of = faiss.IndexFlatL2(vectors.shape[1])
        cell_of.add(k_means(vectors, cells, seed=0))
        self._index = faiss.IndexIVFFlat(cell_of, vectors.shape[1], cells)
        self._index.is_trained, self._index.nprobe = True, _CELLS
        self._index.add(vectors)

    @classmethod
    def train(cls, sample: Tensor, count: int, seed: int) -> "Clusters":
        """k-means (faiss) in two levels: of √K cells, and within each of its share of K; then two
        rounds over cells' borders.

        One level would compare every vector with all K; the cost of two grows with √K.

        Args:
            sample: (n, d) fp32 in random order, n ≥ 1; count: K at most.
        """
        vectors = np.ascontiguousarray(sample.numpy())
        count = min(count, len(vectors))
        cells = k_means(vectors, round(count**0.5), seed)
        cell = _nearest(vectors, cells)
        sizes = np.bincount(cell, minlength=len(cells))
        ends = np.round(np.cumsum(sizes) * (count / len(vectors))).astype(int)
        shares = np.minimum(np.maximum(np.diff(ends, prepend=0), 1), sizes)
        found = [
            k_means(vectors[cell == number], share, seed)
            for number, share in enumerate(shares.tolist())
            if share
        ]
        clusters = cls(torch.from_numpy(np.concatenate(found)[:_MOST]))
        for _ in range(_ROUNDS):
            clusters = cls(clusters._means(sample))
        return clusters

    def _means(self, vectors: Tensor) -> Tensor:
        """(K, d) the mean of the vectors (n, d) nearest to each centroid, itself without any."""
        numbers, count = self.assign(vectors), len(self.centroids)
        sizes = torch.bincount(numbers, minlength=count).unsqueeze(1)
        sums = torch.zeros_like(self.centroids).index_add_(0, numbers, vectors)
        return torch.where(sizes > 0, sums / sizes.clamp(min=1), self.centroids)

    def assign(self, vectors: Tensor) -> Tensor:
        """(t, d) fp32 → (t,) int64, nearly always the nearest centroids."""
        return torch.from_numpy(self._index.search(vectors.contiguous().numpy(), 1)[1][:, 0])


def _nearest(vectors: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    import faiss

    index = faiss.IndexFlatL2(centroids.shape[1])
    index.add(centroids)
    return index.search(vectors, 1)[1][:, 0]


def k_means(vectors: np.ndarray, count: int, seed: int, spherical: bool = False) -> np.ndarray:
    """(K, d) fp32 centroids of vectors (n, d) fp32 in random order, n ≥ K, by faiss.

    Args:
        spherical: nearness is the inner product with centroids of length 1.
    """
    import faiss

    if count == len(vectors):
        return vectors
    clustering = faiss.Clustering(vectors.shape[1], count)
    clustering.spherical = spherical
    clustering.seed, clustering.niter = seed, _ITERATIONS
    clustering.min_points_per_centroid = 1  # small collections need no warning
    clustering.max_points_per_centroid = PER_CLUSTER
    index = faiss.IndexFlatIP if spherical else faiss.IndexFlatL2
    clustering.train(np.ascontiguousarray(vectors), index(vectors.shape[1]))
    return faiss.vector_to_array(clustering.centroids).reshape(count, -1).copy()
