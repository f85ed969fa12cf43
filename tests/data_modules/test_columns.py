import pickle

import numpy as np
import pytest
from datasets import Dataset, concatenate_datasets

from data_modules.columns import TokenColumn, arrow_column, integers

LISTS = [list(range(n % 7)) for n in range(50)]


def table() -> Dataset:
    return Dataset.from_dict({"tokens": LISTS, "n": list(range(50))})


@pytest.mark.parametrize(
    "chosen",
    [
        lambda t: t,
        lambda t: t.select([5, 3, 49, 3]),
        lambda t: t.select(range(10, 30)),
        lambda t: concatenate_datasets([t, t.select(range(4, 9))]),
        lambda t: t.select([]),
    ],
)
def test_a_column_gives_what_the_table_gives(chosen):
    rows = chosen(table())
    column = TokenColumn(rows)
    assert list(column) == rows["tokens"][:] and len(column) == len(rows)
    assert column.lengths.tolist() == [len(tokens) for tokens in rows["tokens"][:]]
    assert integers(rows, "n").tolist() == rows["n"][:]
    assert arrow_column(rows, "n").to_pylist() == rows["n"][:]
    assert list(pickle.loads(pickle.dumps(column))) == list(column)


def test_rows_are_counted_from_the_start():
    column = TokenColumn(table())
    assert column[np.int64(6)] == LISTS[6]
    for row in (-1, 50):
        with pytest.raises(IndexError):
            column[row]
