"""Files that name documents for queries, or queries for documents."""

import gzip
import json
import math

import pytest
from datasets import Dataset

from data_modules.formats.named_pairs import ScoredLists, read_generated, read_pairs
from tests.data_modules.tiny import written

RUN_LINE = "q1 Q0 d1 1 2.5 bm25"


@pytest.mark.parametrize(
    ("lines", "triples", "message"),
    [
        ([RUN_LINE, "q1 Q0 d1 1 2.5"], False, ":2: expected 'query Q0 document rank score tag'"),
        (["q d"], True, ":1: expected 'query positive negative …' or 'positive_s"),
        (["q Q0 d 1 high x"], False, ":1: expected a number as score, got 'high'"),
        (["", " "], False, "file.tsv: the file is empty; expected lines of 'query Q0.* or"),
    ],
)
def test_bad_lines_are_named(lines, triples, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        list(read_pairs(written(tmp_path / "file.tsv", *lines), triples))


def named(file, triples=False):
    """(query, document, score or None, positive) of every pair."""
    return [
        (q, d, None if math.isnan(score) else score, positive)
        for _, q, d, score, positive in read_pairs(file, triples)
    ]


def test_triples_may_have_several_negatives(tmp_path):
    file = written(tmp_path / "triples.tsv", "1 2 3 4 5 6", "9\t8\t7")
    assert named(file, triples=True) == [
        ("1", "2", None, True),
        *(("1", negative, None, False) for negative in "3456"),
        *(("9", "8", None, True), ("9", "7", None, False)),
    ]


def test_a_ranking_has_ranks_or_scores(tmp_path):
    ranking = written(tmp_path / "run.tsv", "q1\td1\t1", "q1\td2\t2")
    assert named(ranking) == [("q1", "d1", -1.0, False), ("q1", "d2", -2.0, False)]
    assert named(written(tmp_path / "run.trec", RUN_LINE)) == [("q1", "d1", 2.5, False)]


def test_mined_negatives_as_json(tmp_path):
    negatives = '{"bm25": [{"pid": 2, "ce-score": -1}], "tas": [{"pid": 3, "ce-score": 0.5}]}'
    scored = f'{{"qid": 7, "pos": [{{"pid": 1, "ce-score": 9.5}}], "neg": {negatives}}}'
    plain = '{"qid": "8", "pos": [1], "neg": {"bm25": [2, 3]}}'
    listed = '{"qid": "9", "pos": [], "neg": ["4"]}'
    file = tmp_path / "msmarco-hard-negatives.jsonl.gz"
    file.write_bytes(gzip.compress("\n".join([scored, plain, listed]).encode()))
    assert named(file) == [
        ("7", "1", 9.5, True),
        ("7", "2", -1.0, False),
        ("7", "3", 0.5, False),
        ("8", "1", None, True),
        ("8", "2", None, False),
        ("8", "3", None, False),
        ("9", "4", None, False),
    ]


# A teacher's lists


def save(kind, folder, name, rows):
    """Saves a table as `datasets` does."""
    table = Dataset.from_list(rows)
    folder.mkdir(exist_ok=True)
    if kind == "disk":
        table.save_to_disk(folder / name)
    elif kind == "parquet":
        table.to_parquet(folder / f"{name}.parquet")
    else:
        table.to_json(folder / f"{name}.jsonl")


LABEL = [0.5, 2.0, -1.0]
LISTS = {
    "ids": [
        {"query_id": 7, "document_ids": [1, 2, 3], "scores": LABEL},
        {"query_id": 8, "document_ids": [4], "scores": [3.0]},
    ],
    "texts": [
        {"query": "7", "documents": ["1", "2", "3"], "label": LABEL},
        {"query": "8", "documents": ["4"], "label": [3.0]},
    ],
    "columns": [
        {"query": "7", "document_1": "1", "document_2": "2", "document_3": "3", "labels": LABEL},
        {"query": "8", "document_1": "4", "document_2": None, "document_3": None, "labels": [3.0]},
    ],
    "triples": [
        {"anchor": "7", "positive": "1", "negative_1": "2", "negative_2": "3", "score": LABEL},
        {"anchor": "8", "positive": "4", "negative_1": None, "negative_2": None, "score": [3.0]},
    ],
}


@pytest.mark.parametrize("kind", ["disk", "parquet", "jsonl"])
@pytest.mark.parametrize("form", LISTS)
def test_a_teachers_lists_are_read_in_every_form(form, kind, tmp_path):
    save(kind, tmp_path / "data", "train", LISTS[form])
    expected = [("7", "1", 0.5), ("7", "2", 2.0), ("7", "3", -1.0), ("8", "4", 3.0)]
    (tmp_path / "data/cache-1.arrow").write_text("what map() left")
    lists = ScoredLists.find(tmp_path / "data")
    assert [pair[1:4] for pair in lists.pairs()] == expected
    positives = [pair.document_id for pair in lists.pairs() if pair.positive]
    assert positives == (["1", "4"] if form == "triples" else [])
    (file,) = lists.files
    assert [*ScoredLists.find(file).pairs()] == [*lists.pairs()], "the table alone"


def test_other_files_are_no_lists(tmp_path):
    for text in (RUN_LINE, '{"query": ["d1"]}', '{"qid": 1, "pos": [], "neg": []}', "{\n}", ""):
        assert ScoredLists.find(written(tmp_path / "file", text)) is None
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty: expected a table with the columns query or quer"):
        ScoredLists.find(tmp_path / "empty")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"documents": ["1", "2"]}, r"2 documents and 1 scores"),
        ({"documents": ["1"], "scores": [math.nan]}, "expected a number as score, got 'nan'"),
        (
            {"documents": ["1"], "scores": 2.0},
            r"expected the columns query .*scores, a list, got q",
        ),
        ({"documents": [True]}, 'expected a string "document", got true'),
    ],
)
def test_a_broken_list_is_named_by_its_row(row, message, tmp_path):
    good = {"query": "q", "documents": ["1"], "scores": [1.0]}
    broken = {"query": "q", "scores": [1.0], **row}
    file = written(tmp_path / "lists.jsonl", json.dumps(good), json.dumps(broken))
    with pytest.raises(ValueError, match=rf"lists.jsonl:2: .*{message}"):
        list(ScoredLists.find(file).pairs())


def test_a_row_of_a_table_is_numbered_as_in_datasets(tmp_path):
    rows = [{"query": "q", "documents": ["1"] * n, "scores": [1.0]} for n in (1, 1, 3)]
    save("parquet", tmp_path, "train", rows)
    with pytest.raises(ValueError, match=r"train.parquet: row 2: .*, got 3 documents and 1 scores"):
        list(ScoredLists.find(tmp_path).pairs())
    whole = (tmp_path / "train.parquet").read_bytes()
    (tmp_path / "train.parquet").write_bytes(whole[:4] + b"\xff" * 40 + whole[44:])
    with pytest.raises(ValueError, match="train.parquet: expected a table in parquet: ") as said:
        ScoredLists.find(tmp_path)
    assert "\n" not in str(said.value)


# Generated queries


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("who?\t3\n", r":1: expected a JSON object"),
        ('{"document_id": "a", "queries": "b"}\n', r":1: expected \{\"document_id\": "),
    ],
)
def test_a_broken_line_of_generated_queries_is_named(content, message, tmp_path):
    file = tmp_path / "queries"
    file.write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        list(read_generated(file))
    assert str(error.value).startswith(str(file))
