"""Files next to a collection: runs, triples, hard negatives, candidates; generated queries."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from data_modules.formats import genret, glen
from data_modules.formats.dpr import NEGATIVE_KINDS, POSITIVE, context_id, items
from data_modules.formats.files import begins_with
from data_modules.formats.layout import Asked, Ranked
from data_modules.formats.lines import (
    first_line,
    json_lines,
    json_value,
    numbered_lines,
    string,
    word,
)
from gr_mvdr.texts import check_characters

RUN = ("query", "Q0", "document", "rank", "score", "tag")
RANKING = ("query", "document", "rank")  # MS MARCO's own runs
TRIPLE = ("query", "positive", "negative")  # more negatives may follow (Wu)
SCORED_TRIPLE = ("positive_score", "negative_score", *TRIPLE)
_LONG_TRIPLE = (*TRIPLE, "…")
LIST = ("query", "negative,negative,…")  # RocketQA's data as OpenMatch and RetroMAE lay it out
_JSON = (
    '{"query": ["document", …], …}, or lines {"qid": …, "pos": […], "neg": […]}, '
    'or [{"question": …, "positive_ctxs": […]}, …]'
)


class NamedPair(NamedTuple):
    """A document that a file names for a query.

    Attributes:
        where: ``file:line``.
        query, document: ids.
        score: the document's; NaN where the file gives none.
        positive: whether the file says that the document is relevant.
    """

    where: str
    query: str
    document: str
    score: float = math.nan
    positive: bool = False


def read_pairs(file: Path, *forms: tuple[str, ...]) -> Iterator[NamedPair]:
    """The pairs that a file names, in its order.

    A file that begins with a bracket or brace is JSON. Any other holds columns separated by tabs or
    blanks; triples need no scores.

    Args:
        forms: `RUN`, `RANKING`, `TRIPLE`, `SCORED_TRIPLE`, `LIST`: what the columns may be. The
            first line says which it is, by their number. Five columns may be a scored triple or a
            triple with further negatives: the former if two numbers come first, and not all
            five are whole numbers.

    Raises:
        ValueError: a line breaks the format; names ``file:line`` and what was expected.
    """
    if begins_with(file, "[{"):
        yield from _json_pairs(file)
        return
    where = None
    if TRIPLE in forms:  # only the first line may be a long one where plain ones are expected
        forms = (*forms, _LONG_TRIPLE)
    for where, line in numbered_lines(file):
        columns = line.split()
        form = _form(columns, forms)
        if form is None:
            raise ValueError(f"{where}: expected {_shown(forms)}, got {line[:80]!r}")
        forms = (form,)
        yield from _pairs(where, form, columns)
    if where is None:
        raise ValueError(f"{file}: the file is empty; expected lines of {_shown(forms)}")


def read_negatives(file: Path, *forms: tuple[str, ...]) -> Iterator[Ranked]:
    """What `read_pairs` reads and the file does not call positive, for a layout.

    Without scores the documents of a query are scored by their places, best first.
    """
    query, place = None, 0
    for pair in read_pairs(file, *forms):
        if not pair.positive:
            place = place - 1 if pair.query == query else 0
            query = pair.query
            score = float(place) if math.isnan(pair.score) else pair.score
            yield Ranked(pair.where, pair.query, pair.document, score)


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
        yield NamedPair(where, columns[0], columns[2], _number(where, "score", columns[4]))
    elif form == RANKING:
        yield NamedPair(where, columns[0], columns[1], -_number(where, "rank", columns[2]))
    elif form == LIST:
        for document in filter(None, columns[1].split(",")):
            yield NamedPair(where, columns[0], document)
    else:
        scores = [math.nan] * len(columns)
        if form == SCORED_TRIPLE:
            names = SCORED_TRIPLE[:2]
            scores = [_number(where, *pair) for pair in zip(names, columns[:2], strict=True)]
            columns = columns[2:]
        query, *documents = columns
        for place, document in enumerate(documents):
            yield NamedPair(where, query, document, scores[place], positive=place == 0)


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


def _json_pairs(file: Path) -> Iterator[NamedPair]:
    """The same of a JSON file."""
    if begins_with(file, "["):
        return _contexts(file)
    try:
        mined = "qid" in json.loads(first_line(file)[1])
    except json.JSONDecodeError:  # one value that goes on in the next lines
        mined = False
    return _mined(file) if mined else _lists(file)


def _contexts(file: Path) -> Iterator[NamedPair]:
    for where, query, record in items(file):
        for kind in (POSITIVE, *NEGATIVE_KINDS):
            for context in record.get(kind, ()):
                yield NamedPair(where, query, context_id(where, context), positive=kind == POSITIVE)


def _lists(file: Path) -> Iterator[NamedPair]:
    lists = json_value(file)
    if not isinstance(lists, dict):
        raise ValueError(f"{file}: expected {_JSON}")
    for query, documents in lists.items():
        where = f"{file}: {json.dumps(query)}"
        if not isinstance(documents, list):
            raise ValueError(f"{where}: expected {_JSON}, got {json.dumps(documents)[:60]}")
        for document in documents:
            yield NamedPair(where, query, *_scored(where, document))


def _mined(file: Path) -> Iterator[NamedPair]:
    for where, record in json_lines(file):
        query, found = word(where, "qid", record), record.get("neg")
        systems = found.values() if isinstance(found, dict) else [found]
        for place, documents in enumerate([record.get("pos"), *systems]):
            if not isinstance(documents, list):
                raise ValueError(
                    f'{where}: expected lists "pos" and "neg" of ids or of {{"pid", "ce-score"}}, '
                    f"got {json.dumps(documents)[:60]}"
                )
            for document in documents:
                yield NamedPair(where, query, *_scored(where, document), positive=place == 0)


def _scored(where: str, document: Any) -> tuple[str, float]:
    """The id and the score of a document in JSON: an id, or ``{"pid", "ce-score"}``."""
    if isinstance(document, dict) and "pid" in document:
        score = document.get("ce-score", math.nan)
        if not isinstance(score, int | float):
            raise ValueError(f'{where}: expected a number "ce-score", got {json.dumps(score)[:60]}')
        return word(where, "pid", document), float(score)
    if isinstance(document, bool) or not isinstance(document, str | int):
        raise ValueError(f"{where}: expected a document's id, got {json.dumps(document)[:60]}")
    return str(document), math.nan


FORM = '{"document_id": "…", "queries": ["…", …]}'
_NUMBER = re.compile(r"\d+")
_MARCO = re.compile(r"^d(?=\d+$)")  # ids of MS MARCO's documents, which Ultron writes small
_BRACKETS = re.compile(r"\[([^\[\]\"\s]+)\]")


def read_generated(file: Path) -> Iterator[tuple[str, str, list[str]]]:
    """(``file:line``, document's id, its queries) of each document, in the order of the first line.

    Raises:
        ValueError: a line breaks the format, or, in our own, names a document once more; names
            ``file:line``.
    """
    _, first = first_line(file)
    if begins_with(file, "{") and '"text_id"' not in first:
        found = _own(file)
    elif begins_with(file, "[") and not _BRACKETS.fullmatch(first.split("\t")[0].strip()):
        found = _grouped(_flat(genret.read_asked(file, "train")))
    elif begins_with(file, "{"):
        lines = json_lines(file)
        found = _grouped((w, word(w, "text_id", r), string(w, "text", r)) for w, r in lines)
    elif "oldid" in first.split("\t"):
        found = _grouped(_flat(glen.read_asked(file, "train")))
    else:
        found = _grouped(_columns(file))
    for where, document, queries in found:
        check_characters(where, f"document {document!r} or a query of it", document, *queries)
        yield where, document, queries


def _grouped(lines: Iterator[tuple[str, str, str]]) -> Iterator[tuple[str, str, list[str]]]:
    """The queries of each document together."""
    places: dict[str, str] = {}
    queries: dict[str, list[str]] = {}
    for where, document, query in lines:
        places.setdefault(document, where)
        queries.setdefault(document, []).append(query)
    for document, found in queries.items():
        yield places[document], document, found


def _own(file: Path) -> Iterator[tuple[str, str, list[str]]]:
    places: dict[str, str] = {}
    for where, record in json_lines(file):
        identifier, queries = record.get("document_id"), record.get("queries")
        texts = isinstance(queries, list) and all(isinstance(query, str) for query in queries)
        if not isinstance(identifier, str) or not texts:
            raise ValueError(f"{where}: expected {FORM}, got {json.dumps(record)[:60]!r}")
        if identifier in places:
            raise ValueError(f"{where}: document {identifier!r} is already at {places[identifier]}")
        places[identifier] = where
        yield where, identifier, queries


def _flat(found: Iterator[Asked]) -> Iterator[tuple[str, str, str]]:
    return ((where, document, text) for where, _, text, names in found for document in names)


def _columns(file: Path) -> Iterator[tuple[str, str, str]]:
    """Of Ultron's and of NCI's tables."""
    for where, line in numbered_lines(file):
        columns = line.split("\t")
        named = _BRACKETS.fullmatch(columns[0].strip())
        if named and len(columns) == 2:
            yield where, _MARCO.sub(lambda found: found[0].upper(), named[1]), columns[1]
        elif len(columns) >= 3 and _NUMBER.fullmatch(columns[2]):
            yield where, columns[2], columns[0]
        else:
            raise ValueError(
                f"{where}: expected {FORM}, or the columns '[document] query' or 'query queryid "
                f"oldid …', got {line[:60]!r}"
            )
