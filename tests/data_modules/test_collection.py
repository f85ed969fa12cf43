from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import datasets
import pytest
from datasets import Dataset

from data_modules.collection import JUDGEMENTS, QUERIES, Collection, cached_table


def qrels_table(*triples: tuple[str, str, int]) -> Dataset:
    queries, documents, grades = zip(*triples, strict=True) if triples else ((), (), ())
    columns = {"query_id": queries, "document_id": documents, "relevance": grades}
    return Dataset.from_dict(columns, features=JUDGEMENTS)


@pytest.fixture
def collection() -> Collection:
    return Collection(
        name="two",
        documents=Dataset.from_dict({"id": ["a", "b"], "title": ["", "B"], "text": ["x", "y z"]}),
        queries=Dataset.from_dict({"id": ["1", "2", "3"], "text": ["x?", "y?", "z?"]}),
        qrels={
            "train": qrels_table(("3", "b", 2), ("1", "a", 1), ("3", "a", 0)),
            "test": qrels_table(("2", "b", 1)),
        },
        sources={},
    )


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache"


def test_a_split_has_its_judgements_and_its_queries_in_table_order(collection):
    assert collection.judgements("train") == {"3": {"b": 2, "a": 0}, "1": {"a": 1}}
    assert collection.split_queries("train")["id"][:] == ["1", "3"]
    assert collection.split_queries("test")["text"][:] == ["y?"]


@pytest.mark.parametrize("verb", ["judgements", "split_queries"])
def test_an_unknown_or_empty_split_names_those_that_exist(collection, verb):
    empty = replace(collection, qrels=collection.qrels | {"dev": qrels_table()})
    for split in ("dev", "validation"):
        with pytest.raises(ValueError, match=rf"split '{split}'.*two.*its splits are test, train"):
            getattr(empty, verb)(split)


def test_a_cached_table_is_made_once_for_the_same_sources(cache):
    made = []

    def rows() -> Iterator[dict]:
        made.append(1)
        yield {"id": "1", "text": "x"}

    for _ in range(2):
        table = cached_table(rows, QUERIES, "generator/1", "seed=1")
        assert table[0] == {"id": "1", "text": "x"}
        assert all(file["filename"].startswith(str(cache)) for file in table.cache_files)
    assert len(made) == 1
    cached_table(rows, QUERIES, "generator/1", "seed=2")
    assert len(made) == 2


def test_an_error_in_the_rows_arrives_as_raised_and_leaves_no_table(cache, capfd):
    def rows() -> Iterator[dict]:
        yield {"id": "1", "text": "x"}
        raise ValueError("line 2")

    with pytest.raises(ValueError, match=r"^line 2$"):
        cached_table(rows, QUERIES, "broken")
    assert not list(cache.rglob("*.arrow"))
    assert "examples" not in capfd.readouterr().err
    assert not datasets.are_progress_bars_disabled()


def test_a_kept_table_that_is_damaged_is_named_with_what_to_do(cache, tmp_path):
    def kept(name):
        table = cached_table(lambda: iter([{"id": "q1", "text": "a" * 500}]), QUERIES, name)
        return Path(table.cache_files[0]["filename"])

    file = kept("a")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=rf"{file}: is damaged, .*: remove {file.parent}"):
        kept("a")
