"""Tables, as Markdown, LaTeX and CSV: whatever their names say, they stay mere text."""

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gr_mvdr.files import new_file, read_lines, reading
from gr_mvdr.options import make_printable

Row = dict[str, Any]

# What Markdown reads as more than text: its own signs, HTML's tags and entities, links.
_SIGNS = re.compile(r"[\\`*|]|<(?=[a-zA-Z/!?])|&(?=#?\w+;)|(?<=\])\(")
# What a spreadsheet runs as a formula: not a sign alone, such as a token, and no number.
_FORMULA = re.compile(r"[=+\-@\t\r](?!$|[\d.]+(e[+-]?\d+)?$)")
# What LaTeX reads as more than text, and signs that its usual fonts lack.
_LATEX = {sign: rf"\{sign}" for sign in "_&%#${}"} | {sign: f"${sign}$" for sign in "<>|"}
_LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX |= {"−": "$-$", "±": r"$\pm$", "→": r"$\to$", "–": "--", "Σ": r"$\Sigma$"}
_LATEX |= {'"': r"\textquotedbl{}", "…": r"\ldots{}"}


class Cell(NamedTuple):
    """A value for people, and whether it is the best of its column."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Table:
    """Named rows of cells under a heading.

    Attributes:
        corner: what the rows' names are. chapter: what a page shows the table under.
        note: how to read it; every form of the table shows it.
    """

    heading: str
    columns: list[str]
    rows: list[tuple[str, list[Cell]]]
    corner: str = "system"
    chapter: str = ""
    note: str = ""


def format_markdown(table: Table) -> list[str]:
    """The lines of a table under its heading, its note below it; the best are bold."""
    lines = [f"## {escape_markdown(table.heading)}", ""]
    lines += [_format_row(table.corner, map(Cell, table.columns))]
    lines += ["|---|" + "---:|" * len(table.columns)]
    lines += [_format_row(*row) for row in table.rows]
    return [*lines, "", escape_markdown(table.note)] if table.note else lines


def _format_row(name: str, cells: Iterable[Cell]) -> str:
    texts = [(escape_markdown(cell.text), cell.best) for cell in (Cell(name), *cells)]
    return f"| {' | '.join(f'**{text}**' if best else text for text, best in texts)} |"


def format_latex(table: Table) -> list[str]:
    r"""The lines of a table, its note in the caption, for \usepackage{booktabs}; best: bold."""
    rows = [_latex_row(*row) for row in table.rows]
    caption = f"{table.heading}. {table.note}" if table.note else table.heading
    return [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape_latex(caption)}}}",
        rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        r"\toprule",
        _latex_row(table.corner, map(Cell, table.columns)),
        *(r"\midrule", *rows, r"\bottomrule", r"\end{tabular}", r"\end{table}"),
    ]


def _latex_row(name: str, cells: Iterable[Cell]) -> str:
    texts = [(escape_latex(cell.text), cell.best) for cell in (Cell(name), *cells)]
    return " & ".join(rf"\textbf{{{text}}}" if best else text for text, best in texts) + r" \\"


def format_text(table: Table) -> list[str]:
    """The lines of a table in columns of one width each, without its heading: for a terminal."""
    lines = [[table.corner, *table.columns]]
    lines += [[name, *(cell.text for cell in cells)] for name, cells in table.rows]
    lines = [[make_printable(text) for text in line] for line in lines]
    first, *widths = (max(map(len, column)) for column in zip(*lines, strict=True))
    return [
        line[0].ljust(first)
        + "".join(f"  {text:>{width}}" for text, width in zip(line[1:], widths, strict=True))
        for line in lines
    ]


def escape_markdown(text: str) -> str:
    """A foreign text in one line of Markdown, where nothing in it is formatting or HTML."""
    return _SIGNS.sub(r"\\\g<0>", make_printable(text).replace("\n", " "))


def escape_latex(text: str) -> str:
    """A foreign text in one line of LaTeX, where nothing in it is a command or a formula."""
    return make_printable(text).replace("\n", " ").translate(str.maketrans(_LATEX))


def write_rows(
    rows: Sequence[Row], path: Path, columns: Sequence[str] | None = None, none: str = ""
) -> None:
    """Writes rows as CSV (temporary name, then renamed); an empty cell where a value is NaN.

    A text that a spreadsheet would run as a formula gets an apostrophe in front.

    Args:
        columns: in which order; by default as they first appear in the rows.
        none: what is written for None.
    """

    def as_cell(value: Any) -> Any:
        if isinstance(value, str) and _FORMULA.match(value):
            return f"'{value}"
        return none if value is None else "" if value != value else value

    columns = columns or list(dict.fromkeys(name for row in rows for name in row))
    with new_file(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(map(as_cell, columns))
        writer.writerows([as_cell(row.get(name, "")) for name in columns] for row in rows)


def read_rows(path: Path, folder: Path | None = None) -> list[Row]:
    """The rows of `write_rows` with none="null": numbers are numbers again, empty cells missing.

    Args:
        folder: a run's, in which the file must lie; None = the user named the file.

    Raises:
        FileNotFoundError: there is no such file. ValueError: it is no table.
    """
    with reading(f"{path}: must be a table"):
        lines = list(csv.DictReader(read_lines(path, folder)))
    return [{column: read_value(text) for column, text in line.items() if text} for line in lines]


def read_value(text: str) -> Any:
    """A cell's value: a number where the text is one, None for "null"."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    if text[:1] == "'" and _FORMULA.match(text[1:]):
        return text[1:]
    return None if text == "null" else text


def describe_value(value: Any) -> Any:
    """A value for a cell: a part by its class and arguments, "FirstTokens(k=28)"."""
    if isinstance(value, dict) and "_target_" in value:
        arguments = (f"{k}={describe_value(part)}" for k, part in value.items() if k != "_target_")
        return f"{value['_target_'].rpartition('.')[2]}({', '.join(arguments)})"
    return str(value) if isinstance(value, dict | list) else value
