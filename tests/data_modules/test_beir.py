import hashlib
from pathlib import Path

import datasets
import pytest

from data_modules.collection import check
from data_modules.formats.beir import read_beir

FILES = {
    "corpus.jsonl": '{"_id": "a", "title": "Ä", "text": "x y"}\n\n{"_id": "b", "text": "z"}\n',
    "queries.jsonl": '{"_id": "1", "text": "x?"}\n{"_id": "2", "text": "z?", "metadata": {}}\n',
    "qrels/train.tsv": "query-id\tcorpus-id\tscore\n1\ta\t1\n",
    "qrels/test.tsv": "query-id\tcorpus-id\tscore\n2\tb\t2\n2\ta\t0\n",
}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for name, content in FILES.items():
        file = tmp_path / "small" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
    return tmp_path / "small"


def test_a_folder_becomes_a_collection(folder):
    collection = check(read_beir(folder))
    assert collection.name == "small"
    assert collection.documents[:] == {"id": ["a", "b"], "title": ["Ä", ""], "text": ["x y", "z"]}
    assert collection.queries[:] == {"id": ["1", "2"], "text": ["x?", "z?"]}
    assert collection.judgements("test") == {"2": {"b": 2, "a": 0}}
    assert sorted(collection.qrels) == ["test", "train"]
    assert collection.sources == {
        str(folder / name): hashlib.sha256(content.encode()).hexdigest()
        for name, content in FILES.items()
    }


def test_windows_line_ends_and_a_byte_order_mark_change_nothing(folder):
    plain = read_beir(folder)
    for name, content in FILES.items():
        (folder / name).write_bytes(b"\xef\xbb\xbf" + content.replace("\n", "\r\n").encode())
    windows = read_beir(folder)
    assert windows.documents[:] == plain.documents[:]
    assert windows.queries[:] == plain.queries[:]
    assert windows.judgements("test") == plain.judgements("test")


def test_a_changed_file_is_read_again_and_the_others_are_mapped(folder):
    before = read_beir(folder)
    (folder / "queries.jsonl").write_text(FILES["queries.jsonl"].replace("x?", "w?"))
    after = read_beir(folder)
    assert after.queries[0]["text"] == "w?"
    assert after.documents.cache_files == before.documents.cache_files
    assert after.queries.cache_files != before.queries.cache_files


def test_qrels_are_checked_again_when_a_document_goes(folder):
    read_beir(folder)
    (folder / "corpus.jsonl").write_text('{"_id": "a", "text": "x y"}\n')
    with pytest.raises(ValueError, match=r"test\.tsv:2: document 'b' is not in corpus\.jsonl"):
        read_beir(folder)


def test_a_folder_that_is_not_there_is_named_as_the_key(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^data\.path=.*/nowhere: no such folder"):
        read_beir(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=rf"^data\.path=.*small: the file {name}"):
        read_beir(folder)


def test_missing_judgements_are_named(folder):
    for file in (folder / "qrels").iterdir():
        file.unlink()
    with pytest.raises(FileNotFoundError, match=r"qrels/<split>\.tsv"):
        read_beir(folder)


QRELS_HEADER = "query-id\tcorpus-id\tscore\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("corpus.jsonl", '{"_id": "a", "text": "x"}\n{"_id": "b", ', r":2: expected a JSON object"),
        ("corpus.jsonl", "[1]\n", r":1: expected a JSON object, got '\[1\]'"),
        ("corpus.jsonl", '{"text": "x"}\n', r':1: expected a string "_id", got null'),
        ("corpus.jsonl", '{"_id": 7, "text": "x"}\n', r':1: expected a string "_id", got 7'),
        ("corpus.jsonl", '{"_id": "a b", "text": "x"}\n', r":1: \"_id\" is 'a b': must be a word"),
        ("corpus.jsonl", '{"_id": "a"}\n', r':1: expected a string "text", got null'),
        ("corpus.jsonl", '{"_id": "a", "text": "x", "title": 1}\n', r':1: expected .* "title"'),
        ("corpus.jsonl", '\n{"_id": "a", "text": " "}\n', r":2: \"text\" of 'a' is empty"),
        ("corpus.jsonl", '{"_id": "a", "text": "\\ud800"}\n', r":1: .*surrogate"),
        ("corpus.jsonl", FILES["corpus.jsonl"] * 2, r":4: .*'a' stands already at .*jsonl:1"),
        ("corpus.jsonl", "", r"corpus\.jsonl: the file is empty"),
        ("queries.jsonl", "\n", r"queries\.jsonl: the file is empty"),
        ("queries.jsonl", '{"_id": "1", "text": ""}\n', r":1: \"text\" of '1' is empty"),
        ("qrels/test.tsv", "2\tb\t2\n", r":1: expected the header 'query-id\\tcorpus-id\\tscore'"),
        ("qrels/test.tsv", "", r":1: expected the header"),
        ("qrels/test.tsv", QRELS_HEADER, r"test\.tsv: the split is empty"),
        ("qrels/test.tsv", QRELS_HEADER + "2\tb\t0\n", r"test\.tsv: the split is empty"),
        ("qrels/test.tsv", QRELS_HEADER + "2 b 1\n", r":2: expected 3 columns"),
        ("qrels/test.tsv", QRELS_HEADER + "2\tb\t1.5\n", r":2: expected an integer .*'1\.5'"),
        ("qrels/test.tsv", QRELS_HEADER + "9\tb\t1\n", r":2: query '9' is not in queries"),
        ("qrels/test.tsv", QRELS_HEADER + "2\tc\t1\n", r":2: document 'c' is not in corpus"),
        ("qrels/test.tsv", QRELS_HEADER + "2\tb\t1\n2\tb\t1\n", r":3: .*already at .*test\.tsv:2"),
    ],
)
def test_a_broken_line_is_named_with_its_file_and_number(folder, name, content, message):
    (folder / name).write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message) as error:
        read_beir(folder)
    assert str(error.value).startswith(str(folder / name))


def test_bytes_that_are_not_utf8_are_named(folder):
    (folder / "corpus.jsonl").write_bytes(
        b'{"_id": "a", "text": "x"}\n{"_id": "b", "text": "\xe4"}'
    )
    with pytest.raises(ValueError, match=r"corpus\.jsonl:2: expected UTF-8"):
        read_beir(folder)
