import pickle
from pathlib import Path

import pytest
from datasets import Dataset, concatenate_datasets

from data_modules.collection import QUERIES, TokenColumn, arrow_column, cache_table, integers

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


def test_a_kept_table_that_is_damaged_is_named_with_what_to_do(cache):
    def kept(name):
        table = cache_table(lambda: iter([{"id": "q1", "text": "a" * 500}]), QUERIES, name)
        return Path(table.cache_files[0]["filename"])

    file = kept("a")
    assert kept("a") == file
    file.write_bytes(file.read_bytes()[:-300])
    with pytest.raises(ValueError, match=rf"{file} is damaged \(.*remove it"):
        kept("a")
