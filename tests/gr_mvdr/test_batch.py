import pytest
import torch

from gr_mvdr.batch import PairBatch, cut, pad


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
    batch = PairBatch(*pad([[1], [2, 3]]), *pad([[4], [5]]), torch.tensor([0, 1]))
    assert len(batch) == 2
    assert {value.device.type for value in vars(batch.to(torch.device("meta"))).values()} == {
        "meta"
    }
    assert batch.query_ids.device.type == "cpu"
