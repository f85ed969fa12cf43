"""The layout of KILT: a table of Wikipedia, and tasks as JSON lines with provenance.

- Documents: a table with the columns id, title, text (``*.tsv``; SEAL's ids are "page-paragraph"),
  see `table_documents`, or the pages of ``kilt_knowledgesource.json`` (``{"wikipedia_id",
  "wikipedia_title", "text": […]}``).
- ``<task>-<split>-kilt.jsonl``: ``{"id", "input", "output": [{"provenance": [{"wikipedia_id",
  "title", "start_paragraph_id"}]}]}``; a folder has one task, with one file per split. Ids are
  KILT's. The official test files, which have no provenance, are not read.

A document is relevant if the provenance of an answer names it. The first hundred documents
determine the level at which provenance names documents:

- paragraph: all ids are "page-paragraph", which provenance names;
- title: several documents share a title, so they are passages of pages. All passages with the
  page's title are relevant, since KILT scores pages;
- page: otherwise; provenance names the document by the page's id.

Provenance that names no document is left out and counted.
"""

import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from data_modules.formats.layout import Asked, Document
from data_modules.formats.readers import json_lines, string, word

PAGES = "kilt_knowledgesource.json"
_LOOKED_AT = 100  # number of documents that determine the level
_PARAGRAPH = re.compile(r"\d+-\d+")

Named = tuple[str, dict[str, list[str]]]  # the level, and name in provenance → document ids


def pages(file: Path) -> Iterator[Document]:
    """Yields the pages of KILT's knowledge source."""
    for where, record in json_lines(file):
        title, paragraphs = string(where, "wikipedia_title", record), record.get("text")
        if not isinstance(paragraphs, list) or not all(isinstance(p, str) for p in paragraphs):
            raise ValueError(f'{where}: expected paragraphs "text": […], got {paragraphs!r:.60}')
        first = bool(paragraphs) and paragraphs[0].strip() == title  # the title, repeated
        text = " ".join(paragraph.strip() for paragraph in paragraphs[first:])
        yield Document(where, word(where, "wikipedia_id", record), title, text)


def asked(file: Path, split: str, named: Callable[[], Named]) -> Iterator[Asked]:
    """Yields the queries; provenance that names no document gives the id "", which none has."""
    level, documents = named()
    for where, record in json_lines(file):
        names = dict.fromkeys(_names(level, where, record))
        found = [document for name in names for document in documents.get(name, [""])]
        yield Asked(where, word(where, "id", record), string(where, "input", record), found)


def named_documents(documents: Callable[[], Iterator[Document]], files: tuple[Path, ...]) -> Named:
    """Determines the level, and finds the documents that the provenance of all tasks names."""
    first = list(islice(documents(), _LOOKED_AT))
    level = "page" if len({document.title for document in first}) == len(first) else "title"
    if first and all(_PARAGRAPH.fullmatch(document.id) for document in first):
        level = "paragraph"
    wanted = {name for where, record in json_lines(*files) for name in _names(level, where, record)}
    found: dict[str, list[str]] = {}
    for document in documents():
        name = document.title if level == "title" else document.id
        if name in wanted:
            found.setdefault(name, []).append(document.id)
    return level, found


def _names(level: str, where: str, record: dict) -> Iterator[str]:
    """Yields the names in the provenance of a query's answers: titles or ids, by the level."""
    try:
        outputs = [output.get("provenance") or [] for output in record.get("output") or []]
        sources = [dict(source) for output in outputs for source in output]
    except (AttributeError, TypeError, ValueError):
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
