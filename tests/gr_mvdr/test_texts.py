"""Texts as a model reads them: cleaning, and tables in memory like those of a run."""

import datasets
import pandas
import polars
import pyarrow
import pytest

from gr_mvdr.texts import TextReader, clean_text, list_queries, read_rows
from gr_mvdr.tokenizers import build_word_tokenizer


@pytest.mark.parametrize(
    ("text", "step", "expected"),
    [
        ("a < b, c > d & e; x<3", "html", "a < b, c > d & e; x<3"),
        ("<!-- no -->yes", "html", "yes"),
        ("The <style> tag is used; <b>all</b> after it", "html", "The tag is used; all after it"),
        ("a <SCRIPT type='x'>y</b></Script >b <style> c", "html", "a b c"),
        ("a <script>x</style> b", "html", "a x b"),
        ("<style-guide>a</style-guide>b", "html", "ab"),
        ("e\u0301", "unicode", "é"),
        ("U.S.A. co-op's", "punctuation", "USA coops"),
    ],
)
def test_one_step(text, step, expected):
    assert clean_text(text, [step]) == expected


def test_a_reader_joins_the_fields_and_leaves_empty_ones_out():
    reader = TextReader(build_word_tokenizer(["amber marsh bird"]))
    rows = [
        {"id": "a", "title": "Amber", "text": "bird"},
        {"id": "b", "title": "", "text": "marsh"},
    ]
    table = reader.documents(rows)
    assert table["text"] == ["Amber | bird", "marsh"] and table["id"] == ["a", "b"]
    assert table["tokens"] == [[4, 6], [5]] and table["title_tokens"] == [[4], []]
    assert reader.queries(["bird"])["tokens"] == [[6]]


# What a user passes as documents and queries -----------------------------------------------------

COLUMNS = {"docno": [7, 8], "title": ["Amber", None], "Text": ["A stone.", "A marsh."]}
ROWS = [
    {"id": "7", "title": "Amber", "text": "A stone."},
    {"id": "8", "title": "", "text": "A marsh."},
]


@pytest.mark.parametrize(
    "documents",
    [
        pandas.DataFrame(COLUMNS),
        pandas.DataFrame(COLUMNS).set_index("docno"),
        pandas.DataFrame(COLUMNS, index=["a", "b"]),
        pandas.DataFrame({k: v for k, v in COLUMNS.items() if k != "docno"}, index=["7", "8"]),
        polars.DataFrame(COLUMNS),
        pyarrow.table(COLUMNS),
        datasets.Dataset.from_dict(COLUMNS),
        ROWS,
        iter(ROWS),
        {7: ROWS[0], 8: "A marsh."},
    ],
    ids=lambda documents: type(documents).__name__,
)
def test_tables_rows_and_mappings_are_the_same_documents(documents):
    assert read_rows(documents) == ROWS


def test_a_document_without_an_id_gets_a_number_that_none_has():
    rows = read_rows(["a", {"id": 5, "text": "b"}, "c", "d"], first=5)
    assert [row["id"] for row in rows] == ["6", "5", "8", "9"]
    assert [row["id"] for row in read_rows(pandas.Series(["a", "b"], [4, 9]))] == ["0", "1"]
    assert read_rows(pandas.Series(["x"], ["d7"])) == [{"id": "d7", "title": "", "text": "x"}]
    (row,) = read_rows({"Title": "A", "pid": "p", "passage": "b"})
    assert row == {"id": "p", "title": "A", "text": "b"}
    assert read_rows({"text2": "a", "d2": "b"})[1] == {"id": "d2", "title": "", "text": "b"}


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        (None, "documents=null: must be"),
        ([("d1", "a")], r"document=\('d1', 'a'\): must be a text"),
        ({"d1": ["a"]}, "document=d1: title and text must be texts"),
        ({"text": "a", "d2": "b"}, "documents with the keys text, d2: must be"),
        (pandas.DataFrame({"docno": ["a"], "review": ["b"]}), "'review': 'b'}: must be a text"),
        (pandas.DataFrame({"id": [1], "text": [float("nan")]}), "document=1: must have a text"),
        ({}, r"documents=\[\]: must hold at least one document"),
    ],
)
def test_what_holds_no_texts_is_refused_in_a_line(documents, message):
    with pytest.raises(ValueError, match=message) as error:
        read_rows(documents)
    assert "\n" not in str(error.value)


def test_queries_are_texts_or_rows():
    frame = pandas.DataFrame({"qid": ["1", "2"], "query": ["a", "b"]})
    forms = ["a", "b"], ("a", "b"), frame, frame["query"], polars.from_pandas(frame)
    assert [list_queries(form) for form in forms] == [["a", "b"]] * 5
    assert list_queries("a") == ["a"] and list_queries([{"text": "a"}]) == ["a"]
    for wrong in ({"q1": "a"}, 7, None, b"a", [{"question": "a"}]):
        with pytest.raises(ValueError, match="queries.*: must") as error:
            list_queries(wrong)
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="retrieve takes a mapping"):
        list_queries({"q1": "a"})
