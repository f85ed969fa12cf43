"""Collections in BEIR layout: corpus.jsonl, queries.jsonl and qrels/<split>.tsv, a split each."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from data_modules.formats import passages
from data_modules.formats.files import find, find_all, needed, plain_name
from data_modules.formats.layout import Document, Judgement, Layout, Query
from data_modules.formats.lines import integer, json_lines, string, word
from data_modules.formats.tables import rows

HEADER = ("query-id", "corpus-id", "score")


def recognises(path: Path) -> bool:
    # A corpus without anything else is a collection of plain passages.
    return find(path, "corpus.jsonl") is not None and not passages.recognises(path)


def read(path: Path) -> Layout:
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
    for where, record in json_lines(file):
        title, text = string(where, "title", record, ""), string(where, "text", record)
        yield Document(where, word(where, "_id", record), title, text)


def _queries(file: Path) -> Iterator[Query]:
    for where, record in json_lines(file):
        yield Query(where, word(where, "_id", record), string(where, "text", record))


def judgements(file: Path) -> Iterator[Judgement]:
    """The judgements of a file with the header of BEIR's qrels."""
    for where, row in rows(file, HEADER, header=True):
        relevance = integer(where, "score", row["score"])
        yield Judgement(where, row["query-id"], row["corpus-id"], relevance)
