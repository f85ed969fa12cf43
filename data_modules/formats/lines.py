"""What is in text files: numbered lines, JSON objects, values and arrays, and their fields."""

import json
import re
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from data_modules.formats.files import PAGE, is_page, opened

_INTEGER = re.compile(r" *[+-]?[0-9]{1,9} *")  # grades are stored in 64 bits
_PIECE = 1 << 20  # characters of an array read at a time, more for longer items
_TAIL = 32  # an error this near to the end of what was read may be due to the cut
_BLANKS = re.compile(r"[ \t\r\n]*")


def numbered_lines(file: Path) -> Iterator[tuple[str, str]]:
    """(``file:line``, text) of the lines that are not blank; split at newlines only.

    Raises:
        ValueError: a line is not UTF-8, the file is a web page, or its archive is damaged.
    """
    with opened(file) as lines:
        for number, line in enumerate(lines, start=1):
            where = f"{file}:{number}"
            if number == 1 and is_page(line[:1024]):
                raise ValueError(f"{where}: an HTML page, not the download: {line[:60]!r}")
            text = _decoded(where, line, first=number == 1).rstrip("\r\n")
            if text.strip():
                yield where, text


def first_line(file: Path) -> tuple[str, str]:
    """The first of `numbered_lines`; its text is empty where the file is."""
    return next(numbered_lines(file), (f"{file}:1", ""))


def _decoded(where: str, content: bytes, first: bool) -> str:
    if first and content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ValueError(f"{where}: expected UTF-8, this begins like UTF-16")
    try:
        return content.decode("utf-8-sig" if first else "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: expected UTF-8: {error.reason}") from None


def json_lines(*files: Path) -> Iterator[tuple[str, dict]]:
    """(``file:line``, object) of files of JSON lines; ValueError names a line that is none."""
    for where, line in (line for file in files for line in numbered_lines(file)):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:  # also numbers and nests beyond any sense
            reason = f"but {getattr(error, 'msg', error)}: {line[:60]!r}"
            raise ValueError(f"{where}: expected a JSON object, {reason}") from None
        if not isinstance(record, dict):
            raise ValueError(f"{where}: expected a JSON object, got {line[:60]!r}")
        yield where, record


def json_value(file: Path) -> Any:
    """The one JSON value that a file is; ValueError names ``file:line`` where it is none."""
    with opened(file) as content:
        text = _decoded(str(file), content.read(), first=True)
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
        ValueError: the file is no JSON array, or no UTF-8; names ``file:line``.
    """
    with opened(file) as content:
        text = TextIOWrapper(content, encoding="utf-8-sig")
        try:
            yield from _Array(file, text).items()
        except UnicodeDecodeError as error:
            raise ValueError(f"{file}: expected UTF-8: {error.reason}") from None
        finally:
            text.detach()


class _Array:
    """A place in the text of an array, of which a piece is in memory."""

    def __init__(self, file: Path, text: TextIOWrapper):
        self.file, self.text = file, text
        self.piece, self.place, self.ended = "", 0, False
        self.line, self.counted = 1, 0  # the line of the place `counted`

    def items(self) -> Iterator[tuple[str, Any]]:
        if self._next() != "[":
            page = PAGE if is_page(self.piece[:999].encode()) else ""
            raise self._error(f"a JSON array, got {self.piece[:60]!r}{page}")
        self.place += 1
        number, sign = 0, "]" if self._next() == "]" else ","
        while sign != "]":
            self._next()
            where = f"{self.file}:{self._line()}, item {number}"
            yield where, self._value()
            sign = self._next()
            if sign not in (",", "]"):
                raise self._error(f"',' or ']' after item {number}, got {sign!r}")
            self.place, number = self.place + 1, number + 1
        self.place += number == 0
        if rest := self._next():
            raise self._error(f"nothing after the array, got {rest!r}")

    def _next(self) -> str:
        """The next character that is no blank; "" at the end."""
        self.place = _BLANKS.match(self.piece, self.place).end()
        while self.place == len(self.piece) and self._read():
            self.place = _BLANKS.match(self.piece).end()
        return self.piece[self.place : self.place + 1]

    def _read(self) -> bool:
        """Forgets what was passed and reads on: as much as is held already, or a piece."""
        self._line()
        rest = self.piece[self.place :]
        more = self.text.read(max(_PIECE, len(rest)))
        self.piece, self.place, self.counted, self.ended = rest + more, 0, 0, not more
        return bool(more)

    def _value(self) -> Any:
        while True:
            try:
                value, end = json.JSONDecoder().raw_decode(self.piece, self.place)
                if end < len(self.piece) or self.ended:  # a number at the end may go on
                    self.place = end
                    return value
            except (ValueError, RecursionError) as error:  # also numbers and nests beyond any sense
                place = getattr(error, "pos", self.place)
                reason = str(getattr(error, "msg", error))
                cut = place > len(self.piece) - _TAIL or reason.startswith("Unterminated")
                if self.ended or not cut:
                    self.place = place
                    raise self._error(f"JSON, but {reason}") from None
            self._read()

    def _line(self) -> int:
        """The line of the place."""
        self.line += self.piece.count("\n", self.counted, self.place)
        self.counted = self.place
        return self.line

    def _error(self, expected: str) -> ValueError:
        return ValueError(f"{self.file}:{self._line()}: expected {expected}")


def string(where: str, key: str, record: dict, default: str | None = None) -> str:
    """The text under a key of a JSON object.

    Args:
        default: instead of a value that is missing or null; None = that is an error, too.

    Raises:
        ValueError: there is none, or it is no text.
    """
    value = record.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise ValueError(f'{where}: expected a string "{key}", got {json.dumps(value)[:60]}')
    return value


def word(where: str, key: str, record: dict) -> str:
    """The id under a key of a JSON object: a string or an integer, else ValueError."""
    value = record.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return string(where, key, record)


def integer(where: str, name: str, text: str) -> int:
    """A column as an integer.

    Raises:
        ValueError: it is none, or has more than nine digits; names ``file:line`` and the column.
    """
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"{where}: expected an integer {name}, got {text[:60]!r}")
    return int(text)
