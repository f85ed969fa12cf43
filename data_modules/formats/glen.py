"""The layout of GLEN's data: tables with a header, written by pandas.

- ``DOC_NQ_title+content.tsv``, else ``DOC_*_collection.tsv``, ``DOC_*_corpus.tsv`` or
  ``DOC_NQ_first64.tsv``: the documents, with the columns ``oldid``, their id, and ``query``,
  ``doc_content`` or ``document``, their text.
- ``GTQ_NQ_<split>.tsv``: a query a line, with the columns ``query`` and ``oldid``. GLEN gives
  queries no ids: they are made of the split and the line, train-17. A query with several relevant
  documents stands there several times and is scored each time, as in GLEN.
- ``GTQ_NQ_dev_seen.tsv``, ``GTQ_NQ_dev_unseen.tsv``: parts of the dev split, found in it by their
  text as GLEN does: the splits dev_seen and dev_unseen, whose queries keep their ids.

``QG_NQ_top15.tsv`` holds generated queries: `data_modules.formats.generated` reads it.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from data_modules.formats.layout import Document, Judgement, Layout, Query
from data_modules.formats.lines import find_all, plain_name
from data_modules.formats.quoted import quoted_columns

_DOCUMENTS = ("title+content", "collection", "corpus", "first64")  # the fullest texts first
_TEXTS = ("query", "doc_content", "document")
_PARTS = ("_seen", "_unseen")


def recognises(path: Path) -> bool:
    """Whether there are queries in GLEN's names."""
    return bool(find_all(path, "GTQ_*.tsv"))


def read(path: Path) -> Layout:
    """A folder in GLEN's layout.

    Raises:
        FileNotFoundError: one of its files is missing.
        ValueError: two sets lie together; (on reading) a line breaks the format.
    """
    found = find_all(path, "GTQ_*.tsv")
    sets = {file.name.split("_")[1] for file in found}
    if len(sets) != 1:
        raise ValueError(
            f"data.path={path}: expected the queries of one set, GTQ_<set>_<split>.tsv, found "
            f"{', '.join(sorted(sets)) or 'none'}"
        )
    files = {_split(file): file for file in found}
    texts = [file for kind in _DOCUMENTS for file in find_all(path, f"DOC_{min(sets)}_{kind}.tsv")]
    if not texts:
        raise FileNotFoundError(f"data.path={path}: DOC_{min(sets)}_title+content.tsv is missing")
    parts = {split: whole for split in files if (whole := _whole(split)) in files}
    splits = {split: file for split, file in files.items() if split not in parts}
    judgements: dict[str, Callable[[], Iterator[Judgement]]] = {
        split: partial(_judgements, file, split) for split, file in splits.items()
    }
    for part, whole in parts.items():
        judgements[part] = partial(_part, files[whole], whole, files[part])
    return Layout(
        name=path.resolve().name,
        files=(texts[0], *files.values()),
        options={"reader": "glen/1"},
        documents=partial(_documents, texts[0]),
        queries=partial(_queries, splits),
        judgements=judgements,
    )


def _split(file: Path) -> str:
    """ "dev_seen" of ``GTQ_NQ_dev_seen.tsv``."""
    return plain_name(file).removesuffix(".tsv").split("_", 2)[-1]


def _whole(split: str) -> str | None:
    """The split that this one is a part of, by its name."""
    ending = next((ending for ending in _PARTS if split.endswith(ending)), None)
    return ending and split.removesuffix(ending)


def _documents(file: Path) -> Iterator[Document]:
    for where, row in quoted_columns(file, ["oldid"], header=True):
        text = next((row[name] for name in _TEXTS if name in row), None)
        if text is None:
            raise ValueError(f"{where}: expected a column {' or '.join(_TEXTS)}, got {list(row)}")
        yield Document(where, row["oldid"], "", text)


def _rows(file: Path) -> Iterator[tuple[str, dict[str, str]]]:
    return quoted_columns(file, ["query", "oldid"], header=True)


def _identifier(split: str, where: str) -> str:
    """The id made for the query on a line."""
    return f"{split}-{where.rpartition(':')[2]}"


def _queries(splits: dict[str, Path]) -> Iterator[Query]:
    for split, file in splits.items():
        for where, row in _rows(file):
            yield Query(where, _identifier(split, where), row["query"])


def _judgements(file: Path, split: str) -> Iterator[Judgement]:
    for where, row in _rows(file):
        yield Judgement(where, _identifier(split, where), row["oldid"], 1)


def _part(file: Path, split: str, part: Path) -> Iterator[Judgement]:
    """The judgements of the queries whose text stands in the file of a part."""
    wanted = {row["query"]: where for where, row in _rows(part)}
    found = set()
    for where, row in _rows(file):
        if row["query"] in wanted:
            found.add(row["query"])
            yield Judgement(where, _identifier(split, where), row["oldid"], 1)
    if missing := [text for text in wanted if text not in found]:
        raise ValueError(
            f"{wanted[missing[0]]}: the query {missing[0][:60]!r} does not stand in {file.name}"
        )
