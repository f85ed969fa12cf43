import gzip
import json

import pytest

from data_modules.formats import lines as json_array
from data_modules.formats.files import begins_with
from data_modules.formats.lines import array_items

VALUES = [1, 23, [4.5e3, 'a"[é]'], True, None, -7, {"a": [1, {}]}, "x" * 50, ""]


@pytest.mark.parametrize("piece", [1, 3, 7, 1 << 20])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("ascii", [True, False])
def test_the_items_are_those_of_the_array(piece, indent, ascii, tmp_path, monkeypatch):
    monkeypatch.setattr(json_array, "_PIECE", piece)
    file = tmp_path / "array.json"
    text = json.dumps(VALUES, indent=indent, ensure_ascii=ascii) + "\n"
    file.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert [value for _, value in array_items(file)] == VALUES
    file.write_bytes(gzip.compress(text.encode()))
    file = file.rename(tmp_path / "array.json.gz")
    assert [value for _, value in array_items(file)] == VALUES
    places = [where for where, _ in array_items(file)]
    assert places[0] == f"{file}:{2 if indent else 1}, item 0"
    assert places[-1] == f"{file}:{18 if indent else 1}, item 8"


def test_an_empty_array_has_none(tmp_path):
    (tmp_path / "a.json").write_text(" [ ]\n")
    assert list(array_items(tmp_path / "a.json")) == []


@pytest.mark.parametrize("piece", [3, 1 << 20])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r":1: expected a JSON array, got ''"),
        ("{}", r":1: expected a JSON array, got '\{"),
        ("[1,]", r":1: expected JSON, but Expecting value"),
        ("[1\n2]", r":2: expected ',' or '\]' after item 0, got '2'"),
        ("[1", r":1: expected ',' or '\]' after item 0, got ''"),
        ('["a', r":1: expected JSON, but Unterminated string"),
        ("[1]\nx", r":2: expected nothing after the array, got 'x'"),
        ('[\n1,\n{"a" 2}]', r":3: expected JSON, but Expecting ':' delimiter"),
        ("[trux" + " " * 99 + "]", r":1: expected JSON, but Expecting value"),
    ],
)
def test_what_is_no_array_is_named(piece, text, message, tmp_path, monkeypatch):
    monkeypatch.setattr(json_array, "_PIECE", piece)
    file = tmp_path / "array.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        list(array_items(file))
    assert str(error.value).startswith(str(file))


def test_an_early_mistake_is_found_before_the_file_is_read_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(json_array, "_PIECE", 100)
    file = tmp_path / "array.json.gz"
    file.write_bytes(gzip.compress(b"[oops" + b" " * 10**6)[:-4])  # its end is missing
    with pytest.raises(ValueError, match=r":1: expected JSON, but"):
        list(array_items(file))


def test_bytes_that_are_not_utf8_are_named(tmp_path):
    (tmp_path / "a.json").write_bytes(b'["\xe4"]')
    with pytest.raises(ValueError, match=r"a\.json: expected UTF-8: invalid continuation byte"):
        list(array_items(tmp_path / "a.json"))


def test_how_a_file_begins(tmp_path):
    file = tmp_path / "a.json"
    for content, expected in ((b"\xef\xbb\xbf \n[", True), (b"{", False), (b"", False)):
        file.write_bytes(content)
        assert begins_with(file, "[") is expected
