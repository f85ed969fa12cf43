"""The layout of GLEN's data: tables with a header, written by pandas.

- ``DOC_NQ_title+content.tsv``, else ``DOC_*_collection.tsv``, ``DOC_*_corpus.tsv`` or
  ``DOC_NQ_first64.tsv``: the documents, with the columns ``oldid``, their id, and ``query``,
  ``doc_content`` or ``document``, their text.
- ``GTQ_NQ_<split>.tsv``: a query a line, with the columns ``query`` and ``oldid``. GLEN gives
  queries no ids: they are made of the split and the line, train-17. A query with several relevant
  documents is there several times and is scored each time, as in GLEN.
- ``GTQ_NQ_dev_seen.tsv``, ``GTQ_NQ_dev_unseen.tsv``: parts of the dev split, found in it by their
  text as GLEN does: the splits dev_seen and dev_unseen, whose queries keep their ids.

``QG_NQ_top15.tsv`` holds generated queries: `data_modules.formats.named_pairs` reads it.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from data_modules.formats.files import find_all, plain_name
from data_modules.formats.layout import Asked, Document, Layout, asked_layout, made_id
from data_modules.formats.tables import rows

_DOCUMENTS = ("title+content", "collection", "corpus", "first64")  # the fullest texts first
_TEXTS = ("query", "doc_content", "document")


def recognises(path: Path) -> bool:
    return bool(find_all(path, "GTQ_*.tsv"))


def read(path: Path) -> Layout:
    found = find_all(path, "GTQ_*.tsv")
    sets = {file.name.split("_")[1] for file in found}
    if len(sets) != 1:
        raise ValueError(
            f"data.path={path}: expected the queries of one set, GTQ_<set>_<split>.tsv, found "
            f"{', '.join(sorted(sets)) or 'none'}"
        )
    # "dev_seen" of GTQ_NQ_dev_seen.tsv
    files = {plain_name(file).removesuffix(".tsv").split("_", 2)[-1]: file for file in found}
    texts = [file for kind in _DOCUMENTS for file in find_all(path, f"DOC_{min(sets)}_{kind}.tsv")]
    if not texts:
        raise FileNotFoundError(f"data.path={path}: DOC_{min(sets)}_title+content.tsv is missing")
    parts = {split: whole for split in files if (whole := _whole(split)) in files}
    return asked_layout(
        path,
        reader="glen/1",
        files=(texts[0], *files.values()),
        documents=partial(_documents, texts[0]),
        splits={s: partial(read_asked, file, s) for s, file in files.items() if s not in parts},
        parts={s: partial(_part, files[whole], whole, files[s]) for s, whole in parts.items()},
    )


def _whole(split: str) -> str | None:
    """The split that this one is a part of, by its name."""
    whole, _, part = split.rpartition("_")
    return whole if part in ("seen", "unseen") else None


def _documents(file: Path) -> Iterator[Document]:
    for where, row in rows(file, ["oldid"], header=True, quoted=True):
        text = next((row[name] for name in _TEXTS if name in row), None)
        if text is None:
            raise ValueError(f"{where}: expected a column {' or '.join(_TEXTS)}, got {list(row)}")
        yield Document(where, row["oldid"], "", text)


def read_asked(file: Path, split: str) -> Iterator[Asked]:
    """The queries of a split's file, or generated ones, and their documents."""
    for where, row in rows(file, ["query", "oldid"], header=True, quoted=True):
        yield Asked(where, made_id(split, where), row["query"], [row["oldid"]])


def _part(file: Path, split: str, part: Path) -> Iterator[Asked]:
    """The queries whose text is in the file of a part."""
    wanted = {asked.text: asked.where for asked in read_asked(part, split)}
    found = set()
    for asked in read_asked(file, split):
        if asked.text in wanted:
            found.add(asked.text)
            yield asked
    if missing := [text for text in wanted if text not in found]:
        raise ValueError(
            f"{wanted[missing[0]]}: the query {missing[0][:60]!r} is not in {file.name}"
        )
