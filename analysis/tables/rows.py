"""Tables: of a run's or several systems' metrics, as Markdown, LaTeX, text and CSV.

`tabulate` makes the long table, each number of some systems in a row of its own; tables for people
are parts of it. Nothing in a table's texts becomes formatting or code.
"""

import csv
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from pandas import DataFrame, Series

from analysis.tables import metric_names
from analysis.tables.metric_names import MISSING, Key, Statistic, read_key
from gr_mvdr.files import new_file, read_lines, reading, write_text
from gr_mvdr.options import make_printable

Row = dict[str, Any]

MANY_COLUMNS = 8  # more than these do not fit on a page
COLUMNS = ("system", "key", *Key._fields, "name", "mean", "std", "low", "high", "cell")
NO_WINNERS: Mapping[str, str] = {}

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
        corner: what the rows' names are. note: how to read it; every form of the table shows it.
    """

    heading: str
    columns: list[str]
    rows: list[tuple[str, list[Cell]]]
    corner: str = "system"
    note: str = ""

    @property
    def lines(self) -> list[list[Cell]]:
        """The header and the rows, names included."""
        header = list(map(Cell, [self.corner, *self.columns]))
        return [header, *([Cell(name), *cells] for name, cells in self.rows)]

    def turned(self) -> "Table":
        """Rows and columns exchanged."""
        columns = zip(*(cells for _, cells in self.rows), strict=True)
        rows = list(zip(self.columns, map(list, columns), strict=True))
        return replace(self, columns=[name for name, _ in self.rows], rows=rows, corner="")


def pivot(cells: Mapping[tuple[str, str], Cell | str], heading: str = "", **others: str) -> Table:
    """A table of (row, column) → cell, in the order in which rows and columns first appear.

    Args:
        others: corner and note of the `Table`.
    """
    columns = list(dict.fromkeys(column for _, column in cells))
    rows: dict[str, dict[str, Cell]] = {}
    for (row, column), cell in cells.items():
        rows.setdefault(row, {})[column] = Cell(cell) if isinstance(cell, str) else cell
    missing = Cell(MISSING)
    lines = [(name, [row.get(column, missing) for column in columns]) for name, row in rows.items()]
    return Table(heading, columns, lines, **others)


def tabulate(
    systems: Mapping[str, Mapping[str, Statistic]], winners: Mapping[str, str] = NO_WINNERS
) -> DataFrame:
    """The metrics of systems in reading order.

    Args:
        systems: label → metric → its value.
        winners: metric → the system that is significantly better than every other: gets a star.

    Returns:
        `COLUMNS`: what the key says (`Key`), the numbers, and their cell: the best of several is
        the highest for effectiveness, the lowest for costs and errors.
    """
    rows = []
    for key in sorted(
        {key: None for metrics in systems.values() for key in metrics}, key=metric_names.order
    ):
        read, measured = read_key(key), {s: m[key] for s, m in systems.items() if key in m}
        better = "low" if read.group == "cost" else read.metric.better
        means = [statistic.mean for statistic in measured.values()]
        best = {"high": max, "low": min}[better](means) if better and len(means) > 1 else None
        for system, statistic in measured.items():
            star = " *" if winners.get(key) == system else ""
            cell = Cell(metric_names.text(key, statistic) + star, statistic.mean == best)
            place = {"system": system, "key": key, "name": read.name, "cell": cell}
            rows.append(place | read._asdict() | asdict(statistic))
    return DataFrame(rows, columns=COLUMNS).astype({"headline": bool, "whole": bool})


def select(table: DataFrame, rows: str | Series, columns: str, **about: str) -> Table:
    """A part of the long table for people: its cells by two of its columns."""
    names = table[rows] if isinstance(rows, str) else rows
    cells = zip(names, table[columns], table["cell"], strict=True)
    return pivot({(row, column): cell for row, column, cell in cells}, **about)


def tabulate_chapters(table: DataFrame) -> dict[str, list[Table]]:
    """All metrics, chapter by chapter: rows say where they were measured, and on which system.

    Metrics by parts (ranges of IDF, stages of a run) have a table of their own for each unit.
    """
    chapters = defaultdict(list)
    units = [metric.unit for metric in table["metric"]]
    kinds = [unit * (not whole) for unit, whole in zip(units, table["whole"], strict=True)]
    for (chapter, *_), part in table.groupby(["chapter", "whole", kinds], sort=False):
        rows, corner = part["section"], ""
        if table["system"].nunique() > 1:
            rows = part["system"] if rows.nunique() == 1 else rows + ", " + part["system"]
            corner = "system"
        found = select(part, rows, "label", heading=chapter, corner=corner)
        wide = len(found.columns) > max(MANY_COLUMNS, len(found.rows))
        chapters[chapter].append(found.turned() if wide else found)
    return chapters


def format_markdown(table: Table) -> list[str]:
    """The lines of a table under its heading, its note below it; the best are bold."""
    header, *rows = (
        f"| {' | '.join(f'**{text}**' if best else text for text, best in line)} |"
        for line in ([(escape_markdown(c.text), c.best) for c in line] for line in table.lines)
    )
    lines = [f"## {escape_markdown(table.heading)}", "", header]
    lines += ["|---|" + "---:|" * len(table.columns), *rows]
    return [*lines, "", escape_markdown(table.note)] if table.note else lines


def format_latex(table: Table) -> list[str]:
    r"""The lines of a table, its note in the caption, for \usepackage{booktabs}; best: bold."""
    header, *rows = (
        " & ".join(rf"\textbf{{{text}}}" if best else text for text, best in line) + r" \\"
        for line in ([(escape_latex(c.text), c.best) for c in line] for line in table.lines)
    )
    caption = f"{table.heading}. {table.note}" if table.note else table.heading
    return [
        *(r"\begin{table}", r"\centering", rf"\caption{{{escape_latex(caption)}}}"),
        *(rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}", r"\toprule", header),
        *(r"\midrule", *rows, r"\bottomrule", r"\end{tabular}", r"\end{table}"),
    ]


def format_text(table: Table) -> list[str]:
    """The lines of a table for a terminal, without its heading; the best are bold there."""
    lines = [[(make_printable(cell.text), cell.best) for cell in line] for line in table.lines]
    columns = [[text for text, _ in column] for column in zip(*lines, strict=True)]
    numeric = [all(text[:1] in "0123456789+-−–" for text in texts[1:]) for texts in columns]
    forms = [
        f"{{:{'>' if right else '<'}{max(map(len, texts))}}}"
        for right, texts in zip(numeric, columns, strict=True)
    ]
    bold = "\x1b[1m{}\x1b[0m" if sys.stdout.isatty() else "{}"
    return [
        "  ".join(
            (bold if best else "{}").format(form.format(text))
            for form, (text, best) in zip(forms, line, strict=True)
        ).rstrip()
        for line in lines
    ]


def print_tables(blocks: Iterable[Table | str]) -> None:
    """Prints tables with their headings and notes, and sentences between them."""
    for one in blocks:
        if isinstance(one, str):
            print(make_printable(one))
        else:
            notes = [make_printable(one.note)] if one.note else []
            print("", make_printable(one.heading), *format_text(one), *notes, "", sep="\n")


def write_tables(path: Path, title: str, blocks: Iterable[Table | str]) -> Path:
    """Writes tables, and sentences between them, as Markdown (`.md`) or LaTeX (`.tex`)."""
    latex = path.suffix == ".tex"
    form, escape = (format_latex, escape_latex) if latex else (format_markdown, escape_markdown)
    head = r"% \usepackage{booktabs}" if latex else f"# {escape(title)}"
    texts = [escape(one) if isinstance(one, str) else "\n".join(form(one)) for one in blocks]
    write_text(path, "\n\n".join([head, *texts]) + "\n")
    return path


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
