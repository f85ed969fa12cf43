"""Files that accompany a collection: runs, triples, negatives, teachers' scores, queries."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_modules.formats.dpr import POSITIVE, context_id, contexts
from data_modules.formats.layout import NamedPair
from data_modules.formats.readers import (
    begins_with,
    first_line,
    json_lines,
    json_value,
    numbered_lines,
    string,
    table_rows,
    word,
)

_MINED = re.compile(r'\s*\{\s*"qid"')
_JSON = '{"query": ["document", …], …}, or lines {"qid": …, "pos": […], "neg": […]}'
_SCORED_TRIPLE = "'positive_score negative_score query positive negative'"
_RUN = f"'query Q0 document rank score tag', 'query document rank' or {_SCORED_TRIPLE}"
_TRIPLE = f"'query positive negative …' or {_SCORED_TRIPLE}"


def read_pairs(file: Path, triples: bool = False) -> Iterator[NamedPair]:
    """Yields the pairs that a file names, in the file's order.

    A file that begins with a bracket or brace is JSON: DPR's questions, Wu's candidates, or mined
    negatives. Other files hold columns separated by tabs or blanks.

    Args:
        triples: whether columns are `query positive negative …` rather than a TREC run or MS
            MARCO's `query document rank`. Both may be scored triples: five columns, of which the
            first two are scores rather than ids.

    Raises:
        ValueError: a line breaks the format; names ``file:line`` and what was expected.
    """
    if begins_with(file, "[{"):
        yield from _json_pairs(file)
        return
    where, form = None, _TRIPLE if triples else _RUN
    for where, line in numbered_lines(file):
        columns = line.split()
        match columns:
            case [query, _, document, _, score, _] if not triples:
                yield NamedPair(where, query, document, _number(where, "score", score))
            case [query, document, rank] if not triples:
                yield NamedPair(where, query, document, -_number(where, "rank", rank))
            case [score, other, query, positive, negative] if _are_scored(columns):
                yield NamedPair(where, query, positive, float(score), positive=True)
                yield NamedPair(where, query, negative, float(other))
            case [query, positive, _, *_] if triples:
                yield NamedPair(where, query, positive, positive=True)
                for negative in columns[2:]:
                    yield NamedPair(where, query, negative)
            case _:
                raise ValueError(f"{where}: expected {form}, got {line[:80]!r}")
    if where is None:
        raise ValueError(f"{file}: the file is empty; expected lines of {form}")


def read_negatives(file: Path, triples: bool = False) -> Iterator[NamedPair]:
    """Yields the pairs of `read_pairs` that the file does not call positive, for a layout.

    If the file has no scores, a document's score is minus its place in the query's list.
    """
    query, place = None, 0
    for pair in read_pairs(file, triples):
        if not pair.positive:
            place = place - 1 if pair.query_id == query else 0
            query = pair.query_id
            yield pair._replace(score=float(place)) if math.isnan(pair.score) else pair


def _are_scored(columns: list[str]) -> bool:
    """Whether five columns begin with two scores rather than with two ids."""
    whole = all(_is_number(text) for text in columns) and "." not in "".join(columns[:2])
    return all(map(_is_number, columns[:2])) and not whole


def _number(where: str, column: str, text: str) -> float:
    if not _is_number(text):
        raise ValueError(f"{where}: expected a number as {column}, got {text!r}")
    return float(text)


def _is_number(value: Any) -> bool:
    try:
        return math.isfinite(float(value))
    except (ValueError, TypeError, OverflowError):
        return False


def _json_pairs(file: Path) -> Iterator[NamedPair]:
    """Yields the pairs of a JSON file: DPR's array, query → list, or lines of mined negatives."""
    if begins_with(file, "["):
        for where, query, kind, context in contexts(file):
            name = context_id(where, context)
            yield NamedPair(where, query, name, positive=kind == POSITIVE)
        return
    if not _MINED.match(first_line(file)):
        for query, documents in json_value(file).items():
            yield from _listed(f"{file}: {json.dumps(query)}", query, documents)
        return
    for where, record in json_lines(file):
        query, negatives = word(where, "qid", record), record.get("neg")
        yield from _listed(where, query, record.get("pos"), positive=True)
        for documents in negatives.values() if isinstance(negatives, dict) else [negatives]:
            yield from _listed(where, query, documents)


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


# The columns of a teacher's lists. Sentence-transformers reads label columns by these names.
_SCORES = ("scores", "score", "labels", "label")
_QUERY = re.compile(r"(query|anchor|question)(_id)?")
_DOCUMENT = re.compile(r"(document|passage|positive|negative)(_id)?s?_?\d*")
_LIST_COLUMNS = (
    "query or query_id, documents or document_ids or document_1 … document_n, and scores"
)


class ScoredLists:
    """A teacher's lists: rows of a query, its documents and a score for each document.

    The files are one table, or the tables beneath a folder: Parquet, Arrow as ``save_to_disk``
    writes it, or JSON lines. The columns tell what a table holds:

    - lists: a query, a list of documents or a column for each (`document_1`, …, or `positive`,
      `negative_1`, …), and the list of scores (`scores` or `label`); rows may differ in length;
    - texts: `query_id` and `text`, or `document_id` and `text`, of the ids in the lists (PyLate).

    Attributes:
        files: all tables.
        lists: the tables of lists.
        texts: "query" and "document" → the tables of their texts.
    """

    def __init__(self, path: Path, files: list[Path]):
        self.files = files
        self.lists: list[Path] = []
        self.texts: dict[str, list[Path]] = {"query": [], "document": []}
        for file in files:
            columns = {*next(table_rows(file), ("", {}))[1]}
            if columns & {*_SCORES}:
                self.lists.append(file)
            for side, tables in self.texts.items():
                if {f"{side}_id", "text"} <= columns:
                    tables.append(file)
        if not self.lists:
            raise ValueError(f"{path}: expected a table with the columns {_LIST_COLUMNS}")

    @classmethod
    def find(cls, path: Path) -> "ScoredLists | None":
        """Returns the lists at a path; None if it is a file of another kind.

        Raises:
            ValueError: a folder without a table of lists.
        """
        if path.is_dir():
            # `map` of datasets leaves cache-*.arrow beside the data-*.arrow of `save_to_disk`.
            kinds = ("*.parquet", "data*.arrow", "*.jsonl", "*.jsonl.gz")
            return cls(path, sorted(file for kind in kinds for file in path.rglob(kind)))
        if path.suffix in (".parquet", ".arrow"):
            return cls(path, [path])
        try:
            row = next(json_lines(path))[1] if begins_with(path, "{") else {}
        except ValueError:  # a single value that spans several lines
            row = {}
        is_list = row.keys() & {*_SCORES} and any(map(_QUERY.fullmatch, row))
        return cls(path, [path]) if is_list else None

    def pairs(self) -> Iterator[NamedPair]:
        """Yields the pairs of all lists; the names in a pair are ids or texts.

        Raises:
            ValueError: a row lacks a column, does not have a score for each document, or a score
                is not a number.
        """
        for file in self.lists:
            for where, row in table_rows(file):
                yield from _scored_pairs(where, row)

    def named_texts(self, side: str) -> Iterator[tuple[str, str]]:
        """Yields (id, text) of the queries or documents; nothing if there is no table of them."""
        for file in self.texts[side]:
            for where, row in table_rows(file):
                yield word(where, f"{side}_id", row), string(where, "text", row)


def _scored_pairs(where: str, row: dict[str, Any]) -> Iterator[NamedPair]:
    query = next(filter(_QUERY.fullmatch, row), None)
    columns = [name for name in filter(_DOCUMENT.fullmatch, row) if row[name] is not None]
    scores = next((row[name] for name in _SCORES if name in row), None)
    if query is None or not columns or not isinstance(scores, list):
        rule = f"expected the columns {_LIST_COLUMNS}, a list"
        raise ValueError(f"{where}: {rule}, got {', '.join(row)}")
    named = [
        (name, {"document": document})
        for name in columns
        for document in (row[name] if isinstance(row[name], list) else [row[name]])
    ]
    if len(named) != len(scores):
        counts = f"{len(named)} documents and {len(scores)} scores"
        raise ValueError(f"{where}: expected a score for each document, got {counts}")
    for (column, document), score in zip(named, scores, strict=True):
        if not _is_number(score):
            raise ValueError(f"{where}: expected a number as score, got {str(score)[:60]!r}")
        names = word(where, query, row), word(where, "document", document)
        yield NamedPair(where, *names, float(score), column.startswith("positive"))


FORM = '{"document_id": "…", "queries": ["…", …]}'


def read_generated(file: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Yields (``file:line``, document id, queries on that line) for each line (`FORM`).

    Raises:
        ValueError: a line breaks the format; names ``file:line``.
    """
    for where, record in json_lines(file):
        identifier, queries = record.get("document_id"), record.get("queries")
        texts = isinstance(queries, list) and all(isinstance(query, str) for query in queries)
        if not isinstance(identifier, str) or not texts:
            raise ValueError(f"{where}: expected {FORM}, got {json.dumps(record)[:60]!r}")
        yield where, identifier, queries
