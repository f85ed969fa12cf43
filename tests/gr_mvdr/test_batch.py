import pytest
import torch

from gr_mvdr.batch import PairBatch, batch_by_size, cut, pad


def test_pads_on_the_right_to_the_longest():
    ids, mask = pad([[5, 6, 7], [8], []])
    assert ids.tolist() == [[5, 6, 7], [8, 0, 0], [0, 0, 0]]
    assert mask.tolist() == [[True] * 3, [True, False, False], [False] * 3]
    assert ids.dtype == torch.int64 and mask.dtype == torch.bool


def test_a_pad_id_of_the_callers_choice_and_a_real_zero():
    ids, mask = pad([[0, 4], [3]], pad_id=9)
    assert ids.tolist() == [[0, 4], [3, 9]]
    assert mask.tolist() == [[True, True], [True, False]]


def test_empty_sequences_alone_still_have_one_column():
    ids, mask = pad([[], []])
    assert ids.tolist() == [[0], [0]] and not mask.any()


@pytest.mark.parametrize(
    ("length", "end", "expected"),
    [
        (3, None, [4, 5, 6]),
        (9, None, [4, 5, 6, 7]),
        (3, 1, [4, 5, 1]),
        (4, 1, [4, 5, 6, 1]),
        (5, 1, [4, 5, 6, 7, 1]),
        (9, 1, [4, 5, 6, 7, 1]),
    ],
)
def test_cut_counts_the_end_token(length, end, expected):
    tokens = [4, 5, 6, 7]
    assert cut(tokens, length, end) == expected
    assert tokens == [4, 5, 6, 7]


def test_a_batch_moves_as_one_and_counts_its_queries():
    sides = (*pad([[1], [2, 3]]), *pad([[4], [5], [6]]), torch.tensor([0, 1, 2]))
    given = torch.tensor([[2], [0]]), torch.zeros(2, 2)
    for batch in (PairBatch(*sides), PairBatch(*sides, *given)):
        assert len(batch) == 2
        moved = vars(batch.to(torch.device("meta")))
        assert {n: v is None for n, v in moved.items()} == {
            n: v is None for n, v in vars(batch).items()
        }
        assert {v.device.type for v in moved.values() if v is not None} == {"meta"}
        assert batch.query_ids.device.type == "cpu"


def test_the_sides_are_the_token_ids_and_masks_alone():
    batch = PairBatch(*pad([[1]]), *pad([[4]]), torch.tensor([0]), torch.tensor([[0]]))
    names = ["query_ids", "query_mask", "document_ids", "document_mask"]
    assert list(batch.sides) == names
    assert all(value is getattr(batch, name) for name, value in batch.sides.items())


def test_texts_in_batches_of_like_size(monkeypatch):
    monkeypatch.setattr("gr_mvdr.batch._PADDED_TOKENS", 6)
    texts = [[0] * length for length in (1, 2, 2, 3, 3, 9, 1)]
    batches = list(batch_by_size(texts))
    assert [list(map(len, batch)) for batch in batches] == [[1, 2, 2], [3, 3], [9], [1]]
    assert list(batch_by_size([])) == []
