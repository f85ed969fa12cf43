"""Further fields of documents: their columns in a collection, and the filters on them."""

import json

import pyarrow.compute as pc
import pytest

from data_modules import collection
from data_modules.formats.catalogue import read_layout
from data_modules.tokenisation import add_tokens
from gr_mvdr.fields import filter_table, find_matching
from gr_mvdr.texts import TextTable
from gr_mvdr.tokenizers import build_word_tokenizer

ROWS = [
    {"year": 2021, "tags": ["a", "b"], "metadata": {"url": "u0", "none": {}}, "mixed": 1},
    {"year": None, "tags": [], "tokens": [7], "mixed": "x"},
    {"year": 1999, "late": 2.5, "metadata": {"url": ""}},
    {"year": 2021, "tags": ["b"], "late": 1, "mixed": ["y"]},
]


def read(folder, name, content):
    (folder / name).write_text(content)
    return collection.collect(read_layout(folder / name), folder / "store").documents


def test_fields_of_any_type_are_columns_and_come_back(tmp_path, monkeypatch):
    monkeypatch.setattr(collection, "ROWS", 2)  # types that a later batch changes
    rows = [{"id": f"d{n}", "text": "some words", **row} for n, row in enumerate(ROWS)]
    documents = read(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows)))
    table = add_tokens(documents, build_word_tokenizer(["some words"]))
    assert table[1]["tokens"] != [7], "a field is not mistaken for a column of ours"
    assert table["fields"][:] == documents["fields"][:]
    names = ("year", "tags", "metadata.url", "mixed", "tokens", "late")
    expected = [
        (2021, ["a", "b"], "u0", "1", None, None),
        (None, [], None, "x", [7], None),
        (1999, None, "", None, None, 2.5),
        (2021, ["b"], None, '["y"]', None, 1.0),
    ]
    assert documents["fields"][:] == [dict(zip(names, row, strict=True)) for row in expected]
    columns = filter_table(table)
    for where, found in (
        ({"year": 2021}, ["d0", "d3"]),
        ({"year": [1999, None]}, ["d1", "d2"]),
        ({"tags": "b", "late": 1}, ["d3"]),
        ({"metadata.url": "u0", "id": ["d0", "d1"]}, ["d0"]),
        (pc.field("year") > 2000, ["d0", "d3"]),
        ({"tags": []}, []),
        ({}, ["d0", "d1", "d2", "d3"]),
    ):
        assert find_matching(columns, where) == found


def test_texts_of_a_table_that_are_all_numbers_are_numbers(tmp_path):
    content = "id,text,year,price,code,empty\np,one,2021,0.50,007,\nq,two,,1,8,\n"
    documents = read(tmp_path, "a.csv", content)
    assert documents["fields"][:] == [
        {"year": 2021, "price": 0.5, "code": "007"},
        {"year": None, "price": 1.0, "code": "8"},
    ]


def test_documents_without_further_fields_are_filtered_by_id_and_title(tmp_path):
    documents = read(tmp_path, "a.csv", "id,title,text\np,x,one\nq,y,two\n")
    for table in (documents, TextTable({**documents[:], "fields": [{}, {}]})):
        assert find_matching(filter_table(table), {"title": "y"}) == ["q"]


def test_a_filter_that_cannot_be_is_said_in_one_line(tmp_path):
    columns = filter_table(read(tmp_path, "a.csv", "id,text,year\np,one,2021\n"))
    for where, words in (
        ({"date": 1}, "where: date must be a field of the documents: year, id, title"),
        ({"year": "soon"}, "where={'year': 'soon'}: .*soon"),
        ("year", "where=year: must be fields with their values, or a predicate"),
        (pc.field("date") == 1, "where=.*date.*: No match"),
    ):
        with pytest.raises(ValueError, match=words):
            find_matching(columns, where)
