import math

import pytest
import torch
import torch.nn.functional as F

from gr_mvdr.losses import in_batch_cross_entropy, pairwise_cross_entropy, symmetric_divergence


def test_in_batch_loss_by_hand():
    # Columns are queries: query 0 sees documents (ln 3, 0), query 1 sees (0, ln 4).
    scores = torch.tensor([[math.log(3), 0.0], [0.0, math.log(4)]])
    expected = -(math.log(3 / 4) + math.log(4 / 5)) / 2
    assert math.isclose(
        in_batch_cross_entropy(scores, torch.arange(2)).item(), expected, rel_tol=1e-6
    )


def test_documents_compete_for_a_query_not_queries_for_a_document():
    scores = torch.tensor([[0.0, 9.0], [0.0, 9.0]])  # each query likes both documents equally
    loss = in_batch_cross_entropy(scores, torch.arange(2))
    assert math.isclose(loss.item(), math.log(2), rel_tol=1e-6)


def test_copies_of_the_positive_are_no_negatives():
    scores = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    documents = torch.tensor([7, 3, 7, 5])
    kept = {0: [0, 1, 3], 1: [0, 1, 2, 3], 2: [1, 2, 3], 3: [0, 1, 2, 3]}
    losses = [
        F.cross_entropy(scores[rows, query], torch.tensor(rows.index(query)))
        for query, rows in kept.items()
    ]
    result = in_batch_cross_entropy(scores, documents)
    assert torch.isclose(result, torch.stack(losses).mean(), atol=1e-6)
    assert not torch.isclose(result, in_batch_cross_entropy(scores, torch.arange(4)))


def test_a_batch_of_copies_of_one_document_has_loss_zero_and_finite_gradients():
    for loss in (in_batch_cross_entropy, pairwise_cross_entropy):
        scores = torch.randn(3, 3, requires_grad=True)
        value = loss(scores, torch.tensor([4, 4, 4]))
        assert value.item() == 0
        value.backward()
        assert not scores.grad.any()


def test_pairwise_loss_by_hand():
    # Query 0 compares document 0 with 1, query 1 compares 1 with 2, query 2 compares 2 with 0.
    scores = torch.tensor([[2.0, 8.0, 1.0], [1.0, 4.0, 9.0], [7.0, 5.0, 3.0]])
    margins = torch.tensor([2.0 - 1.0, 4.0 - 5.0, 3.0 - 1.0])
    expected = torch.log1p(torch.exp(-margins)).mean()
    assert torch.isclose(pairwise_cross_entropy(scores, torch.arange(3)), expected)


def test_the_pairwise_negative_is_never_a_copy_of_the_positive():
    scores = torch.tensor([[2.0, 8.0, 1.0], [1.0, 4.0, 9.0], [7.0, 5.0, 3.0]])
    # Documents 0 and 1 are the same: queries 0 and 1 go on to document 2.
    margins = torch.tensor([2.0 - 7.0, 4.0 - 5.0, 3.0 - 1.0])
    expected = torch.log1p(torch.exp(-margins)).mean()
    assert torch.isclose(pairwise_cross_entropy(scores, torch.tensor([6, 6, 2])), expected)


@pytest.mark.parametrize("loss", [in_batch_cross_entropy, pairwise_cross_entropy])
def test_a_batch_of_one_pair_teaches_nothing_and_breaks_nothing(loss):
    scores = torch.randn(1, 1, requires_grad=True)
    value = loss(scores, torch.tensor([0]))
    value.backward()
    assert value.item() == 0 and scores.grad.item() == 0


def test_the_symmetric_divergence_is_both_kullback_leibler_divergences():
    first, second = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0))
    p, q = first.log_softmax(-1), second.log_softmax(-1)
    kl = torch.nn.functional.kl_div
    both = kl(q, p, reduction="batchmean", log_target=True)
    both = both + kl(p, q, reduction="batchmean", log_target=True)
    assert torch.isclose(symmetric_divergence(first, second), both / 2)
    assert symmetric_divergence(first, first) == 0


def test_the_symmetric_divergence_leaves_masked_rows_out():
    logits = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(0))
    masked = logits.clone()
    masked[..., 4:] = -torch.inf
    masked.requires_grad_()
    found = symmetric_divergence(*masked)
    assert torch.isclose(found, symmetric_divergence(*logits[..., :4]))
    found.backward()
    assert masked.grad.isfinite().all() and masked.grad[..., :4].abs().sum() > 0
