"""Hierarchical k-means: the tree behind semantic docids (DSI, Tay et al. 2022, §3.2)."""

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gr_mvdr.files import check, check_offsets, read_arrays, write_arrays
from gr_mvdr.progress import track

_ARRAYS = ("first_child", "centroids", "members", "first_member", "points")


@dataclass(frozen=True)
class ClusterTree:
    """Clusters within clusters; nodes breadth-first, root 0, a node's children side by side.

    Attributes:
        first_child: (nodes + 1,) int64, node n's children are first_child[n] and the nodes before
            first_child[n + 1]; a leaf has none.
        centroids: (nodes, d) float32.
        members: (D,) int64, the points of the leaves, leaf after leaf, ascending within each;
        first_member: (nodes + 1,) int64, where a node's begin; inner nodes have none.
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
            k: ≥ 2; a cluster of fewer points is split into as many as there are.
            leaf_size: ≥ 1.
            balanced: the parts of a cluster differ in size by at most one.
            seed: of every k-means.
        """
        from threadpoolctl import threadpool_limits

        groups, centroids, counts = [np.arange(len(points))], [points.mean(0)], []
        # One thread: several would add their parts of a sum in the order in which they finish.
        with threadpool_limits(limits=1):
            # A generator, since the list grows while it is read: its length is not its end.
            for node, group in enumerate(track((g for g in groups), "clustering into nodes")):
                if len(group) <= leaf_size:
                    counts.append(0)
                    continue
                labels, centers = split(points[group], k, balanced, seed)
                groups[node] = group[:0]
                groups.extend(group[labels == part] for part in range(len(centers)))
                centroids.extend(centers)
                counts.append(len(centers))
        return cls(
            first_child=np.cumsum([1, *counts], dtype=np.int64),
            centroids=np.array(centroids, dtype=np.float32),
            members=np.concatenate(groups),
            first_member=np.cumsum([0, *map(len, groups)], dtype=np.int64),
            points=points,
        )

    def save(self, folder: Path) -> None:
        """Writes the tree as the new folder `folder`."""
        write_arrays(folder, {name: getattr(self, name) for name in _ARRAYS}, {})

    @classmethod
    def load(cls, folder: Path) -> "ClusterTree":
        """Opens a saved tree by memory map."""
        tree = cls(**read_arrays(folder, _ARRAYS)[0])
        tree._check(folder)
        return tree

    def _check(self, path: Path) -> None:
        """Refuses arrays that are no tree of clusters of the points."""
        nodes, count = len(self.centroids), len(self.points)
        fits = self.centroids.ndim == 2 and nodes
        fits = fits and self.centroids.shape[1:] == self.points.shape[1:]
        check(
            fits and np.isfinite(self.centroids).all(), path / "centroids.npy", "must hold vectors"
        )
        check(np.isfinite(self.points).all(), path / "points.npy", "must hold vectors")
        check_offsets(self.first_child, 1, nodes, nodes, path / "first_child.npy")
        # Breadth first, all children come later.
        later = (self.first_child[:-1] > np.arange(nodes)).all()
        check(later, path / "first_child.npy", "a node is its own ancestor")
        check_offsets(self.first_member, 0, count, nodes, path / "first_member.npy")
        is_leaf = self.first_child[1:] == self.first_child[:-1]
        filled = (np.diff(self.first_member) > 0) == is_leaf
        check(filled.all(), path / "first_member.npy", "leaves alone must have members")
        fits = self.members.dtype == np.int64
        fits = fits and np.array_equal(np.sort(self.members), np.arange(count))
        check(fits, path / "members.npy", "must hold every point once")

    def __len__(self) -> int:
        """The number of nodes."""
        return len(self.centroids)

    @property
    def depth(self) -> int:
        """The longest way from the root to a leaf, in steps."""
        return max(len(path) for path in self.paths())

    def paths(self) -> list[list[int]]:
        """For every node the numbers of the children that lead to it from the root."""
        paths: list[list[int]] = [[]]
        for path, count in zip(paths, np.diff(self.first_child), strict=True):
            paths.extend([*path, number] for number in range(count))
        return paths

    def members_of(self, node: int) -> np.ndarray:
        """The points of a leaf, ascending."""
        return self.members[self.first_member[node] : self.first_member[node + 1]]

    def descend(self, points: np.ndarray) -> np.ndarray:
        """(n,) int64 the leaves that points (n, d) reach by the nearest centroid of each level."""
        nodes = np.zeros(len(points), dtype=np.int64)
        moving = np.arange(len(points))
        while len(moving := moving[np.diff(self.first_child)[nodes[moving]] > 0]):
            here = nodes[moving]
            for node in np.unique(here):
                rows = moving[here == node]
                first, end = self.first_child[node : node + 2]
                costs = squared_distances(points[rows], self.centroids[first:end])
                nodes[rows] = first + costs.argmin(1)
        return nodes

    def nearest_member(self, leaf: int, point: np.ndarray) -> int:
        """The number of the leaf's point that is nearest to a point (d,), the first of equals."""
        members = self.members_of(leaf)
        # Differences, not products: an exact copy must be at distance 0.
        return int(members[((self.points[members] - point) ** 2).sum(1).argmin()])


def split(points: np.ndarray, k: int, balanced: bool, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Splits a cluster in at least 2 parts; equal points evenly, in their order.

    Args:
        points: (n, d) float32, n ≥ 2; k: ≥ 2 parts, fewer if fewer points are different.

    Returns:
        part numbers (n,) int64 and centroids (parts, d) float32; no part is empty.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    k = min(k, len(points))
    if (points != points[0]).any():
        with warnings.catch_warnings():
            # Fewer different points than k: the empty clusters are left out below.
            warnings.simplefilter("ignore", ConvergenceWarning)
            means = KMeans(k, n_init=1, random_state=seed).fit(points)
        if balanced:
            labels = balance_labels(squared_distances(points, means.cluster_centers_))
            return labels, _means(points, labels)
        used, labels = np.unique(means.labels_, return_inverse=True)
        if len(used) > 1:
            return labels, means.cluster_centers_[used]
    labels = np.arange(len(points)) * k // len(points)
    return labels, _means(points, labels)


def squared_distances(points: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """(n, d) and (k, d) float32 → (n, k) squared distances, less each point's own square."""
    return (centroids**2).sum(1) - 2 * points @ centroids.T


def balance_labels(costs: np.ndarray) -> np.ndarray:
    """Puts points into clusters whose sizes differ by at most one, at little cost.

    Every cluster takes its equal share first; the points left over go to different clusters.

    Args:
        costs: (n, k), what point i costs in cluster j; n ≥ k.

    Returns:
        (n,) int64 cluster numbers.
    """
    n_points, k = costs.shape
    labels = np.full(n_points, -1)
    for room in (n_points // k, 1):
        _seat(costs, labels, np.full(k, room))
    return labels


def _seat(costs: np.ndarray, labels: np.ndarray, room: np.ndarray) -> None:
    """Fills clusters until there is no room or no point without a label (−1); in place.

    In each round every waiting point asks for its cheapest open cluster. One that is asked by too
    many takes those that would lose most by their second choice: at most k rounds, since a round
    that leaves points waiting has filled a cluster.
    """
    while len(waiting := np.flatnonzero(labels < 0)) and len(free := np.flatnonzero(room)):
        offers = costs[np.ix_(waiting, free)]
        choice = offers.argmin(1)
        best = np.partition(offers, min(1, len(free) - 1), axis=1)[:, :2]
        loss = best[:, -1] - best[:, 0]
        order = np.lexsort((best[:, 0], -loss, choice))
        ranked = choice[order]
        place = np.arange(len(order)) - np.searchsorted(ranked, ranked)
        seated = order[place < room[free][ranked]]
        labels[waiting[seated]] = free[choice[seated]]
        room -= np.bincount(free[choice[seated]], minlength=len(room))


def _means(points: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(parts, d) float32, the mean of each part."""
    return np.stack([points[labels == part].mean(0) for part in range(labels.max() + 1)])
