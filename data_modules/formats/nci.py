"""The layout of NCI's NQ320k: tables without a header, written by pandas.

- ``nq_train_doc_newid.tsv``, ``nq_dev_doc_newid.tsv``: a question a line, the splits "train" and
  "dev". Their columns come in two orders: query, queryid, oldid and semantic ids (4 columns or
  more), or query, queryid, (title,) semantic id, oldid (4 or 5). oldid names the document: the
  third column or the last, whichever is a whole number on every one of the first lines; if both
  are, the third. It may be several numbers with commas between: all are relevant.
- ``NQ_doc_content.tsv``: seven columns, oldid first and the text fourth: title, abstract and
  content in one. Where it is missing, ``nq_title_abs.tsv``: title and abstract, in the columns of
  the questions, once for every question that the document answers; its first line counts.

Documents are named by oldid, queries by queryid; a query that is there several times with the
same text has several relevant documents. The semantic ids are not read: every system here makes its
own. ``NQ_512_qg.tsv`` holds generated queries: `data_modules.formats.named_pairs` reads it.
"""

import re
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from data_modules.formats.files import find_all, plain_name
from data_modules.formats.layout import Asked, Document, Layout, Query, asked_layout
from data_modules.formats.tables import quoted_rows, table_documents

_QUESTIONS = "*_doc_newid.tsv"
_CONTENTS = ("NQ_doc_content.tsv", "nq_doc_content.tsv")
_ABSTRACTS = "nq_title_abs.tsv"
_CONTENT_COLUMNS = ("id", "empty 1", "empty 2", "text", "empty 3", "empty 4", "language")
_IDS = re.compile(r"\d+(,\d+)*")
_LOOKED_AT = 100  # lines, for the order of the columns


def recognises(path: Path) -> bool:
    return bool(find_all(path, _QUESTIONS))


def read(path: Path) -> Layout:
    # "train" of nq_train_doc_newid.tsv
    splits = {
        plain_name(file).removesuffix("_doc_newid.tsv").removeprefix("nq_"): file
        for file in find_all(path, _QUESTIONS)
    }
    contents, abstracts = find_all(path, *_CONTENTS), find_all(path, _ABSTRACTS)
    if not splits:
        raise FileNotFoundError(f"data.path={path}: nq_<split>_doc_newid.tsv is missing")
    if not contents and not abstracts:
        raise FileNotFoundError(f"data.path={path}: {_CONTENTS[0]} and {_ABSTRACTS} are missing")
    texts = (contents or abstracts)[0]
    whole = partial(table_documents, texts, _CONTENT_COLUMNS)
    return asked_layout(
        path,
        reader="nci/1",
        files=(texts, *splits.values()),
        documents=whole if contents else partial(_abstracts, texts),
        splits={split: partial(_asked, file) for split, file in splits.items()},
        queries=partial(_queries, tuple(splits.values())),
    )


def _abstracts(file: Path) -> Iterator[Document]:
    seen = set()
    for where, _, text, (document, *_) in _asked(file):
        if document not in seen:
            seen.add(document)
            yield Document(where, document, "", text)


def _queries(files: tuple[Path, ...]) -> Iterator[Query]:
    for file in files:
        seen: dict[str, str] = {}
        for where, query, text, _ in _asked(file):
            if seen.get(query) != text:
                yield Query(where, query, text)
            seen.setdefault(query, text)


def _asked(file: Path) -> Iterator[Asked]:
    place, width = _place_of_oldid(file)
    for where, columns in quoted_rows(file):
        if len(columns) != width:
            raise ValueError(
                f"{where}: expected {width} columns separated by tabs, as on the first line, got "
                f"{len(columns)}: {' '.join(columns)[:60]!r}"
            )
        if not _IDS.fullmatch(columns[place]):
            raise ValueError(
                f"{where}: expected a whole number (oldid) in column {place + 1}, got "
                f"{columns[place]!r}"
            )
        yield Asked(where, columns[1], columns[0], columns[place].split(","))


def _place_of_oldid(file: Path) -> tuple[int, int]:
    """(place of the column that names the document, number of columns)."""
    first = [columns for _, columns in islice(quoted_rows(file), _LOOKED_AT)]
    width = len(first[0]) if first else 0
    for place in (2, width - 1):
        named = (_IDS.fullmatch(columns[place]) for columns in first if len(columns) == width)
        if width >= 4 and all(named):
            return place, width
    raise ValueError(
        f"{file}:1: expected the columns query, queryid, oldid, semantic id …, or query, queryid, "
        "title, semantic id, oldid, where oldid is a whole number; got "
        f"{' | '.join(first[0])[:80] if first else 'nothing'}"
    )
