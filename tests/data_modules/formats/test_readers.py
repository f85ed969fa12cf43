"""Files as they are downloaded, and the lines, arrays and tables in them."""

import gzip
import json
import lzma
import zipfile
from functools import partial

import pyarrow
import pytest

from data_modules.formats import readers
from data_modules.formats.readers import (
    array_items,
    find_all,
    needed,
    numbered_lines,
    quoted_rows,
    table,
)


def test_a_file_that_is_there_plain_and_packed_counts_once(tmp_path):
    for name in ("b.tsv.gz", "a.tsv", "a.tsv.gz", "c.tsv.zip", "c.txt", "d.tsv.bz2"):
        (tmp_path / name).touch()
    (tmp_path / "e.tsv").mkdir()
    assert [file.name for file in find_all(tmp_path, "*.tsv")] == ["a.tsv", "b.tsv.gz", "c.tsv.zip"]
    assert needed(tmp_path, "b.tsv").name == "b.tsv.gz"
    assert find_all(tmp_path / "nowhere", "*") == []


PACKERS = {
    ".gz": partial(gzip.compress, mtime=0),
    ".xz": lzma.compress,
    ".zst": partial(pyarrow.Codec("zstd").compress, asbytes=True),
}


@pytest.mark.parametrize("ending", PACKERS)
def test_a_packed_file_is_read_and_a_damaged_one_or_another_encoding_is_named(ending, tmp_path):
    file, pack = tmp_path / f"a.tsv{ending}", PACKERS[ending]
    file.write_bytes(pack(b"a\tb\n" * 99))
    assert [line for _, line in numbered_lines(file)] == ["a\tb"] * 99
    for content, message in (
        (pack(b"a\tb\n" * 99)[:-9], f"a.tsv{ending}: a damaged archive .*again"),
        (pack(b"a\n\xe4\n"), f"a.tsv{ending}:2: expected UTF-8: "),
        (b"PK", f"a.tsv{ending}: a damaged archive"),
    ):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            list(numbered_lines(file))


def test_a_zip_holds_one_file(tmp_path):
    file = tmp_path / "a.tsv.zip"
    for name, content in (("a.tsv", "x\ty\n"), ("b.tsv", "z\n")):
        with zipfile.ZipFile(file, "a") as archive:
            archive.writestr(name, content)
        if name == "a.tsv":
            assert list(numbered_lines(file)) == [(f"{file}:1", "x\ty")]
    with pytest.raises(ValueError, match="a.tsv.zip: must be an archive of one file, has 2"):
        list(numbered_lines(file))


VALUES = [[4.5e3, 'a"[é]'], "1,2]", {"a": [1, {}]}, "x" * 50, ""]


@pytest.mark.parametrize(
    ("piece", "indent", "ascii"),
    [(1, 2, False), (3, None, True), (7, 2, True), (1 << 20, None, False)],
)
def test_an_array_is_read_in_pieces(piece, indent, ascii, tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "_PIECE", piece)
    text = json.dumps(VALUES, indent=indent, ensure_ascii=ascii) + "\n"
    file = tmp_path / "array.json"
    for content in (text.encode(), b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()):
        file.write_bytes(content)
        assert [value for _, value in array_items(file)] == VALUES
    assert [where for where, _ in array_items(file)][-1] == f"{file}: item 4"


def test_tables_with_quotes_tabs_and_newlines(tmp_path):
    file = tmp_path / "table.tsv"
    file.write_text('"a\tb"\t"c ""d"""\n"e\nf"\tg\nh\t\n' + "x" * 200_000 + "\ty\n")
    *first, last = quoted_rows(file)
    assert first == [
        (f"{file}:1", ["a\tb", 'c "d"']),
        (f"{file}:2", ["e\nf", "g"]),
        (f"{file}:4", ["h", ""]),
    ]
    assert len(last[1][0]) == 200_000, "longer than csv allows by itself"
    for text in ('a\tb\n"c\nd\te', 'a\tb\n"c\nd" e\tf\n'):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"table\.tsv:2: expected texts in quotes"):
            list(quoted_rows(file))
    file.write_text("n\ta\tb\n1\t2\t3\n")
    rows = table(file, ["b", "a"], header=True, quoted=True)
    assert list(rows) == [(f"{file}:2", {"n": "1", "a": "2", "b": "3"})]
    with pytest.raises(ValueError, match=r":1: expected 2 columns \(b, a\), got 3"):
        list(table(file, ["b", "a"], quoted=True))
