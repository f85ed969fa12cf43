"""Semantic docids: a document's path in a tree of clusters (DSI, Tay et al. 2022, §3.2)."""

import warnings
from collections import defaultdict
from typing import Annotated, Any

import numpy as np

from gr_mvdr.identifiers.document_embeddings import EmbeddedDocids
from gr_mvdr.identifiers.scheme import Table
from gr_mvdr.options import AtLeast, Seed, Size, part
from gr_mvdr.progress import track


@part("identifiers")
class SemanticDocids(EmbeddedDocids):
    """The path through a tree of clusters, then a number in the leaf (DSI's semantic docids).

    Documents with a common prefix are similar. All documents are in leaves, so no identifier is a
    prefix of another and none needs an end token.

    The tree's nodes are numbered breadth first from the root, 0; the children of a node are
    adjacent.

    Attributes:
        first_child: (nodes + 1,) int64; the children of node n are the nodes from first_child[n] to
            first_child[n + 1] − 1; a leaf has none.
        centroids: (nodes, d) float32.
        points: (D, d) float32, the vectors of the known documents.
    """

    options = ("k", "leaf_size", "positional", "seed", "embeddings")
    arrays = ("first_child", "centroids", "points")
    first_child: np.ndarray
    centroids: np.ndarray
    points: np.ndarray

    def __init__(
        self,
        k: Annotated[int, AtLeast(2)],
        leaf_size: Size,
        positional: bool = True,
        embeddings: dict[str, Any] | str | None = None,
        seed: Seed = 0,
    ):
        """
        Args:
            k: the number of clusters that a cluster is split into (DSI 10, NCI 30).
            leaf_size: the size of the largest cluster that is not split (DSI 100, NCI 30).
            positional: whether each position has its own tokens, as in NCI; otherwise all positions
                share their tokens.
            embeddings: see `EmbeddedDocids`.
            seed: random seed of the clustering.
        """
        super().__init__(embeddings)
        self.k, self.leaf_size, self.positional, self.seed = k, leaf_size, positional, seed
        # The maximum number of a node's children or a leaf's members.
        self.numbers = max(k, leaf_size)
        self.width = self.numbers if positional else None

    @property
    def n_tokens(self) -> int:
        return self.numbers * (max(map(len, self.known.values())) if self.positional else 1)

    def learn(self, documents: Table) -> list[list[int]]:
        """Splits the documents into k clusters, recursively, down to clusters of `leaf_size`.

        Raises:
            ValueError: there are fewer than k documents, but more than one.
        """
        from threadpoolctl import threadpool_limits

        if 1 < len(documents) < self.k:
            raise ValueError(
                f"model.identifiers.k={self.k}: must be ≤ the {len(documents)} documents"
            )
        self.embedder.fit(documents)
        self.points = points = self.embed(documents)
        groups, centroids, counts = [np.arange(len(points))], [points.mean(0)], []
        paths: list[list[int]] = [[]]
        docids: list[list[int]] = [[]] * len(points)
        # One thread, since the order of a sum over several threads varies.
        with threadpool_limits(limits=1):
            # A generator, since the lists grow while the loop reads them.
            nodes = zip((group for group in groups), paths, strict=True)
            for group, path in track(nodes, "clustering into nodes"):
                if len(group) <= self.leaf_size:
                    counts.append(0)
                    for number, point in enumerate(group.tolist()):
                        docids[point] = self._tokens([*path, number])
                    continue
                labels, centers = split(points[group], self.k, self.seed)
                counts.append(len(centers))
                centroids.extend(centers)
                groups.extend(group[labels == child] for child in range(len(centers)))
                paths.extend([*path, child] for child in range(len(centers)))
        self.first_child = np.cumsum([1, *counts], dtype=np.int64)
        self.centroids = np.array(centroids, dtype=np.float32)
        return docids

    def name(self, documents: Table) -> list[list[int]]:
        """Finds each document's leaf by the nearest centroids and gives it the leaf's next number.

        If the leaf has no free number, a document gets the identifier of the nearest known document
        in the leaf.
        """
        known, leaves = list(self.known.values()), defaultdict(list)
        for number, sequence in enumerate(known):
            leaves[tuple(sequence[:-1])].append(number)
        taken = {leaf: len(members) for leaf, members in leaves.items()}
        named = []
        for point in self.embed(documents):
            path = self.descend(point)
            leaf = tuple(self._tokens(path))
            if taken[leaf] < self.numbers:
                named.append(self._tokens([*path, taken[leaf]]))
                taken[leaf] += 1
            else:  # differences instead of products: an exact copy has distance 0
                distances = ((self.points[leaves[leaf]] - point) ** 2).sum(1)
                named.append(known[leaves[leaf][distances.argmin()]])
        return named

    def descend(self, point: np.ndarray) -> list[int]:
        """Follows the nearest centroids from the root; returns the child numbers to the leaf."""
        node, path = 0, []
        while len(children := range(*self.first_child[node : node + 2])):
            costs = ((self.centroids[children.start : children.stop] - point) ** 2).sum(1)
            path.append(int(costs.argmin()))
            node = children[path[-1]]
        return path

    def _tokens(self, place: list[int]) -> list[int]:
        """Returns the tokens of a path, or of a path and the number in its leaf."""
        first, step = self.first_token, self.width or 0
        return [first + position * step + number for position, number in enumerate(place)]


def split(points: np.ndarray, k: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Splits a cluster into at least 2 parts; if all points are equal, evenly and in order.

    Args:
        points: (n, d) float32, n ≥ 2.
        k: the number of parts, ≥ 2; there are fewer if fewer points are distinct.

    Returns:
        The part numbers (n,) int64 and the centroids (parts, d) float32; no part is empty.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    k = min(k, len(points))
    labels = np.arange(len(points)) * k // len(points)
    if (points != points[0]).any():
        with warnings.catch_warnings():
            # With fewer distinct points than k, empty clusters are dropped below.
            warnings.simplefilter("ignore", ConvergenceWarning)
            means = KMeans(k, n_init=1, random_state=seed).fit(points)
        used, own = np.unique(means.labels_, return_inverse=True)
        if len(used) > 1:
            return own, means.cluster_centers_[used]
    return labels, np.stack([points[labels == part].mean(0) for part in range(k)])
