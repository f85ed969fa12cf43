from types import SimpleNamespace

import pytest
import torch

from analysis.questions.analysis import Subject, Texts
from analysis.questions.contribution import Contribution, contributions
from analysis.questions.tokens import TokenKinds
from gr_mvdr.relevance import Explanation
from tests.analysis.asking import aligned
from tests.analysis.conftest import make_pairs

pytestmark = pytest.mark.usefixtures("float64")

VOCABULARY = 30


@pytest.mark.parametrize("paradigm", ["multi_vector", "generative"])
def test_contributions_of_either_side_sum_to_the_relevance(paradigm):
    pairs = make_pairs(6, heads=3 if paradigm == "generative" else 1, paradigm=paradigm)
    pairs.normaliser = torch.arange(1.0, 7)
    pairs.relevance = pairs.relevance / pairs.normaliser
    document, query = contributions(pairs)
    assert document.shape == pairs.document_mask.shape and query.shape == pairs.query_mask.shape
    torch.testing.assert_close(document.sum(1), pairs.relevance)
    torch.testing.assert_close(query.sum(1), pairs.relevance)
    assert not document[~pairs.document_mask].any() and not query[~pairs.query_mask].any()
    pairs.normaliser = torch.zeros(6)
    assert not contributions(pairs)[0].any(), "nothing aligned, nothing contributed"


def texts():
    ids = torch.arange(VOCABULARY)
    kinds = TokenKinds(ids < 3, (ids >= 3) & (ids < 6), (ids >= 6) & (ids < 10))
    return Texts(idf=ids / 2.5, kinds=kinds, strings=None)


SUBJECT = Subject(store=SimpleNamespace(description=None), texts=texts())


def measured(pairs):
    measurement = Contribution(SUBJECT)
    measurement.update(Explanation([pairs]), 0)
    return measurement.finish()


def value(result, side, group, name, column="share"):
    (row,) = [
        row
        for row in result.tables["contribution"]
        if (row["side"], row["group"], row["value"]) == (side, group, name)
    ]
    return row[column]


def one_pair():
    """Document </s> , the x x with contributions 1 2 3 10 4; one query token; then padding."""
    ids = torch.tensor([[1, 4, 7, 20, 20, 0]])
    size = torch.tensor([1.0, -2.0, 3.0, 10.0, 4.0, 0.0])
    similarity, query = size[None, None, :, None], torch.tensor([[20]])
    masks = ids > 0, query > 0
    return aligned(masks[0][:, None, :, None].float(), ids, query, similarity, masks)


def test_a_pair_by_hand():
    result = measured(one_pair())
    expected = {"special": 0.05, "punctuation": 0.1, "stopword": 0.15, "content": 0.7}
    for kind, share in expected.items():
        assert value(result, "document", "kind", kind) == pytest.approx(share)
    assert value(result, "document", "kind", "content", "tokens") == pytest.approx(0.4)
    assert value(result, "document", "top", 1) == 0.5
    assert value(result, "document", "top", 1, "tokens") == pytest.approx(0.2)
    assert value(result, "document", "top", 10, "tokens") == 1
    # The IDF of the end token would be 0.4; 1.6 | 2.8 | 8, 8.
    shares = [value(result, "document", "idf", name) for name in ("0-2", "2-4", "8-15")]
    assert shares == pytest.approx([0.1, 0.15, 0.7])
    assert value(result, "query", "kind", "content") == 1
    prefix = "analysis/contribution/"
    assert result.metrics == {
        prefix + "top_1": pytest.approx(0.5),
        prefix + "top_5": 1,
        prefix + "content_share": pytest.approx(0.7),
    }
