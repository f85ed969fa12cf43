"""The layout of Ultron (WebUltron) and DDRO: documents as JSON lines, and TREC judgements.

- ``msmarco-docs-sents.top.300k.json``, ``nq-docs-sents.json`` (any ``*docs-sents*.json``): lines
  ``{"docid", "url", "title", "body"}``, or in DDRO's NQ ``{"id", "title", "contents"}``; further
  keys (the sentences) are not read.
- ``*queries*.tsv`` and ``*qrels*.tsv``, a pair for each split: ``msmarco-doctrain-queries.tsv.gz``
  and ``msmarco-doctrain-qrels.tsv.gz`` are "train", ``…docdev…`` is "dev".

Ultron's scripts leave several files of documents in one folder: ``data.path`` may be the one that
is meant; the others are read from the folder that it is in.

The documents are a part of MS MARCO's: judgements of others are left out, as in the original, and
counted; if none is left, they judge another collection. Ids are kept as they are, while the tables
of docids (``[d123]<TAB>1,2,3``) and of generated queries (``[d123]<TAB>query``) write them in small
letters between brackets. Docids are not read: every system here makes its own. Generated queries
are read by `data_modules.formats.named_pairs`.
"""

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import Path

from data_modules.formats.files import find_all, plain_name
from data_modules.formats.layout import Document, Judgement, Layout, keep_known
from data_modules.formats.lines import json_lines, string, word
from data_modules.formats.trec import judgement_files, judgements, queries, query_files

_DOCUMENTS = "*docs-sents*.json"


def recognises(path: Path) -> bool:
    return bool(_documents_files(path))


def read(path: Path) -> Layout:
    documents = _documents_files(path)
    if not documents:
        raise FileNotFoundError(f"data.path={path}: {_DOCUMENTS} is missing")
    if len(documents) > 1:
        names = ", ".join(file.name for file in documents)
        raise ValueError(
            f"data.path={path}: expected one file {_DOCUMENTS}, found {names}: name one of them, "
            f"data.path={documents[0]}"
        )
    folder = documents[0].parent
    judged = judgement_files(folder, "*qrels*.tsv")
    asked = query_files(folder, judged, "*queries*.tsv")
    known = cache(lambda: frozenset(document.id for document in _documents(documents[0])))
    name = path.resolve().name if path.is_dir() else plain_name(path).removesuffix(".json")
    return Layout(
        name=name,
        files=(documents[0], *asked, *judged.values()),
        options={"reader": "ultron/1"},
        documents=partial(_documents, documents[0]),
        queries=partial(queries, asked),
        judgements={split: partial(_judgements, file, known) for split, file in judged.items()},
    )


def _documents_files(path: Path) -> list[Path]:
    """Those of a folder, or the file itself if its name is such a one's."""
    if path.is_file():
        return [path] if fnmatchcase(plain_name(path), _DOCUMENTS) else []
    return find_all(path, _DOCUMENTS)


def _documents(file: Path) -> Iterator[Document]:
    for where, record in json_lines(file):
        title = string(where, "title", record, "")
        text = string(where, _key(record, "body", "contents"), record)
        yield Document(where, word(where, _key(record, "docid", "id"), record), title, text)


def _key(record: dict, ultrons: str, ddros: str) -> str:
    return ddros if ddros in record and ultrons not in record else ultrons


def _judgements(file: Path, known: Callable[[], frozenset[str]]) -> Iterator[Judgement]:
    return keep_known(judgements(file), lambda row: row.document_id in known(), "judgements")
