"""Readers of text files: lines, JSON lines, JSON arrays and tables, each row with its place."""

import csv
import json
import re
from collections.abc import Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from data_modules.formats.files import PAGE, is_page, opened

_INTEGER = re.compile(r" *[+-]?[0-9]{1,9} *")  # grades are stored in 64 bits
_PIECE = 1 << 20  # characters of an array read at a time, more for longer items
_LONGEST = 1 << 26  # characters of an item of an array
_BLANKS = re.compile(r"[ \t\r\n]*")

csv.field_size_limit(2**31 - 1)  # a document may be longer than csv's limit of 128 KiB


def numbered_lines(*files: Path) -> Iterator[tuple[str, str]]:
    """(``file:line``, text) of the lines that are not blank; only newlines end a line.

    Raises:
        ValueError: a line is not UTF-8, the file is a web page, or its archive is damaged.
    """
    for file in files:
        with opened(file) as lines:
            for number, line in enumerate(lines, start=1):
                where = f"{file}:{number}"
                if number == 1 and is_page(line[:1024]):
                    raise ValueError(f"{where}: an HTML page, not the download: {line[:60]!r}")
                text = _decode(where, line, first=number == 1).rstrip("\r\n")
                if text.strip():
                    yield where, text


def first_line(file: Path) -> str:
    """The first line that is not blank; empty if all are."""
    return next(numbered_lines(file), ("", ""))[1]


def _decode(where: str, content: bytes, first: bool) -> str:
    if first and content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ValueError(f"{where}: expected UTF-8, this begins like UTF-16")
    try:
        return content.decode("utf-8-sig" if first else "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: expected UTF-8: {error.reason}") from None


def json_lines(*files: Path) -> Iterator[tuple[str, dict]]:
    """(``file:line``, object) of JSON lines; ValueError names a line that is not an object."""
    for where, line in numbered_lines(*files):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:  # also numbers too long, nests too deep
            reason = f"but {getattr(error, 'msg', error)}: {line[:60]!r}"
            raise ValueError(f"{where}: expected a JSON object, {reason}") from None
        if not isinstance(record, dict):
            raise ValueError(f"{where}: expected a JSON object, got {line[:60]!r}")
        yield where, record


def json_value(file: Path) -> Any:
    """The one JSON value that a file holds; ValueError names ``file:line`` otherwise."""
    with opened(file) as content:
        text = _decode(str(file), content.read(), first=True)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        page = PAGE if is_page(text[:1024].encode()) else ""
        line, reason = getattr(error, "lineno", 1), getattr(error, "msg", error)
        raise ValueError(f"{file}:{line}: expected JSON, but {reason}{page}") from None


def array_items(file: Path) -> Iterator[tuple[str, Any]]:
    """(``file:line, item number``, value) of each item of a JSON array; the first is number 0.

    Only a piece of the file is in memory. (ijson names no line of an error, and reads half a
    surrogate pair as "?".)

    Raises:
        ValueError: the file is not a JSON array, or not UTF-8; names ``file:line``.
    """
    piece, place, line, ended = "", 0, 1, False
    decoder = json.JSONDecoder()

    def error(expected: str) -> ValueError:
        return ValueError(f"{file}:{line + piece.count(chr(10), 0, place)}: expected {expected}")

    def read_on() -> bool:
        """Forgets what was passed and doubles the rest; False at the end of the file."""
        nonlocal piece, place, line, ended
        line += piece.count("\n", 0, place)
        rest = piece[place:]
        more = text.read(max(_PIECE, len(rest)))
        piece, place, ended = rest + more, 0, not more
        return not ended

    def next_sign() -> str:
        """The next character that is not blank; "" at the end."""
        nonlocal place
        place = _BLANKS.match(piece, place).end()
        while place == len(piece) and read_on():
            place = _BLANKS.match(piece).end()
        return piece[place : place + 1]

    def next_value() -> Any:
        nonlocal place
        while True:
            try:
                value, end = decoder.raw_decode(piece, place)
                if end < len(piece) or ended:  # a number at the end may go on
                    place = end
                    return value
            except (ValueError, RecursionError) as fault:
                if ended or len(piece) - place > _LONGEST:
                    place = getattr(fault, "pos", place)
                    raise error(f"JSON, but {getattr(fault, 'msg', fault)}") from None
            read_on()

    with opened(file) as content:
        text = TextIOWrapper(content, encoding="utf-8-sig")
        try:
            if next_sign() != "[":
                page = PAGE if is_page(piece[:999].encode()) else ""
                raise error(f"a JSON array, got {piece[:60]!r}{page}")
            place, number = place + 1, 0
            sign = "]" if next_sign() == "]" else ","
            while sign == ",":
                next_sign()
                where = f"{file}:{line + piece.count(chr(10), 0, place)}, item {number}"
                yield where, next_value()
                if (sign := next_sign()) not in (",", "]"):
                    raise error(f"',' or ']' after item {number}, got {sign!r}")
                place, number = place + 1, number + 1
            place += number == 0
            if rest := next_sign():
                raise error(f"nothing after the array, got {rest!r}")
        except UnicodeDecodeError as fault:
            raise ValueError(f"{file}: expected UTF-8: {fault.reason}") from None
        finally:
            text.detach()


def table(
    file: Path,
    columns: Sequence[str],
    header: bool = False,
    quoted: bool = False,
    delimiter: str = "\t",
) -> Iterator[tuple[str, dict[str, str]]]:
    """(``file:line``, column → text) of a table.

    Args:
        columns: the names of all columns in the file's order; with a header, the columns that it
            must name, in any order and among others.
        header: the first line names the columns.
        quoted: texts may be in quotes as csv writes them; else a tab or a newline always ends a
            column or a line.

    Raises:
        ValueError: a column is missing, or a line has more or fewer than the others (a tab within
            a text).
    """
    plain = ((where, line.split(delimiter)) for where, line in numbered_lines(file))
    records = quoted_rows(file, delimiter) if quoted else plain
    names = list(columns)
    if header:
        where, names = next(records, (f"{file}:1", []))
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


def quoted_rows(file: Path, delimiter: str = "\t") -> Iterator[tuple[str, list[str]]]:
    """(``file:line`` of its first line, fields) of each record, with texts in quotes as in csv.

    Raises:
        ValueError: quotes are not as csv writes them; names ``file:line``.
    """
    places: list[str] = []  # of the lines of the record that is being read

    def lines() -> Iterator[str]:
        for where, line in numbered_lines(file):
            places.append(where)
            yield line + "\n"

    records = csv.reader(lines(), delimiter=delimiter, strict=True)
    while True:
        places.clear()
        try:
            record = next(records, None)
        except csv.Error as error:
            raise ValueError(
                f"{places[0]}: expected texts in quotes, quotes within them doubled, as csv "
                f"writes them: {error}"
            ) from None
        if record is None:
            return
        yield places[0], record


def string(where: str, key: str, record: dict, default: str | None = None) -> str:
    """The text of a row under a key, or under the first of several that it has ("body|contents").

    Args:
        default: instead of a value that is missing or null; None = that is an error.

    Raises:
        ValueError: the key is missing, or its value is not a text.
    """
    value = next((record[name] for name in key.split("|") if name in record), None)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        key = key.replace("|", '" or "')
        raise ValueError(f'{where}: expected a string "{key}", got {json.dumps(value)[:60]}')
    return value


def word(where: str, key: str, record: dict) -> str:
    """The id of a row under a key as in `string`: a string or an integer, else ValueError."""
    value = next((record[name] for name in key.split("|") if name in record), None)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return string(where, key, record)


def integer(where: str, name: str, text: str) -> int:
    """A column as an integer.

    Raises:
        ValueError: not an integer, or more than nine digits; names ``file:line`` and the column.
    """
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"{where}: expected an integer {name}, got {text[:60]!r}")
    return int(text)
