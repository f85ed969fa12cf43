"""Tables: columns separated by tabs, with or without a header, plain or quoted as in csv."""

import csv
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median

from data_modules.formats.layout import Document
from data_modules.formats.lines import first_line, numbered_lines

KILT = ("id", "title", "text")
DPR = ("id", "text", "title")
_LOOKED_AT = 100  # lines, for the order of the columns

csv.field_size_limit(2**31 - 1)  # a document may be longer than the 128 KiB that csv allows


def rows(
    file: Path, columns: Sequence[str], header: bool = False, quoted: bool = False
) -> Iterator[tuple[str, dict[str, str]]]:
    """(``file:line``, column → text) of a table.

    Args:
        columns: their names, all that the file has, in its order; with a header in any order, and
            there may be others.
        header: whether the first line names the columns.
        quoted: whether texts are in quotes as csv writes them; else a tab or a newline always ends
            a column or a line.

    Raises:
        ValueError: a column is missing, or a line has more or fewer than the others (a tab within
            a text).
    """
    plain = ((where, line.split("\t")) for where, line in numbered_lines(file))
    records = quoted_rows(file) if quoted else plain
    names = list(columns)
    if header:
        where, names = next(records, (f"{file}:1", []))
        if missing := [name for name in columns if name not in names]:
            raise ValueError(
                f"{where}: expected a header with the columns {', '.join(columns)}: "
                f"{', '.join(missing)} is missing in {' '.join(names)[:80]!r}"
            )
    for where, fields in records:
        if len(fields) != len(names):
            raise ValueError(
                f"{where}: expected {len(names)} columns separated by tabs ({', '.join(names)}), "
                f"got {len(fields)}: {' '.join(fields)[:60]!r}"
            )
        yield where, dict(zip(names, fields, strict=True))


def quoted_rows(file: Path, delimiter: str = "\t") -> Iterator[tuple[str, list[str]]]:
    """(``file:line`` of its first line, fields) of each record, with texts in quotes as in csv.

    Raises:
        ValueError: quotes are not as csv writes them; names ``file:line``.
    """
    places: list[str] = []  # of the lines of the record that is being read

    def lines() -> Iterator[str]:
        for where, line in numbered_lines(file):
            places.append(where)
            yield line + "\n"

    records = csv.reader(lines(), delimiter=delimiter, strict=True)
    while True:
        places.clear()
        try:
            record = next(records, None)
        except csv.Error as error:
            raise ValueError(
                f"{places[0]}: expected texts in quotes, quotes within them doubled, as csv "
                f"writes them: {error}"
            ) from None
        if record is None:
            return
        yield places[0], record


def table_documents(file: Path, columns: Sequence[str], unsure: bool = False) -> Iterator[Document]:
    """The documents of a plain table without a header.

    Args:
        columns: id, text and perhaps title, in the file's order; others are not read.
        unsure: whether the file may have another order: titles that are mostly longer than the
            texts (of the first hundred documents) are then refused.

    Raises:
        ValueError: a line breaks the format, or the columns are in another order.
    """
    found = (
        Document(where, row["id"], row.get("title", ""), row["text"])
        for where, row in rows(file, columns)
    )
    first = list(islice(found, _LOOKED_AT))
    lengths = ([len(row[column].split()) for row in first] for column in (2, 3))
    if unsure and first and median(next(lengths)) > median(next(lengths)):
        where, _, title, text = first[0]
        raise ValueError(
            f"{where}: expected the columns {' '.join(columns)}; what is read as the title "
            f"({title[:40]!r}) is mostly longer than the text ({text[:40]!r}): put the columns in "
            "order, or name them in a header"
        )
    yield from first
    yield from found


def passages(file: Path, order: Sequence[str]) -> Iterator[Document]:
    """The passages of a table.

    With a header (``psgs_w100.tsv``, ``kilt_w100_title.tsv``) the header names the columns, and
    texts are in quotes as csv writes them. Without one the file is plain and in the given order
    (`KILT` or `DPR`); a text may then hold no tab.

    Raises:
        ValueError: columns are missing, or in another order; names ``file:line``.
    """
    names = {name.strip('"').lower() for name in first_line(file)[1].split("\t")}
    if len(names & set(KILT)) < 2:
        return table_documents(file, order, unsure=True)
    found = rows(file, KILT, header=True, quoted=True)
    return (Document(where, row["id"], row["title"], row["text"]) for where, row in found)
