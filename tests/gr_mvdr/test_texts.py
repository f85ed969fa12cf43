"""Texts as a model reads them: cleaning, and tables in memory like those of a run."""

import pytest

from gr_mvdr.texts import TextReader, clean_text
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
