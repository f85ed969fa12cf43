import json
from pathlib import Path

import pytest
import torch

from analysis.analysis import Texts
from analysis.exact_match import DIRECTIONS, ExactMatchRates, exact_match
from analysis.tokens import TokenKinds
from gr_mvdr.alignment import Softmax
from gr_mvdr.batch import pad

GOLDEN = Path(__file__).parents[2].parent / "shared/golden/alignment_measures.json"


@pytest.fixture(scope="module")
def golden():
    if not GOLDEN.exists():
        pytest.skip(f"{GOLDEN} is not there")
    return json.loads(GOLDEN.read_text())


def rates_of(size):
    no = torch.zeros(size, dtype=torch.bool)
    return ExactMatchRates(Texts(torch.ones(size), TokenKinds(no, no, no), list))


def padded(pairs, extra=3):
    """All pairs in one batch, with `extra` columns and rows of nonsense beyond the longest."""
    document_ids, document_mask = pad([pair["document_ids"] for pair in pairs], pad_id=10)
    query_ids, query_mask = pad([pair["query_ids"] for pair in pairs], pad_id=10)
    widen = torch.nn.functional.pad
    document_ids, query_ids = (widen(x, (0, extra), value=10) for x in (document_ids, query_ids))
    document_mask, query_mask = (widen(x, (0, extra)) for x in (document_mask, query_mask))
    similarity = torch.full((len(pairs), document_ids.shape[1], query_ids.shape[1]), 99.0)
    for row, pair in zip(similarity, pairs, strict=True):
        values = torch.tensor(pair["similarity"])
        row[: values.shape[0], : values.shape[1]] = values
    return similarity, document_ids, query_ids, document_mask, query_mask


def matches(pairs, direction):
    similarity, document_ids, query_ids, document_mask, query_mask = padded(pairs)
    alignment = Softmax(direction)(similarity, document_mask, query_mask)
    tensors = document_ids, query_ids, document_mask, query_mask
    return *exact_match(alignment, *tensors, direction), *tensors


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_equals_the_reference_in_a_padded_batch(golden, direction):
    hard, soft, _, _, document_mask, query_mask = matches(golden["pairs"], direction)
    mask = query_mask if direction == "query_to_document" else document_mask
    assert hard.dtype == torch.bool and soft.dtype == torch.float32
    assert not hard[~mask].any() and not soft[~mask].any()
    for number, pair in enumerate(golden["pairs"]):
        expected = pair["exact_match"][direction]
        assert hard[number, mask[number]].tolist() == expected["hard"]
        torch.testing.assert_close(
            soft[number, mask[number]], torch.tensor(expected["soft"]), atol=1e-6, rtol=0
        )


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_token_type_tables_equal_the_reference(golden, direction):
    rates = rates_of(12)
    for start in range(0, len(golden["pairs"]), 5):  # in batches, as a stream
        hard, soft, *ids, document_mask, query_mask = matches(
            golden["pairs"][start : start + 5], direction
        )
        document_ids, query_ids = ids
        if direction == "query_to_document":
            rates.update(query_ids, query_mask, hard, soft)
        else:
            rates.update(document_ids, document_mask, hard, soft)
    for measure in ("hard", "soft"):
        for definition in ("all", "matched"):
            expected = golden["per_token"][f"{direction}/{measure}/{definition}"]
            found = rates.rates(measure, definition)
            seen = found.isfinite().nonzero().flatten().tolist()
            assert seen == sorted(map(int, expected))
            for token, value in expected.items():
                assert float(found[int(token)]) == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_permutation_of_identical_texts_matches_exactly(direction):
    ids = torch.tensor([[7, 3, 9, 4, 0, 0]])
    mask = torch.tensor([[True, True, True, True, False, False]])
    order = torch.tensor([2, 0, 3, 1])
    alignment = torch.zeros(1, 6, 6)
    alignment[0, torch.arange(4), order] = 1
    query_ids = ids.clone()
    query_ids[0, order] = ids[0, :4]
    hard, soft = exact_match(alignment, ids, query_ids, mask, mask, direction)
    assert hard.tolist() == mask.tolist()
    assert soft.tolist() == mask.float().tolist()


def test_by_hand_two_documents_tokens_and_three_query_tokens():
    # rows sum to 1; the query's tokens are b a b, the document's a b
    alignment = torch.tensor([[0.2, 0.5, 0.3], [0.1, 0.6, 0.3]])
    document_ids, query_ids = torch.tensor([1, 2]), torch.tensor([2, 1, 2])
    ones = torch.ones(3, dtype=torch.bool)
    hard, soft = exact_match(
        alignment, document_ids, query_ids, ones[:2], ones, "document_to_query"
    )
    assert hard.tolist() == [True, False]
    assert soft.tolist() == pytest.approx([0.5, 0.4])


def test_padding_never_matches_even_where_it_is_the_strongest():
    alignment = torch.tensor([[0.25, 0.5], [0.75, 0.5]])
    ids, mask = torch.tensor([5, 5]), torch.tensor([True, False])
    hard, soft = exact_match(alignment, ids, ids, mask, mask, "query_to_document")
    assert hard.tolist() == [True, False] and soft.tolist() == [0.25, 0.0]
    hard, _ = exact_match(alignment, ids, ids + 1 - mask.long(), mask, mask, "query_to_document")
    assert hard.tolist() == [True, False]  # the pad of the document would be another token


def test_a_token_aligned_to_nothing_matches_nothing():
    ids, mask = torch.tensor([5, 6]), torch.ones(2, dtype=torch.bool)
    hard, _ = exact_match(torch.zeros(2, 2), ids, ids, mask, mask, "document_to_query")
    assert not hard.any()


def test_ids_broadcast_over_heads():
    generator = torch.Generator().manual_seed(0)
    alignment = torch.rand(3, 4, 5, 6, generator=generator)  # (B, H, M, N)
    document_ids = torch.randint(0, 3, (3, 5), generator=generator)
    query_ids = torch.randint(0, 3, (3, 6), generator=generator)
    masks = torch.ones(3, 5, dtype=torch.bool), torch.ones(3, 6, dtype=torch.bool)
    for direction in DIRECTIONS:
        hard, soft = exact_match(
            alignment,
            *(x[:, None] for x in (document_ids, query_ids, *masks)),
            direction,
        )
        one = exact_match(alignment[:, 2], document_ids, query_ids, *masks, direction)
        assert torch.equal(hard[:, 2], one[0]) and torch.allclose(soft[:, 2], one[1])


def test_unknown_direction_is_named():
    ids, mask = torch.tensor([1]), torch.tensor([True])
    with pytest.raises(ValueError, match="direction='sideways': must be one of query_to_document"):
        exact_match(torch.ones(1, 1), ids, ids, mask, mask, "sideways")


def test_a_token_outside_the_vocabulary_is_named():
    ids, one = torch.tensor([12]), torch.tensor([1.0])
    with pytest.raises(ValueError, match="token id 12 is outside"):
        rates_of(12).update(ids, one > 0, one, one)
