"""One table of texts to search, or of questions with their answers.

The table is a CSV, TSV, JSON lines, Parquet or Arrow file, or a folder that holds only such a file
or that ``save_to_disk`` of ``datasets`` wrote. A CSV or TSV file may be delimited by commas, tabs,
semicolons or bars, whatever its name says.

``data.columns`` names the columns; otherwise they need usual names (`NAMES`). A table with a column
of queries makes pairs: each row's document is relevant to its query, or as relevant as the row's
grade says. Equal queries count once, and so do equal documents. The queries are split by a hash of
their text, 80 % train, 10 % dev and 10 % test, unless ``save_to_disk`` wrote several splits. A
table without queries can be searched, but nothing is measured.

Without a column of ids, a row's number is its id, from 0 as in pandas and ``datasets``.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, count, islice
from pathlib import Path

from data_modules.formats.layout import Document, Judgement, Layout, Query
from data_modules.formats.readers import (
    find_all,
    integer,
    missing,
    quoted_rows,
    split_rows,
    string,
    table,
    table_rows,
    word,
)
from data_modules.formats.rows import Reader
from gr_mvdr.files import plain_name
from gr_mvdr.options import show
from gr_mvdr.texts import FIELDS, find_fields

ENDINGS = (".csv", ".tsv", ".jsonl", ".parquet", ".arrow")
NAMES = FIELDS | {
    "query": ("query", "question", "anchor"),
    "text": (*FIELDS["text"], "context", "positive", "answer", "response"),
    "grade": ("grade", "relevance", "label"),
}
SPLITS = (*["train"] * 8, "dev", "test")  # of a tenth of the queries each
_DELIMITERS = {".csv": ",;\t|", ".tsv": "\t,;|"}  # in the order in which they are tried
_SAMPLE = 1000  # number of rows that decide how a file is read
_ALIKE = 0.9  # share of rows that must have as many cells as the first
_LONGEST = 60  # characters of a column's name


def recognises(path: Path) -> bool:
    return bool(_find_files(path))


def read(path: Path, columns: Mapping[str, str | int] | None = None) -> Layout:
    """The layout of a table.

    Args:
        columns: query, document (or answer, or text), id, title, grade → the name of the column
            that holds it, or its number from 1 if the file has no header; the others are further
            fields of the document.

    Raises:
        FileNotFoundError: the path is not a table.
        ValueError: the columns are not recognised; the message names the file and its columns.
    """
    splits = _find_files(path)
    if not splits:
        raise missing(path, *(f"*{ending}" for ending in ENDINGS))
    texts = dict.fromkeys(("document", "answer"), "text")
    wanted = {texts.get(kind, kind): str(name) for kind, name in (columns or {}).items()}
    if columns and ("text" not in wanted or len(wanted) < len(columns)):
        rule = "must name one column as document (or answer, or text)"
        raise ValueError(f"data.columns={show(dict(columns))}: {rule}")
    file = next(iter(splits.values()))[0]
    ending = Path(plain_name(file)).suffix
    if ending in _DELIMITERS:
        names, reader = _open_delimited(file, ending, wanted)
    else:
        names, reader = _read_names(file), table_rows
    own = _Table(splits, reader, _choose_columns(file, names, wanted))
    given = splits if len(splits) > 1 else {}
    # Files of two splits have the same names, so their sizes also tell a stored collection.
    sizes = {split: [file.stat().st_size for file in files] for split, files in given.items()}
    named = () if "query" not in own.columns else given or SPLITS
    return Layout(
        name=plain_name(path.resolve()).removesuffix(ending),
        files=tuple(chain.from_iterable(splits.values())),
        options={"reader": "table/1", "columns": own.columns, "splits": sizes},
        documents=own.documents,
        queries=own.queries,
        judgements={split: partial(own.judgements, split) for split in named},
    )


def _find_files(path: Path) -> dict[str, list[Path]]:
    """Split → files; a table that is not split has one entry. Hidden files are ignored."""
    if path.is_dir():
        inside = [file for file in sorted(path.iterdir()) if not file.name.startswith(".")]
        folders = [path, *(file for file in inside if file.is_dir())]
        if saved := {f.name: files for f in folders if (files := find_all(f, "data-*.arrow"))}:
            return saved
        path = inside[0] if len(inside) == 1 else path
    return {path.name: [path]} if path.is_file() and plain_name(path).endswith(ENDINGS) else {}


def _read_names(file: Path) -> list[str]:
    """The columns of the first rows: a line of JSON may lack some."""
    rows = (row for _, row in islice(table_rows(file), _SAMPLE))
    return list(dict.fromkeys(chain.from_iterable(rows)))


def _open_delimited(file: Path, ending: str, wanted: Mapping[str, str]) -> tuple[list[str], Reader]:
    """The names of a CSV or TSV file's columns, and its reader.

    The delimiter is the one that finds most known columns, and then the most rows as wide as the
    first. Texts in a TSV file are quoted only if its first rows follow csv's rules: those of MS
    MARCO may begin with a quote that is part of the text.

    Raises:
        ValueError: the first line may be a header with unknown names.
    """

    def first_rows(delimiter: str, quoted: bool) -> list[list[str]]:
        read = quoted_rows if quoted else split_rows
        try:
            return [row for _, row in islice(read(file, delimiter), _SAMPLE)]
        except ValueError:
            return []

    def regularity(delimiter: str) -> tuple[int, float]:
        rows = first_rows(delimiter, True) or first_rows(delimiter, False) or [[""]]
        known = {*find_fields(rows[0], NAMES).values(), *wanted.values()}
        alike = sum(len(row) == len(rows[0]) for row in rows) / len(rows)
        return len(known & {*rows[0]}), alike if len(rows[0]) > 1 and alike > _ALIKE else 0.0

    delimiter = max(_DELIMITERS[ending], key=regularity)
    rows = first_rows(delimiter, True)
    quoted = ending == ".csv" or bool(rows)
    _, first = next((quoted_rows if quoted else split_rows)(file, delimiter), ("", [""]))
    first = [name.strip() for name in first]
    if find_fields(first, NAMES) or {*wanted.values()} & {*first}:
        return first, partial(table, columns=[], header=True, quoted=quoted, delimiter=delimiter)
    numbers = [str(number) for number in range(1, len(first) + 1)]
    is_named = not any(cell.isdigit() or len(cell) > _LONGEST for cell in first)
    is_named |= first[0].startswith("<")  # a page instead of the file
    words = all(len(row[0].split()) == 1 for row in rows)
    if wanted:
        names = numbers
    elif len(first) == 1 and not is_named:
        names = ["text"]
    elif len(first) == 2 and not is_named and words and delimiter == "\t":
        names = ["id", "text"]
    else:
        raise _unclear(file, first)
    quoted = ending == ".csv" or (quoted and rows != first_rows(delimiter, False))
    return names, partial(table, columns=names, quoted=quoted, delimiter=delimiter)


def _choose_columns(file: Path, names: list[str], wanted: Mapping[str, str]) -> dict[str, str]:
    """What a column holds → its name."""
    chosen = dict(wanted) or find_fields(names, NAMES)
    if "text" not in chosen:
        raise _unclear(file, names)
    if "query" not in chosen:
        chosen.pop("grade", None)
    for column in chosen.values():
        if names.count(column) != 1:
            rule = f"{column} must be one of the columns {', '.join(names)} of {file}"
            raise ValueError(f"data.columns={show(chosen)}: {rule}")
    return chosen


def _unclear(file: Path, columns: list[str]) -> ValueError:
    if not any(columns):
        return ValueError(f"{file}: is empty")
    return ValueError(
        f"{file}: cannot tell what the columns {', '.join(columns)[:200]} hold: name them, "
        "data.columns={document: …}, and query, title or id if there are such columns; in a file "
        "without a header by number, {query: 1, document: 2}"
    )


@dataclass(frozen=True)
class _Table:
    """A table's rows as documents and queries.

    Attributes:
        splits: split → files; if there is one, splits are made by hash.
        columns: what a column holds (query, text, id, title, grade) → its name.
    """

    splits: Mapping[str, list[Path]]
    reader: Reader
    columns: dict[str, str]

    def rows(self) -> Iterator[tuple[str, Query | None, Document, int]]:
        """Yields each row's split, query, document, grade; pairs name a text by its first row."""
        columns, numbers = self.columns, count()
        queries: dict[bytes, str] = {}  # digest of a text → id
        documents: dict[bytes, str] = {}
        for split, files in self.splits.items():
            for where, row in chain.from_iterable(map(self.reader, files)):
                name = word(where, columns["id"], row) if "id" in columns else str(next(numbers))
                title = string(where, columns["title"], row, "") if "title" in columns else ""
                text = string(where, columns["text"], row)
                fields = {name: row[name] for name in row if name not in columns.values()}
                if "query" not in columns:
                    yield split, None, Document(where, name, title, text, fields), 0
                    continue
                asked = string(where, columns["query"], row)
                query = Query(where, queries.setdefault(_digest(asked), name), asked)
                name = documents.setdefault(_digest(f"{title}\n{text}"), name)
                if len(self.splits) == 1:
                    place = int.from_bytes(_digest(" ".join(asked.lower().split())))
                    split = SPLITS[place % len(SPLITS)]
                given = columns.get("grade")
                grade = integer(where, given, str(row[given])) if given else 1
                yield split, query, Document(where, name, title, text, fields), grade

    def documents(self) -> Iterator[Document]:
        said = ", ".join(f"{kind} from column {column}" for kind, column in self.columns.items())
        numbers = "" if "id" in self.columns else "; ids are row numbers"
        queries = "" if "query" in self.columns else "; no queries, so nothing is measured"
        print(f"{next(iter(self.splits.values()))[0]}: {said}{numbers}{queries}")
        return (document for _, _, document, _ in self.rows())

    def queries(self) -> Iterator[Query]:
        return (query for _, query, *_ in self.rows() if query is not None)

    def judgements(self, wanted: str) -> Iterator[Judgement]:
        for split, query, document, grade in self.rows():
            if query is not None and split == wanted:
                yield Judgement(document.where, query.id, document.id, grade)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:16]
