"""Every multi-vector system is one class: laws that hold for all its choices."""

from dataclasses import replace

import pytest
import torch

from gr_mvdr.alignment import MaxSim, Softmax
from gr_mvdr.batch import PairBatch, cut, pad
from gr_mvdr.relevance import all_pairs_relevance
from gr_mvdr.tokenizers import EOS_ID
from tests.models.conftest import MULTI_VECTOR
from tests.runs import flat
from tests.searches import make_search


@pytest.fixture(params=MULTI_VECTOR)
def system(request, tools):
    return tools.make_multi_vector(request.param)


@torch.no_grad()
@pytest.mark.parametrize(("kind", "heads"), [("mva", 1), ("mva-heads", 2)])
def test_mva_is_the_papers_attention(tools, kind, heads):
    """(1/q) Σ Q_V · softmax(Q_K D_Kᵀ / √h) D_V, with matrices taken from the model by hand.

    Heads are parts of size h = d / H, each an attention of its own, which add up (mva Table 4)."""
    system, batch, size = tools.make_multi_vector(kind), tools.make_batch(), 8 // heads
    pairs, encoder = system.align(batch), system.encoder
    for number, score in enumerate(pairs.score):
        alone = tools.one(batch, number)
        x, y = (
            encoder.backbone(input_ids=ids).last_hidden_state[0]
            for ids in (alone.query_ids, alone.document_ids)
        )
        found = 0.0
        for head in range(heads):
            query_keys, query_values, keys, values = (
                table[side](states)[:, size * head : size * (head + 1)]
                for side, states in (("query", x), ("document", y))
                for table in (encoder.keys, encoder.values)
            )
            attention = (query_keys @ keys.T / size**0.5).softmax(-1)
            stored = pairs.alignment[number, head, : len(y), : len(x)].T
            assert torch.allclose(stored, attention, atol=1e-5)
            found += (query_values * (attention @ values)).sum(-1).mean()
        assert torch.isclose(score, found, atol=1e-5)


@torch.no_grad()
def test_the_loss_contrasts_the_batchs_relevance(tools, system):
    """The diagonal of all pairs is `score` (XTR's training score depends on its batch)."""
    batch = tools.make_batch()
    documents = system.encode_documents(batch.document_ids, batch.document_mask)
    queries = system.encode_queries(batch.query_ids, batch.query_mask)
    scores = all_pairs_relevance(documents, queries, system.scoring)
    assert torch.allclose(scores.diagonal(), system.score(batch), atol=1e-5)
    trained = all_pairs_relevance(documents, queries, system.training_scoring)
    expected = torch.nn.functional.cross_entropy(trained.T, torch.arange(3))
    assert torch.isclose(system.loss(batch), expected, atol=1e-5)
    if system.training_scoring == system.scoring:
        assert torch.equal(trained, scores)
    else:
        assert not torch.allclose(trained, scores, atol=1e-3)


def test_an_l1_gate_adds_to_the_loss(tools):
    part = {"_target_": "gr_mvdr.salience.LearnedSalience", "gate": "l1", "l1": 1e-9}
    plain = tools.make_multi_vector(salience={"document": part})
    paid = tools.make_multi_vector(salience={"document": part | {"l1": 0.5}})
    batch = tools.make_batch()
    documents = paid.encode_documents(batch.document_ids, batch.document_mask)
    penalty = paid.encoder.salience["document"].penalty(documents.salience, documents.mask)
    assert penalty > 0
    assert torch.isclose(paid.loss(batch) - plain.loss(batch), penalty, atol=1e-4)


@torch.no_grad()
def test_hard_negatives_are_no_pairs(tools, system):
    plain, more = tools.make_batch(), tools.make_batch(document_lengths=(7, 2, 9, 4, 3))
    documents, mask = more.document_ids, more.document_mask
    plain = replace(plain, document_ids=documents[:3], document_mask=mask[:3])
    hard = replace(plain, document_ids=documents, document_mask=mask)
    hard = replace(hard, document_index=torch.arange(5), negatives=torch.tensor([[3], [4], [3]]))
    assert torch.allclose(system.score(hard), system.score(plain), atol=1e-6)
    assert system.align(hard).score.shape == (3,)
    assert system.loss(hard) > system.loss(plain) - 1e-6


def pairs_of(query, documents):
    texts = [cut(tokens, 12, EOS_ID) for tokens in documents["tokens"]]
    rows = [cut(query, 8, EOS_ID)] * len(texts)
    return PairBatch(*pad(rows), *pad(texts), torch.arange(len(texts)))


@pytest.mark.parametrize("kind", [*MULTI_VECTOR, "augmented"])
def test_exact_search_scores_every_pair_as_score_does(tools, documents, queries, kind):
    options = {"template": {"expansion": 3}} if kind == "augmented" else {}
    system = tools.make_multi_vector("t5_colbert" if options else kind, **options)
    system.index(documents)
    ranking = system.retrieve(queries, len(documents))
    for query in queries:
        with torch.no_grad():
            scores = system.score(pairs_of(query["tokens"], documents)).tolist()
        expected = dict(zip(documents["id"], scores, strict=True))
        assert ranking.scores(query["id"]) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    "alignment", [None, MaxSim("document_to_query"), Softmax("document_to_query")], ids=str
)
@pytest.mark.parametrize("normaliser", [None, "alignment"])
@pytest.mark.parametrize("mode", ["exact", "rerank"])  # from an index, or encoded as they come
@torch.no_grad()
def test_rerank_scores_candidates_under_any_form_of_equation_1(
    tools, documents, queries, alignment, normaliser, mode
):
    system = tools.make_multi_vector(search={"mode": mode})
    system.index(documents)
    candidates = {"q0": ["d5", "d2", "d1"], "q1": [], "q2": ["d6", "d3"]}
    form = {"alignment": alignment, "normaliser": normaliser}
    ranking = system.rerank(queries, documents, candidates, **form)
    system.scoring = type(system.scoring)(alignment or MaxSim(), normaliser or "none")
    for query in queries:
        assert set(ranking.documents(query["id"])) == set(candidates[query["id"]])
        scores = system.score(pairs_of(query["tokens"], documents)).tolist()
        for name, score in ranking.scores(query["id"]).items():
            assert score == pytest.approx(scores[int(name[1])], abs=1e-4)


def test_what_is_encoded_as_it_comes_cannot_be_searched_by_its_tokens(tools, documents, queries):
    model = tools.make_multi_vector(search={"mode": "rerank"})
    model.index(documents)
    whole = model.retrieve(queries, 5, search=replace(model.search, proposer=None))
    stored = tools.make_multi_vector()
    stored.index(documents)
    expected = stored.retrieve(queries, 5)
    for query in queries["id"]:
        assert whole.scores(query) == pytest.approx(expected.scores(query), abs=1e-5)
    gather = replace(model.search, proposer=make_search("gather").proposer)
    with pytest.raises(ValueError, match="proposer=NearestTokens: needs source=index"):
        model.retrieve(queries, search=gather)
    with pytest.raises(ValueError, match="source=OnDemandDocuments: must be a TokenIndex"):
        model.retrieve(queries, search=model.search.changed(pool=2))


def test_an_index_pools_what_it_stores_and_a_search_may_ask_for_it(
    tools, documents, queries, tmp_path
):
    """What `model.search.pool` stores is what a search of whole vectors with it is made of."""
    whole, pooled = (tools.make_multi_vector(search=dict(mode="exact", pool=p)) for p in (1, 2))
    whole.index(documents)
    pooled.index(documents, tmp_path / "index")
    found = pooled.retrieve(queries, 7)
    merged = whole.search.changed(pool=2)
    asked = whole.retrieve(queries, 7, with_shares=True, search=merged)
    for query in queries["id"]:
        assert asked.scores(query) == pytest.approx(found.scores(query), abs=1e-5)
        for name, score in asked.scores(query).items():
            total = sum(share.value for share in asked.shares[query][name])
            assert total == pytest.approx(score, abs=1e-5)
    counts = [system.searcher.store.counts.sum() for system in (whole, pooled)]
    assert 2 * counts[1] <= counts[0] and found != whole.retrieve(queries, 7)
    assert pooled.mean_floats <= whole.mean_floats / 2
    costs = [system.searcher.storage_costs(system.search) for system in (whole, pooled)]
    assert costs[0] != costs[1] == whole.searcher.storage_costs(merged)
    for query in queries:  # a given pair is merged as in the index
        with torch.no_grad():
            pairs = pairs_of(query["tokens"], documents)
            scores, explained = pooled.score(pairs), pooled.align(pairs)
        assert torch.allclose(explained.relevance, scores, atol=1e-5)
        expected = dict(zip(documents["id"], scores.tolist(), strict=True))
        assert found.scores(query["id"]) == pytest.approx(expected, abs=1e-4)
    with pytest.raises(ValueError, match="model.search.pool=2: must not merge or code vectors"):
        pooled.retrieve(queries, 7, search=pooled.search.changed(pool=4))
    coded = tools.make_multi_vector(search=dict(mode="exact", dtype="codes", code_bytes=2))
    coded.index(tools.Texts(tools.draw_tokens([9] * 40, seed=9), "d"))
    with pytest.raises(ValueError, match="model.search.source.dtype=codes: must not merge or code"):
        coded.retrieve(queries, 7, search=coded.search.changed(dtype="float32"))
    other = tools.make_multi_vector(search=dict(mode="exact"))
    with pytest.raises(ValueError, match="was made with model"):
        other.open_index(documents, tmp_path / "index")


def test_a_vector_of_several_tokens_cannot_be_skipped_by_its_token(tools):
    with pytest.raises(ValueError, match="Temporal: needs tokenizer.skip=null"):
        tools.make_multi_vector("mva-temporal", template={"skip": [10]})


def test_an_approximate_search_is_held_against_the_exact_one(tools, documents, queries):
    system = tools.make_multi_vector(search={"mode": "impute", "neighbours": 3, "probes": None})
    system.index(documents)
    ranking = system.retrieve(queries, 10)
    metrics = flat(system.search_fidelity(queries, ranking, 10))
    in_full = system.searcher.exact_search()
    exact = system.retrieve(queries, 10, search=in_full)
    shares = [len(set(ranking.documents(q)) & set(exact.documents(q))) / 7 for q in queries["id"]]
    assert metrics["retrieve/recall_of_exact@10"] == pytest.approx(sum(shares) / 3)
    assert 0 < metrics["retrieve/recall_of_exact@10"] < 1
    less = flat(system.search_fidelity(queries, ranking.top(1), 20))["retrieve/recall_of_exact@20"]
    assert less == pytest.approx(1 / 7)  # of the depth that was asked for, not of what was found
    shallow = flat(system.search_fidelity(queries, system.retrieve(queries, 3, search=in_full), 3))
    assert shallow["retrieve/recall_of_exact@3"] == 1
    assert "retrieve/recall_of_exact@10" not in shallow
    assert metrics["cost/candidates"] == sum(len(ranking.documents(q)) for q in queries["id"]) / 3
    assert metrics["cost/bytes_per_token"] >= 4 * 8 and metrics["cost/scoring_flops"] > 0
    exactly = tools.make_multi_vector()
    exactly.index(documents)
    ranking = exactly.retrieve(queries, 10)
    assert "retrieve/recall_of_exact@10" not in flat(exactly.search_fidelity(queries, ranking, 10))
