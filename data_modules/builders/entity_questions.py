"""EntityQuestions over the passages of DPR's Wikipedia.

The data set has questions and answers, no judgements: its authors count a passage that contains an
answer, whatever it is about. Here a passage is relevant if it contains an answer and comes from the
article about the question's subject: judgements that can be written down.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from data_modules.formats.dpr import PASSAGES
from data_modules.formats.layout import Document, Judgement, Layout, Query
from data_modules.formats.readers import array_items, find_all, needed, string
from data_modules.formats.rows import DPR, table_documents

SPLITS = ("train", "dev", "test")
_WORD = re.compile(r"[\w\u0300-\u036f]+|[^\w\s]")  # letters with their accents, or one sign
_QUALIFIER = re.compile(r"\s*\([^()]*\)$")  # of a title: "Mercury (planet)"


class _Asked(NamedTuple):
    where: str
    id: str
    question: str
    answers: list[str]  # in matched form
    subject: str  # in matched form, too


def read(name: str, path: Path | None) -> Layout:
    """The questions of all relations, and the passages of a file in DPR's format.

    Args:
        name: must be empty.
        path: a folder with psgs_w100.tsv and the released ``dataset`` (train/P17.train.json, …).

    Raises:
        FileNotFoundError: files are missing.
        ValueError: another name, or no path: the hub does not have the passages.
    """
    if name:
        raise ValueError(f"data.name=entity_questions/{name}: must be entity_questions")
    if path is None:
        raise ValueError(
            f"data.path=null: entity_questions needs a folder with dataset/ and {PASSAGES}"
        )
    passages_file = needed(path, PASSAGES)
    folder = path / "dataset" if (path / "dataset").is_dir() else path
    found = {split: find_all(folder / split, f"*.{split}.json") for split in SPLITS}
    found = {split: files for split, files in found.items() if files}
    if not found:
        raise FileNotFoundError(f"data.path={path}: dataset/test/P….test.json are missing")
    judged: dict[str, list[Judgement]] = {}

    def asked() -> Iterator[tuple[str, _Asked]]:
        for split, files in found.items():
            for file in files:
                yield from ((split, question) for question in _questions(file))

    def documents() -> Iterator[Document]:
        """The passages; one pass over them finds the judgements, too."""
        judged.update({split: [] for split in found})
        about: dict[str, list[tuple[str, _Asked]]] = {}
        for split, question in asked():
            about.setdefault(question.subject, []).append((split, question))
        for passage in table_documents(passages_file, DPR):
            asked_here = about.get(matched_form(_QUALIFIER.sub("", passage.title)), ())
            text = matched_form(passage.text) if asked_here else ""
            for split, question in asked_here:
                if any(answer in text for answer in question.answers):
                    row = Judgement(passage.where, question.id, passage.id, 1)
                    judged[split].append(row)
            yield passage

    return Layout(
        name="entity_questions",
        files=(passages_file, *(file for files in found.values() for file in files)),
        options={"reader": "entity_questions/1", "relevant": "subject's article, with an answer"},
        documents=documents,
        queries=lambda: (Query(q.where, q.id, q.question) for _, q in asked()),
        judgements={split: partial(lambda name: iter(judged[name]), split) for split in found},
    )


def _questions(file: Path) -> Iterator[_Asked]:
    """The questions of a relation; their subject is where they differ ("Where was … born?")."""
    records = list(array_items(file))
    for where, record in records:
        answers = record.get("answers") if isinstance(record, dict) else None
        if not isinstance(answers, list) or not all(isinstance(a, str) and a for a in answers):
            rule = '{"question": …, "answers": […]}'
            raise ValueError(f"{where}: expected {rule}, got {record!r:.60}")
        string(where, "question", record)
    texts = [matched_form(record["question"]) for _, record in records]
    before, after = _shared(texts), _shared([text[::-1] for text in texts])
    relation = file.name.split(".json")[0]
    for number, ((where, record), text) in enumerate(zip(records, texts, strict=True)):
        answers = [matched_form(answer) for answer in record["answers"]]
        subject = f" {text[before : len(text) - after].strip()} "
        yield _Asked(where, f"{relation}-{number}", record["question"], answers, subject)


def _shared(texts: list[str]) -> int:
    """Characters that all texts begin with, up to the last whole word."""
    shared, last = min(texts, default=""), max(texts, default="")
    while not last.startswith(shared):  # the texts between them share what these two share
        shared = shared[:-1]
    return shared.rfind(" ") + 1


def matched_form(text: str) -> str:
    """Words as DPR compares them, lower-cased and in decomposed Unicode, with blanks around."""
    words = _WORD.findall(unicodedata.normalize("NFD", text).lower())
    return f" {' '.join(words)} "
