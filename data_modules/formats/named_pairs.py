"""Files that name documents for queries by their ids, in lines of columns or as JSON."""

import math
from collections.abc import Iterator
from pathlib import Path

from data_modules.formats.json_array import begins_with
from data_modules.formats.layout import Ranked
from data_modules.formats.lines import numbered_lines
from data_modules.formats.named_json import NamedPair, json_pairs

RUN = ("query", "Q0", "document", "rank", "score", "tag")
RANKING = ("query", "document", "rank")  # MS MARCO's own runs
TRIPLE = ("query", "positive", "negative")  # more negatives may follow (Wu)
SCORED_TRIPLE = ("positive_score", "negative_score", *TRIPLE)
_LONG_TRIPLE = (*TRIPLE, "…")
LIST = ("query", "negative,negative,…")  # RocketQA's data as OpenMatch and RetroMAE lay it out


def read_pairs(file: Path, *forms: tuple[str, ...]) -> Iterator[NamedPair]:
    """The pairs that a file names, in its order.

    A file that begins with a bracket or brace is JSON, see `json_pairs`. Any other holds columns
    separated by tabs or blanks; triples need no scores.

    Args:
        forms: `RUN`, `RANKING`, `TRIPLE`, `SCORED_TRIPLE`, `LIST`: what the columns may be. The
            first line says which it is, by their number. Five columns may be a scored triple or a
            triple with further negatives: the former if two numbers come first, and not all
            five are whole numbers.

    Raises:
        ValueError: a line breaks the format; names ``file:line`` and what was expected.
    """
    return (pair for _, pair in located_pairs(file, *forms))


def read_negatives(file: Path, *forms: tuple[str, ...]) -> Iterator[Ranked]:
    """What `read_pairs` reads and the file does not call positive, for a layout.

    Without scores the documents of a query are scored by their places, best first.
    """
    query, place = None, 0
    for where, pair in located_pairs(file, *forms):
        if not pair.positive:
            place = place - 1 if pair.query == query else 0
            query = pair.query
            score = float(place) if math.isnan(pair.score) else pair.score
            yield Ranked(where, pair.query, pair.document, score)


def located_pairs(file: Path, *forms: tuple[str, ...]) -> Iterator[tuple[str, NamedPair]]:
    """(``file:line``, pair) of `read_pairs`."""
    if begins_with(file, "[{"):
        yield from json_pairs(file)
        return
    for where, form, columns in _lines(file, forms):
        for pair in _pairs(where, form, columns):
            yield where, pair


def _lines(
    file: Path, forms: tuple[tuple[str, ...], ...]
) -> Iterator[tuple[str, tuple[str, ...], list[str]]]:
    """(``file:line``, its form, columns) of every line."""
    where = None
    if TRIPLE in forms:  # only the first line may be a long one where plain ones are expected
        forms = (*forms, _LONG_TRIPLE)
    for where, line in numbered_lines(file):
        columns = line.split()
        if form := _form(columns, forms):
            forms = (form,)
            yield where, form, columns
        else:
            raise ValueError(f"{where}: expected {_shown(forms)}, got {line[:80]!r}")
    if where is None:
        raise ValueError(f"{file}: the file is empty; expected lines of {_shown(forms)}")


def _form(columns: list[str], forms: tuple[tuple[str, ...], ...]) -> tuple[str, ...] | None:
    """The form that a line has."""
    number = len(columns)
    if SCORED_TRIPLE in forms and number == len(SCORED_TRIPLE):
        long = _LONG_TRIPLE in forms and not _are_scored(columns)
        return _LONG_TRIPLE if long else SCORED_TRIPLE
    plain = (form for form in forms if form != _LONG_TRIPLE)
    if found := next((form for form in plain if len(form) == number), None):
        return found
    return _LONG_TRIPLE if _LONG_TRIPLE in forms and number >= len(TRIPLE) else None


def _are_scored(columns: list[str]) -> bool:
    """Whether five columns begin with two scores rather than with two ids."""
    numbers = [text for text in columns if _is_number(text)]
    begins = all(map(_is_number, columns[:2]))
    return begins and ("." in "".join(columns[:2]) or len(numbers) < len(columns))


def _pairs(where: str, form: tuple[str, ...], columns: list[str]) -> Iterator[NamedPair]:
    if form == RUN:
        yield NamedPair(columns[0], columns[2], _number(where, "score", columns[4]))
    elif form == RANKING:
        yield NamedPair(columns[0], columns[1], -_number(where, "rank", columns[2]))
    elif form == LIST:
        for document in filter(None, columns[1].split(",")):
            yield NamedPair(columns[0], document)
    else:
        scores = [math.nan] * len(columns)
        if form == SCORED_TRIPLE:
            names = SCORED_TRIPLE[:2]
            scores = [_number(where, *pair) for pair in zip(names, columns[:2], strict=True)]
            columns = columns[2:]
        query, *documents = columns
        for place, document in enumerate(documents):
            yield NamedPair(query, document, scores[place], positive=place == 0)


def _shown(forms: tuple[tuple[str, ...], ...]) -> str:
    return " or ".join(repr(" ".join(form)) for form in forms)


def _number(where: str, column: str, text: str) -> float:
    if not _is_number(text):
        raise ValueError(f"{where}: expected a number as {column}, got {text!r}")
    return float(text)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
