"""The layout of KILT: a table of Wikipedia, and tasks as JSON lines with provenance.

- Documents: a table id, title, text without a header (``*.tsv``; SEAL's, whose ids are
  "page-paragraph"), one with a header that names the columns (``kilt_w100_title.tsv``), or the
  pages of ``kilt_knowledgesource.json`` (``{"wikipedia_id", "wikipedia_title", "text": […]}``).
  DPR's order, id, text, title, without a header is refused: its titles are longer than its texts.
- ``<task>-<split>-kilt.jsonl``: ``{"id", "input", "output": [{"provenance": [{"wikipedia_id",
  "title", "start_paragraph_id"}]}]}``, one task, a split each; ids are KILT's. The test files,
  which have no provenance, are left aside.

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

from data_modules.formats.known_documents import without_unknown
from data_modules.formats.layout import Document, Judgement, Layout, Query
from data_modules.formats.lines import (
    find_all,
    json_object,
    numbered_lines,
    plain_name,
    string,
    word,
)
from data_modules.formats.passages import KILT, passages

_TASKS = re.compile(r"(.+)-(train|dev|test)(_id)?-kilt\.jsonl")
_PAGES = "kilt_knowledgesource.json"
_LOOKED_AT = 100  # documents, for what their ids name
_PARAGRAPH = re.compile(r"\d+-\d+")


def recognises(path: Path) -> bool:
    """Whether there is a task in KILT's name."""
    return bool(find_all(path, "*-kilt.jsonl"))


def read(path: Path) -> Layout:
    """A folder in KILT's layout.

    Raises:
        FileNotFoundError: the table or the tasks are missing.
        ValueError: two tables or tasks; (on reading) a line breaks the format.
    """
    splits: dict[str, Path] = {}
    for file in find_all(path, "*-kilt.jsonl"):
        if found := _TASKS.fullmatch(plain_name(file)):
            other = splits.setdefault(found[2], file)
            if other != file:
                raise ValueError(
                    f"data.path={path}: expected one task, found {other.name} and {file.name}"
                )
    if not splits:
        raise FileNotFoundError(f"data.path={path}: <task>-<split>-kilt.jsonl is missing")
    table = _table(path)
    documents = partial(_pages, table) if _is_pages(table) else partial(passages, table, KILT)
    files = tuple(splits.values())
    answers = cache(partial(_answers, documents, files))
    return Layout(
        name=path.resolve().name,
        files=(table, *files),
        options={"reader": "kilt/1"},
        documents=documents,
        queries=partial(_queries, files),
        judgements={split: partial(_judgements, file, answers) for split, file in splits.items()},
    )


def _table(folder: Path) -> Path:
    found = find_all(folder, "*.tsv", _PAGES)
    if not found:
        raise FileNotFoundError(f"data.path={folder}: a table of documents (*.tsv) is missing")
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise ValueError(f"data.path={folder}: expected one table of documents, found {names}")
    return found[0]


def _is_pages(file: Path) -> bool:
    return plain_name(file) == _PAGES


def _pages(file: Path) -> Iterator[Document]:
    for where, line in numbered_lines(file):
        record = json_object(where, line)
        title, paragraphs = string(where, "wikipedia_title", record), record.get("text")
        if not isinstance(paragraphs, list) or not all(isinstance(p, str) for p in paragraphs):
            raise ValueError(f'{where}: expected paragraphs "text": […], got {paragraphs!r:.60}')
        first = bool(paragraphs) and paragraphs[0].strip() == title  # the page's title once more
        text = " ".join(paragraph.strip() for paragraph in paragraphs[first:])
        yield Document(where, word(where, "wikipedia_id", record), title, text)


def _queries(files: tuple[Path, ...]) -> Iterator[Query]:
    for file in files:
        for where, record in _records(file):
            yield Query(where, word(where, "id", record), string(where, "input", record))


def _records(file: Path) -> Iterator[tuple[str, dict]]:
    return ((where, json_object(where, line)) for where, line in numbered_lines(file))


def _provenance(where: str, record: dict) -> list[dict]:
    """What the answers of a task name."""
    try:
        lists = [_objects(output, "provenance") for output in _objects(record, "output")]
    except TypeError:
        raise ValueError(
            f'{where}: expected "output": [{{"provenance": [{{"wikipedia_id", …}}]}}], got '
            f"{record.get('output')!r:.60}"
        ) from None
    return [source for sources in lists for source in sources]


def _objects(record: dict, key: str) -> list[dict]:
    """The objects in a list, which may be missing or null; TypeError if it is something else."""
    found = record.get(key)
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise TypeError(key)
    return found


def _named(level: str, where: str, source: dict) -> str:
    """What a provenance names at a level: a document's id, or its title."""
    if level == "title":
        return string(where, "title", source)
    page = word(where, "wikipedia_id", source)
    return page if level == "page" else f"{page}-{word(where, 'start_paragraph_id', source)}"


def _level(documents: Callable[[], Iterator[Document]]) -> str:
    """What a document is."""
    first = list(islice(documents(), _LOOKED_AT))
    if first and all(_PARAGRAPH.fullmatch(document.id) for document in first):
        return "paragraph"
    titles = {document.title for document in first}
    return "page" if len(titles) == len(first) else "title"


def _answers(
    documents: Callable[[], Iterator[Document]], files: tuple[Path, ...]
) -> tuple[str, dict[str, list[str]]]:
    """The level, and what provenance names → ids of the documents that are it."""
    level = _level(documents)
    wanted = {
        _named(level, where, source)
        for file in files
        for where, record in _records(file)
        for source in _provenance(where, record)
    }
    found: dict[str, list[str]] = {}
    for document in documents():
        name = document.title if level == "title" else document.id
        if name in wanted:
            found.setdefault(name, []).append(document.id)
    return level, found


def _judgements(
    file: Path, answers: Callable[[], tuple[str, dict[str, list[str]]]]
) -> Iterator[Judgement]:
    return without_unknown(file, _all_judgements(file, *answers()))


def _all_judgements(
    file: Path, level: str, answers: dict[str, list[str]]
) -> Iterator[Judgement | None]:
    """Those of every task; None for each provenance that no document is."""
    for where, record in _records(file):
        query = word(where, "id", record)
        names = dict.fromkeys(_named(level, where, s) for s in _provenance(where, record))
        for name in names:
            if name not in answers:
                yield None
            for document in answers.get(name, ()):
                yield Judgement(where, query, document, 1)
