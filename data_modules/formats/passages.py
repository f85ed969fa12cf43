"""Plain passages: one CSV, TSV or JSON lines file of texts, given itself or alone in its folder.

The columns of id, title and text are named by ``data.fields``, or have one of the usual names
(`_USUAL`). A TSV file may lack a header (MS MARCO's ``id<TAB>text``, or a text a line); a file
without ids has its line numbers as ids. There are no queries and no judgements: the collection is
searched, and nothing is measured.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from data_modules.formats.files import plain_name
from data_modules.formats.layout import Document, Layout
from data_modules.formats.lines import json_lines, numbered_lines, string, word
from data_modules.formats.tables import quoted_rows

_ENDINGS = (".csv", ".tsv", ".jsonl")
# What each column is usually called, the likeliest name first.
_USUAL = {
    "id": ("_id", "id", "docid", "doc_id", "document_id", "pid", "passage_id"),
    "title": ("title",),
    "text": ("text", "passage", "contents", "content", "body", "document", "abstract", "sentence"),
}
_EXAMPLES = {"name": "[id,title,text] or [id,text]", "number": "[1,3,2] or [1,2]"}
_FIELDS = ("id", "title", "text")


def recognises(path: Path) -> bool:
    return _file(path) is not None


def read(path: Path, fields: Sequence[str | int] | None = None) -> Layout:
    """The layout of a file of passages.

    Args:
        fields: the columns of id, title and text, of id and text, or of the text, by name; by
            number from 1 where the file has no header.

    Raises:
        FileNotFoundError: a folder holds no such file, or several.
        ValueError: the columns cannot be told; names the file and its columns.
    """
    if (file := _file(path)) is None:
        raise FileNotFoundError(f"data.path={path}: one file {', '.join(_ENDINGS)} is missing")
    names, header = _names(file, fields or ())
    columns = _choose_columns(file, names, header, fields)
    return Layout(
        name=plain_name(file).rpartition(".")[0],
        files=(file,),
        options={"reader": "passages/1", "columns": columns, "header": header},
        documents=partial(_documents, file, names, header, columns),
        queries=lambda: iter(()),
        judgements={},
    )


def _file(path: Path) -> Path | None:
    """The file itself, or the only one of a folder; hidden files do not count."""
    if path.is_dir():
        files = [file for file in path.iterdir() if not file.name.startswith(".")]
        path = files[0] if len(files) == 1 else path
    return path if path.is_file() and plain_name(path).endswith(_ENDINGS) else None


def _names(file: Path, fields: Sequence[str | int]) -> tuple[list[str], bool]:
    """The names of a file's columns, and whether its first line names them; else numbers."""
    if plain_name(file).endswith(".jsonl"):
        return list(_first(file, json_lines(file))), True
    names = _first(file, _records(file))
    usual = {name for known in _USUAL.values() for name in known}
    if usual & {name.strip().lower() for name in names} or (fields and {*fields} <= {*names}):
        return names, True
    return [str(number) for number in range(1, len(names) + 1)], False


def _first(file: Path, lines: Iterator[tuple[str, Any]]) -> Any:
    """The content of the first line."""
    if (line := next(lines, None)) is None:
        raise ValueError(f"{file}: is empty")
    return line[1]


def _choose_columns(
    file: Path, names: list[str], header: bool, fields: Sequence[str | int] | None
) -> dict[str, str]:
    """The columns of id, title and text, those that the file has."""
    if fields:
        kinds = {1: _FIELDS[2:], 2: _FIELDS[::2], 3: _FIELDS}.get(len(fields), ())
        if kinds and all(str(name) in names for name in fields):
            return {kind: str(name) for kind, name in zip(kinds, fields, strict=True)}
        raise ValueError(
            f"data.fields={list(fields)}: must name the columns of id, title and text, of id and "
            f"text, or of the text, among {', '.join(names)} of {file}"
        )
    if len(names) == 1:
        return {"text": names[0]}
    if not header and len(names) == 2 and plain_name(file).endswith(".tsv"):
        return {"id": names[0], "text": names[1]}
    plain = {name.strip().lower(): name for name in names}
    found = {kind: [plain[name] for name in _USUAL[kind] if name in plain] for kind in _FIELDS}
    if not header or not found["text"]:
        first = names if header else _first(file, _records(file))
        by = "name" if header else "number"
        raise ValueError(
            f"{file}: which columns are id, title and text cannot be told among "
            f"{', '.join(first)[:80]}: {by} them, data.fields={_EXAMPLES[by]}"
        )
    return {kind: columns[0] for kind, columns in found.items() if columns}


def _records(file: Path) -> Iterator[tuple[str, list[str]]]:
    """(``file:line``, fields) of a table; texts of a CSV file may be in quotes."""
    if plain_name(file).endswith(".csv"):
        return quoted_rows(file, ",")
    return ((where, line.split("\t")) for where, line in numbered_lines(file))


def _documents(
    file: Path, names: list[str], header: bool, columns: dict[str, str]
) -> Iterator[Document]:
    said = ", ".join(f"{field} from column {name}" for field, name in columns.items())
    numbers = "" if "id" in columns else "; ids are line numbers"
    print(f"{file}: passages without queries, {said}{numbers}")
    if plain_name(file).endswith(".jsonl"):
        for where, record in json_lines(file):
            id = word(where, columns["id"], record) if "id" in columns else _line(where)
            title = string(where, columns["title"], record, "") if "title" in columns else ""
            yield Document(where, id, title, string(where, columns["text"], record))
        return
    for number, (where, fields) in enumerate(_records(file)):
        if number == 0 and header:
            continue
        if len(fields) != len(names):
            raise ValueError(
                f"{where}: expected {len(names)} columns ({', '.join(names)}), got "
                f"{len(fields)}: {' '.join(fields)[:60]!r}"
            )
        row = dict(zip(names, fields, strict=True))
        id = row[columns["id"]] if "id" in columns else _line(where)
        yield Document(where, id, row.get(columns.get("title", ""), ""), row[columns["text"]])


def _line(where: str) -> str:
    """The line's number."""
    return where.rpartition(":")[2]
