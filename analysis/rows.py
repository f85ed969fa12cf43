"""Tables as plain rows, and as CSV files."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gr_mvdr.files.writing import new_file

Row = dict[str, Any]


def write_rows(
    rows: Sequence[Row], path: Path, columns: Sequence[str] | None = None, none: str = ""
) -> None:
    """Writes rows as CSV (temporary name, then renamed); an empty cell where a value is NaN.

    Args:
        columns: in which order; by default as they first appear in the rows.
        none: what stands for None.
    """
    columns = columns or list(dict.fromkeys(name for row in rows for name in row))
    with new_file(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        for row in rows:
            writer.writerow({name: _cell(value, none) for name, value in row.items()})


def _cell(value: Any, none: str) -> Any:
    if value is None:
        return none
    return "" if value != value else value
