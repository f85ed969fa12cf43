"""Collections in BEIR layout: corpus.jsonl, queries.jsonl and qrels/<split>.tsv."""

import json
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

from data_modules.collection import (
    DOCUMENTS,
    IDENTIFIER_RULE,
    JUDGEMENTS,
    QUERIES,
    Collection,
    cached_table,
    is_identifier,
)
from data_modules.formats.lines import json_object, numbered_lines, sha256

HEADER = ["query-id", "corpus-id", "score"]
READER = "beir/1"  # part of the cache's key: raise it when the same file should give other rows


def read_beir(path: str | Path) -> Collection:
    """Read a folder in the layout of the BEIR benchmark, one split for each file in ``qrels``.

    The tables are cached under the files' SHA-256: a changed file is read again, another is not.

    Raises:
        FileNotFoundError: the folder or one of its files is missing.
        ValueError: a line breaks the format; named as ``file:line`` with what was expected.
    """
    folder = Path(path).expanduser()
    corpus, queries_file, qrels_files = _locate(folder)
    sources = {str(file): sha256(file) for file in (corpus, queries_file, *qrels_files)}
    texts = (sources[str(corpus)], sources[str(queries_file)])
    documents = cached_table(partial(_documents, corpus), DOCUMENTS, READER, texts[0])
    queries = cached_table(partial(_queries, queries_file), QUERIES, READER, texts[1])

    @cache  # once for all splits, and not at all when every split comes from the cache
    def known() -> tuple[set[str], set[str]]:
        return set(queries["id"][:]), set(documents["id"][:])

    qrels = {
        file.stem: cached_table(
            partial(_judgements, file, known), JUDGEMENTS, READER, *texts, sources[str(file)]
        )
        for file in qrels_files
    }
    return Collection(folder.resolve().name, documents, queries, qrels, sources)


def _locate(folder: Path) -> tuple[Path, Path, list[Path]]:
    if not folder.is_dir():
        raise FileNotFoundError(f"data.path={folder}: no such folder")
    for name in ("corpus.jsonl", "queries.jsonl"):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"data.path={folder}: the file {name} is missing")
    qrels = sorted((folder / "qrels").glob("*.tsv"))
    if not qrels:
        raise FileNotFoundError(f"data.path={folder}: a file qrels/<split>.tsv is missing")
    return folder / "corpus.jsonl", folder / "queries.jsonl", qrels


def _documents(file: Path) -> Iterator[dict]:
    for where, record in _records(file):
        title = record.get("title")
        yield {
            "id": record["_id"],
            "title": "" if title is None else _string(where, "title", title),
            "text": record["text"],
        }


def _queries(file: Path) -> Iterator[dict]:
    for _, record in _records(file):
        yield {"id": record["_id"], "text": record["text"]}


def _records(file: Path) -> Iterator[tuple[str, dict]]:
    """(``file:line``, record) of a JSONL file; ids are unique there and texts not empty."""
    first_line: dict[str, str] = {}
    for where, line in numbered_lines(file):
        record = json_object(where, line)
        id = _string(where, "_id", record.get("_id"))
        if not is_identifier(id):
            raise ValueError(f'{where}: "_id" is {id!r}: must be {IDENTIFIER_RULE}')
        if id in first_line:
            raise ValueError(f'{where}: "_id" {id!r} stands already at {first_line[id]}')
        if not _string(where, "text", record.get("text")).strip():
            raise ValueError(f'{where}: "text" of {id!r} is empty')
        first_line[id] = where
        yield where, record
    if not first_line:
        raise ValueError(f"{file}: the file is empty; expected one JSON object a line")


def _string(where: str, key: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f'{where}: expected a string "{key}", got {json.dumps(value)[:60]}')
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f'{where}: "{key}" holds half a surrogate pair, which is no character')
    return value


def _judgements(file: Path, known: Callable[[], tuple[set[str], set[str]]]) -> Iterator[dict]:
    query_ids, document_ids = known()
    lines = numbered_lines(file)
    where, header = next(lines, (f"{file}:1", ""))
    if header.split("\t") != HEADER:
        expected = "\t".join(HEADER)
        raise ValueError(f"{where}: expected the header {expected!r}, got {header[:60]!r}")
    first_line: dict[tuple[str, str], str] = {}
    relevant = 0
    for where, line in lines:
        query_id, document_id, score = _judgement(where, line)
        if query_id not in query_ids:
            raise ValueError(f"{where}: query {query_id!r} is not in queries.jsonl")
        if document_id not in document_ids:
            raise ValueError(f"{where}: document {document_id!r} is not in corpus.jsonl")
        pair = (query_id, document_id)
        if pair in first_line:
            raise ValueError(f"{where}: the pair is judged already at {first_line[pair]}")
        first_line[pair] = where
        relevant += score > 0
        yield {"query_id": query_id, "document_id": document_id, "relevance": score}
    if not relevant:
        raise ValueError(f"{file}: the split is empty: no line has a score of 1 or more")


def _judgement(where: str, line: str) -> tuple[str, str, int]:
    columns = line.split("\t")
    if len(columns) != len(HEADER):
        raise ValueError(
            f"{where}: expected {len(HEADER)} columns separated by tabs, got {line[:60]!r}"
        )
    try:
        return columns[0], columns[1], int(columns[2])
    except ValueError:
        raise ValueError(f"{where}: expected an integer score, got {columns[2]!r}") from None
