"""Tab-separated files with quotes around texts that hold a tab, a quote or a newline (csv)."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from data_modules.formats.lines import numbered_lines

csv.field_size_limit(2**31 - 1)  # a document may be longer than the 128 KiB that csv allows


def quoted_rows(file: Path) -> Iterator[tuple[str, list[str]]]:
    """(``file:line`` of its first line, fields) of each record.

    Raises:
        ValueError: quotes are not as csv writes them; names ``file:line``.
    """
    lines = _Lines(file)
    records = csv.reader(lines, delimiter="\t", strict=True)
    while True:
        lines.first = None
        try:
            record = next(records, None)
        except csv.Error as error:
            raise ValueError(
                f"{lines.first}: expected texts in quotes, quotes within them doubled, as csv "
                f"writes them: {error}"
            ) from None
        if record is None:
            return
        yield lines.first, record


class _Lines(Iterator[str]):
    """The lines of a file, and where the record that is being read began."""

    def __init__(self, file: Path):
        self.lines = numbered_lines(file)
        self.first: str | None = None

    def __next__(self) -> str:
        where, line = next(self.lines)
        self.first = self.first or where
        return line + "\n"


def quoted_columns(
    file: Path, columns: Sequence[str], header: bool = False
) -> Iterator[tuple[str, dict[str, str]]]:
    """(``file:line``, column → text) of a file with exactly these columns.

    Args:
        columns: in the file's order, or, with a header, in any.
        header: whether the first line names the columns; there may then be others beside.

    Raises:
        ValueError: a column is missing, or a line has more or fewer than the others.
    """
    records = quoted_rows(file)
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
