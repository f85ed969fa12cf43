"""Tables of the metrics of one or several systems, as Markdown, LaTeX, text and CSV.

`tabulate` makes the long table, with one row for each number of each system; tables for readers are
parts of it. Texts are escaped, so that nothing in them becomes formatting or code.
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

from analysis.tables.metric_names import MISSING, Key, Statistic, format_value, read_key
from gr_mvdr.files import new_file, read_lines, reading, write_text
from gr_mvdr.options import make_printable

Row = dict[str, Any]

BOLD = "Bold: the best value of a metric. "  # of a note; a pipe shows nothing bold
MANY_COLUMNS = 8  # the most columns that fit on a page
COLUMNS = ("system", "key", *Key._fields, "name", "mean", "std", "low", "high", "n", "cell")
NO_WINNERS: Mapping[str, str] = {}

# What Markdown does not read as plain text: its own signs, HTML tags and entities, links.
_SIGNS = re.compile(r"[\\`*|]|<(?=[a-zA-Z/!?])|&(?=#?\w+;)|(?<=\])\(")
# What a spreadsheet runs as a formula; a lone sign, such as a token, and a number are harmless.
_FORMULA = re.compile(r"[=+\-@\t\r](?!$|[\d.]+(e[+-]?\d+)?$)")
# What LaTeX does not read as plain text, and signs that its usual fonts lack.
_LATEX = {sign: rf"\{sign}" for sign in "_&%#${}"} | {sign: f"${sign}$" for sign in "<>|"}
_LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX |= {"−": "$-$", "±": r"$\pm$", "→": r"$\to$", "–": "--", "Σ": r"$\Sigma$"}
_LATEX |= {'"': r"\textquotedbl{}", "…": r"\ldots{}"}


class Cell(NamedTuple):
    """A formatted value.

    Attributes:
        best: whether it is the best among the compared systems; bold.
        weak: whether it rests on too few seeds; italic.
    """

    text: str
    best: bool = False
    weak: bool = False


@dataclass(frozen=True)
class Table:
    """Named rows of cells under a heading.

    Attributes:
        corner: the header of the rows' names.
        note: how to read the table.
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
        """Returns the table with rows and columns exchanged."""
        columns = zip(*(cells for _, cells in self.rows), strict=True)
        rows = list(zip(self.columns, map(list, columns), strict=True))
        return replace(self, columns=[name for name, _ in self.rows], rows=rows, corner="")


def pivot(cells: Mapping[tuple[str, str], Cell | str], heading: str = "", **others: str) -> Table:
    """Makes a table of (row, column) → cell; rows and columns keep the order of first appearance.

    Args:
        others: the corner and note of the `Table`.
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
    """Makes the long table of the systems' metrics, in reading order.

    Args:
        systems: label → metric → its value.
        winners: metric → the system that is significantly better than every other; it gets a star.

    Returns:
        A frame with `COLUMNS`: the parsed key (`Key`), the numbers, and their cell. If several
        systems have a metric, the highest value is the best one, for costs and errors the lowest.
    """
    rows = []
    keys = {key: None for metrics in systems.values() for key in metrics}
    for key in sorted(keys, key=lambda key: read_key(key).order):
        read, measured = read_key(key), {s: m[key] for s, m in systems.items() if key in m}
        better = "low" if read.group == "cost" else read.metric.better
        means = [statistic.mean for statistic in measured.values()]
        best = {"high": max, "low": min}[better](means) if better and len(means) > 1 else None
        for system, statistic in measured.items():
            star = " *" if winners.get(key) == system else ""
            cell = Cell(format_value(key, statistic) + star, statistic.mean == best)
            place = {"system": system, "key": key, "name": read.name, "cell": cell}
            rows.append(place | read._asdict() | asdict(statistic))
    return DataFrame(rows, columns=COLUMNS).astype({"headline": bool, "whole": bool})


def select(table: DataFrame, rows: str | Series, columns: str, **about: str) -> Table:
    """Arranges a part of the long table for readers: its cells by two of its columns."""
    names = table[rows] if isinstance(rows, str) else rows
    cells = zip(names, table[columns], table["cell"], strict=True)
    return pivot({(row, column): cell for row, column, cell in cells}, **about)


def tabulate_chapters(table: DataFrame) -> dict[str, list[Table]]:
    """Returns chapter → tables of its metrics; rows say where, and on which system, they come from.

    Metrics given by parts (ranges of IDF, stages of a run) get a separate table for each unit.
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
    """Returns a table's lines, heading above and note below; the best cells are bold."""
    header, *rows = (f"| {' | '.join(map(_mark_markdown, line))} |" for line in table.lines)
    lines = [f"## {escape_markdown(table.heading)}", "", header]
    lines += ["|---|" + "---:|" * len(table.columns), *rows]
    return [*lines, "", escape_markdown(table.note)] if table.note else lines


def _mark_markdown(cell: Cell) -> str:
    mark = "**" * cell.best + "*" * cell.weak
    return f"{mark}{escape_markdown(cell.text)}{mark}"


def format_latex(table: Table) -> list[str]:
    r"""Returns a table's lines for \usepackage{booktabs}; best: bold, note: in the caption."""
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
    """Returns a table's lines as text, without heading or note; on a terminal the best are bold."""
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
            note = one.note if sys.stdout.isatty() else one.note.replace(BOLD, "")
            notes = [make_printable(note)] if note else []
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
    """Escapes a foreign text for one line of Markdown: nothing in it is formatting or HTML."""
    return _SIGNS.sub(r"\\\g<0>", make_printable(text).replace("\n", " "))


def escape_latex(text: str) -> str:
    """Escapes a foreign text for one line of LaTeX: nothing in it is a command or a formula."""
    return make_printable(text).replace("\n", " ").translate(str.maketrans(_LATEX))


def write_rows(rows: Sequence[Row], path: Path, columns: Sequence[str] | None = None) -> None:
    """Writes rows as CSV (temporary name, then renamed); None and NaN become empty cells.

    A text that a spreadsheet would run as a formula gets an apostrophe in front.

    Args:
        columns: the columns in their order; by default as they first appear in the rows.
    """

    def as_cell(value: Any) -> Any:
        if isinstance(value, str) and _FORMULA.match(value):
            return f"'{value}"
        return "" if value is None or value != value else value

    columns = columns or list(dict.fromkeys(name for row in rows for name in row))
    with new_file(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(map(as_cell, columns))
        writer.writerows([as_cell(row.get(name, "")) for name in columns] for row in rows)


def read_rows(path: Path, folder: Path | None = None) -> list[Row]:
    """Reads the rows of `write_rows`: parses numbers but for ids of queries, omits empty cells.

    Args:
        folder: the run's folder, in which the file must lie; None = the user named the file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is not a table.
    """
    with reading(f"{path}: must be a table"):
        lines = list(csv.DictReader(read_lines(path, folder)))
    return [
        {name: text if name == "query" else read_value(text) for name, text in line.items() if text}
        for line in lines
    ]


def find_setting(rows: Sequence[Row], setting: Mapping[str, Any]) -> int | None:
    """Returns the number of a study's row that has a setting; None if no row has it.

    If several rows fit, the one with the largest `neighbours` is used.
    """
    fitting = []
    for number, row in enumerate(rows):
        if setting.items() <= row.items():
            neighbours = row.get("neighbours")
            most = neighbours if isinstance(neighbours, int | float) else 0
            fitting.append((most, number))
    return max(fitting)[1] if fitting else None


def read_value(text: str) -> Any:
    """Parses a cell: a number if the text is one, else the text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text[1:] if text[:1] == "'" and _FORMULA.match(text[1:]) else text


def describe_value(value: Any) -> Any:
    """Formats a value for a cell: "null", or a part's class and arguments: "FirstTokens(k=28)"."""
    if value is None:
        return "null"
    if isinstance(value, dict) and "_target_" in value:
        arguments = (f"{k}={describe_value(part)}" for k, part in value.items() if k != "_target_")
        return f"{value['_target_'].rpartition('.')[2]}({', '.join(arguments)})"
    return str(value) if isinstance(value, dict | list) else value
