import io
import zipfile

import pytest

from data_modules.formats.files import find, find_all
from data_modules.formats.lines import integer, numbered_lines


def test_a_file_that_is_there_plain_and_packed_counts_once(tmp_path):
    for name in ("b.tsv.gz", "a.tsv", "a.tsv.gz", "c.tsv.zip", "c.txt", "d.tsv.bz2"):
        (tmp_path / name).touch()
    (tmp_path / "e.tsv").mkdir()
    assert [file.name for file in find_all(tmp_path, "*.tsv")] == ["a.tsv", "b.tsv.gz", "c.tsv.zip"]
    assert find(tmp_path, "b.tsv", "a.tsv").name == "b.tsv.gz"
    assert find(tmp_path, "x.tsv") is None and find_all(tmp_path / "nowhere", "*") == []


@pytest.mark.parametrize(("text", "expected"), [("3", 3), ("-1", -1), ("+07", 7), ("2 ", 2)])
def test_whole_numbers(text, expected):
    assert integer("f:1", "grade", text) == expected


@pytest.mark.parametrize("text", ["99999999999999999999", "1_0", "1.0", "", "x", "٣"])
def test_what_is_no_whole_number_is_named(text):
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
    with pytest.raises(ValueError, match=r"a\.tsv\.zip: the archive is encrypted, or packed by"):
        next(numbered_lines(file))


def test_an_error_while_lines_are_read_is_no_archives(tmp_path):
    file = tmp_path / "a.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a", "x")
    lines = numbered_lines(file)
    next(lines)
    with pytest.raises(RuntimeError, match=r"^mine$"):
        lines.throw(RuntimeError("mine"))
