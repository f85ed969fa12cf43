"""Passages as a table with the columns id, title and text, in KILT's order or in DPR's."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from data_modules.formats.column_order import check_title_and_text
from data_modules.formats.layout import Document
from data_modules.formats.lines import numbered_lines, rows
from data_modules.formats.quoted import quoted_columns

KILT = ("id", "title", "text")
DPR = ("id", "text", "title")


def passages(file: Path, order: Sequence[str]) -> Iterator[Document]:
    """The passages of a table.

    With a header (``psgs_w100.tsv``, ``kilt_w100_title.tsv``) the header names the columns, and
    texts stand in quotes as csv writes them. Without one the file is plain and in the given order;
    a text may then hold no tab.

    Raises:
        ValueError: columns are missing, or stand in another order; names ``file:line``.
    """
    if not has_header(file):
        titles_and_texts = ((row.where, row.title, row.text) for row in _plain(file, order))
        check_title_and_text(titles_and_texts, " ".join(order))
        return _plain(file, order)
    found = quoted_columns(file, KILT, header=True)
    return (Document(where, row["id"], row["title"], row["text"]) for where, row in found)


def has_header(file: Path) -> bool:
    """Whether the first line names the columns."""
    _, first = next(numbered_lines(file), ("", ""))
    return len({name.strip('"').lower() for name in first.split("\t")} & set(KILT)) > 1


def _plain(file: Path, order: Sequence[str]) -> Iterator[Document]:
    for where, row in rows(file, order):
        yield Document(where, row["id"], row["title"], row["text"])
