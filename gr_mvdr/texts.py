"""From a text to token ids: cleaning, joining title and text, tokenising."""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import unescape
from itertools import count
from numbers import Integral
from typing import Any

from transformers import PreTrainedTokenizerBase

from gr_mvdr.fields import FIELDS_COLUMN
from gr_mvdr.options import show

SEPARATOR = " | "  # between the fields of a document
# The usual names of the fields of a document's row; the first one that a row has is used.
FIELDS = {
    "id": ("id", "_id", "docno", "docid", "doc_id", "document_id", "pid", "passage_id"),
    "title": ("title",),
    "text": ("text", "passage", "contents", "content", "body", "document", "abstract", "sentence"),
}
# A document as a user passes it: a text, a row (a mapping with `FIELDS`), or the id of an indexed
# document. Documents: one, several, id → text or row, or a table (pandas, polars, pyarrow,
# datasets).
Document = str | int | Mapping[str, Any]
Documents = Document | Iterable[Document] | Mapping[Any, Document]
Queries = str | Iterable[str | Mapping[str, Any]]
BODY = "body"  # the view that holds a document's text
ID_RULE = "a word without white space, as TREC runs need"
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_SIMPLE = re.compile(r"[\n\t -%'-~]*")  # ASCII without control characters and entities
# Elements whose content is not text. Without an end tag, a text only mentions them ("the <style>
# tag").
_SILENT = re.compile(r"(?is)<(script|style)(?=[\s>])[^>]*>.*?</\1\s*>")
_TAG = re.compile(r"(?s)<!--.*?-->|<[!?/a-zA-Z][^>]*>")


def _without_tags(text: str) -> str:
    return unescape(_TAG.sub("", _SILENT.sub("", text)))


def _repaired(text: str) -> str:
    if text.isascii() and _SIMPLE.fullmatch(text):
        return text  # ftfy would not change it
    import ftfy

    return ftfy.fix_text(text, normalization="NFC")


STEPS: dict[str, Callable[[str], str]] = {
    "html": _without_tags,
    "unicode": _repaired,
    "punctuation": lambda text: text.translate(_PUNCTUATION),
}


def clean_text(text: str, steps: Sequence[str]) -> str:
    """Applies the cleaning steps of Wu's T5-SEAL in order; white space becomes single blanks.

    Args:
        steps: "html" removes tags and replaces entities, "unicode" repairs wrongly decoded text
            (ftfy) and normalises to NFC, "punctuation" deletes ASCII punctuation ("don't" →
            "dont"). Wu's order is unicode, html, punctuation.

    Raises:
        ValueError: an unknown step.
    """
    for step in steps:
        if step not in STEPS:
            raise ValueError(f"data.cleaning=[{step}]: must be of {', '.join(STEPS)}")
        text = " ".join(STEPS[step](text).split())
    return text


def join_texts(parts: Iterable[str]) -> str:
    """Joins the fields of a document into one text; empty fields are left out."""
    return SEPARATOR.join(filter(None, parts))


def first_words(text: str, count: int) -> str:
    """Returns the text up to the end of its first `count` words."""
    rest = text.split(maxsplit=count)[count:]
    return text.removesuffix(rest[0]) if rest else text


def text_without_title(row: Mapping[str, Any]) -> str:
    """Returns the `text` of a document's row without its title."""
    title = row.get("title")
    return row["text"].removeprefix(title + SEPARATOR) if title else row["text"]


def check_id(where: str, kind: str, name: Any) -> None:
    """Raises ValueError unless the id of a query or document is valid in a TREC run.

    Args:
        where: the beginning of the message, ``file:line``.
        kind: "query" or "document".
        name: the id.
    """
    if not isinstance(name, str) or name.split() != [name]:
        raise ValueError(f"{where}: the {kind}'s id is {name!r:.80}: must be {ID_RULE}")


class TextTable:
    """A table in memory: columns by name, rows by number.

    Attributes:
        columns: name → a list with an entry for each row.
    """

    def __init__(self, columns: Mapping[str, list[Any]]):
        self.columns = dict(columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    @property
    def column_names(self) -> list[str]:
        return list(self.columns)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, key: str | int | slice | Sequence[int]) -> Any:
        if isinstance(key, str):
            return self.columns[key]
        if isinstance(key, int | slice):
            return {name: column[key] for name, column in self.columns.items()}
        return {name: [column[row] for row in key] for name, column in self.columns.items()}

    def select(self, rows: Iterable[int]) -> "TextTable":
        """Returns a table of these rows."""
        return TextTable(self[[int(row) for row in rows]])


class TextReader:
    """Turns plain texts into tables, in the same way as a run does for its collection."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        text_fields: Sequence[str] = ("title", "text"),
        cleaning: Sequence[str] = (),
        views: Sequence[str] = (),
        passages: Any = None,
        joined: Mapping[str, str] | None = None,
    ):
        """
        Args:
            tokenizer: the run's tokeniser.
            text_fields: the fields that make up a document's text: "title", "text" or both.
            cleaning: steps of `clean_text`.
            views: names of the run's document views; new documents have no texts for them.
            passages: a `PassageOptions`, which splits documents; None = they are not split.
            joined: see `TextTemplate.joined`.
        """
        self.tokenizer, self.text_fields, self.cleaning = tokenizer, text_fields, cleaning
        self.views, self.passages, self.joined = views, passages, joined or {}

    def queries(self, texts: Sequence[str]) -> TextTable:
        """Returns a table of queries: `id` (their numbers), `text` and `tokens`.

        Raises:
            ValueError: a text is empty.
        """
        for text in texts:
            check_query(text)
        texts = self._clean(texts)
        ids = [str(number) for number in range(len(texts))]
        return TextTable({"id": ids, "text": texts, "tokens": self.tokenise(texts, "query")})

    def documents(self, rows: Sequence[Mapping[str, Any]], splits: bool = True) -> TextTable:
        """Returns a table of documents, or of their passages, which have a `start`, too.

        Its columns are `id`, `title`, `text` (the joined fields), `tokens`, `title_tokens`,
        `VIEW_tokens` for each view, and `fields`.

        Args:
            rows: rows as `read_rows` returns them.
            splits: False = do not split the documents.
        """
        ids = [row["id"] for row in rows]
        fields = {name: self._clean([row[name] for row in rows]) for name in ("title", "text")}
        numbers, further = [*range(len(rows))], dict[str, list]()
        if self.passages is not None and splits:
            numbers, further = self.passages.split_all(ids, fields["text"])
            ids, fields["text"] = further.pop("id"), further.pop("text")
            fields["title"] = [fields["title"][number] for number in numbers]
        parts = zip(*(fields[name] for name in self.text_fields), strict=True)
        texts = list(map(join_texts, parts))
        tokens = {"tokens": self.tokenise(texts, "document")}
        tokens["title_tokens"] = self.tokenise(fields["title"])
        further |= {f"{view}_tokens": [[] for _ in ids] for view in self.views}
        further[FIELDS_COLUMN] = [rows[number].get(FIELDS_COLUMN, {}) for number in numbers]
        return TextTable({"id": ids, "title": fields["title"], "text": texts, **tokens, **further})

    def _clean(self, texts: Sequence[str]) -> list[str]:
        """Applies all cleaning steps; without any step, white space stays as it is."""
        return [clean_text(text, self.cleaning) for text in texts]

    def tokenise(self, texts: Sequence[str], side: str = "") -> list[list[int]]:
        """Returns the token ids of complete texts of a side, without special tokens."""
        if not texts:
            return []
        joined = [self.joined.get(side, "") + text for text in texts]
        return self.tokenizer(joined, add_special_tokens=False)["input_ids"]


# What a user passes ------------------------------------------------------------------------------


def check_query(text: Any) -> None:
    """Raises ValueError unless a query is a text that can be searched."""
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"query={show(text)}: must be a text with at least one word")


def id_text(name: Any) -> Any:
    """Returns an integer id as text, as the files' readers do; anything else as it is."""
    return str(name) if isinstance(name, Integral) and not isinstance(name, bool) else name


def list_queries(queries: Queries) -> list[str]:
    """Converts queries into a list of texts; a row's text is its `query` or its `text`."""
    if isinstance(queries, str):
        return [queries]
    rule = "a text, several texts or a table; retrieve takes a mapping of ids to texts"
    texts: list[Any] = []
    for item in _items("queries", queries, rule):
        row = item if isinstance(item, Mapping) else {"text": item}
        if not row.keys() & {"query", "text"}:
            raise ValueError(f"queries={show(item)}: must have the field query or text")
        texts.append(row["query"] if "query" in row else row["text"])
    return texts


def list_documents(documents: Documents) -> list[Any]:
    """Converts documents into a list of texts, ids, and rows with `id` (if given), `title`, `text`.

    A mapping that has only fields of a row, each once, is a row. One without any is id → document.

    Raises:
        ValueError: a mapping has fields of a row and other keys, or no documents were passed.
    """
    if isinstance(documents, str | Integral):
        return [documents]
    if not isinstance(documents, Mapping):
        items = _items("documents", documents, "ids, texts, rows, a table, or ids → texts")
    elif not (fields := find_fields(documents)):
        rows = [d if isinstance(d, Mapping) else {"text": d} for d in documents.values()]
        items = [{**row, "id": name} for name, row in zip(documents, rows, strict=True)]
    elif len(fields) == len(documents):
        items = [documents]
    else:
        raise ValueError(
            f"documents with the keys {', '.join(map(str, documents))}: must be a row of id, title "
            "and text, or ids → texts; in a list, a row may have other fields and any id"
        )
    return [_read_row(item) if isinstance(item, Mapping) else item for item in items]


def _items(name: str, given: Any, rule: str) -> list[Any]:
    """Returns the items of what a user passed, of a table its rows."""
    words = getattr(getattr(given, "index", None), "inferred_type", "") == "string"
    if words and hasattr(given, "to_frame"):  # a pandas Series of id → text
        given = given.to_frame("text")
    if hasattr(given, "itertuples"):  # pandas
        index, names = given.index, find_fields(given)
        unnamed = "id" if words and "id" not in names else None
        name = index.name or unnamed  # words in an index without a name are ids
        table = given if name in (None, *given) else given.rename_axis(name).reset_index()
        return table.astype(object).where(table.notna(), None).to_dict("records")
    for convert in ("to_dicts", "to_pylist"):  # polars, pyarrow
        if hasattr(given, convert):
            return getattr(given, convert)()
    if isinstance(given, bytes | Mapping) or not isinstance(given, Iterable):
        raise ValueError(f"{name}={show(given)}: must be {rule}")
    return list(given)


def find_fields(
    names: Iterable[Any], known: Mapping[str, Sequence[str]] = FIELDS
) -> dict[str, Any]:
    """Returns which of these names are those of id, title and text (`FIELDS`), in any case."""
    plain = {str(name).strip().lower(): name for name in names}
    named = {field: [n for n in usual if n in plain] for field, usual in known.items()}
    return {field: plain[own[0]] for field, own in named.items() if own}


def _read_row(document: Any) -> dict[str, Any]:
    """Returns a document's id, if it has one, its title, its text and its further fields."""
    row = {"text": document} if isinstance(document, str) else document
    fields = find_fields(row) if isinstance(row, Mapping) else {}
    if not {"title", "text"} & fields.keys():
        raise ValueError(f"document={show(document)}: must be a text, or a row with a text")
    plain = {field: row[name] for field, name in fields.items()}
    if others := {name: row[name] for name in row if name not in fields.values()}:
        plain[FIELDS_COLUMN] = others
    if "id" in plain:
        plain["id"] = id_text(plain["id"])
        check_id("documents", "document", plain["id"])
    return plain | {field: plain.get(field) or "" for field in ("title", "text")}


def read_rows(documents: Documents, first: int = 0) -> list[dict[str, Any]]:
    """Converts documents into rows with `id`, `title`, `text` and, if they have any, `fields`.

    Args:
        first: the number of the first document; a document without an id gets its number as id, or
            the next one that is not an id.

    Raises:
        ValueError: there is no document, a document has no text, two have the same id, or an id
            has white space.
    """
    listed = list_documents(documents)
    read = [dict(item) if isinstance(item, Mapping) else _read_row(item) for item in listed]
    given = Counter(row["id"] for row in read if "id" in row)
    numbers = (name for name in map(str, count(first)) if name not in given)
    rows = [{"id": number} | row for number, row in zip(numbers, read, strict=False)]
    if not rows:
        raise ValueError("documents=[]: must hold at least one document")
    for row in rows:
        if given[row["id"]] > 1:
            raise ValueError(f"document={row['id']}: two documents have this id")
        if not all(isinstance(row[name], str) for name in ("title", "text")):
            raise ValueError(f"document={row['id']}: title and text must be texts")
        if not (row["title"] + row["text"]).strip():
            raise ValueError(f"document={row['id']}: must have a text")
    return rows


# Views of a document (`models.beyond.views`) ------------------------------------------------------


def find_views(special_tokens: Iterable[str]) -> list[str]:
    """Returns the views besides the body: the NAME of every special token NAME_end.

    Raises:
        ValueError: a name is not a plain word, which file names need.
    """
    views = [name.removesuffix("_end") for name in special_tokens if name.endswith("_end")]
    for view in views:
        if not view.isidentifier() or view == BODY:
            raise ValueError(
                f"tokenizer.special_tokens.{view}_end: the view must be named by a word, not {BODY}"
            )
    return views


def read_view(cell: Sequence) -> list[list[int]]:
    """Returns a document's texts in one view; a cell of `NAME_tokens` has one text or several."""
    texts = [cell] if cell and isinstance(cell[0], int) else cell
    return [list(text) for text in texts if text]
