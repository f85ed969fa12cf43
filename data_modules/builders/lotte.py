"""LoTTE: passages of a topic's forums, asked by searches (GooAQ) or by forum titles."""

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from data_modules.builders import hub
from data_modules.formats.layout import Document, Judgement, Layout, Query
from data_modules.formats.lines import find, json_object, needed, numbered_lines, rows, word

TOPICS = ("writing", "recreation", "science", "technology", "lifestyle", "pooled")
QUESTIONS = ("search", "forum")
SPLITS = ("test", "dev")  # of different passages: each is a collection of its own
_PASSAGES, _ANSWERS = "colbertv2/lotte_passages", "colbertv2/lotte"  # on the hub


def read(name: str, path: Path | None) -> Layout:
    """One topic, one kind of question, one split.

    Args:
        name: "writing/search" or "writing/search/dev"; test where no split is named.
        path: the released folder ``lotte``, or the one that holds collection.tsv; None = the hub.

    Raises:
        FileNotFoundError: the copy lacks a file.
        ValueError: another name.
    """
    topic, kind, split = _parts(name)
    options = {"reader": "lotte/1", "topic": topic, "questions": kind, "split": split}
    if path is None:
        return _on_hub(topic, kind, split, options)
    folder = _folder(path, f"{topic}/{split}")
    names = ("collection.tsv", f"questions.{kind}.tsv", f"qas.{kind}.jsonl")
    files = tuple(needed(folder, name) for name in names)
    collection, questions, answers = files
    return Layout(
        name=f"lotte-{topic}-{kind}-{split}",
        files=files,
        options=options,
        documents=partial(_documents, collection),
        queries=partial(_queries, questions),
        judgements={split: lambda: _judgements(_records(answers))},
    )


def _parts(name: str) -> tuple[str, str, str]:
    topic, _, rest = name.partition("/")
    kind, _, split = rest.partition("/")
    split = split or "test"
    if topic not in TOPICS or kind not in QUESTIONS or split not in SPLITS:
        raise ValueError(
            f"data.name=lotte/{name}: must be lotte/TOPIC/QUESTIONS or lotte/TOPIC/QUESTIONS/SPLIT "
            f"with a topic of {', '.join(TOPICS)}; {' or '.join(QUESTIONS)}; {' or '.join(SPLITS)}"
        )
    return topic, kind, split


def _folder(path: Path, below: str) -> Path:
    places = (path, path / below, path / "lotte" / below)
    return next((place for place in places if find(place, "collection.tsv")), path / below)


def _documents(file: Path) -> Iterator[Document]:
    for where, row in rows(file, ("pid", "text")):
        yield Document(where, row["pid"], "", row["text"])


def _queries(file: Path) -> Iterator[Query]:
    for where, row in rows(file, ("qid", "question")):
        yield Query(where, row["qid"], row["question"])


def _records(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    return ((where, json_object(where, line)) for where, line in numbered_lines(file))


def _judgements(records: Iterable[tuple[str, dict[str, Any]]]) -> Iterator[Judgement]:
    for where, record in records:
        query = word(where, "qid", record)
        for passage in dict.fromkeys(map(str, _answers(where, record))):  # some stand there twice
            yield Judgement(where, query, passage, 1)


def _answers(where: str, record: dict[str, Any]) -> list:
    """The passages that answer a query; the hub's loader keeps them one level deeper."""
    passages, deeper = record.get("answer_pids"), record.get("answers")
    if passages is None and isinstance(deeper, dict):
        passages = deeper.get("answer_pids")
    if not isinstance(passages, list):
        raise ValueError(f'{where}: expected a list "answer_pids", got {passages!r:.60}')
    return passages


def _on_hub(topic: str, kind: str, split: str, options: dict[str, Any]) -> Layout:
    passages = f"{_PASSAGES}/{topic}/{split}_collection.jsonl"
    answers = f"{_ANSWERS}/{topic}/{split}_qas.{kind}.jsonl"
    return Layout(
        name=f"lotte-{topic}-{kind}-{split}",
        files=(),
        options={**options, "hub": [passages, answers]},
        documents=lambda: (
            Document(where, str(row["doc_id"]), "", row["text"])
            for where, row in hub.json_lines(passages)
        ),
        queries=lambda: (
            Query(where, str(row["qid"]), row["query"]) for where, row in hub.json_lines(answers)
        ),
        judgements={split: lambda: _judgements(hub.json_lines(answers))},
    )
