import pytest
import torch

from gr_mvdr.batch import PairBatch, pad
from models.bm25 import BM25

pytest.importorskip("bm25s")


@pytest.fixture
def indexed(documents):
    model = BM25(k1=1.2, b=0.6)
    model.index(documents)
    return model


def pairs_of(queries, documents, end=()):
    """Every query with every document, uncut."""
    found = [(q, d) for q in queries["tokens"] for d in documents["tokens"]]
    sides = [[*q, *end] for q, _ in found], [[*d, *end] for _, d in found]
    return PairBatch(*pad(sides[0]), *pad(sides[1]), torch.arange(len(found)))


@pytest.fixture
def overlapping(documents, tools):
    """Queries made of the documents' own tokens, with repetitions and an unseen token."""
    tokens = documents["tokens"]
    return tools.Texts([tokens[1][:3] * 2, [tokens[3][0], tokens[5][7], 59_999], [59_999]], "q")


@pytest.mark.parametrize("end", [(), (1,)], ids=["plain", "ended"])
def test_the_score_of_a_pair_is_bm25s_own(indexed, documents, overlapping, end):
    found = indexed.score(pairs_of(overlapping, documents, end)).view(3, len(documents))
    expected = torch.stack(
        [torch.from_numpy(indexed.searcher.scores(tokens)) for tokens in overlapping["tokens"]]
    )
    assert expected[0].max() > 0.5
    assert torch.allclose(found, expected.to(found), atol=1e-5)


def test_unknown_and_special_tokens_are_no_terms_anywhere(tools):
    """A subword vocabulary has an unknown token in documents too: it must not match."""
    documents = tools.Texts([[2, 7, 8], [2, 2, 9], [9, 10, 11, 12]], "d")
    queries = tools.Texts([[2, 9]], "q")
    model = BM25()
    model.index(documents)
    found = model.score(pairs_of(queries, documents))
    ranking = model.retrieve(queries, 3)
    assert ranking.documents("q0") == ["d1", "d2"]
    for number, name in ((1, "d1"), (2, "d2")):
        assert found[number].item() == pytest.approx(ranking.scores("q0")[name], abs=1e-5)


def test_relevance_equals_score_and_terms_align_where_they_are_equal(
    indexed, documents, overlapping
):
    batch = pairs_of(overlapping, documents, end=(1,))
    pairs = indexed.align(batch)
    assert torch.allclose(pairs.relevance, pairs.score, atol=1e-4)
    equation = (pairs.similarity * pairs.alignment).sum((1, 2, 3)) / pairs.normaliser
    assert torch.allclose(pairs.relevance, equation, atol=1e-4)
    equal = batch.document_ids[:, :, None] == batch.query_ids[:, None]
    terms = (batch.document_ids > 2)[:, :, None] & (batch.query_ids > 2)[:, None]
    assert torch.equal(pairs.alignment[:, 0] > 0, equal & terms)


def test_padding_and_batch_mates_change_nothing(indexed, documents, overlapping, tools):
    batch = pairs_of(overlapping, documents, end=(1,))
    wide = indexed.align(tools.widen(batch))
    for number in range(len(batch)):
        alone = indexed.align(tools.one(batch, number))
        assert torch.isclose(alone.score[0], wide.score[number], atol=1e-5)
        m, n = alone.similarity.shape[2:]
        assert torch.allclose(alone.similarity[0], wide.similarity[number, :, :m, :n], atol=1e-6)
        assert (
            not wide.alignment[number, :, m:].any() and not wide.similarity[number, ..., n:].any()
        )


def test_retrieve_and_rerank_give_the_same_scores(indexed, documents, overlapping):
    ranking = indexed.retrieve(overlapping, 100)
    candidates = {query: documents["id"] for query in overlapping["id"]}
    reranked = indexed.rerank(overlapping, documents, candidates)
    for query in overlapping["id"]:
        found = {name: s for name, s in reranked.scores(query).items() if s > 0}
        assert ranking.scores(query) == pytest.approx(found)
    assert ranking.documents("q2") == []


def test_documents_without_a_word_are_refused_in_a_line(tools):
    documents = tools.Texts([[], [2, 2], [0, 1]], "d")  # nothing, unknown words, special tokens
    with pytest.raises(ValueError, match="none of the 3 documents has a word"):
        BM25().index(documents)
