import math

import pytest
import torch
import torch.nn.functional as F

from gr_mvdr.alignment import MaxSim
from gr_mvdr.batch import PairBatch
from gr_mvdr.losses import (
    HardNegativesCrossEntropy,
    InBatchCrossEntropy,
    KLDistillation,
    MarginMSE,
    PairwiseCrossEntropy,
)
from gr_mvdr.options import build
from gr_mvdr.relevance import relevance, similarity

NAN = math.nan


def in_batch(index, queries=None, negatives=None, teacher=None, relevant=None):
    """A batch of which a loss sees everything but the texts."""
    queries = len(index) if queries is None else queries
    ids, mask = torch.ones(queries, 1, dtype=torch.long), torch.ones(queries, 1, dtype=torch.bool)
    further = {}
    if negatives is not None:
        further["negatives"] = torch.tensor(negatives)
    if teacher is not None:
        further["teacher"] = torch.tensor(teacher)
    if relevant is not None:
        further["relevant"] = 1 + torch.tensor(relevant)
    return PairBatch(ids, mask, ids, mask, torch.tensor(index), **further)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# Pairwise


def test_pairwise_loss_by_hand():
    # Query 0 compares document 0 with 1, query 1 compares 1 with 2, query 2 compares 2 with 0.
    scores = torch.tensor([[2.0, 8.0, 1.0], [1.0, 4.0, 9.0], [7.0, 5.0, 3.0]])
    margins = torch.tensor([2.0 - 1.0, 4.0 - 5.0, 3.0 - 1.0])
    for temperature in (1.0, 0.25):
        expected = torch.log1p(torch.exp(-margins / temperature)).mean()
        loss_value = PairwiseCrossEntropy(temperature)(scores, in_batch([0, 1, 2]))
        assert torch.isclose(loss_value, expected)


# What is relevant is no negative


def test_relevant_documents_and_copies_are_no_negatives_by_hand():
    """Documents 4, 5, 6 score ln 3, ln 2, 0 with query 0 and so on; all similarities are 0 or 1.

    Document 6 answers query 0 too, 4 answers query 2, and 9, a hard negative, answers query 1.
    """
    one = torch.eye(4)
    documents = math.log(2) * one  # orthogonal: a query scores ln 2 with its own, 0 with others
    scores = documents @ one[:, :3]
    relevant, negatives = [[6, -1], [9, 12], [4, 6]], [[3], [3], [3]]
    batch = in_batch([4, 5, 6, 9], 3, negatives, relevant=relevant)
    # 2 against documents 5 and 9; against 4 and 6; against 5 and 9: 2 / (2 + 1 + 1) each.
    assert math.isclose(InBatchCrossEntropy()(scores, batch).item(), math.log(2), rel_tol=1e-6)
    # Without the qrels 2 / (2 + 3), as in the papers.
    plain = in_batch([4, 5, 6, 9], 3, negatives)
    assert math.isclose(InBatchCrossEntropy()(scores, plain).item(), math.log(2.5), rel_tol=1e-6)
    copies = in_batch([4, 4, 6, 9], 3, negatives)  # query 0 against 6 and 9: 2 / (2 + 1 + 1)
    expected = (2 * math.log(2) + math.log(2.5)) / 3
    assert math.isclose(InBatchCrossEntropy()(scores, copies).item(), expected, rel_tol=1e-6)
    # Against the one hard negative: 2 / 3, query 1 does not count, 2 / 3.
    loss_value = HardNegativesCrossEntropy()(scores, batch).item()
    assert math.isclose(loss_value, math.log(3 / 2), rel_tol=1e-6)
    # −log σ(ln 2 − 0) = log(3 / 2), a mean over the two queries that have a negative.
    loss_value = PairwiseCrossEntropy()(scores, batch).item()
    assert math.isclose(loss_value, math.log(3 / 2), rel_tol=1e-6)


# Hard negatives and teachers


def scored_by_a_stub(ways=5, size=4):
    """Token vectors of queries and of each query's documents, their MaxSim, and a teacher's scores.

    The batch's documents are the positives, then the negatives of query 0, of query 1, …
    """
    queries = F.normalize(drawn(size, 6, 8), dim=-1)
    documents = F.normalize(drawn(size, ways, 9, 8, seed=1), dim=-1)
    masks = torch.arange(6) < torch.tensor([[6], [3], [5], [4]]), drawn(size, ways, 9, seed=2) > -1
    every = torch.cat([documents[:, 0], documents[:, 1:].flatten(0, 1)])
    real = torch.cat([masks[1][:, 0], masks[1][:, 1:].flatten(0, 1)])
    similarities = similarity(every[:, None], queries)
    maxima = MaxSim()(similarities, real[:, None], masks[0])
    negatives = size + torch.arange(size * (ways - 1)).view(size, -1)
    teacher = 3 * drawn(size, ways, seed=3)
    further = dict(negatives=negatives.tolist(), teacher=teacher.tolist())
    batch = in_batch(range(len(every)), size, **further)
    texts = [{"input_ids": queries, "attention_mask": masks[0]}]
    for way in range(ways):
        texts.append({"input_ids": documents[:, way], "attention_mask": masks[1][:, way]})
    return relevance(similarities, maxima), batch, texts, teacher


class Stub(torch.nn.Module):
    """An encoder whose token vectors are its input."""

    def forward(self, features, **_):
        return features | {"token_embeddings": features["input_ids"]}


def test_distillation_equals_that_of_sentence_transformers():
    pytest.importorskip("sentence_transformers")
    from sentence_transformers.multi_vector_encoder import losses as multi_vector

    scores, batch, texts, teacher = scored_by_a_stub()
    theirs = multi_vector.MultiVectorMarginMSELoss(Stub())(texts, teacher)
    torch.testing.assert_close(MarginMSE()(scores, batch), theirs, rtol=1e-6, atol=1e-6)
    for own, other in [(1.0, None), (0.5, None), (2.0, None), (0.25, 1.5)]:
        options = dict(temperature=own, teacher_temperature=other)
        theirs = multi_vector.MultiVectorDistillKLDivLoss(Stub(), **options)(texts, teacher)
        ours = KLDistillation(**options)(scores, batch)
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def own_scores(scores, batch):
    """(B, 1 + G) the scores of each query's positive and hard negatives."""
    return torch.stack([scores[[query, *batch.negatives[query]], query] for query in range(4)])


def test_the_loss_of_hard_negatives_is_a_softmax_over_a_querys_own():
    scores, batch, *_ = scored_by_a_stub()
    expected = F.cross_entropy(own_scores(scores, batch) / 0.5, torch.zeros(4, dtype=torch.int64))
    assert torch.isclose(HardNegativesCrossEntropy(0.5)(scores, batch), expected)


def test_normalised_scores_span_0_to_1_over_what_the_teacher_scored():
    scores, batch, *_ = scored_by_a_stub()
    own = own_scores(scores, batch)
    spans = own.amax(1, keepdim=True) - own.amin(1, keepdim=True)
    mapped = (own - own.amin(1, keepdim=True)) / spans
    expected = F.kl_div(
        mapped.log_softmax(1), batch.teacher.log_softmax(1), reduction="batchmean", log_target=True
    )
    assert torch.isclose(KLDistillation(normalise=True)(scores, batch), expected, rtol=1e-6)


def test_what_the_teacher_did_not_score_is_left_out():
    """Query 0 lacks its second negative, query 1 both, query 2 its positive."""
    teacher = [[2.0, 1.0, NAN], [2.0, NAN, NAN], [NAN, 1.0, 3.0]]
    negatives = [[3, 4], [5, 6], [7, 8]]
    batch = in_batch(range(9), 3, negatives, teacher)
    scores = drawn(9, 3)
    margin = (scores[0, 0] - scores[3, 0]) - 1.0
    assert torch.isclose(MarginMSE()(scores, batch), margin**2)
    parts = [(scores[[0, 3], 0], [2.0, 1.0]), (scores[[7, 8], 2], [1.0, 3.0])]
    divergences = [
        F.kl_div(s.log_softmax(0), torch.tensor(t).softmax(0), reduction="sum") for s, t in parts
    ]
    assert torch.isclose(KLDistillation()(scores, batch), sum(divergences) / 2, atol=1e-6)


def test_a_loss_without_hard_negatives_or_a_teacher_names_the_key():
    bare, given = in_batch([0, 1]), in_batch([0, 1], negatives=[[1], [0]])
    with pytest.raises(ValueError, match="model.loss=MarginMSE: needs data.examples.negatives"):
        MarginMSE()(torch.zeros(2, 2), bare)
    with pytest.raises(ValueError, match="needs a teacher's scores, data.examples.negatives.teach"):
        MarginMSE()(torch.zeros(2, 2), given)


def test_a_weighted_sum_adds_its_losses():
    settings = {
        "_target_": "gr_mvdr.losses.WeightedSum",
        "losses": [
            {"_target_": "gr_mvdr.losses.InBatchCrossEntropy", "temperature": 0.5},
            {"_target_": "gr_mvdr.losses.MarginMSE"},
        ],
        "weights": [1.0, 0.25],
    }
    scores, batch = drawn(4, 2), in_batch(range(4), 2, [[2], [3]], [[1.0, 0.0], [0.0, 1.0]])
    expected = InBatchCrossEntropy(0.5)(scores, batch) + 0.25 * MarginMSE()(scores, batch)
    assert torch.isclose(build("loss", settings)(scores, batch), expected)
