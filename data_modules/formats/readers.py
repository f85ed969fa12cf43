"""Finds downloaded files, packed or not, and reads lines, JSON arrays and tables from them.

Each row comes with its place, ``file:line``.
"""

import codecs
import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow.parquet import ParquetFile

from gr_mvdr.files import check_file, describe_error, open_packed, plain_name

# The words in a file's name that are not part of the split: msmarco-doctrain-qrels.tsv,
# nq_queries_dev.tsv.gz, qrels.dev.small.tsv, 2019qrels-docs.txt, 2019qrels-pass.txt,
# msmarco-docdev-top100, nq_dev_doc_newid.tsv.
_OTHER_WORDS = re.compile(
    r"\.(tsv|txt|trec|run|jsonl)$|msmarco|nq(?=[_-])|doc(?=train|dev|eval|test)|docs|pass(?:ages?)?"
    r"|qrels?|queries|query|top\d+|_doc_newid"
)
_SEPARATORS = re.compile(r"[-_.]+")
_INTEGER = re.compile(r" *[+-]?[0-9]{1,9}(\.0*)? *")  # grades are stored in 64 bits
_PIECE = 1 << 20  # characters of an array that are read at a time; more for longer items
_BETWEEN = re.compile(r"[\s,]*")  # what separates two items

csv.field_size_limit(2**31 - 1)  # a document may be longer than csv's limit of 128 KiB


def needed(folder: Path, name: str) -> Path:
    """The file with this name in the folder, plain or packed; FileNotFoundError if missing."""
    if files := find_all(folder, name):
        return files[0]
    raise missing(folder, name)


def missing(folder: Path, *names: str) -> FileNotFoundError:
    """Makes the error for a missing file that may have any of these names."""
    return FileNotFoundError(f"data.path={folder}: the file {' or '.join(names)} is missing")


def find_all(folder: Path, *patterns: str) -> list[Path]:
    """The files of a folder whose names match a pattern such as "qrels/*.tsv", sorted by name.

    Packed files match without their ending; a file that exists plain and packed counts once. If
    `folder` is the path of a file, only this file is considered.
    """
    files: dict[str, Path] = {}
    for parent, _, name in (pattern.rpartition("/") for pattern in patterns):
        place = folder / parent
        for file in sorted(place.iterdir()) if place.is_dir() else [place]:
            if file.is_file() and fnmatchcase(plain_name(file), name):
                files.setdefault(plain_name(file), file)
    return sorted(files.values())


def find_splits(folder: Path, *patterns: str) -> dict[str, Path]:
    """Split → the file whose name contains the split's name.

    Args:
        patterns: the name of a file in a folder of its own is the split ("qrels/*.tsv"); the split
            of other files is that of `split_of`, or "test". Splits are ordered by pattern, then by
            the file's name.

    Raises:
        ValueError: two files have the same split.
    """
    matched: dict[Path, str] = {}
    for pattern in patterns:
        for file in find_all(folder, pattern):
            split = file.name.partition(".tsv")[0] if "/" in pattern else split_of(file)
            matched.setdefault(file, split or "test")
    return group_by_split(matched)


def group_by_split(split_of: Mapping[Path, str]) -> dict[str, Path]:
    """Inverts file → split; raises ValueError if two files have the same split."""
    splits: dict[str, Path] = {}
    for file, split in split_of.items():
        if (other := splits.setdefault(split, file)) != file:
            raise ValueError(
                f"data.path={file.parent}: {other.name} and {file.name} are both of the split "
                f"{split!r}: keep one"
            )
    return splits


def split_of(file: Path) -> str:
    """The split in a file's name, such as "dev_small" in ``qrels.dev.small.tsv``; may be ""."""
    return _SEPARATORS.sub("_", _OTHER_WORDS.sub("-", plain_name(file))).strip("_")


def begins_with(file: Path, characters: str) -> bool:
    """Whether the file's first non-blank character is one of these."""
    with open_packed(file) as content:
        start = content.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip()
    return start[:1].decode("ascii", "replace") in tuple(characters)


def numbered_lines(*files: Path) -> Iterator[tuple[str, str]]:
    """Yields (``file:line``, text) for each line that is not blank; only newlines end a line.

    Raises:
        ValueError: a line is not UTF-8, or the file's archive is damaged.
    """
    for where, line in chain.from_iterable(map(_lines, files)):
        if line.strip():
            yield where, line


def _lines(file: Path) -> Iterator[tuple[str, str]]:
    with open_packed(file) as lines:
        for number, line in enumerate(lines, start=1):
            where = f"{file}:{number}"
            yield where, _decode(where, line).rstrip("\r\n")


def first_line(file: Path) -> str:
    """The first line that is not blank; "" if all lines are blank."""
    return next(numbered_lines(file), ("", ""))[1]


def _decode(where: str, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig" if content.startswith(codecs.BOM_UTF8) else "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: expected UTF-8: {error.reason}") from None


def json_lines(*files: Path) -> Iterator[tuple[str, dict]]:
    """Yields (``file:line``, object) for JSON lines; ValueError names a line of another kind."""
    for where, line in numbered_lines(*files):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:  # also a very long number or deep nesting
            reason = f"but {getattr(error, 'msg', error)}: {line[:60]!r}"
            raise ValueError(f"{where}: expected a JSON object, {reason}") from None
        if not isinstance(record, dict):
            raise ValueError(f"{where}: expected a JSON object, got {line[:60]!r}")
        yield where, record


def table_rows(file: Path) -> Iterator[tuple[str, dict]]:
    """Yields (place, row) for each row of a table: Parquet, Arrow (file or stream), or JSON lines.

    The place is ``file: row number``, numbered from 0 as in ``datasets``, or ``file:line``.

    Raises:
        ValueError: the file is damaged; names the file, or the line.
    """
    if file.suffix not in (".parquet", ".arrow"):
        yield from json_lines(file)
        return
    check_file(file)
    try:
        rows = (row for batch in _batches(file) for row in batch.to_pylist())
        for number, row in enumerate(rows):
            yield f"{file}: row {number}", row
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: text is not UTF-8
        rule = f"expected a table in {file.suffix[1:]}"
        raise ValueError(f"{file}: {rule}: {describe_error(error)}") from None


def _batches(file: Path) -> Iterator[pa.RecordBatch]:
    if file.suffix == ".parquet":
        yield from ParquetFile(file).iter_batches(1000)
        return
    with pa.memory_map(str(file)) as content:
        if content.read(6) != b"ARROW1":  # a stream, as `datasets` writes it
            content.seek(0)
            yield from pa.ipc.open_stream(content)
            return
        blocks = pa.ipc.open_file(content)
        yield from map(blocks.get_batch, range(blocks.num_record_batches))


def json_value(file: Path) -> Any:
    """The single JSON value in a file; ValueError names the ``file:line`` of an error."""
    with open_packed(file) as content:
        text = _decode(str(file), content.read())
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        line, reason = getattr(error, "lineno", 1), getattr(error, "msg", error)
        raise ValueError(f"{file}:{line}: expected JSON, but {reason}: {text[:60]!r}") from None


def array_items(file: Path) -> Iterator[tuple[str, Any]]:
    """Yields (``file: item number``, value) for each item of a JSON array, numbered from 0.

    Only a piece of the file is in memory. Items must not be bare numbers, because the end of a
    piece could cut one.

    Raises:
        ValueError: the file is not a JSON array, or not UTF-8; names the file and the item.
    """
    decode, number, place = json.JSONDecoder().raw_decode, 0, 0
    with open_packed(file) as content:
        text = TextIOWrapper(content, encoding="utf-8-sig")
        try:
            piece = text.read(_PIECE).lstrip()
            if not piece.startswith("["):
                raise ValueError(f"{file}: expected a JSON array, got {piece[:60]!r}")
            place = 1
            while True:
                where = f"{file}: item {number}"
                place = _BETWEEN.match(piece, place).end()  # type: ignore[union-attr]
                if piece[place : place + 1] == "]":
                    return
                try:
                    value, place = decode(piece, place)
                except (ValueError, RecursionError) as fault:
                    rest, more = piece[place:], text.read(max(_PIECE, len(piece) - place))
                    if not more:
                        reason = f"but {getattr(fault, 'msg', fault)}: {rest[:60]!r}"
                        raise ValueError(f"{where}: expected JSON, {reason}") from None
                    piece, place = rest + more, 0
                else:
                    yield where, value
                    number += 1
        except UnicodeDecodeError as error:
            raise ValueError(f"{file}: expected UTF-8: {error.reason}") from None
        finally:
            text.detach()


def table(
    file: Path,
    columns: Sequence[str],
    header: bool = False,
    quoted: bool = False,
    delimiter: str | None = "\t",
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields (``file:line``, column → text) for each row of a table.

    Args:
        columns: the names of all columns in the file's order; with a header, the columns that the
            header must contain, in any order and among others.
        header: whether the first line names the columns.
        quoted: True = texts may be quoted as in csv; False = a delimiter always ends a column, and
            a newline always ends a row.
        delimiter: separates the columns; None = white space (only if not quoted).

    Raises:
        ValueError: a column is missing, or a row has too many or too few columns (often because of
            a tab in a text).
    """
    records = (quoted_rows if quoted else split_rows)(file, delimiter)
    names = list(columns)
    if header:
        where, names = next(records, (f"{file}:1", []))
        names = [name.strip() for name in names]
        if missing := [name for name in columns if name not in names]:
            raise ValueError(
                f"{where}: expected a header with the columns {', '.join(columns)}: "
                f"{', '.join(missing)} is missing in {' '.join(names)[:80]!r}"
            )
    for where, fields in records:
        if len(fields) != len(names):
            raise ValueError(
                f"{where}: expected {len(names)} columns ({', '.join(names)}), got {len(fields)}: "
                f"{' '.join(fields)[:60]!r}"
            )
        yield where, dict(zip(names, fields, strict=True))


def split_rows(file: Path, delimiter: str | None = "\t") -> Iterator[tuple[str, list[str]]]:
    """Yields (``file:line``, fields) for each line; a delimiter always ends a field."""
    return ((where, line.split(delimiter)) for where, line in numbered_lines(file))


def quoted_rows(file: Path, delimiter: str = "\t") -> Iterator[tuple[str, list[str]]]:
    """Yields (``file:line`` of the first line, fields) for each record; texts may be quoted.

    Records without any text are left out: spreadsheets write them.

    Raises:
        ValueError: quotes do not follow csv's rules; names ``file:line``.
    """
    places: list[str] = []  # ``file:line`` of each line of the record

    def lines() -> Iterator[str]:
        for where, line in _lines(file):
            places.append(where)
            yield line + "\n"

    try:
        for record in csv.reader(lines(), delimiter=delimiter, strict=True):
            if any(map(str.strip, record)):
                yield places[0], record
            places.clear()
    except csv.Error as error:
        rule = "expected texts in quotes, quotes within them doubled, as csv writes them"
        raise ValueError(f"{places[0]}: {rule}: {error}") from None


def string(where: str, key: str, record: dict, default: str | None = None) -> str:
    """The text of a row under a key; of several ("body|contents"), the first that the row has.

    Args:
        default: returned if the value is missing or null; None = raise instead.

    Raises:
        ValueError: the key is missing, or its value is not a text.
    """
    value = next((record[name] for name in key.split("|") if name in record), None)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        key = key.replace("|", '" or "')
        raise ValueError(
            f'{where}: expected a string "{key}", got {json.dumps(value, default=str)[:60]}'
        )
    return value


def word(where: str, key: str, record: dict) -> str:
    """The id of a row under a key as in `string`; ValueError if it is not a string or integer."""
    value = next((record[name] for name in key.split("|") if name in record), None)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return string(where, key, record)


def integer(where: str, name: str, text: str) -> int:
    """Converts a column's text to an integer, which may be written "1" or "1.0".

    Raises:
        ValueError: not an integer, or more than nine digits; names ``file:line`` and the column.
    """
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"{where}: expected an integer {name}, got {text[:60]!r}")
    return int(float(text))
