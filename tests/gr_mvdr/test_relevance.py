import torch

from gr_mvdr.relevance import relevance, similarity


def test_similarity_has_documents_before_queries_and_broadcasts():
    documents = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]])
    queries = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    expected = torch.tensor([[0.0, 1.0], [2.0, 0.0], [1.0, 3.0]])
    assert torch.equal(similarity(documents, queries), expected)
    every = similarity(documents.expand(4, 1, 3, 2), queries.expand(5, 2, 2))
    assert torch.equal(every, expected.expand(4, 5, 3, 2))


def test_relevance_accumulates_in_fp32_what_a_half_precision_sum_would_lose():
    matrix = torch.ones(1, 64, 64, dtype=torch.bfloat16)
    matrix[0, 0, 0] = 1.0078125  # the next bfloat16
    assert relevance(matrix, torch.ones_like(matrix)).item() == 64 * 64 + 0.0078125


def test_relevance_by_hand_with_and_without_normaliser():
    matrix = torch.tensor([[[2.0, 5.0], [3.0, 7.0]]])
    alignment = torch.tensor([[[1.0, 0.0], [0.5, 0.5]]])
    assert relevance(matrix, alignment).tolist() == [2 + 1.5 + 3.5]
    assert relevance(matrix, alignment, normalise=True).tolist() == [3.5]


def test_nothing_aligned_has_relevance_zero_and_finite_gradients():
    matrix = torch.randn(2, 3, 4, requires_grad=True)
    alignment = torch.zeros(2, 3, 4)
    alignment[1, 0, 0] = 2.0
    alignment.requires_grad_()
    result = relevance(matrix, alignment, normalise=True)
    assert result[0] == 0 and torch.isclose(result[1], matrix[1, 0, 0])
    result.sum().backward()
    assert matrix.grad.isfinite().all() and alignment.grad.isfinite().all()
    assert matrix.grad[1, 0, 0] == 1
