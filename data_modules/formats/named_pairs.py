"""Files that name documents for queries: TREC runs, and triples with or without scores."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from data_modules.formats.lines import numbered_lines

RUN = ("query", "Q0", "document", "rank", "score", "tag")
TRIPLE = ("query", "positive", "negative")
SCORED_TRIPLE = ("positive_score", "negative_score", *TRIPLE)


class NamedPair(NamedTuple):
    """A document that a line names for a query.

    Attributes:
        query, document: ids.
        score: the document's; NaN where the file gives none.
        positive: whether the file says that the document answers the query.
    """

    query: str
    document: str
    score: float = math.nan
    positive: bool = False


def read_pairs(file: Path, *forms: tuple[str, ...]) -> Iterator[NamedPair]:
    """The pairs that a file names: one a line of a TREC run, two a line of triples.

    Columns are separated by tabs or blanks; triples need no scores.

    Args:
        forms: `RUN`, `TRIPLE`, `SCORED_TRIPLE`: what the file may hold. The number of columns of
            its first line says which it is.

    Raises:
        ValueError: a line breaks the format; names ``file:line`` and what was expected.
    """
    for where, line in _lines(file, forms):
        if "document" in line:
            yield NamedPair(line["query"], line["document"], _number(where, line, "score"))
            continue
        for kind in ("positive", "negative"):
            key = f"{kind}_score"
            score = _number(where, line, key) if key in line else math.nan
            yield NamedPair(line["query"], line[kind], score, kind == "positive")


def _lines(file: Path, forms: tuple[tuple[str, ...], ...]) -> Iterator[tuple[str, dict[str, str]]]:
    """(``file:line``, columns by name) of every line."""
    where = None
    for where, line in numbered_lines(file):
        columns = line.split()
        if len(columns) not in map(len, forms):
            raise ValueError(f"{where}: expected {_shown(forms)}, got {line[:80]!r}")
        forms = tuple(form for form in forms if len(form) == len(columns))
        yield where, dict(zip(forms[0], columns, strict=True))
    if where is None:
        raise ValueError(f"{file}: the file is empty; expected lines of {_shown(forms)}")


def _shown(forms: tuple[tuple[str, ...], ...]) -> str:
    return " or ".join(repr(" ".join(form)) for form in forms)


def _number(where: str, line: dict[str, str], column: str) -> float:
    try:
        value = float(line[column])
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{where}: expected a number as {column}, got {line[column]!r}")
    return value
