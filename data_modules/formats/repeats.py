"""Rows that a download holds twice, word for word."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from data_modules.formats.layout import Document, Judgement

_Row = TypeVar("_Row", Document, Judgement)


def without_repeats(rows: Iterable[_Row], what: str) -> Iterator[_Row]:
    """Each row once; says how many are left out. A hash of each is remembered.

    Rows of one id that differ are left to the store, which refuses them.

    Args:
        rows: begin with the place where they stand.
        what: they are, for the message.
    """
    seen: set[int] = set()
    repeated, first = 0, ""
    for row in rows:
        key = hash(row[1:])
        if key in seen:
            repeated, first = repeated + 1, first or row.where
        else:
            seen.add(key)
            yield row
    if repeated:
        print(
            f"{first}: {repeated:,} {what}, from this line on, stand there already, word for word, "
            "and are left out"
        )
