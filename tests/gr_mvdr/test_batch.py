import pytest
import torch

from gr_mvdr.batch import PairBatch, batch_by_length, batch_by_size, cut, pad


def test_pads_on_the_right_to_the_longest():
    ids, mask = pad([[5, 6, 7], [8], []])
    assert ids.tolist() == [[5, 6, 7], [8, 0, 0], [0, 0, 0]]
    assert mask.tolist() == [[True] * 3, [True, False, False], [False] * 3]
    assert ids.dtype == torch.int64 and mask.dtype == torch.bool


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


def test_texts_in_batches_of_like_size(monkeypatch):
    monkeypatch.setattr("gr_mvdr.batch._PADDED_TOKENS", 6)
    lengths = [1, 2, 2, 3, 3, 9, 1]
    batches = [list(batch) for batch in batch_by_size(lengths)]
    assert batches == [[0, 1, 2], [3, 4], [5], [6]]
    assert batch_by_length(lengths) == [[0, 6, 1], [2, 3], [4], [5]]
    assert batch_by_length(lengths, 5) == [[0, 6, 1, 2, 3], [4, 5]]
    assert list(batch_by_size([])) == batch_by_length([]) == []
