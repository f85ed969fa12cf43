import pytest
import torch

from gr_mvdr.alignment import MaxSim, Softmax
from gr_mvdr.losses import in_batch_cross_entropy, pairwise_cross_entropy
from gr_mvdr.relevance import relevance, similarity


@torch.no_grad()
def test_token_vectors_have_length_one_and_are_zero_at_padding(tools):
    batch = tools.make_batch()
    vectors = tools.make_colbert().encode(batch.document_ids, batch.document_mask)
    assert vectors.shape == (3, 9, 8) and vectors.dtype == torch.float32
    assert torch.allclose(vectors.norm(dim=-1), batch.document_mask.float(), atol=1e-5)


@torch.no_grad()
def test_padding_and_batch_mates_change_nothing(tools):
    colbert = tools.sharpen(tools.make_colbert())
    batch = tools.make_batch()
    together = colbert.align(tools.widen(batch))
    for number in range(3):
        alone = colbert.align(tools.one(batch, number))
        m, n = alone.similarity.shape[2:]
        for name in ("similarity", "alignment"):
            found = getattr(together, name)[number, :, :m, :n]
            assert torch.allclose(found, getattr(alone, name)[0], atol=1e-5)
        assert torch.allclose(together.score[number], alone.score[0], atol=1e-5)


@torch.no_grad()
def test_relevance_equals_score_equals_eq_21(tools):
    colbert, batch = tools.make_colbert(), tools.make_batch()
    pairs = colbert.align(batch)
    assert torch.allclose(pairs.relevance, pairs.score, atol=1e-4)
    assert torch.allclose(colbert.score(batch), pairs.score)
    equation = relevance(pairs.similarity, pairs.alignment).sum(1) / pairs.normaliser
    assert torch.allclose(pairs.relevance, equation)
    documents = colbert.encode(batch.document_ids, batch.document_mask)
    queries = colbert.encode(batch.query_ids, batch.query_mask)
    for number in range(3):
        matrix = documents[number][batch.document_mask[number]] @ queries[number].T
        best = matrix[:, batch.query_mask[number]].amax(0).sum()
        assert torch.isclose(pairs.score[number], best, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "loss"), [("in_batch", in_batch_cross_entropy), ("pairwise", pairwise_cross_entropy)]
)
@torch.no_grad()
def test_the_loss_contrasts_the_batchs_relevance(tools, name, loss):
    colbert, batch = tools.make_colbert(loss=name), tools.make_batch()
    batch.document_index = torch.tensor([4, 2, 4])
    documents = colbert.encode(batch.document_ids, batch.document_mask)
    queries = colbert.encode(batch.query_ids, batch.query_mask)
    matrix = similarity(documents[:, None], queries)  # (documents, queries, M, N)
    masks = batch.document_mask[:, None].expand(3, 3, 9), batch.query_mask.expand(3, 3, 6)
    scores = relevance(matrix, MaxSim()(matrix, *masks))
    assert torch.isclose(colbert.loss(batch), loss(scores, batch.document_index), atol=1e-5)


@torch.no_grad()
def test_sentinels_fill_a_query_and_align_like_its_own_tokens(tools):
    colbert, batch = tools.make_colbert(sentinel_id=3, query_length=8), tools.make_batch()
    pairs = colbert.align(batch)
    assert pairs.query_ids.shape == (3, 8) and pairs.query_mask.all()
    for number, length in enumerate((3, 6, 1)):
        assert torch.equal(pairs.query_ids[number, :length], batch.query_ids[number, :length])
        assert (pairs.query_ids[number, length:] == 3).all()
    assert torch.equal(pairs.alignment.sum(2), torch.ones(3, 1, 8)), "every sentinel chooses"
    plain = tools.make_colbert(query_length=8).align(batch)
    assert not torch.allclose(plain.score, pairs.score)


def test_augmented_queries_are_searched_as_they_are_aligned(tools, documents, queries):
    check_search_equals_align(tools, tools.make_colbert(sentinel_id=3), documents, queries)


def check_search_equals_align(tools, colbert, documents, queries, tolerance=1e-4):
    """Every score of a full retrieval equals `score` of the pair."""
    from gr_mvdr.batch import PairBatch, cut, pad

    colbert.index(documents)
    ranking = colbert.retrieve(queries, len(documents))
    for query in queries:
        tokens = cut(query["tokens"], colbert.hparams.query_length, 1)
        for document in documents:
            text = cut(document["tokens"], colbert.hparams.document_length, 1)
            pair = PairBatch(*pad([tokens]), *pad([text]), torch.tensor([0]))
            with torch.no_grad():
                expected = colbert.score(pair).item()
            found = ranking.scores(query["id"])[document["id"]]
            assert found == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize("size", [1, 20, 100_000])
def test_exact_search_scores_every_pair_as_score_does(tools, documents, queries, monkeypatch, size):
    """Whatever the chunks of encoding, and although the index orders documents by length."""
    monkeypatch.setattr("models.multi_vector._ENCODE_TOKENS", size)
    monkeypatch.setattr("models.multi_vector._QUERY_BATCH", 2)
    check_search_equals_align(tools, tools.make_colbert(), documents, queries)


def test_half_precision_storage_scores_nearly_so(tools, documents, queries):
    colbert = tools.make_colbert(search=dict(tools.SEARCH, dtype="float16"))
    check_search_equals_align(tools, colbert, documents, queries, tolerance=0.02)


def test_gather_over_all_clusters_and_many_neighbours_is_exact(tools):
    pytest.importorskip("faiss")
    documents = tools.Texts(tools.draw_tokens([3 + n % 7 for n in range(30)], 3), "d")
    queries = tools.Texts(tools.draw_tokens([4, 7], 4), "q")
    exact, gather = (
        tools.make_colbert(search=dict(tools.SEARCH, mode=mode)) for mode in ("exact", "gather")
    )
    for model in (exact, gather):
        model.index(documents)
    expected, found = (model.retrieve(queries, 10) for model in (exact, gather))
    for query in queries["id"]:
        assert found.documents(query) == expected.documents(query)
        assert found.scores(query) == pytest.approx(expected.scores(query), abs=1e-4)


@pytest.mark.parametrize(
    "alignment", [None, MaxSim("document_to_query"), Softmax("document_to_query")], ids=str
)
@torch.no_grad()
def test_rerank_scores_candidates_under_any_alignment(tools, documents, queries, alignment):
    from gr_mvdr.batch import PairBatch, cut, pad

    colbert = tools.make_colbert()
    colbert.index(documents)
    candidates = {"q0": ["d5", "d2", "d1"], "q1": ["d0"], "q2": ["d6", "d3"]}
    ranking = colbert.rerank(queries, documents, candidates, alignment=alignment)
    colbert.alignment = alignment or MaxSim("query_to_document")
    for query in queries:
        assert set(ranking.documents(query["id"])) == set(candidates[query["id"]])
        for name, score in ranking.scores(query["id"]).items():
            text = cut(documents[int(name[1])]["tokens"], 12, 1)
            pair = PairBatch(*pad([cut(query["tokens"], 8, 1)]), *pad([text]), torch.tensor([0]))
            assert score == pytest.approx(colbert.score(pair).item(), abs=1e-4)


def test_unknown_options_are_refused(tools):
    with pytest.raises(ValueError, match="model.loss=hinge: must be one of in_batch, pairwise"):
        tools.make_colbert(loss="hinge")
    with pytest.raises(ValueError, match="model.search.mode=fast: must be exact or gather"):
        tools.make_colbert(search=dict(tools.SEARCH, mode="fast"))


def test_a_few_steps_learn_the_batch_by_heart(tools):
    colbert, batch = tools.make_colbert().train(), tools.make_batch()
    optimizer = torch.optim.AdamW(colbert.parameters(), 1e-2)
    losses = []
    for _ in range(20):
        losses.append(colbert.loss(batch))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.3 * losses[0]
