import pytest
import torch

from gr_mvdr.batch import PairBatch, pad
from models.bm25 import BM25


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


@pytest.mark.parametrize("end", [(), (1,)], ids=["plain", "ended"])
def test_equal_terms_align_and_the_sum_is_bm25s_score(indexed, documents, overlapping, end):
    batch = pairs_of(overlapping, documents, end)
    pairs = indexed.align(batch)
    scores = map(indexed.searcher.scores, overlapping["tokens"])
    found = torch.stack([*map(torch.from_numpy, scores)])
    assert found[0].max() > 0.5
    equation = (pairs.similarity * pairs.alignment).sum((1, 2, 3)) / pairs.normaliser
    for score in (pairs.score, pairs.relevance, equation, indexed.score(batch)):
        assert torch.allclose(score, found.flatten().to(score), atol=1e-5)
    equal = batch.document_ids[:, :, None] == batch.query_ids[:, None]
    terms = (batch.document_ids > 2)[:, :, None] & (batch.query_ids > 2)[:, None]
    assert torch.equal(pairs.alignment[:, 0] > 0, equal & terms)


def test_words_are_not_compared_with_token_ids(tools, tmp_path):
    """A stage of a pipeline that reads words too: none of the query's words would be found."""
    documents = tools.Texts([[7, 8], [9]], "d")
    BM25().index(documents, tmp_path)
    with pytest.raises(ValueError, match="was made with reads "):
        BM25(reads="texts").open_index(documents, tmp_path)
    with pytest.raises(NotImplementedError, match="batch of token ids"):
        BM25(reads="texts").score(pairs_of(documents, documents))
