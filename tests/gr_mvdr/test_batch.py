from gr_mvdr.batch import batch_by_length, batch_by_size


def test_batches_hold_texts_of_similar_length(monkeypatch):
    monkeypatch.setattr("gr_mvdr.batch._PADDED_TOKENS", 6)
    lengths = [1, 2, 2, 3, 3, 9, 1]
    batches = [list(batch) for batch in batch_by_size(lengths)]
    assert batches == [[0, 1, 2], [3, 4], [5], [6]]
    assert batch_by_length(lengths) == [[0, 6, 1], [2, 3], [4], [5]]
    assert batch_by_length(lengths, 5) == [[0, 6, 1, 2, 3], [4, 5]]
    assert list(batch_by_size([])) == batch_by_length([]) == []
