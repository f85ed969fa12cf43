import json

import pytest

from data_modules.formats.named_pairs import read_generated
from tests.data_modules.formats.miniature import MINIATURES, TITLES

FILES = {
    "dsi_qg": "mini_corpus.tsv.q2.docTquery",
    "genret": "train.json.qg.json",
    "nci": "NQ_512_qg.tsv",
    "glen": "QG_NQ_top15.tsv",
    "ultron": "pseudo_query.txt",
}


@pytest.mark.parametrize("format", FILES)
def test_every_formats_generated_queries_are_read(format):
    found = list(read_generated(MINIATURES / format / FILES[format]))
    assert len(found) == 24 and sum(len(queries) for *_, queries in found) == 32
    where, document, queries = found[3]
    assert document == {"ultron": "D103"}.get(format, "3")
    assert queries == [f"what is {TITLES[3]}", f"who has been to {TITLES[3]}"], "together"
    first = {"genret": "1, item 3", "glen": "5"}.get(format, "4")
    assert where == f"{MINIATURES / format / FILES[format]}:{first}"


def test_brackets_around_other_ids(tmp_path):
    (tmp_path / "queries.txt").write_text("[dx7]\twho?\n[-12]\twhere?\n")
    found = [row[1:] for row in read_generated(tmp_path / "queries.txt")]
    assert found == [("dx7", ["who?"]), ("-12", ["where?"])]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("who?\t3\n", r":1: expected \{\"document_id\".* or the columns '\[document\] query'"),
        ("[d1]\twho?\tx\n", r":1: expected .*columns"),
        ("who?\t1\tx\t2\n", r":1: expected .*'query queryid oldid"),
        (json.dumps([["who?", 1], ["who?"]]), r":1, item 1: expected \[query, place\]"),
        ('{"text_id": 1, "text": "a"}\n{"text_id": 1}\n', r':2: expected a string "text"'),
        ('{"document_id": "a", "queries": ["b"]}\n' * 2, r":2: document 'a' is already at"),
        ('{"text_id": 5, "text": "a\\ud800"}\n', r":1: document '5' .*surrogate"),
        ('[["a", 0], ["a\\ud800", 1]]', r":1, item 1: document '1' .*surrogate"),
        ('{"document_id": "a", "queries": ["b", "\\ud800"]}\n', r":1: document 'a' .*surrogate"),
        ("oldid\tquestion\n", r":1: expected a header .*query is missing"),
    ],
)
def test_a_broken_line_is_named(content, message, tmp_path):
    file = tmp_path / "queries"
    file.write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        list(read_generated(file))
    assert str(error.value).startswith(str(file))
