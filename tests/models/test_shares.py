"""What each token adds to a score: laws of every system."""

import math

import pytest
import torch

from models.beyond.query_generator import QueryGenerator
from models.bm25 import BM25
from models.multi_vector import MultiVector
from tests.models.test_constrained_search import MINDER

# A kind of system and how it is searched.
SEARCHED = [
    ("t5_colbert", dict(mode="exact")),
    ("mva", dict(mode="exact")),
    ("mva-temporal", dict(mode="rerank", depth=5)),
    ("aligner", dict(mode="gather", neighbours=4, probes=None, keep_query=0.5)),
    ("xtr", dict(mode="impute", neighbours=7, probes=None)),
    ("t5_colbert", dict(mode="one_vector", refine=2)),
    ("idf", dict(mode="gather", neighbours=4, probes=None, pool=2)),
    ("idf", dict(mode="rerank", depth=4, pool=2, pool_by="k_means")),
    ("dpr", dict(mode="exact")),
    ("wu", dict(mode="exact")),
]


GENERATIVE = ["seal-minder", "semantic-pawa", "titles-np"]


@pytest.fixture(
    params=[*SEARCHED, *GENERATIVE, "doc2query", "bm25", "splade", "mean", "first"], ids=str
)
def system(request, tools, documents, tmp_path):
    if request.param == "seal-minder":
        return tools.sharpen(tools.make_seal(**MINDER))
    if request.param in GENERATIVE:
        return tools.make_docid(request.param, documents=documents, length_penalty=0.8)
    if request.param == "doc2query":
        words = tools.save_tokenizer(tmp_path / "tokenizer")
        options = dict(n_queries=2, top_k=5, optimizer=tools.OPTIMIZER)
        return QueryGenerator(tools.BACKBONE, words, 12, 8, **options).eval()
    if request.param == "bm25":
        return BM25()
    if request.param == "splade":
        return tools.make_splade()
    if isinstance(request.param, str):
        return tools.make_cross_encoder(pooling=request.param)
    kind, search = request.param
    return tools.make_multi_vector(kind, search=search)


def check_sums(ranking, shares):
    found = {query: ranking.scores(query) for query in ranking.query_ids}
    assert found.keys() == shares.keys() and any(found.values())
    for query, scores in found.items():
        assert scores.keys() == shares[query].keys()
        for name, score in scores.items():
            # Scores of an index are in fp32.
            total = math.fsum(share.value for share in shares[query][name])
            assert total == pytest.approx(score, abs=1e-4)


def test_shares_sum_to_the_scores_of_the_search(system, documents, queries):
    system.index(documents)
    ranking = system.retrieve(queries, 4, with_shares=True)
    assert ranking == system.retrieve(queries, 4)
    check_sums(ranking, ranking.shares)
    among = system.retrieve(queries, 4, ["d1", "d5"], with_shares=True)
    check_sums(among, among.shares)
    assert all(set(among.documents(query)) <= {"d1", "d5"} for query in queries["id"])


@torch.no_grad()
def test_shares_of_given_pairs_sum_to_their_score(system, tools, documents):
    if isinstance(system, BM25):
        system.index(documents)
    batch = tools.make_batch()
    sums = [math.fsum(share.value for share in row) for row in system.shares(batch)]
    assert sums == pytest.approx(system.score(batch).tolist(), abs=1e-4)


def test_an_opened_index_is_searched_like_the_one_that_was_made(
    system, documents, queries, tmp_path
):
    system.index(documents, tmp_path / "index")
    expected = system.retrieve(queries, 4)
    is_dense = isinstance(system, MultiVector)
    system.searcher, system.names = system.search.searcher() if is_dense else None, None
    system.open_index(documents, tmp_path / "index")
    assert system.retrieve(queries, 4) == expected


def test_an_index_of_other_documents_is_not_opened(system, documents, queries, tmp_path):
    system.index(documents, tmp_path / "index")
    with pytest.raises(ValueError, match="was made|must be (of|an index of)"):
        system.open_index(queries, tmp_path / "index")
