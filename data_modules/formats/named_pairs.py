"""Files that accompany a collection: runs, triples, hard negatives, candidates, queries."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_modules.formats.dpr import NEGATIVE_KINDS, POSITIVE, context_id, items
from data_modules.formats.layout import NamedPair
from data_modules.formats.readers import (
    begins_with,
    first_line,
    json_lines,
    json_value,
    numbered_lines,
    string,
    word,
)
from data_modules.formats.rows import genret_queries, glen_queries
from gr_mvdr.texts import check_characters

RUN = ("query", "Q0", "document", "rank", "score", "tag")
RANKING = ("query", "document", "rank")  # MS MARCO's official runs
TRIPLE = ("query", "positive", "negative")  # more negatives may follow (Wu)
SCORED_TRIPLE = ("positive_score", "negative_score", *TRIPLE)
_LONG_TRIPLE = (*TRIPLE, "…")
LIST = ("query", "negative,negative,…")  # RocketQA's data in the layout of OpenMatch and RetroMAE
_JSON = (
    '{"query": ["document", …], …}, or lines {"qid": …, "pos": […], "neg": […]}, '
    'or [{"question": …, "positive_ctxs": […]}, …]'
)


def read_pairs(file: Path, *forms: tuple[str, ...]) -> Iterator[NamedPair]:
    """Yields the pairs that a file names, in the file's order.

    A file that begins with a bracket or brace is JSON. Other files hold columns separated by tabs
    or blanks.

    Args:
        forms: the allowed forms of the columns: `RUN`, `RANKING`, `TRIPLE`, `SCORED_TRIPLE`,
            `LIST`. The number of columns in the first line determines the form. Five columns may be
            a scored triple or a triple with further negatives: they are a scored triple if the
            first two are numbers and not all five are whole numbers.

    Raises:
        ValueError: a line breaks the format; names ``file:line`` and what was expected.
    """
    if begins_with(file, "[{"):
        yield from _json_pairs(file)
        return
    if TRIPLE in forms:  # a first line of three columns rules out longer ones
        forms = (*forms, _LONG_TRIPLE)
    where = None
    for where, line in numbered_lines(file):
        columns = line.split()
        form = _form(columns, forms)
        if form is None:
            raise ValueError(f"{where}: expected {_shown(forms)}, got {line[:80]!r}")
        forms = (form,)
        yield from _pairs(where, form, columns)
    if where is None:
        raise ValueError(f"{file}: the file is empty; expected lines of {_shown(forms)}")


def read_negatives(file: Path, *forms: tuple[str, ...]) -> Iterator[NamedPair]:
    """Yields the pairs of `read_pairs` that the file does not call positive, for a layout.

    If the file has no scores, a document's score is minus its place in the query's list.
    """
    query, place = None, 0
    for pair in read_pairs(file, *forms):
        if not pair.positive:
            place = place - 1 if pair.query_id == query else 0
            query = pair.query_id
            yield pair._replace(score=float(place)) if math.isnan(pair.score) else pair


def _form(columns: list[str], forms: tuple[tuple[str, ...], ...]) -> tuple[str, ...] | None:
    """The form of a line; None if no form fits."""
    number, long = len(columns), _LONG_TRIPLE in forms
    fitting = [form for form in forms if len(form) == number and form != _LONG_TRIPLE]
    if SCORED_TRIPLE in fitting and long and not _are_scored(columns):
        return _LONG_TRIPLE
    return fitting[0] if fitting else _LONG_TRIPLE if long and number >= len(TRIPLE) else None


def _are_scored(columns: list[str]) -> bool:
    """Whether five columns begin with two scores rather than with two ids."""
    whole = all(_is_number(text) for text in columns) and "." not in "".join(columns[:2])
    return all(map(_is_number, columns[:2])) and not whole


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
            scores = [_number(where, form[n], columns[n]) for n in range(2)]
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
    """Yields the pairs of a JSON file: DPR's array, query → list, or lines of mined negatives."""
    if begins_with(file, "["):
        for where, query, record in items(file):
            for kind in (POSITIVE, *NEGATIVE_KINDS):
                for context in record[kind]:
                    positive = kind == POSITIVE
                    yield NamedPair(where, query, context_id(where, context), positive=positive)
        return
    try:
        mined = "qid" in json.loads(first_line(file))
    except (ValueError, RecursionError):  # a single value that spans several lines
        mined = False
    if mined:
        for where, record in json_lines(file):
            negatives = record.get("neg")
            systems = negatives.values() if isinstance(negatives, dict) else [negatives]
            for place, documents in enumerate([record.get("pos"), *systems]):
                query = word(where, "qid", record)
                yield from _listed(where, query, documents, positive=place == 0)
        return
    for query, documents in json_value(file).items():
        yield from _listed(f"{file}: {json.dumps(query)}", query, documents)


def _listed(where: str, query: str, documents: Any, positive: bool = False) -> Iterator[NamedPair]:
    """Yields the pairs of a query's JSON list of documents: ids, or ``{"pid", "ce-score"}``."""
    if not isinstance(documents, list):
        raise ValueError(f"{where}: expected {_JSON}, got {json.dumps(documents)[:60]}")
    for document in documents:
        row = document if isinstance(document, dict) else {"pid": document}
        score = row.get("ce-score", math.nan)
        if not isinstance(score, int | float):
            raise ValueError(f'{where}: expected a number "ce-score", got {json.dumps(score)[:60]}')
        yield NamedPair(where, query, word(where, "pid", row), float(score), positive)


FORM = '{"document_id": "…", "queries": ["…", …]}'
_NUMBER = re.compile(r"\d+")
_MARCO = re.compile(r"^d(?=\d+$)")  # Ultron writes MS MARCO's ids in lower case: d12 for D12
_BRACKETS = re.compile(r"\[([^\[\]\"\s]+)\]")


def read_generated(file: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Yields (``file:line``, document id, queries) for each document, ordered by its first line.

    Reads our own lines (`FORM`), DSI-QG's lines ``{"text_id", "text"}``, and the files of GenRet,
    GLEN, Ultron and NCI.

    Raises:
        ValueError: a line breaks the format; names ``file:line``.
    """
    places: dict[str, str] = {}
    found: dict[str, list[str]] = {}
    for where, document, queries in _generated_lines(file):
        check_characters(where, f"document {document!r} or a query of it", document, *queries)
        places.setdefault(document, where)
        found.setdefault(document, []).extend(queries)
    return ((places[document], document, queries) for document, queries in found.items())


def _generated_lines(file: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Yields (``file:line``, document id, queries on that line) for each line."""
    first = first_line(file)
    asked = None
    if begins_with(file, "{"):
        for where, record in json_lines(file):
            if "text_id" in record:
                yield where, word(where, "text_id", record), [string(where, "text", record)]
                continue
            identifier, queries = record.get("document_id"), record.get("queries")
            texts = isinstance(queries, list) and all(isinstance(query, str) for query in queries)
            if not isinstance(identifier, str) or not texts:
                raise ValueError(f"{where}: expected {FORM}, got {json.dumps(record)[:60]!r}")
            yield where, identifier, queries
    elif begins_with(file, "[") and not _BRACKETS.fullmatch(first.split("\t")[0].strip()):
        asked = genret_queries(file, "train")
    elif "oldid" in first.split("\t"):
        asked = glen_queries(file, "train")
    else:
        for where, line in numbered_lines(file):
            columns = line.split("\t")
            named = _BRACKETS.fullmatch(columns[0].strip())
            if named and len(columns) == 2:  # Ultron's
                document = _MARCO.sub(lambda found: found[0].upper(), named[1])
                yield where, document, [columns[1]]
            elif len(columns) >= 3 and _NUMBER.fullmatch(columns[2]):  # NCI's
                yield where, columns[2], [columns[0]]
            else:
                raise ValueError(
                    f"{where}: expected {FORM}, or the columns '[document] query' or 'query "
                    f"queryid oldid …', got {line[:60]!r}"
                )
    for where, _, text, names in asked or ():
        yield from ((where, document, [text]) for document in names)
