"""Files as they are downloaded, and the lines, arrays and tables in them."""

import gzip
import io
import json
import zipfile

import pytest

from data_modules.formats import readers
from data_modules.formats.files import find, find_all
from data_modules.formats.readers import (
    array_items,
    integer,
    numbered_lines,
    quoted_rows,
    table,
)


def test_a_file_that_is_there_plain_and_packed_counts_once(tmp_path):
    for name in ("b.tsv.gz", "a.tsv", "a.tsv.gz", "c.tsv.zip", "c.txt", "d.tsv.bz2"):
        (tmp_path / name).touch()
    (tmp_path / "e.tsv").mkdir()
    assert [file.name for file in find_all(tmp_path, "*.tsv")] == ["a.tsv", "b.tsv.gz", "c.tsv.zip"]
    assert find(tmp_path, "b.tsv", "a.tsv").name == "b.tsv.gz"
    assert find(tmp_path, "x.tsv") is None and find_all(tmp_path / "nowhere", "*") == []


def test_whole_numbers():
    for text, expected in [("3", 3), ("-1", -1), ("+07", 7), ("2 ", 2)]:
        assert integer("f:1", "grade", text) == expected
    for text in ["99999999999999999999", "1_0", "1.0", "", "x", "٣"]:
        with pytest.raises(ValueError, match=rf"^f:1: expected an integer grade, got '{text}'$"):
            integer("f:1", "grade", text)


def encrypted(**files: str) -> bytes:
    """A zip archive whose members say that they are encrypted."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as content:
        for name, text in files.items():
            content.writestr(name, text)
    marked = bytearray(archive.getvalue())
    for start, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = -1
        while (at := marked.find(start, at + 1)) >= 0:
            marked[at + place] |= 1
    return bytes(marked)


def test_an_encrypted_archive_is_named(tmp_path):
    file = tmp_path / "a.tsv.zip"
    file.write_bytes(encrypted(a="x"))
    with pytest.raises(ValueError, match=r"a\.tsv\.zip: the archive is encrypted: unpack"):
        next(numbered_lines(file))


def test_an_error_while_lines_are_read_is_no_archives(tmp_path):
    file = tmp_path / "a.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a", "x")
    found = numbered_lines(file)
    next(found)
    with pytest.raises(RuntimeError, match=r"^mine$"):
        found.throw(RuntimeError("mine"))


def test_a_web_page_a_cut_archive_and_another_encoding_are_named(tmp_path):
    file = tmp_path / "a.tsv.gz"
    for content, message in (
        (gzip.compress(b"<!DOCTYPE html>\n<html>404</html>"), "a.tsv.gz:1: an HTML page, not the"),
        (gzip.compress(b"a\tb\n" * 99)[:-9], "a.tsv.gz: the archive ends too early"),
        (gzip.compress(b"a\n\xe4\n"), "a.tsv.gz:2: expected UTF-8: "),
        (
            gzip.compress("a".encode("utf-16")),
            "a.tsv.gz:1: expected UTF-8, this begins like UTF-16",
        ),
        (b"PK", "a.tsv.gz: a damaged archive"),
    ):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            list(numbered_lines(file))
    file = tmp_path / "a.json"
    for content, message in ((b'["\xe4"]', "expected UTF-8"), (b"<html>", "HTML page, not the do")):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            list(array_items(file))


VALUES = [1, 23, [4.5e3, 'a"[é]'], True, None, -7, {"a": [1, {}]}, "x" * 50, ""]


@pytest.mark.parametrize(
    ("piece", "indent", "ascii"),
    [(1, 2, False), (3, None, True), (7, 2, True), (1 << 20, None, False)],
)
def test_the_items_are_those_of_the_array(piece, indent, ascii, tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "_PIECE", piece)
    file = tmp_path / "array.json"
    text = json.dumps(VALUES, indent=indent, ensure_ascii=ascii) + "\n"
    file.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert [value for _, value in array_items(file)] == VALUES
    file.write_bytes(gzip.compress(text.encode()))
    file = file.rename(tmp_path / "array.json.gz")
    assert [value for _, value in array_items(file)] == VALUES
    (tmp_path / "empty.json").write_text(" [ ]\n")
    assert list(array_items(tmp_path / "empty.json")) == []
    places = [where for where, _ in array_items(file)]
    assert places[0] == f"{file}:{2 if indent else 1}, item 0"
    assert places[-1] == f"{file}:{18 if indent else 1}, item 8"


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
def test_what_is_no_array_is_named(text, message, tmp_path, monkeypatch):
    file = tmp_path / "array.json"
    file.write_text(text)
    for piece in (3, 1 << 20):
        monkeypatch.setattr(readers, "_PIECE", piece)
        with pytest.raises(ValueError, match=message) as error:
            list(array_items(file))
        assert str(error.value).startswith(str(file))


def test_a_mistake_is_found_before_a_large_file_is_read_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "_PIECE", 100)
    monkeypatch.setattr(readers, "_LONGEST", 1000)
    file = tmp_path / "array.json.gz"
    file.write_bytes(gzip.compress(b"[oops" + b" " * 10**6)[:-4])  # its end is missing
    with pytest.raises(ValueError, match=r":1: expected JSON, but"):
        list(array_items(file))


# Tables


def written(tmp_path, text):
    file = tmp_path / "table.tsv"
    file.write_text(text)
    return file


def test_quotes_tabs_and_newlines_within_quotes(tmp_path):
    file = written(tmp_path, '"a\tb"\t"c ""d"""\n"e\nf"\tg\nh\t\n')
    assert list(quoted_rows(file)) == [
        (f"{file}:1", ["a\tb", 'c "d"']),
        (f"{file}:2", ["e\nf", "g"]),
        (f"{file}:4", ["h", ""]),
    ]
    file.write_text("x" * 200_000 + "\ty\n")
    assert len(next(quoted_rows(file))[1][0]) == 200_000, "longer than csv allows by itself"


@pytest.mark.parametrize("text", ['a\tb\n"c\nd\te', 'a\tb\n"c\nd" e\tf\n'])
def test_a_record_is_named_by_its_first_line(text, tmp_path):
    with pytest.raises(ValueError, match=r"table\.tsv:2: expected texts in quotes"):
        list(quoted_rows(written(tmp_path, text)))


def test_more_columns_than_were_asked_for_are_allowed_with_a_header_only(tmp_path):
    file = written(tmp_path, "n\ta\tb\n1\t2\t3\n")
    assert list(table(file, ["b", "a"], header=True, quoted=True)) == [
        (f"{file}:2", {"n": "1", "a": "2", "b": "3"})
    ]
    with pytest.raises(ValueError, match=r":1: expected 2 columns \(b, a\), got 3"):
        list(table(file, ["b", "a"], quoted=True))
