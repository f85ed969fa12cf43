"""Generated queries in the files of the formats that bring them.

- Ours, as ``experiment=query_generation`` writes it: lines ``{"document_id", "queries": […]}``.
- DSI-QG's ``…_corpus.tsv.q10.docTquery``: lines ``{"text_id", "text"}``, a query each.
- GenRet's ``train.json.qg.json``: an array ``[[query, place], …]``.
- NCI's ``NQ_512_qg.tsv``: query, (queryid,) oldid and more, plain columns without a header.
- GLEN's ``QG_NQ_top15.tsv``: a header with query and oldid.
- Ultron's: ``[d123]<TAB>query``; ``[d123]`` is the document D123, any other ``[x]`` the document x.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from data_modules.formats import genret, glen
from data_modules.formats.files import begins_with
from data_modules.formats.layout import Asked
from data_modules.formats.lines import (
    check_characters,
    first_line,
    json_lines,
    numbered_lines,
    string,
    word,
)

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
