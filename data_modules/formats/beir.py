"""Collections in BEIR layout: corpus.jsonl, queries.jsonl and qrels/<split>.tsv."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from data_modules.formats.layout import Document, Judgement, Layout, Query
from data_modules.formats.lines import (
    find,
    find_all,
    integer,
    json_object,
    needed,
    numbered_lines,
    plain_name,
    rows,
    string,
    word,
)

HEADER = ("query-id", "corpus-id", "score")


def recognises(path: Path) -> bool:
    """Whether this is a folder in BEIR layout, complete or not."""
    return find(path, "corpus.jsonl") is not None


def read(path: Path) -> Layout:
    """A folder in the layout of the BEIR benchmark, one split for each file in ``qrels``.

    Raises:
        FileNotFoundError: one of its files is missing.
        ValueError: (on reading) a line breaks the format.
    """
    corpus, queries = (needed(path, name) for name in ("corpus.jsonl", "queries.jsonl"))
    qrels = find_all(path / "qrels", "*.tsv")
    if not qrels:
        raise FileNotFoundError(f"data.path={path}: a file qrels/<split>.tsv is missing")
    return Layout(
        name=path.resolve().name,
        files=(corpus, queries, *qrels),
        options={"reader": "beir/2"},
        documents=partial(_documents, corpus),
        queries=partial(_queries, queries),
        judgements={
            plain_name(file).removesuffix(".tsv"): partial(judgements, file) for file in qrels
        },
    )


def _documents(file: Path) -> Iterator[Document]:
    for where, line in numbered_lines(file):
        record = json_object(where, line)
        title = "" if record.get("title") is None else string(where, "title", record)
        yield Document(where, word(where, "_id", record), title, string(where, "text", record))


def _queries(file: Path) -> Iterator[Query]:
    for where, line in numbered_lines(file):
        record = json_object(where, line)
        yield Query(where, word(where, "_id", record), string(where, "text", record))


def judgements(file: Path) -> Iterator[Judgement]:
    """The judgements of a file with the header of BEIR's qrels."""
    for where, row in rows(file, HEADER, header=True):
        relevance = integer(where, "score", row["score"])
        yield Judgement(where, row["query-id"], row["corpus-id"], relevance)
