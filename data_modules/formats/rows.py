"""Rows of files as documents, queries and judgements, by the names of their fields."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from data_modules.formats.layout import Asked, Document, Judgement, Query
from data_modules.formats.readers import (
    first_line,
    integer,
    quoted_rows,
    string,
    table,
    word,
)
from gr_mvdr.evaluation.ranking import BEIR_QRELS

Reader = Callable[..., Iterable[tuple[str, dict[str, Any]]]]  # yields (where, fields) of each row

DPR = ("id", "text", "title")
_HEADER = {"id", "pid", "docid", "doc_id", "title", "text", "passage", "body"}
_LOOKED_AT = 100  # number of lines that are read to check or find columns
_IDS = re.compile(r"\d+(,\d+)*")


def documents(
    read: Reader, *files: Path, id: str, text: str, title: str = ""
) -> Iterator[Document]:
    """Yields the documents of some files; the other columns of a row are further fields.

    Args:
        read: reads one file.
        id, text, title: names of the fields as in `string`; title "" = no titles.
    """
    own = {*f"{id}|{title}|{text}".split("|")}
    for file in files:
        for where, row in read(file):
            heading = string(where, title, row, "") if title else ""
            fields = {name: row[name] for name in row if name not in own}
            yield Document(where, word(where, id, row), heading, string(where, text, row), fields)


def queries(read: Reader, *files: Any, id: str = "id", text: str = "query") -> Iterator[Query]:
    """Yields the queries of some files, see `documents`."""
    for file in files:
        for where, row in read(file):
            yield Query(where, word(where, id, row), string(where, text, row))


def judgements(
    read: Reader,
    *files: Any,
    query: str = "query",
    document: str = "document",
    grade: str = "grade",
) -> Iterator[Judgement]:
    """Yields the judgements of some files, see `documents`."""
    for file in files:
        for where, row in read(file):
            value = integer(where, grade, str(row[grade]))
            yield Judgement(where, word(where, query, row), word(where, document, row), value)


MSMARCO = ("id", "url", "title", "text")
table_queries = partial(queries, partial(table, columns=("id", "query")))
beir_judgements = partial(
    judgements,
    partial(table, columns=BEIR_QRELS.split(), header=True),
    query="query-id",
    document="corpus-id",
    grade="score",
)
_trec = partial(table, columns=("query", "0", "document", "grade"), delimiter=None)


def trec_judgements(file: Path) -> Iterator[Judgement]:
    """Yields the judgements of a TREC file, or of a file with BEIR's header."""
    beir = first_line(file).split() == BEIR_QRELS.split()
    return beir_judgements(file) if beir else judgements(_trec, file)


def table_documents(file: Path, order: Sequence[str]) -> Iterator[Document]:
    """Yields the documents of a table.

    With a header (``psgs_w100.tsv``), which names the columns id, title
    and text, texts may be quoted. Without a header, texts are unquoted and the columns are in the
    given order.

    Args:
        order: the names of all columns in the file's order; `DPR` allows the title to be missing.

    Raises:
        ValueError: columns are missing or in another order, which shows if the median title of the
            first hundred documents is longer than the median text.
    """
    first = first_line(file).split("\t")
    header = sum(name.strip(' "').lower() in _HEADER for name in first) * 2 > len(first)
    if header:
        read = partial(table, columns=("id", "title", "text"), header=True, quoted=True)
    else:
        order = order[:2] if order == DPR and len(first) == 2 else order
        read = partial(table, columns=order)
    title = "title" if header or "title" in order else ""
    rows = documents(read, file, id="id", text="text", title=title)
    sample = list(islice(rows, _LOOKED_AT))
    lengths = ([len(row[column].split()) for row in sample] for column in (2, 3))
    if sample and median(next(lengths)) > median(next(lengths)):
        where, _, name, text, _ = sample[0]
        raise ValueError(
            f"{where}: expected the columns {' '.join(order)}; what is read as the title "
            f"({name[:40]!r}) is mostly longer than the text ({text[:40]!r}): put the columns in "
            "order, or name them in a header"
        )
    yield from sample
    yield from rows


# NCI: tables without a header, written by pandas


def _nci_rows(file: Path) -> Iterator[Asked]:
    """Yields the queries of one of NCI's tables with their documents.

    The columns are query, queryid, oldid, semantic ids, or query, queryid, (title,) semantic id,
    oldid. The column oldid is the third or else the last, provided that it holds only whole numbers
    in the first hundred lines. A cell may hold several numbers separated by commas.
    """
    first = [columns for _, columns in islice(quoted_rows(file), _LOOKED_AT)]
    width = len(first[0]) if first else 0
    places = [
        place
        for place in (2, width - 1)
        if width >= 4 and all(_IDS.fullmatch(row[place]) for row in first if len(row) == width)
    ]
    if not places:
        raise ValueError(
            f"{file}:1: expected the columns query, queryid, oldid, semantic id …, or query, "
            "queryid, title, semantic id, oldid, where oldid is a whole number; got "
            f"{' | '.join(first[0])[:80] if first else 'nothing'}"
        )
    oldid = str(places[0])
    for where, row in table(file, [str(place) for place in range(width)], quoted=True):
        if not _IDS.fullmatch(row[oldid]):
            raise ValueError(f"{where}: expected a whole number as oldid, got {row[oldid]!r}")
        yield Asked(where, row["1"], row["0"], row[oldid].split(","))


def nci_queries(*files: Path) -> Iterator[Query]:
    """Yields the queries of NCI's tables."""
    for file in files:
        yield from (Query(*row[:3]) for row in _nci_rows(file))


def nci_judgements(file: Path) -> Iterator[Judgement]:
    """Yields the judgements of one of NCI's tables."""
    for where, query, _, documents in _nci_rows(file):
        yield from (Judgement(where, query, document, 1) for document in documents)


nci_documents = partial(table_documents, order=("id", "", "", "text", "", "", "language"))
