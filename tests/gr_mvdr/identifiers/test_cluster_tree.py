from collections import Counter

import numpy as np
import pytest
from datasets import Dataset

from gr_mvdr.identifiers.cluster_tree import SemanticDocids

pytest.importorskip("sklearn")


def random_points(n, d=6, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)


def clustered(points, *options):
    """A scheme of documents with these vectors, and their child numbers down to the leaf."""
    scheme = SemanticDocids(*options, positional=False)
    scheme.embed = lambda table: np.array(points, dtype=np.float32)
    scheme.embedder.fit = lambda table: None
    scheme.fit(Dataset.from_dict({"id": [f"d{n}" for n in range(len(points))]}), 0)
    return scheme, list(map(tuple, scheme.known.values()))


def test_a_tree_of_six_points_on_a_line():
    """0 1 | 100 101 130 131: two far groups of 2 and 4, the larger one again 2 and 2."""
    scheme, places = clustered([[0], [100], [1], [101], [130], [131]], 2, 2)
    assert sorted(scheme.centroids[:, 0]) == pytest.approx([0.5, 463 / 6, 100.5, 115.5, 130.5])
    # The root's children are nodes 1 and 2, the larger one's are 3 and 4.
    large = int(scheme.centroids[1:3, 0].argmax())
    near = int(scheme.centroids[3:5, 0].argmin())
    assert places[0::2][:2] == [(1 - large, 0), (1 - large, 1)]
    assert places[1:4:2] == [(large, near, 0), (large, near, 1)]
    assert places[4:] == [(large, 1 - near, 0), (large, 1 - near, 1)]
    reached = [scheme.descend(np.float32([x])) for x in (-5, 108, 116)]
    assert reached == [[1 - large], [large, near], [large, 1 - near]]


@pytest.mark.parametrize("different", [200, 3, 1])
@pytest.mark.parametrize(("k", "leaf_size"), [(2, 1), (3, 7), (10, 4), (5, 300)])
def test_every_point_has_a_place_of_its_own_in_a_leaf_of_bounded_size(k, leaf_size, different):
    points = np.resize(random_points(different), (200, 6))
    scheme, places = clustered(points, k, leaf_size)
    paths = {place[:-1] for place in places}
    for leaf in paths:
        numbers = [place[-1] for place in places if place[:-1] == leaf]
        assert numbers == list(range(len(numbers))) and len(numbers) <= leaf_size
        assert not any(leaf[:end] in paths for end in range(len(leaf))), "a leaf has no children"
    below = Counter(place[:end] for place in places for end in range(len(place)))
    for node in {path[:end] for path in paths for end in range(len(path))}:
        parts = [below[(*node, child)] for child in range(k)]
        count = sum(part > 0 for part in parts)
        assert count > 1 and all(parts[:count])
    if different == 200:
        assert [
            (*scheme.descend(p), place[-1]) for p, place in zip(points, places, strict=True)
        ] == places
