import numpy as np
import pytest

from gr_mvdr.identifiers.cluster_tree import ClusterTree, balance_labels, split

pytest.importorskip("sklearn")


def random_points(n, d=6, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)


def groups_of_points(sizes, d=5, seed=0):
    """Clusters of radius about 0.1 whose centres are 10 apart."""
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    generator.shuffle(labels)
    centres = 10 * np.eye(len(sizes), d)
    points = centres[labels] + 0.05 * generator.normal(size=(len(labels), d))
    return points.astype(np.float32), labels


def leaves(tree):
    """The members of each leaf."""
    return [tree.members_of(n) for n in range(len(tree)) if len(tree.members_of(n))]


def same_partition(first, second):
    return len(set(zip(first, second, strict=True))) == len(set(first)) == len(set(second))


def test_a_tree_of_six_points_on_a_line():
    """0 1 | 10 11 | 20 … : two far groups of 2 and 4, the larger one again 2 and 2."""
    points = np.array([[0], [100], [1], [101], [130], [131]], dtype=np.float32)
    tree = ClusterTree.build(points, k=2, leaf_size=2)
    assert {tuple(leaf) for leaf in leaves(tree)} == {(0, 2), (1, 3), (4, 5)}
    assert len(tree) == 5 and tree.depth == 2
    assert sorted(tree.centroids[:, 0]) == pytest.approx([0.5, 463 / 6, 100.5, 115.5, 130.5])
    # The root's children are nodes 1 and 2, the larger one's are 3 and 4.
    large = int(tree.centroids[1:3, 0].argmax())
    assert tree.paths() == [[], [0], [1], [large, 0], [large, 1]]
    near = tree.descend(np.array([[-5], [108], [116]], dtype=np.float32))
    assert [tree.members_of(node).tolist() for node in near] == [[0, 2], [1, 3], [4, 5]]
    assert tree.nearest_member(near[1], np.array([100.4], dtype=np.float32)) == 1


@pytest.mark.parametrize(
    ("k", "leaf_size", "balanced"), [(2, 1, True), (3, 7, False), (10, 4, True), (5, 300, False)]
)
def test_every_point_is_in_one_leaf_of_bounded_size(k, leaf_size, balanced):
    tree = ClusterTree.build(random_points(200), k, leaf_size, balanced)
    assert sorted(np.concatenate(leaves(tree))) == list(range(200))
    assert all(len(leaf) <= leaf_size and sorted(leaf) == list(leaf) for leaf in leaves(tree))
    children = np.diff(tree.first_child)
    assert set(children) <= {0, *range(2, k + 1)}
    assert children.sum() == len(tree) - 1
    inner = np.flatnonzero(children)
    assert not any(len(tree.members_of(node)) for node in inner)


def test_groups_of_unequal_sizes_are_found_unless_balance_is_asked_for():
    points, labels = groups_of_points([30, 5, 12])
    assert same_partition(split(points, 3, False, seed=0)[0], labels)
    assert sorted(np.bincount(split(points, 3, True, seed=0)[0])) == [15, 16, 16]


@pytest.mark.parametrize("n, k", [(100, 10), (101, 10), (109, 10), (7, 7), (23, 2), (64, 3)])
def test_balanced_sizes_differ_by_at_most_one(n, k):
    sizes = np.bincount(balance_labels(random_points(n, k)), minlength=k)
    assert sizes.sum() == n and sizes.max() - sizes.min() <= 1


def test_balance_holds_at_every_node_and_bounds_the_depth():
    tree = ClusterTree.build(random_points(500), 4, 3, balanced=True)
    below = np.diff(tree.first_member)
    for node in reversed(range(len(tree))):
        first, end = tree.first_child[node : node + 2]
        if first < end:
            assert below[first:end].max() - below[first:end].min() <= 1
            below[node] = below[first:end].sum()
    assert tree.depth == 4  # 500 → 125 → 31, 32 → 7, 8 → 1, 2


def test_the_point_that_would_lose_most_gets_the_seat():
    # Both want cluster 0; elsewhere the second loses 9 and the first 1.
    assert balance_labels(np.array([[0.0, 1.0], [0.5, 9.5]])).tolist() == [1, 0]
    # Equal losses: the nearer one.
    assert balance_labels(np.array([[2.0, 3.0], [1.0, 2.0]])).tolist() == [1, 0]


@pytest.mark.parametrize(("n_different", "balanced"), [(1, True), (2, False), (3, True)])
def test_equal_points_end_in_leaves_too(balanced, n_different):
    points = np.repeat(random_points(n_different), 40, axis=0)
    tree = ClusterTree.build(points, 4, 3, balanced)
    assert sorted(np.concatenate(leaves(tree))) == list(range(len(points)))
    assert max(map(len, leaves(tree))) <= 3
    assert tree.depth <= 5


def test_equal_points_are_split_evenly_in_their_order():
    labels, centroids = split(np.ones((7, 2), dtype=np.float32), 3, False, seed=0)
    assert labels.tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert np.array_equal(centroids, np.ones((3, 2)))


def test_a_single_point_is_a_tree():
    tree = ClusterTree.build(random_points(1), 2, 1)
    assert (len(tree), tree.depth, tree.paths()) == (1, 0, [[]])
    assert tree.descend(random_points(3)).tolist() == [0, 0, 0]


def test_known_points_go_down_to_their_own_leaf_and_are_their_own_nearest():
    points = random_points(300)
    tree = ClusterTree.build(points, 5, 6)
    nodes = tree.descend(points)
    assert all(point in tree.members_of(node) for point, node in enumerate(nodes))
    found = [tree.nearest_member(node, points[point]) for point, node in enumerate(nodes)]
    assert found == list(range(300))


def test_a_saved_tree_is_the_same_tree(tmp_path):
    tree = ClusterTree.build(random_points(100), 4, 5)
    tree.save(tmp_path / "tree")
    loaded = ClusterTree.load(tmp_path / "tree")
    assert loaded.paths() == tree.paths()
    for name, array in vars(tree).items():
        assert np.array_equal(getattr(loaded, name), array), name
