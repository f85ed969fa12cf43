"""Plain passages: one CSV, TSV or JSON lines file of texts; its path, or a folder with only it.

``data.fields`` names the columns of id, title and text; otherwise they need one of the usual names
(`gr_mvdr.texts.FIELDS`). A TSV file may lack a header (MS MARCO's ``id<TAB>text``, or one text per
line). If the file has no ids, the line numbers are the ids. There are no queries and no judgements,
so the collection can be searched, but nothing is measured.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from data_modules.formats.layout import Document, Layout
from data_modules.formats.readers import (
    first_line,
    json_lines,
    missing,
    plain_name,
    quoted_rows,
    table,
)
from data_modules.formats.rows import Reader, documents
from gr_mvdr.texts import find_fields

_ENDINGS = (".csv", ".tsv", ".jsonl")
_FIELDS = {1: ("text",), 2: ("id", "text"), 3: ("id", "title", "text")}


def recognises(path: Path) -> bool:
    return _file(path) is not None


def read(path: Path, fields: Sequence[str | int] | None = None) -> Layout:
    """The layout of a file of passages.

    Args:
        fields: the columns of id, title and text, of id and text, or of the text, by name; if the
            file has no header, by number from 1.

    Raises:
        FileNotFoundError: the path is neither such a file nor a folder with only one.
        ValueError: the columns are not recognised; the message names the file and its columns.
    """
    if (file := _file(path)) is None:
        raise missing(path, *(f"*{ending}" for ending in _ENDINGS))
    name, ending = plain_name(file).rsplit(".", 1)
    if ending == "jsonl":
        header, columns, read = True, list(next(json_lines(file), ("", {}))[1]), json_lines
        names = columns
    else:
        quoted, delimiter = ending == "csv", "," if ending == "csv" else "\t"
        plain = first_line(file).split(delimiter)
        columns = next(quoted_rows(file, delimiter), ("", [""]))[1] if quoted else plain
        header = bool(find_fields(columns)) or bool(fields and {*fields} <= {*columns})
        names = columns if header else [str(number) for number in range(1, len(columns) + 1)]
        options = {"header": header, "quoted": quoted, "delimiter": delimiter}
        read = partial(table, columns=[] if header else names, **options)
    if not any(columns):
        raise ValueError(f"{file}: is empty")
    chosen = _choose_columns(file, columns, names, fields)
    return Layout(
        name=name,
        files=(file,),
        options={"reader": "passages/1", "columns": chosen, "header": header},
        documents=partial(_documents, file, read, chosen),
        queries=lambda: iter(()),
        judgements={},
    )


def _file(path: Path) -> Path | None:
    """The file of passages: the path itself, or the only file of a folder; ignores hidden files."""
    if path.is_dir():
        files = [file for file in path.iterdir() if not file.name.startswith(".")]
        path = files[0] if len(files) == 1 else path
    return path if path.is_file() and plain_name(path).endswith(_ENDINGS) else None


def _choose_columns(
    file: Path, first: list[str], names: list[str], fields: Sequence[str | int] | None
) -> dict[str, str]:
    """Kind (id, title, text) → column, for the kinds that the file has.

    Args:
        first: the fields of the first line.
        names: the names of the columns; without a header, their numbers from 1.
    """
    if fields:
        kinds = _FIELDS.get(len(fields), ())
        if kinds and all(str(name) in names for name in fields):
            return {kind: str(name) for kind, name in zip(kinds, fields, strict=True)}
        raise ValueError(
            f"data.fields={list(fields)}: must name the columns of id, title and text, of id and "
            f"text, or of the text, among {', '.join(names)} of {file}"
        )
    is_numbered = names != first and plain_name(file).endswith(".tsv")
    if len(names) == 1 or (is_numbered and len(names) == 2):
        return dict(zip(_FIELDS[len(names)], names, strict=True))
    usual = find_fields(names)
    if "text" not in usual:
        raise ValueError(
            f"{file}: cannot tell which of the columns {', '.join(first)[:80]} are id, title and "
            "text: name them, data.fields=[id,title,text], or [1,3,2] by number"
        )
    return usual


def _documents(file: Path, read: Reader, columns: Mapping[str, str]) -> Iterator[Document]:
    said = ", ".join(f"{field} from column {name}" for field, name in columns.items())
    numbers = "" if "id" in columns else "; ids are line numbers"
    print(f"{file}: passages without queries, {said}{numbers}")
    yield from documents(read, file, **{"id": "", **columns})
