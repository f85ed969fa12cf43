"""JSON files that name documents for queries: candidates, mined negatives, DPR's contexts."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from data_modules.formats.dpr_contexts import NEGATIVE_KINDS, POSITIVE, context_id, items
from data_modules.formats.json_array import begins_with
from data_modules.formats.lines import json_object, json_value, numbered_lines, word

EXPECTED = (
    '{"query": ["document", …], …}, or lines {"qid": …, "pos": […], "neg": […]}, '
    'or [{"question": …, "positive_ctxs": […]}, …]'
)


class NamedPair(NamedTuple):
    """A document that a file names for a query.

    Attributes:
        query, document: ids.
        score: the document's; NaN where the file gives none.
        positive: whether the file says that the document answers the query.
    """

    query: str
    document: str
    score: float = math.nan
    positive: bool = False


def json_pairs(file: Path) -> Iterator[tuple[str, NamedPair]]:
    """(``file:line``, pair) of what a JSON file names.

    - ``{query: [document, …], …}``, as Wu's candidate.json: best first, without scores.
    - Lines ``{"qid", "pos", "neg"}``, as sentence-transformers' msmarco-hard-negatives.jsonl:
      documents are ids, or ``{"pid", "ce-score"}`` with a teacher's score; ``neg`` is a list, or a
      list by each system that found them.
    - DPR's ``[{"question", "positive_ctxs", …}, …]``; queries are named as `dpr` names them.

    Raises:
        ValueError: the file is something else; names ``file:line``.
    """
    if begins_with(file, "["):
        yield from _contexts(file)
        return
    _, first = next(numbered_lines(file))
    try:
        mined = "qid" in json.loads(first)
    except json.JSONDecodeError:  # one value that goes on in the next lines
        mined = False
    yield from _mined(file) if mined else candidate_lists(file)


def candidate_lists(file: Path) -> Iterator[tuple[str, NamedPair]]:
    """The pairs of ``{query: [document, …], …}``."""
    lists = json_value(file)
    if not isinstance(lists, dict):
        raise ValueError(f"{file}: expected {EXPECTED}")
    for query, documents in lists.items():
        where = f"{file}: {json.dumps(query)}"
        if not isinstance(documents, list):
            raise ValueError(f"{where}: expected {EXPECTED}, got {json.dumps(documents)[:60]}")
        for document in documents:
            yield where, NamedPair(query, _id(where, document))


def _mined(file: Path) -> Iterator[tuple[str, NamedPair]]:
    for where, line in numbered_lines(file):
        record = json_object(where, line)
        query, found = word(where, "qid", record), record.get("neg")
        systems = found.values() if isinstance(found, dict) else [found]
        negatives = [document for documents in systems for document in _list(where, documents)]
        for document in _list(where, record.get("pos")):
            yield where, NamedPair(query, *_scored(where, document), positive=True)
        for document in negatives:
            yield where, NamedPair(query, *_scored(where, document))


def _list(where: str, documents: Any) -> list:
    if not isinstance(documents, list):
        raise ValueError(
            f'{where}: expected lists "pos" and "neg" of ids or of {{"pid", "ce-score"}}, '
            f"got {json.dumps(documents)[:60]}"
        )
    return documents


def _scored(where: str, document: Any) -> tuple[str, float]:
    if not isinstance(document, dict):
        return _id(where, document), math.nan
    score = document.get("ce-score", math.nan)
    if not isinstance(score, int | float):
        raise ValueError(f'{where}: expected a number "ce-score", got {json.dumps(score)[:60]}')
    return word(where, "pid", document), float(score)


def _id(where: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"{where}: expected a document's id, got {json.dumps(value)[:60]}")
    return str(value)


def _contexts(file: Path) -> Iterator[tuple[str, NamedPair]]:
    for where, query, record in items(file):
        for kind in (POSITIVE, *NEGATIVE_KINDS):
            for context in record.get(kind, ()):
                yield where, NamedPair(query, context_id(where, context), positive=kind == POSITIVE)
