"""Semantic docids: the path of a document in a tree of clusters (DSI, Tay et al. 2022, §3.2)."""

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from gr_mvdr.files import read_arrays, write_arrays
from gr_mvdr.identifiers.document_embeddings import EmbeddedDocids
from gr_mvdr.identifiers.scheme import Encode, Table
from gr_mvdr.options import AtLeast, Seed, Size, part
from gr_mvdr.progress import track

_ARRAYS = ("first_child", "centroids", "members", "first_member", "points")


@dataclass(frozen=True)
class ClusterTree:
    """A hierarchy of clusters; nodes breadth-first, root 0, the children of a node adjacent.

    Attributes:
        first_child: (nodes + 1,) int64, node n's children are first_child[n] and the nodes before
            first_child[n + 1]; a leaf has none.
        centroids: (nodes, d) float32.
        members: (D,) int64, the points of all leaves in order, ascending within a leaf.
        first_member: (nodes + 1,) int64, node n's members are members[first_member[n]] and those
            before first_member[n + 1]; an inner node has none.
        points: (D, d) float32, the clustered vectors.
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
        """Splits into k clusters, and these again until they have at most `leaf_size` members.

        Args:
            points: (D, d) float32, D ≥ 1.
            k: ≥ 2; a cluster of fewer points is split into as many as there are.
            leaf_size: ≥ 1.
            balanced: the parts of a cluster differ in size by at most one.
            seed: random seed of every k-means.
        """
        from threadpoolctl import threadpool_limits

        groups, centroids, counts = [np.arange(len(points))], [points.mean(0)], []
        # One thread: the order of a sum over several threads varies.
        with threadpool_limits(limits=1):
            # A generator: the list grows while the loop reads it.
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
        return cls(**read_arrays(folder, _ARRAYS)[0])

    def __len__(self) -> int:
        """The number of nodes."""
        return len(self.centroids)

    @property
    def depth(self) -> int:
        """The number of edges from the root to the deepest leaf."""
        return max(len(path) for path in self.paths())

    def paths(self) -> list[list[int]]:
        """For every node, the child numbers on the path from the root to it."""
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
        """The number of the leaf's point nearest to a point (d,); ties go to the lowest number."""
        members = self.members_of(leaf)
        # Differences, not products: an exact copy has distance 0.
        return int(members[((self.points[members] - point) ** 2).sum(1).argmin()])


@part("identifiers")
class SemanticDocids(EmbeddedDocids):
    """The path through a tree of clusters, then a number in the leaf (DSI's semantic docids).

    Documents with a common prefix are similar. Leaves have no children, so that no identifier is a
    prefix of another and none needs an end token.
    """

    options = ("k", "leaf_size", "balanced", "positional", "seed")

    def __init__(
        self,
        k: Annotated[int, AtLeast(2)],
        leaf_size: Size,
        balanced: bool = False,
        positional: bool = True,
        embeddings: dict[str, Any] | None = None,
        new_documents: Literal["number", "nearest"] = "number",
        seed: Seed = 0,
    ):
        """
        Args:
            k: clusters that a cluster is split into (DSI 10, NCI 30).
            leaf_size: largest cluster that is not split (DSI 100, NCI 30).
            balanced: the parts of a cluster differ in size by at most one.
            positional: every position has tokens of its own, as in NCI; else all share theirs.
            embeddings: see `EmbeddedDocids`.
            new_documents: documents that arrive later go down the tree by the nearest centroids;
                "number" gives them the leaf's next number, or, when its tokens are used up, the
                identifier of the leaf's nearest known document; "nearest" always gives them that.
            seed: random seed of the clustering.
        """
        super().__init__(embeddings)
        self.k, self.leaf_size, self.balanced, self.seed = k, leaf_size, balanced, seed
        self.positional, self.new_documents = positional, new_documents
        self.tree: ClusterTree | None = None

    @property
    def numbers_per_position(self) -> int:
        """The largest number of children of a node or of members of a leaf."""
        return max(self.k, self.leaf_size)

    @property
    def width(self) -> int | None:
        return self.numbers_per_position if self.positional else None

    @property
    def n_tokens(self) -> int:
        positions = self.tree.depth + 1 if self.positional else 1
        return positions * self.numbers_per_position

    def fit(self, documents: Table, first_token: int, encode: Encode | None = None) -> None:
        """Embeds and clusters the documents; a single document is a leaf.

        Raises:
            ValueError: no documents, or fewer than k.
        """
        super().fit(documents, first_token, encode)
        if 1 < len(documents) < self.k:
            raise ValueError(
                f"model.identifiers.k={self.k}: must be ≤ the {len(documents)} documents"
            )
        points = self.embeddings.transform(documents, encode)
        self.tree = ClusterTree.build(points, self.k, self.leaf_size, self.balanced, self.seed)

    def assign(self, documents: Table) -> list[list[int]]:
        """Known documents keep their places even if their text has changed; new ones are placed."""
        places = [(0, 0)] * len(self.document_ids)  # each document's leaf and its number there
        for leaf in range(len(self.tree)):
            for number, member in enumerate(self.tree.members_of(leaf).tolist()):
                places[member] = (leaf, number)
        numbers, paths = self.numbers(documents), self.tree.paths()
        assigned = [None if number is None else places[number] for number in numbers]
        new = [row for row, number in enumerate(numbers) if number is None]
        for row, place in zip(new, self._new_places(documents.select(new), places), strict=True):
            assigned[row] = place
        step = self.width or 0
        return [
            [self.first_token + at * step + part for at, part in enumerate([*paths[leaf], number])]
            for leaf, number in assigned
        ]

    def _new_places(
        self, documents: Table, places: Sequence[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        if not len(documents):
            return []
        points = self.embeddings.transform(documents, self.encode)
        taken = Counter(leaf for leaf, _ in places)
        new_places = []
        for leaf, point in zip(self.tree.descend(points).tolist(), points, strict=True):
            if self.new_documents == "number" and taken[leaf] < self.numbers_per_position:
                new_places.append((leaf, taken[leaf]))
                taken[leaf] += 1
            else:
                new_places.append(places[self.tree.nearest_member(leaf, point)])
        return new_places

    def save_structure(self, folder: Path) -> None:
        self.tree.save(folder / "tree")

    def load_structure(self, folder: Path) -> None:
        self.tree = ClusterTree.load(folder / "tree")


def split(points: np.ndarray, k: int, balanced: bool, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Splits a cluster into at least 2 parts; equal points evenly, in their order.

    Args:
        points: (n, d) float32, n ≥ 2; k: parts, ≥ 2; fewer if fewer points are distinct.

    Returns:
        part numbers (n,) int64 and centroids (parts, d) float32; no part is empty.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    k = min(k, len(points))
    if (points != points[0]).any():
        with warnings.catch_warnings():
            # With fewer distinct points than k, empty clusters are dropped below.
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
    """(n, d) and (k, d) float32 → (n, k) squared distances minus each point's squared norm."""
    return (centroids**2).sum(1) - 2 * points @ centroids.T


def balance_labels(costs: np.ndarray) -> np.ndarray:
    """Assigns points to clusters whose sizes differ by at most one, greedily at low cost.

    Every cluster is filled to ⌊n/k⌋ first; the remaining points go to different clusters.

    Args:
        costs: (n, k), the cost of point i in cluster j; n ≥ k.

    Returns:
        (n,) int64 cluster numbers.
    """
    n_points, k = costs.shape
    labels = np.full(n_points, -1)
    for capacity in (n_points // k, 1):
        _fill_clusters(costs, labels, np.full(k, capacity))
    return labels


def _fill_clusters(costs: np.ndarray, labels: np.ndarray, capacity: np.ndarray) -> None:
    """Labels points, in place, until no capacity or no point without a label (−1) is left.

    In each round every unlabelled point chooses its cheapest open cluster. A cluster chosen by too
    many takes the points with the largest loss by their second choice. There are at most k rounds,
    since a round that leaves points unlabelled fills a cluster.
    """
    while len(waiting := np.flatnonzero(labels < 0)) and len(free := np.flatnonzero(capacity)):
        offers = costs[np.ix_(waiting, free)]
        choice = offers.argmin(1)
        best = np.partition(offers, min(1, len(free) - 1), axis=1)[:, :2]
        loss = best[:, -1] - best[:, 0]
        order = np.lexsort((best[:, 0], -loss, choice))
        ranked = choice[order]
        place = np.arange(len(order)) - np.searchsorted(ranked, ranked)
        taken = order[place < capacity[free][ranked]]
        labels[waiting[taken]] = free[choice[taken]]
        capacity -= np.bincount(free[choice[taken]], minlength=len(capacity))


def _means(points: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(parts, d) float32, the mean of each part."""
    return np.stack([points[labels == part].mean(0) for part in range(labels.max() + 1)])
