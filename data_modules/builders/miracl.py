"""MIRACL: Wikipedia passages in 18 languages, with topics and judgements by native speakers.

The Korean files hold some passages and judgements twice: each counts once.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from data_modules.builders import hub
from data_modules.formats.layout import Document, Judgement, Layout, Query
from data_modules.formats.lines import PACKED, find, integer, json_object, numbered_lines, rows
from data_modules.formats.repeats import without_repeats

LANGUAGES = "ar bn de en es fa fi fr hi id ja ko ru sw te th yo zh".split()
_NOT_TRAINED = ("de", "yo")  # the surprise languages have no training topics
_TOPIC = ("query_id", "query")
_QREL = ("query_id", "Q0", "docid", "relevance")
Rows = Iterable[tuple[str, dict[str, Any]]]


def read(name: str, path: Path | None) -> Layout:
    """One language; splits train (but for German and Yoruba) and dev.

    Args:
        name: the language's code.
        path: a folder with miracl-v1.0-LANGUAGE and miracl-corpus-v1.0-LANGUAGE, or with the hub's
            repositories ``miracl`` and ``miracl-corpus`` that hold them; None = the hub.

    Raises:
        FileNotFoundError: the copy lacks a file.
        ValueError: another language.
    """
    if name not in LANGUAGES:
        raise ValueError(f"data.name=miracl/{name}: must be one of {', '.join(LANGUAGES)}")
    return _on_hub(name) if path is None else _local(name, path)


def _local(language: str, path: Path) -> Layout:
    asked, corpus = f"miracl-v1.0-{language}", f"miracl-corpus-v1.0-{language}"
    places = (path / corpus, path / "miracl-corpus" / corpus)
    shards = sorted(f for p in places for e in ("", *PACKED) for f in p.glob(f"docs-*.jsonl{e}"))
    if not shards:
        raise FileNotFoundError(f"data.path={path}: {corpus}/docs-*.jsonl.gz are missing")
    topics, qrels = {}, {}
    for split in ("train", "dev"):
        for kind, found in (("topics", topics), ("qrels", qrels)):
            name = f"{asked}/{kind}/{kind}.{asked}-{split}.tsv"
            file = find(path, name, f"miracl/{name}")
            if file is None and (split == "dev" or topics.keys() > qrels.keys()):
                raise FileNotFoundError(f"data.path={path}: the file {name} is missing")
            if file is not None:
                found[split] = file
    return Layout(
        name=f"miracl-{language}",
        files=(*shards, *topics.values(), *qrels.values()),
        options={"reader": "miracl/1", "language": language},
        documents=lambda: without_repeats(_shards(shards), "documents"),
        queries=lambda: _queries(rows(file, _TOPIC) for file in topics.values()),
        judgements={
            split: partial(_judgements, partial(rows, file, _QREL)) for split, file in qrels.items()
        },
    )


def _on_hub(language: str) -> Layout:
    asked = f"miracl/miracl/miracl-v1.0-{language}"
    corpus = f"miracl/miracl-corpus/miracl-corpus-v1.0-{language}/docs-*.jsonl.gz"
    splits = ("dev",) if language in _NOT_TRAINED else ("train", "dev")

    def columns(kind: str, split: str, *names: str) -> Rows:
        return hub.columns(f"{asked}/{kind}/{kind}.miracl-v1.0-{language}-{split}.tsv", *names)

    return Layout(
        name=f"miracl-{language}",
        files=(),
        options={"reader": "miracl/1", "language": language, "hub": [asked, corpus]},
        documents=lambda: without_repeats(_documents(hub.json_lines(corpus)), "documents"),
        queries=lambda: _queries(columns("topics", split, *_TOPIC) for split in splits),
        judgements={
            split: partial(_judgements, partial(columns, "qrels", split, *_QREL))
            for split in splits
        },
    )


def _shards(files: Iterable[Path]) -> Iterator[Document]:
    for file in files:
        yield from _documents((w, json_object(w, line)) for w, line in numbered_lines(file))


def _documents(records: Rows) -> Iterator[Document]:
    for where, record in records:
        if not all(isinstance(record.get(key), str) for key in ("docid", "title", "text")):
            raise ValueError(f'{where}: expected the strings "docid", "title" and "text"')
        yield Document(where, record["docid"], record["title"], record["text"])


def _queries(splits: Iterable[Rows]) -> Iterator[Query]:
    for topics in splits:
        for where, row in topics:
            yield Query(where, row["query_id"], row["query"])


def _judgements(qrels: Callable[[], Rows]) -> Iterator[Judgement]:
    return without_repeats(map(_judgement, qrels()), "judgements")


def _judgement(found: tuple[str, dict[str, Any]]) -> Judgement:
    where, row = found
    relevance = integer(where, "relevance", row["relevance"])
    return Judgement(where, row["query_id"], row["docid"], relevance)
