"""The layout of KILT: a table of Wikipedia, and tasks as JSON lines with provenance.

- Documents: a table id, title, text without a header (``*.tsv``; SEAL's, whose ids are
  "page-paragraph"), one with a header that names the columns (``kilt_w100_title.tsv``), or the
  pages of ``kilt_knowledgesource.json`` (``{"wikipedia_id", "wikipedia_title", "text": […]}``).
  DPR's order, id, text, title, without a header is refused: its titles are longer than its texts.
- ``<task>-<split>-kilt.jsonl``: ``{"id", "input", "output": [{"provenance": [{"wikipedia_id",
  "title", "start_paragraph_id"}]}]}``, one task, a split each; ids are KILT's. The test files,
  which have no provenance, are not read.

A document is relevant if the provenance of some answer names it. What it names is told by the
first hundred documents: a paragraph if all ids are "page-paragraph", else the page by its id; but
if several of those documents share a title they are passages of pages, and all passages with the
page's title are relevant, as KILT scores pages. Provenance outside the table is left out and
counted.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import islice
from pathlib import Path

from data_modules.formats.files import by_split, find_all, find_one, plain_name
from data_modules.formats.layout import Document, Judgement, Layout, Query, keep_known
from data_modules.formats.lines import json_lines, string, word
from data_modules.formats.tables import KILT, passages

_TASK = re.compile(r"(.+)-(train|dev|test)(_id)?-kilt\.jsonl")
_PAGES = "kilt_knowledgesource.json"
_LOOKED_AT = 100  # documents, for what their ids name
_PARAGRAPH = re.compile(r"\d+-\d+")


def recognises(path: Path) -> bool:
    return bool(find_all(path, "*-kilt.jsonl"))


def read(path: Path) -> Layout:
    tasks = [f for f in find_all(path, "*-kilt.jsonl") if _TASK.fullmatch(plain_name(f))]
    if not tasks:
        raise FileNotFoundError(f"data.path={path}: <task>-<split>-kilt.jsonl is missing")
    splits = by_split(path, tasks, lambda file: _TASK.fullmatch(plain_name(file))[2])
    table = find_one(path, "table of documents", "*.tsv", _PAGES)
    if table is None:
        raise FileNotFoundError(f"data.path={path}: a table of documents (*.tsv) is missing")
    files = tuple(splits.values())
    are_pages = plain_name(table) == _PAGES
    documents = partial(_pages, table) if are_pages else partial(passages, table, KILT)
    named = cache(partial(_named_documents, documents, files))
    return Layout(
        name=path.resolve().name,
        files=(table, *files),
        options={"reader": "kilt/1"},
        documents=documents,
        queries=partial(_queries, files),
        judgements={split: partial(_judgements, file, named) for split, file in splits.items()},
    )


def _pages(file: Path) -> Iterator[Document]:
    for where, record in json_lines(file):
        title, paragraphs = string(where, "wikipedia_title", record), record.get("text")
        if not isinstance(paragraphs, list) or not all(isinstance(p, str) for p in paragraphs):
            raise ValueError(f'{where}: expected paragraphs "text": […], got {paragraphs!r:.60}')
        first = bool(paragraphs) and paragraphs[0].strip() == title  # the page's title once more
        text = " ".join(paragraph.strip() for paragraph in paragraphs[first:])
        yield Document(where, word(where, "wikipedia_id", record), title, text)


def _queries(files: tuple[Path, ...]) -> Iterator[Query]:
    for where, record in json_lines(*files):
        yield Query(where, word(where, "id", record), string(where, "input", record))


def _judgements(
    file: Path, named: Callable[[], tuple[str, dict[str, list[str]]]]
) -> Iterator[Judgement]:
    rows = _all_judgements(file, *named())
    return keep_known(rows, lambda row: bool(row.document_id), "judgements")


def _all_judgements(file: Path, level: str, documents: dict[str, list[str]]) -> Iterator[Judgement]:
    """Those of every task; of the document "" for each provenance that no document is."""
    for where, record in json_lines(file):
        query = word(where, "id", record)
        for name in dict.fromkeys(_names(level, where, record)):
            for document in documents.get(name, [""]):
                yield Judgement(where, query, document, 1)


def _named_documents(
    documents: Callable[[], Iterator[Document]], files: tuple[Path, ...]
) -> tuple[str, dict[str, list[str]]]:
    """The level, and what provenance names → ids of the documents that are it."""
    level = _level(documents)
    wanted = {name for where, record in json_lines(*files) for name in _names(level, where, record)}
    found: dict[str, list[str]] = {}
    for document in documents():
        name = document.title if level == "title" else document.id
        if name in wanted:
            found.setdefault(name, []).append(document.id)
    return level, found


def _level(documents: Callable[[], Iterator[Document]]) -> str:
    """What a document is."""
    first = list(islice(documents(), _LOOKED_AT))
    if first and all(_PARAGRAPH.fullmatch(document.id) for document in first):
        return "paragraph"
    titles = {document.title for document in first}
    return "page" if len(titles) == len(first) else "title"


def _names(level: str, where: str, record: dict) -> Iterator[str]:
    """What the provenance of a task's answers names at a level: documents' ids, or titles."""
    try:
        outputs = _objects(record, "output")
        sources = [source for output in outputs for source in _objects(output, "provenance")]
    except TypeError:
        raise ValueError(
            f'{where}: expected "output": [{{"provenance": [{{"wikipedia_id", …}}]}}], got '
            f"{record.get('output')!r:.60}"
        ) from None
    for source in sources:
        if level == "title":
            yield string(where, "title", source)
        elif level == "page":
            yield word(where, "wikipedia_id", source)
        else:
            yield "-".join(word(where, k, source) for k in ("wikipedia_id", "start_paragraph_id"))


def _objects(record: dict, key: str) -> list[dict]:
    """The objects in a list, which may be missing or null; TypeError if it is something else."""
    found = record.get(key)
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise TypeError(key)
    return found
