"""A restricted search of any system ranks as its exhaustive search does, without the others."""

import pytest

from gr_mvdr.token_index import search
from gr_mvdr.token_index.bm25_candidates import BM25Candidates
from models.beyond.query_generator import QueryGenerator
from models.bm25 import BM25

# A kind of multi-vector system and its search. Its 40 tokens or 3 documents are fewer than the
# collection's, but all of the documents that are kept.
SEARCHED = {
    "exact": ("aligner", dict(mode="exact")),
    "nearest": ("aligner", dict(mode="gather", neighbours=40, probes=None, refine=3)),
    "clusters": ("t5_colbert", dict(mode="gather", neighbours=None, probes=2)),
    "imputed": ("xtr", dict(mode="impute", neighbours=40, probes=None)),
    "one vector": ("t5_colbert", dict(mode="one_vector", refine=3)),
    "BM25, stored": ("mva", dict(proposer=BM25Candidates(3))),
    "BM25, on demand": ("mva", dict(mode="rerank", depth=3)),
}
OTHERS = ["seal", "semantic-pawa", "titles-np", "doc2query", "bm25", "splade", "cross_encoder"]
KEPT = ["d1", "d4", "d6"]


def make(kind, tools, documents, folder):
    if kind in SEARCHED:
        name, options = SEARCHED[kind]
        return tools.make_multi_vector(name, search=options)
    if kind == "seal":
        return tools.sharpen(tools.make_seal(beam_size=200))
    if kind == "doc2query":
        words = tools.save_tokenizer(folder / "tokenizer")
        options = dict(n_queries=2, top_k=5, optimizer=tools.OPTIMIZER)
        return QueryGenerator(tools.BACKBONE, words, 12, 8, **options).eval()
    if kind in ("bm25", "splade", "cross_encoder"):
        made = {
            "bm25": BM25,
            "splade": tools.make_splade,
            "cross_encoder": tools.make_cross_encoder,
        }
        return made[kind]()
    return tools.make_docid(kind, documents=documents, beam_size=60)


@pytest.mark.parametrize("is_few", [True, False])
@pytest.mark.parametrize("kind", [*SEARCHED, *OTHERS])
def test_a_restricted_search_is_the_exhaustive_one_without_the_others(
    kind, is_few, tools, queries, tmp_path, monkeypatch
):
    documents = tools.named_documents()
    queries["text"] = [" ".join(map(str, range(4, tools.VOCABULARY)))] * len(queries)
    system = make(kind, tools, documents, tmp_path)
    system.index(documents)
    if kind in SEARCHED:
        exact = tools.make_multi_vector(SEARCHED[kind][0])
        exact.load_state_dict(system.state_dict())
        exact.index(documents)
        if not is_few:  # else a search of so few documents scores them all
            monkeypatch.setattr(search.SearchOptions, "effort", lambda *counts: 0.0)
            monkeypatch.setattr(search.SearchOptions, "n_scored", 0)
    else:
        exact = system
    every = exact.retrieve(queries, len(documents))
    found = system.retrieve(queries, 2, KEPT, with_shares=True)
    for query in queries["id"]:
        expected = {name: s for name, s in every.scores(query).items() if name in KEPT}
        assert found.documents(query) == [*expected][:2]
        for name, score in found.scores(query).items():
            assert score == pytest.approx(expected[name], abs=1e-5)
            shares = found.shares[query][name]
            assert sum(share.value for share in shares) == pytest.approx(score, abs=1e-4)
    assert any(map(found.documents, queries["id"]))
    assert not any(map(system.retrieve(queries, 2, []).documents, queries["id"]))
