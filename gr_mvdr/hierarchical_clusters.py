"""Hierarchical k-means: the tree behind semantic docids (DSI, Tay et al. 2022, §3.2)."""

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gr_mvdr.array_folder import read_arrays, write_arrays
from gr_mvdr.progress import track

_ARRAYS = ("first_child", "centroids", "members", "first_member", "points")


@dataclass(frozen=True)
class ClusterTree:
    """Clusters within clusters; nodes breadth-first, root 0, a node's children side by side.

    Attributes:
        first_child: (nodes + 1,) int64, a node's children are first_child[n] … first_child[n + 1];
            a leaf has none.
        centroids: (nodes, d) float32.
        members: (D,) int64, the points of each leaf in ascending order, leaf after leaf;
        first_member: (nodes + 1,) int64, where a node's begin; inner nodes have none of their own.
        points: (D, d) float32, what was clustered.
    """

    first_child: np.ndarray
    centroids: np.ndarray
    members: np.ndarray
    first_member: np.ndarray
    points: np.ndarray

    @classmethod
    def build(
        cls, points: np.ndarray, k: int, leaf_size: int, balanced: bool = False, seed: int = 0
    ) -> "ClusterTree":
        """Splits into k clusters, and those again until they have at most `leaf_size` members.

        Args:
            points: (D, d) float32, D ≥ 1.
            balanced: the parts of a cluster differ in size by at most one.
            seed: of every k-means.
        """
        from threadpoolctl import threadpool_limits

        groups, centroids, counts = [np.arange(len(points))], [points.mean(0)], []
        # On one thread: k-means adds its threads' sums in the order in which they finish.
        with threadpool_limits(limits=1):
            # The list grows while it is read; a plain iterator, as its length is not its end.
            for node, group in enumerate(track(iter_growing(groups), "clusters of documents")):
                if len(group) <= leaf_size:
                    counts.append(0)
                    continue
                labels, centers = split(points[group], k, balanced, seed)
                groups[node] = group[:0]
                groups.extend(group[labels == part] for part in range(len(centers)))
                centroids.extend(centers)
                counts.append(len(centers))
        return cls(
            first_child=np.cumsum([1, *counts]),
            centroids=np.array(centroids, dtype=np.float32),
            members=np.concatenate(groups),
            first_member=np.cumsum([0, *map(len, groups)]),
            points=points,
        )
