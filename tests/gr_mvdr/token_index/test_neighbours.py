"""Token retrieval against all similarities written down."""

import pytest
import torch

from gr_mvdr.salience import top_share
from gr_mvdr.token_index import neighbours as token_neighbours
from gr_mvdr.token_index.neighbours import TokenSearch
from tests.gr_mvdr.token_index.test_store import create, random_tokens

MANY = [1 + n % 5 for n in range(60)]  # 180 tokens


@pytest.fixture
def queries():
    return random_tokens([7], seed=9).vectors


def search(neighbours, *asked, **options):
    """The tokens that are found, best first."""
    similarities, rows = neighbours.search(*asked, **options)
    similarities, order = similarities.sort(dim=1, descending=True, stable=True)
    return similarities, rows.gather(1, order)


def nearest(vectors, queries, k, rows=None):
    """The k best (similarities, rows) of each query, among some rows."""
    similarities = queries @ vectors.T
    if rows is not None:
        hidden = torch.ones(len(vectors), dtype=torch.bool)
        hidden[rows] = False
        similarities = similarities.masked_fill(hidden, -torch.inf)
    best = similarities.topk(k, dim=1)
    return best.values, best.indices


@pytest.mark.parametrize("size", [6, 7])
@pytest.mark.parametrize("dtype", ["float32", "float16", "pq", "residual"])
def test_all_lists_hold_every_token_and_similarities_are_the_stores(tmp_path, dtype, size):
    tokens = random_tokens(MANY, size=size)
    queries = random_tokens([4], size=size, seed=9).vectors
    store = create(tmp_path / "index", tokens, dtype, pq_bytes=size, lists=3)
    neighbours = TokenSearch(store)
    neighbours.build_lists(3)
    similarities, rows = search(neighbours, queries, 180, 3)
    expected = nearest(store.vectors("vectors", slice(0, 180)), queries, 180)
    assert torch.allclose(similarities, expected[0], atol=1e-5)
    assert torch.equal(rows.sort(1).values, torch.arange(180).expand(4, -1))
    picked = store.vectors("vectors", rows.flatten()).view(4, 180, size)
    assert torch.allclose(torch.einsum("tkd,td->tk", picked, queries), similarities, atol=1e-5)


@pytest.mark.parametrize("probes", [None, 3])
def test_pruned_tokens_are_not_found(tmp_path, queries, monkeypatch, probes):
    monkeypatch.setattr(token_neighbours, "_BLOCK", 64)  # of tokens that are pruned at once
    tokens = random_tokens(MANY, salience=True)
    store = create(tmp_path / "index", tokens)
    kept = []
    for rows, salience in zip(
        torch.arange(180).split(MANY), tokens.salience.split(MANY), strict=True
    ):
        mask = top_share(salience, torch.ones(len(salience), dtype=torch.bool), 0.4)
        kept += rows[mask].tolist()
    neighbours = TokenSearch(store, 0.4)
    assert neighbours.rows.tolist() == kept and len(kept) < 110
    neighbours.build_lists(3)
    similarities, rows = search(neighbours, queries, len(kept), probes)
    expected = nearest(tokens.vectors, queries, len(kept), torch.tensor(kept))
    assert torch.allclose(similarities, expected[0], atol=1e-6)
    assert set(rows.flatten().tolist()) == set(kept)


def test_saved_lists_are_opened_unless_something_changed(tmp_path, monkeypatch):
    store, train = create(tmp_path, random_tokens(MANY, salience=True)), TokenSearch._train_lists
    trained = []
    monkeypatch.setattr(
        TokenSearch, "_train_lists", lambda *asked: trained.append(asked) or train(*asked)
    )
    for asked in [(1.0, 3), (1.0, 3), (1.0, 2), (0.5, 2), (0.5, 2)]:
        TokenSearch(store, asked[0]).build_lists(*asked[1:])
    assert len(trained) == 3


@pytest.mark.parametrize("probes", [None, 3])
def test_one_nan_in_a_query_is_refused(tmp_path, queries, probes):
    """Among integers of bits a NaN would be the largest similarity, in faiss the smallest."""
    neighbours = TokenSearch(create(tmp_path / "index", random_tokens(MANY)))
    neighbours.build_lists(3)
    queries[4, 2] = torch.nan
    with pytest.raises(ValueError, match="a query's vectors are not finite"):
        neighbours.search(queries, 3, probes)
