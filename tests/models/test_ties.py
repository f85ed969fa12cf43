"""Documents of equal scores have one order, that of `Ranking`, whoever finds or cuts them.

Every system's weights are zero, so that all documents of equal length tie exactly.
"""

import pytest
import torch

from models.bm25 import BM25

IDS = ["d2", "d10", "e", "b", "d1", "a", "f", "c"]
BEST = ["f", "e", "d2", "d10", "d1", "c", "b", "a"]
SEARCHES = {
    "exact": dict(mode="exact"),
    # The cut at k' tokens is one among documents too: five tokens each make four documents.
    "gather": dict(mode="gather", probes=None, neighbours=20),
    "refine": dict(mode="gather", probes=None, neighbours=20, refine=4),
    "impute": dict(mode="impute", probes=None, neighbours=20, imputation="last"),
    "impute-mean": dict(mode="impute", probes=None, neighbours=20, imputation="mean"),
    "fde": dict(mode="one_vector", refine=4),
    "rerank": dict(mode="rerank", depth=4),
}
KINDS = ["titles-np", "atomic", "naive", *SEARCHES, "bm25", "cross-encoder"]


def texts(tools, ids):
    """Documents of one text and one title."""
    table = tools.Texts([[7, 8, 9, 7] for _ in ids], "")
    table["id"] = ids
    return table


def zeroed(model):
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    return model.eval()


def make(tools, kind, documents):
    if kind == "bm25":
        return BM25()
    if kind == "cross-encoder":
        return zeroed(tools.make_cross_encoder(depth=4))
    if kind in SEARCHES:
        return zeroed(tools.make_multi_vector(search=SEARCHES[kind]))
    model = tools.make_docid(kind, documents=documents)
    if kind == "titles-np":
        model.head.table.zero_()
    return zeroed(model)


@pytest.mark.parametrize("kind", KINDS)
def test_retrieving_k_is_reranking_all_and_cutting_whatever_the_collections_order(
    tools, kind, tmp_path
):
    queries = tools.Texts([[7, 8], [9]], "q")
    for ids in (IDS, IDS[::-1], sorted(IDS)):
        documents = texts(tools, ids)
        system = make(tools, kind, documents)
        system.index(documents, tmp_path / ids[0])
        reranked = system.rerank(queries, documents, {query: ids for query in queries["id"]})
        if kind == "naive":  # longer docids are less probable: ids, not documents, decide
            assert system.retrieve(queries, 3) == reranked.top(3)
            continue
        for k in (1, 3):
            found = system.retrieve(queries, k)
            assert found == reranked.top(k)
            assert [found.documents(query) for query in queries["id"]] == [BEST[:k]] * 2
