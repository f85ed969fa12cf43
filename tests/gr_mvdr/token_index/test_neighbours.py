"""Clusters and token retrieval against all similarities written down."""

from itertools import pairwise

import pytest
import torch

from gr_mvdr.salience import top_share
from gr_mvdr.token_index import codec
from gr_mvdr.token_index import neighbours as token_neighbours
from gr_mvdr.token_index.neighbours import TokenSearch
from tests.gr_mvdr.token_index.test_store import create, random_tokens

MANY = [1 + n % 5 for n in range(60)]  # 180 tokens
OWNERS = torch.arange(60).repeat_interleave(torch.tensor(MANY))


@pytest.fixture(autouse=True)
def several_centroids(monkeypatch):
    """Seven vectors for each centroid: the nine token types have about three centroids each."""
    monkeypatch.setattr(codec, "TOKENS_PER_CENTROID", 7)


@pytest.fixture
def queries():
    return random_tokens([7], seed=9).vectors


def opened(store, *keep):
    tokens = TokenSearch(store, *keep)
    tokens.open_clusters()
    return tokens


def nearest(vectors, queries, k, rows=None):
    """The k best (similarities, rows) of each query, among some rows."""
    similarities = queries @ vectors.T
    if rows is not None:
        hidden = torch.ones(len(vectors), dtype=torch.bool)
        hidden[rows] = False
        similarities = similarities.masked_fill(hidden, -torch.inf)
    best = similarities.topk(k, dim=1)
    return best.values, best.indices


@pytest.mark.parametrize("dtype", ["float32", "float16", "codes"])
def test_every_token_is_in_the_nearest_cluster_of_its_type(tmp_path, dtype):
    tokens = random_tokens(MANY)
    tokens = opened(store := create(tmp_path / "index", tokens, dtype))
    rows, starts, _ = tokens.tokens
    assert rows.sort().values.tolist() == list(range(180))
    vectors = store.vectors("vectors", slice(0, 180), turned=True)
    ids, centroids = store.ids(slice(0, 180)), tokens.centroids.float()
    assert 9 < len(centroids) == len(starts) - 1
    types = [set(ids[rows[a:b].long()].tolist()) for a, b in pairwise(starts)]
    assert all(len(one) == 1 for one in types if one)
    for cluster, (start, end) in enumerate(pairwise(starts)):
        rivals = [c for c, own in enumerate(types) if own == types[cluster]]
        for row in rows[start:end].long() if dtype != "codes" else ():  # decoded vectors differ
            distances = (centroids[rivals] - vectors[row]).norm(dim=1)
            assert distances[rivals.index(cluster)] <= distances.min() + 1e-6
        own = tokens.documents.numbers[slice(*tokens.documents.starts[cluster : cluster + 2])]
        assert own.tolist() == OWNERS[rows[start:end].long()].unique().tolist()


@pytest.mark.parametrize("size", [6, 7])
@pytest.mark.parametrize("dtype", ["float32", "float16", "codes"])
def test_all_clusters_hold_every_token_and_similarities_are_the_stores(tmp_path, dtype, size):
    tokens = random_tokens(MANY, size=size)
    queries = random_tokens([4], size=size, seed=9).vectors
    store = create(tmp_path / "index", tokens, dtype, code_bytes=size)
    similarities, rows = opened(store).search(queries, 180, 180)
    expected = nearest(store.vectors("vectors", slice(0, 180)), queries, 180)
    assert torch.allclose(similarities, expected[0], atol=1e-5)
    assert torch.equal(rows.sort(1).values, torch.arange(180).expand(4, -1))
    picked = store.vectors("vectors", rows.flatten()).view(4, 180, size)
    assert torch.allclose(torch.einsum("tkd,td->tk", picked, queries), similarities, atol=1e-5)


def test_all_clusters_find_what_comparing_all_tokens_finds(tmp_path, queries):
    """Exactly: sums of these products are exact; ties go to the same tokens."""
    tokens = opened(create(tmp_path / "index", random_tokens(MANY)))
    for result, expected in zip(
        tokens.search(queries, 50, 180), tokens.search(queries, 50), strict=True
    ):
        assert torch.equal(result, expected)


def test_a_cluster_reaches_its_documents_by_its_centroid(tmp_path, queries):
    tokens = opened(create(tmp_path / "index", random_tokens(MANY, salience=True)))
    reached = tokens.reach(queries, 3)
    products = queries @ tokens.centroids.float().T
    best = products.topk(3, dim=1)
    rows, starts, _ = tokens.tokens
    expected = torch.full((60, 7), -torch.inf)
    for query in range(7):
        for value, cluster in zip(best.values[query], best.indices[query], strict=True):
            own = OWNERS[rows[starts[cluster] : starts[cluster + 1]].long()]
            expected[own, query] = expected[own, query].maximum(value)
    assert reached.documents.tolist() == (expected > -torch.inf).any(1).nonzero()[:, 0].tolist()
    assert torch.allclose(reached.best, expected[reached.documents], atol=0.02), "in bf16"
    assert bool((reached.best_salience[reached.best > -torch.inf] > 0).all())


@pytest.mark.parametrize("probes", [None, 180])
def test_pruned_and_excluded_tokens_are_not_found(tmp_path, queries, monkeypatch, probes):
    monkeypatch.setattr(token_neighbours, "_BLOCK", 64)  # of tokens that are pruned at once
    tokens = random_tokens(MANY, salience=True)
    store = create(tmp_path / "index", tokens)
    kept = []
    for rows, salience in zip(
        torch.arange(180).split(MANY), tokens.salience.split(MANY), strict=True
    ):
        mask = top_share(salience, torch.ones(len(salience), dtype=torch.bool), 0.4)
        kept += rows[mask].tolist()
    pruned = opened(store, 0.4)
    assert pruned.rows.tolist() == kept and len(kept) < 110
    some = torch.arange(0, 60, 7)
    for found, among in (
        (pruned, kept),
        (pruned.among(some), [n for n in kept if OWNERS[n] % 7 == 0]),
    ):
        similarities, rows = found.search(queries, 180, probes)
        expected = nearest(tokens.vectors, queries, len(among), torch.tensor(among))
        assert torch.allclose(similarities, expected[0], atol=1e-6)
        assert set(rows.flatten().tolist()) == set(among)
        assert found.reach(queries, 180).documents.tolist() == OWNERS[among].unique().tolist()
    few = pruned.among(some).reach(queries[:1], 1)
    assert len(few.documents), "clusters without any of these documents are not reached"


def test_saved_clusters_are_opened_unless_something_changed(tmp_path, monkeypatch):
    store, learn = create(tmp_path, random_tokens(MANY, salience=True)), TokenSearch._learn_clusters
    learned = []
    monkeypatch.setattr(
        TokenSearch, "_learn_clusters", lambda self: learned.append(self) or learn(self)
    )
    for keep in (1.0, 1.0, 0.5, 0.5):
        opened(store, keep)
    assert len(learned) == 2


def test_tokens_of_new_types_join_the_nearest_centroid_of_all(tmp_path):
    tokens = random_tokens(MANY)
    clusters = codec.Clusters.learn(tokens.vectors.__getitem__, tokens.ids, 180)
    own = clusters.assign(tokens.vectors, tokens.ids)
    types = torch.searchsorted(clusters.starts, own, right=True) - 1
    assert torch.equal(clusters.types[types], tokens.ids)
    distances = torch.cdist(tokens.vectors, clusters.centroids.float())
    assert torch.equal(clusters.assign(tokens.vectors, tokens.ids + 100), distances.argmin(1))


@pytest.mark.parametrize("probes", [None, 3])
def test_one_nan_in_a_query_is_refused(tmp_path, queries, probes):
    """Among integers of bits a NaN would be the largest similarity."""
    tokens = opened(create(tmp_path / "index", random_tokens(MANY)))
    queries[4, 2] = torch.nan
    with pytest.raises(ValueError, match="a query's vectors are not finite"):
        tokens.search(queries, 3, probes)
    with pytest.raises(ValueError, match="a query's vectors are not finite"):
        tokens.reach(queries, 3)


@pytest.mark.parametrize(("rows", "count"), [(1000, 7), (1000, 62), (1007, 30), (20, 30), (5, 1)])
def test_the_best_rows_of_a_matrix(rows, count):
    values = torch.randn(rows, 3, generator=torch.Generator().manual_seed(0)).bfloat16()
    best, places = token_neighbours.best_rows(values, count)
    expected = values.float().topk(min(count, rows), dim=0).values.T
    assert torch.equal(best.sort(1, descending=True).values, expected)
    assert torch.equal(values.T.gather(1, places).float(), best)
