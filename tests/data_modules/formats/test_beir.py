"""BEIR's layout, and how the broken lines of any format are named once they are stored."""

import hashlib
from pathlib import Path

import pytest

from data_modules.formats.registry import read_layout
from data_modules.store import collect
from tests.data_modules.formats.miniature import assert_refused

FILES = {
    "corpus.jsonl": '{"_id": "a", "title": "Ä", "text": "x y"}\n\n{"_id": "b", "text": "z"}\n',
    "queries.jsonl": '{"_id": "1", "text": "x?"}\n{"_id": "2", "text": "z?", "metadata": {}}\n',
    "qrels/train.tsv": "query-id\tcorpus-id\tscore\n1\ta\t1\n",
    "qrels/test.tsv": "query-id\tcorpus-id\tscore\n2\tb\t2\n2\ta\t0\n",
}
HEADER = "query-id\tcorpus-id\tscore\n"


@pytest.fixture
def folder(tmp_path) -> Path:
    for name, content in FILES.items():
        file = tmp_path / "small" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
    return tmp_path / "small"


def collection(folder: Path):
    return collect(read_layout(folder, "beir"), folder.parent / "store")


def test_a_folder_becomes_a_collection(folder):
    found = collection(folder)
    assert found.name == "small"
    assert found.documents[:] == {"id": ["a", "b"], "title": ["Ä", ""], "text": ["x y", "z"]}
    assert found.queries[:] == {"id": ["1", "2"], "text": ["x?", "z?"]}
    assert found.judgements("test") == {"2": {"b": 2, "a": 0}}
    assert sorted(found.qrels) == ["test", "train"]
    assert found.sources == {
        str(folder / name): hashlib.sha256(content.encode()).hexdigest()
        for name, content in FILES.items()
    }


def test_a_changed_file_makes_another_collection(folder):
    before = collection(folder)
    (folder / "queries.jsonl").write_text(FILES["queries.jsonl"].replace("x?", "w?"))
    after = collection(folder)
    assert after.queries[0]["text"] == "w?" and before.queries[0]["text"] == "x?"
    assert after.folder != before.folder


def test_missing_files_are_named(folder):
    (folder / "queries.jsonl").unlink()
    with pytest.raises(FileNotFoundError, match=r"^data\.path=.*small: the file queries\.jsonl is"):
        read_layout(folder)
    (folder / "corpus.jsonl").unlink()
    with pytest.raises(FileNotFoundError, match=r"^data\.path=.*small: the file corpus\.jsonl is"):
        read_layout(folder, "beir")


def test_missing_judgements_are_named(folder):
    for file in (folder / "qrels").iterdir():
        file.unlink()
    with pytest.raises(FileNotFoundError, match=r"qrels/<split>\.tsv"):
        read_layout(folder)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("corpus.jsonl", '{"_id": "a", "text": "x"}\n{"_id": "b", ', r":2: expected a JSON object"),
        ("corpus.jsonl", "[1]\n", r":1: expected a JSON object, got '\[1\]'"),
        ("corpus.jsonl", '{"text": "x"}\n', r':1: expected a string "_id", got null'),
        ("corpus.jsonl", '{"_id": 7.5, "text": "x"}\n', r':1: expected a string "_id", got 7.5'),
        ("corpus.jsonl", '{"_id": "a"}\n', r':1: expected a string "text", got null'),
        ("corpus.jsonl", '{"_id": "a", "text": "x", "title": 1}\n', r':1: expected .* "title"'),
        ("corpus.jsonl", '\n{"_id": "a", "text": " "}\n', r":2: document 'a' is empty: it has "),
        ("corpus.jsonl", '{"_id": "a", "text": "\\ud800"}\n', r":1: .*surrogate"),
        ("corpus.jsonl", FILES["corpus.jsonl"] * 2, r":4: .*'a' is already at .*jsonl:1"),
        ("corpus.jsonl", "", r":1: no documents: the file is empty"),
        ("queries.jsonl", "\n", r":1: no queries: the file is empty"),
        ("qrels/test.tsv", "2\tb\t2\n", r":1: expected a header with the columns query-id, corpus"),
        ("qrels/test.tsv", "", r":1: expected a header"),
        ("qrels/test.tsv", HEADER + "2 b 1\n", r":2: expected 3 columns"),
        ("qrels/test.tsv", HEADER + "2\tb\t1.5\n", r":2: expected an integer .*'1\.5'"),
    ],
)
def test_a_broken_line_is_named_with_its_file_and_number(folder, name, content, message):
    assert_refused(folder, name, content, message, collection)
