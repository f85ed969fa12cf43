"""The items of a file that is one JSON array, without the whole array in memory."""

import json
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from data_modules.formats.lines import is_page, opened

_PIECE = 1 << 20  # characters read at a time, more for longer items
_TAIL = 32  # an error this near to the end of what was read may be due to the cut
_DECODER = json.JSONDecoder()
_BLANK = " \t\r\n"


def array_items(file: Path) -> Iterator[tuple[str, Any]]:
    """(``file:line, item number``, value) of each item; the first item is number 0.

    Raises:
        ValueError: the file is no JSON array, or no UTF-8; names ``file:line``.
    """
    with opened(file) as content:
        text = TextIOWrapper(content, encoding="utf-8-sig")
        try:
            yield from _Cursor(file, text).items()
        except UnicodeDecodeError as error:
            raise ValueError(f"{file}: expected UTF-8: {error.reason}") from None
        finally:
            text.detach()


def begins_with(file: Path, characters: str) -> bool:
    """Whether the first character that is no blank is one of these."""
    with opened(file) as content:
        start = content.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip()
    return start[:1].decode("ascii", "replace") in tuple(characters)


class _Cursor:
    """A place in a text of which a piece is in memory."""

    def __init__(self, file: Path, text: TextIOWrapper):
        self.file, self.text = file, text
        self.piece, self.place, self.ended = "", 0, False
        self.line, self.counted = 1, 0  # the line of the place `counted`

    def items(self) -> Iterator[tuple[str, Any]]:
        if self._next() != "[":
            page = ": an HTML page, not the download" if is_page(self.piece[:999].encode()) else ""
            raise self._error(f"a JSON array, got {self.piece[:60]!r}{page}")
        self.place += 1
        number, mark = 0, "]" if self._next() == "]" else ","
        while mark != "]":
            self._next()
            where = f"{self.file}:{self._line(self.place)}, item {number}"
            yield where, self._value()
            mark = self._next()
            if mark not in (",", "]"):
                raise self._error(f"',' or ']' after item {number}, got {mark!r}")
            self.place, number = self.place + 1, number + 1
        self.place += number == 0
        if rest := self._next():
            raise self._error(f"nothing after the array, got {rest!r}")

    def _next(self) -> str:
        """The next character that is no blank; "" at the end."""
        while True:
            while self.place < len(self.piece):
                if self.piece[self.place] not in _BLANK:
                    return self.piece[self.place]
                self.place += 1
            if not self._read():
                return ""

    def _read(self) -> bool:
        """Forgets what was passed and reads on: as much as is held already, or a piece."""
        self._line(self.place)
        rest = self.piece[self.place :]
        more = self.text.read(max(_PIECE, len(rest)))
        self.piece, self.place, self.counted, self.ended = rest + more, 0, 0, not more
        return bool(more)

    def _value(self) -> Any:
        while True:
            try:
                value, end = _DECODER.raw_decode(self.piece, self.place)
                if end < len(self.piece) or self.ended:  # a number at the end may go on
                    self.place = end
                    return value
            except json.JSONDecodeError as error:
                cut = error.pos > len(self.piece) - _TAIL or error.msg.startswith("Unterminated")
                if self.ended or not cut:
                    self.place = error.pos
                    raise self._error(f"JSON, but {error.msg}") from None
            except (ValueError, RecursionError) as error:  # numbers and nests beyond any sense
                raise self._error(f"JSON, but {error}") from None
            self._read()

    def _line(self, place: int) -> int:
        self.line += self.piece.count("\n", self.counted, place)
        self.counted = place
        return self.line

    def _error(self, expected: str) -> ValueError:
        return ValueError(f"{self.file}:{self._line(self.place)}: expected {expected}")
