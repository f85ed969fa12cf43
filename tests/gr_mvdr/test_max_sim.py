import pytest
import torch

from gr_mvdr.alignment import MaxSim
from gr_mvdr.max_sim import (
    _BestSimilarity,
    all_pairs_relevance,
    equal_length_segments,
    packed_relevance,
)
from gr_mvdr.relevance import relevance, similarity


def random_texts(lengths, size=6, seed=0, dtype=torch.float32):
    """Vectors (B, longest + 2, size) with noise, not zeros, at padding, and their mask."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(max(lengths) + 2) < torch.tensor(lengths)[:, None]
    return torch.randn(*mask.shape, size, generator=generator, dtype=dtype), mask


def naive(documents, document_mask, queries, query_mask):
    """Eq. 21 with S of all pairs written down: (B, C)."""
    matrix = torch.einsum("bmd,cnd->bcmn", documents, queries)
    best = matrix.masked_fill(~document_mask[:, None, :, None], -torch.inf).amax(2)
    return best.masked_fill(~query_mask[None], 0).sum(-1)


def test_value_and_gradient_equal_the_naive_einsum():
    documents, document_mask = random_texts([5, 1, 4, 3])
    queries, query_mask = random_texts([2, 4, 3], seed=1)
    upstream = torch.randn(4, 3, generator=torch.Generator().manual_seed(2))
    results = []
    for function in (all_pairs_relevance, naive):
        d, q = documents.clone().requires_grad_(), queries.clone().requires_grad_()
        value = function(d, document_mask, q, query_mask)
        results.append((value, *torch.autograd.grad(value, (d, q), upstream)))
    for ours, expected in zip(*results, strict=True):
        assert torch.allclose(ours, expected, atol=1e-5)
    assert not results[0][1][~document_mask].any() and not results[0][2][~query_mask].any()


def test_gradient_equals_finite_differences_in_double():
    documents, mask = random_texts([3, 1, 2], size=3, dtype=torch.float64)
    rows = torch.randn(4, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    documents.requires_grad_(), rows.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda d, r: _BestSimilarity.apply(d, mask, r), (documents, rows)
    )


def test_every_entry_equals_eq_1_under_maxsim():
    documents, document_mask = random_texts([5, 2])
    queries, query_mask = random_texts([3, 1], seed=1)
    result = all_pairs_relevance(documents, document_mask, queries, query_mask)
    for b in range(2):
        for c in range(2):
            matrix = similarity(documents[b], queries[c])
            aligned = MaxSim()(matrix, document_mask[b], query_mask[c])
            assert torch.isclose(result[b, c], relevance(matrix, aligned), atol=1e-5)


def test_autocast_to_half_precision_changes_nothing():
    documents, document_mask = random_texts([5, 2])
    queries, query_mask = random_texts([3, 1], seed=1)
    plain = all_pairs_relevance(documents, document_mask, queries, query_mask)
    with torch.autocast("cpu", torch.bfloat16):
        cast = all_pairs_relevance(documents, document_mask, queries, query_mask)
    assert torch.equal(plain, cast)


def test_a_document_without_tokens_has_relevance_zero_and_no_gradient():
    documents, document_mask = random_texts([3, 0])
    queries, query_mask = random_texts([2, 1], seed=1)
    documents.requires_grad_(), queries.requires_grad_()
    result = all_pairs_relevance(documents, document_mask, queries, query_mask)
    assert result[1].tolist() == [0, 0]
    result.sum().backward()
    assert queries.grad.isfinite().all() and not documents.grad[1].any()


@pytest.mark.parametrize("lengths", [[1], [4, 4, 4], [3, 1, 3, 3, 2, 2, 5]])
def test_packed_documents_equal_padded_ones(lengths):
    documents, document_mask = random_texts(lengths)
    queries, query_mask = random_texts([4, 2, 1], seed=1)
    queries = queries * query_mask.unsqueeze(-1)
    packed = packed_relevance(documents[document_mask], torch.tensor(lengths), queries)
    expected = all_pairs_relevance(documents, document_mask, queries, query_mask)
    assert packed.dtype == torch.float32
    assert torch.allclose(packed, expected, atol=1e-5)


def test_packed_relevance_by_hand():
    axes = torch.eye(2)
    vectors = torch.cat([axes[[0]], -axes[[0, 1]]])  # one document of e1, one of −e1 and −e2
    queries = torch.stack([axes[[0, 1]], torch.stack([axes[0], torch.zeros(2)])])
    result = packed_relevance(vectors, torch.tensor([1, 2]), queries)
    assert result.tolist() == [[1, 1], [0, 0]]
    below = packed_relevance(-axes[[0]], torch.tensor([1]), queries)
    assert below.tolist() == [[-1, -1]]


def test_segments_cover_the_rows_in_order():
    lengths = torch.tensor([2, 2, 3, 2])
    found = list(equal_length_segments(torch.arange(9), lengths))
    assert [(rows.tolist(), length, n) for rows, length, n in found] == [
        ([0, 1, 2, 3], 2, 2),
        ([4, 5, 6], 3, 1),
        ([7, 8], 2, 1),
    ]
