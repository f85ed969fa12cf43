"""Tables for readers: on a terminal, in Markdown and in LaTeX; templates show them on pages."""

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from pandas import DataFrame, concat

from analysis.runs.numbers import MISSING, PLACE, describe, format_value
from gr_mvdr.files import new_file, write_text
from gr_mvdr.measures import RANKED
from gr_mvdr.options import make_printable

BOLD = "Bold: the best value of a metric. "  # of a note; a pipe shows nothing bold
MANY_COLUMNS = 8  # the most columns that fit on a page
# What Markdown does not read as plain text: its own signs, HTML tags and entities, links.
_SIGNS = re.compile(r"[\\`*|]|<(?=[a-zA-Z/!?])|&(?=#?\w+;)|(?<=\])\(")
# Signs that LaTeX's usual fonts lack.
_LATEX = str.maketrans(
    {"−": "$-$", "±": r"$\pm$", "→": r"$\to$", "Σ": r"$\Sigma$", "–": "--", "†": r"$\dagger$"}
    | {sign: f"${sign}$" for sign in "<>|"}
)


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
        cells: a frame of `Cell`; its index holds the rows' names.
        corner: the header of the rows' names.
        note: how to read the table.
    """

    cells: DataFrame
    heading: str = ""
    corner: str = "system"
    note: str = ""

    @property
    def lines(self) -> list[list[Cell]]:
        """The header and the rows, names included."""
        header = [Cell(self.corner), *map(Cell, self.cells.columns)]
        return [header, *([Cell(name), *row] for name, *row in self.cells.itertuples(name=None))]

    def turned(self) -> "Table":
        """Returns the table with rows and columns exchanged."""
        return replace(self, cells=self.cells.T, corner="")


def pivot(cells: Mapping[tuple[str, str], Cell | str], heading: str = "", **others: str) -> Table:
    """Makes a table of (row, column) → cell; rows and columns keep the order of first appearance.

    Args:
        others: the corner and note of the `Table`.
    """
    rows, columns = (list(dict.fromkeys(key[axis] for key in cells)) for axis in (0, 1))
    missing = Cell(MISSING)
    found = [[cells.get((row, column), missing) for column in columns] for row in rows]
    lines = [[Cell(cell) if isinstance(cell, str) else cell for cell in line] for line in found]
    frame = DataFrame(index=rows, columns=columns, dtype=object)
    for number in range(len(columns)):
        frame.isetitem(number, [line[number] for line in lines])
    return Table(frame, heading, **others)


def tabulate(systems: Mapping[str, DataFrame], stars: Mapping[str, str] | None = None) -> DataFrame:
    """Makes the long table of the systems' numbers, in reading order, with their `cell`.

    Args:
        systems: label → numbers, as `analysis.runs.numbers.over_seeds` returns them.
        stars: metric of the search → the system that is significantly better than every other.

    Returns:
        The joined tables with the column `system`. If several systems have a number, the best one
        is marked.
    """
    parts = [numbers.assign(system=label) for label, numbers in systems.items()]
    # The system that measured most says in which order its numbers stand.
    order = concat(sorted(parts, key=len, reverse=True))[PLACE].drop_duplicates(ignore_index=True)
    table = order.merge(concat(parts), on=PLACE, how="left")
    groups = table.groupby(PLACE)["value"]
    ranks = {better: groups.transform(how) for better, how in {"high": "max", "low": "min"}.items()}
    best = sum((table["better"] == b) & (table["value"] == v) for b, v in ranks.items()) > 0
    best &= groups.transform("count") > 1
    starred = table["metric"].map(stars or {}) == table["system"]
    starred &= (table["group"] == RANKED[0]) & (table["place"] == "") & (table["split"] == "")
    rows = table.itertuples()
    texts = [format_value(row) + " *" * star for row, star in zip(rows, starred, strict=True)]
    cells = [Cell(text, is_best) for text, is_best in zip(texts, best, strict=True)]
    return describe(table.assign(cell=cells))


def select(table: DataFrame, rows: str, columns: str, heading: str = "", **about: str) -> Table:
    """Arranges a part of the long table for readers: its cells by two of its columns."""
    cells = zip(table[rows], table[columns], table["cell"], strict=True)
    return pivot({(row, column): cell for row, column, cell in cells}, heading, **about)


def tabulate_rankings(table: DataFrame) -> Table | None:
    """Tabulates search and reranking, a row for each split and form; None without rankings."""
    ranked = table[table["group"].isin(RANKED)]
    return select(ranked, "section", "label", corner="") if len(ranked) else None


def tabulate_chapters(table: DataFrame) -> dict[str, list[Table]]:
    """Returns chapter → tables of its metrics; rows say where, and on which system, they come from.

    Metrics given by parts (ranges of IDF, stages of a run) get a separate table for each unit.
    """
    chapters: dict[str, list[Table]] = {}
    whole = table["part"] == ""
    kinds = table["unit"].mask(whole, "whole")
    for (chapter, _), part in table.groupby(["chapter", kinds], sort=False):
        rows, corner = part["section"], ""
        if table["system"].nunique() > 1:
            rows = part["system"] if rows.nunique() == 1 else rows + ", " + part["system"]
            corner = "system"
        found = select(part.assign(row=rows), "row", "label", heading=chapter, corner=corner)
        wide = len(found.cells.columns) > max(MANY_COLUMNS, len(found.cells))
        chapters.setdefault(chapter, []).append(found.turned() if wide else found)
    return chapters


def format_markdown(table: Table) -> list[str]:
    """Returns a table's lines, heading above and note below; the best cells are bold."""
    header, *rows = (f"| {' | '.join(map(_mark_markdown, line))} |" for line in table.lines)
    lines = [f"## {escape_markdown(table.heading)}", "", header]
    lines += ["|---|" + "---:|" * len(table.cells.columns), *rows]
    return [*lines, "", escape_markdown(table.note)] if table.note else lines


def _mark_markdown(cell: Cell) -> str:
    mark = "**" * cell.best + "*" * cell.weak
    return f"{mark}{escape_markdown(cell.text)}{mark}"


def format_latex(table: Table) -> str:
    r"""Returns a table for \usepackage{booktabs}; best: bold, note: in the caption."""
    texts = table.cells.map(lambda cell: cell.text)
    bold = table.cells.map(lambda cell: "textbf:--rwrap;" * cell.best)
    style = texts.rename_axis(columns=table.corner).style.apply(lambda _: bold, axis=None)
    style = style.format(escape="latex")
    for axis in (0, 1):
        style = style.format_index(escape="latex", axis=axis)
    caption = escape_latex(f"{table.heading}. {table.note}" if table.note else table.heading)
    columns = "l" + "r" * len(texts.columns)
    shown = style.to_latex(hrules=True, position_float="centering", column_format=columns)
    return shown.replace("\\centering", f"\\centering\n\\caption{{{caption}}}", 1).translate(_LATEX)


def escape_latex(text: str) -> str:
    """Escapes a text of one line as Styler escapes cells."""
    style = DataFrame([[text.replace("\n", " ")]]).style.format(escape="latex").hide().hide(axis=1)
    return style.to_latex().splitlines()[1].removesuffix(r" \\")


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
    if path.suffix == ".tex":
        texts = [
            escape_latex(one).translate(_LATEX) if isinstance(one, str) else format_latex(one)
            for one in blocks
        ]
        head = r"% \usepackage{booktabs}"
    else:
        texts = [
            escape_markdown(one) if isinstance(one, str) else "\n".join(format_markdown(one))
            for one in blocks
        ]
        head = f"# {escape_markdown(title)}"
    write_text(path, "\n\n".join([head, *texts]) + "\n")
    return path


def escape_markdown(text: str) -> str:
    """Escapes a foreign text for one line of Markdown: nothing in it is formatting or HTML."""
    return _SIGNS.sub(r"\\\g<0>", make_printable(text).replace("\n", " "))


def write_csv(rows: Iterable[Mapping[str, Any]] | DataFrame, path: Path) -> None:
    """Writes rows as CSV (temporary name, then renamed)."""
    with new_file(path) as partial:
        DataFrame(rows, dtype=object).to_csv(partial, index=False)  # whole numbers stay whole


def describe_value(value: Any) -> Any:
    """Formats a value for a cell: "null", or a part's class and arguments: "FirstTokens(k=28)"."""
    if value is None:
        return "null"
    if isinstance(value, dict) and "_target_" in value:
        arguments = (f"{k}={describe_value(part)}" for k, part in value.items() if k != "_target_")
        return f"{value['_target_'].rpartition('.')[2]}({', '.join(arguments)})"
    return str(value) if isinstance(value, dict | list) else value
