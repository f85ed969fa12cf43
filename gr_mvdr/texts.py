"""From a text to token ids: cleaning, joining title and text, tokenising."""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import unescape
from typing import Any

from transformers import PreTrainedTokenizerBase

SEPARATOR = " | "  # between the fields of a document
# Documents as a user passes them: one text, a list of texts, id → text, or rows with id (or _id),
# title and text.
Document = str | Mapping[str, str]
Documents = Document | Sequence[Document] | Mapping[str, str]
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
    check_characters(where, f"the {kind}'s id {name!r}", name)


def check_characters(where: str, what: str, *texts: str) -> None:
    """Raises ValueError if a text holds half a surrogate pair.

    JSON can write one (``"\\ud800"``), but UTF-8 cannot.

    Args:
        where: the beginning of the message, ``file:line``.
        what: how the message names the texts.
    """
    try:
        for text in texts:
            text.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"{where}: {what} holds half a surrogate pair, which is no character"
        ) from None


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
    ):
        """
        Args:
            tokenizer: the run's tokeniser.
            text_fields: the fields that make up a document's text: "title", "text" or both.
            cleaning: steps of `clean_text`.
            views: names of the run's document views; new documents have no texts for them.
        """
        self.tokenizer, self.text_fields, self.cleaning = tokenizer, text_fields, cleaning
        self.views = views

    def queries(self, texts: Sequence[str]) -> TextTable:
        """Returns a table of queries: `id` (their numbers), `text` and `tokens`.

        Raises:
            ValueError: a text is empty or holds half a surrogate pair.
        """
        for text in texts:
            if not isinstance(text, str) or not text.strip():
                raise ValueError(f"query={text!r}: must be a text with at least one word")
        check_characters("query", "the text", *texts)
        texts = self._clean(texts)
        ids = [str(number) for number in range(len(texts))]
        return TextTable({"id": ids, "text": texts, "tokens": self.tokenise(texts)})

    def documents(self, rows: Sequence[Mapping[str, str]]) -> TextTable:
        """Returns a table of documents.

        Its columns are `id`, `title`, `text` (the joined fields), `tokens`, `title_tokens`, and
        `VIEW_tokens` for each view.

        Args:
            rows: rows with `id`, `title` and `text`.

        Raises:
            ValueError: a text holds half a surrogate pair.
        """
        for row in rows:
            check_characters(
                f"document={row['id']}", "the title or text", row["title"], row["text"]
            )
        fields = {name: self._clean([row[name] for row in rows]) for name in ("title", "text")}
        parts = zip(*(fields[name] for name in self.text_fields), strict=True)
        texts, ids = list(map(join_texts, parts)), [row["id"] for row in rows]
        tokens = {"tokens": self.tokenise(texts), "title_tokens": self.tokenise(fields["title"])}
        views: dict[str, list] = {f"{view}_tokens": [[] for _ in rows] for view in self.views}
        return TextTable({"id": ids, "title": fields["title"], "text": texts, **tokens, **views})

    def _clean(self, texts: Sequence[str]) -> list[str]:
        """Applies all cleaning steps; without any step, white space stays as it is."""
        return [clean_text(text, self.cleaning) for text in texts]

    def tokenise(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the token ids of complete texts, without special tokens."""
        if not texts:
            return []
        return self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]


def list_documents(documents: Documents) -> list[Document]:
    """Converts documents of any allowed form into a list of texts and rows."""
    if isinstance(documents, str):
        return [documents]
    if not isinstance(documents, Mapping):
        return list(documents)
    if "text" in documents:
        return [documents]
    return [{"id": name, "text": text} for name, text in documents.items()]


def read_rows(documents: Documents, first: int = 0) -> list[dict[str, str]]:
    """Converts documents into rows with `id`, `title` and `text`.

    Args:
        first: the number of the first document; a document without an id gets its number as id.

    Raises:
        ValueError: there is no document, a document has no text, two have the same id, or an id
            has white space.
    """
    rows = [_read_row(item, first + n) for n, item in enumerate(list_documents(documents))]
    if not rows:
        raise ValueError("documents=[]: must hold at least one document")
    (name, count), *_ = Counter(row["id"] for row in rows).most_common(1)
    if count > 1:
        raise ValueError(f"document={name}: two documents have this id")
    return rows


def _read_row(document: Document, number: int) -> dict[str, str]:
    fields = {"text": document} if isinstance(document, str) else dict(document)
    row = {
        "id": fields.get("id", fields.get("_id", str(number))),
        "title": fields.get("title") or "",
        "text": fields.get("text") or "",
    }
    check_id("documents", "document", row["id"])
    if not all(isinstance(value, str) for value in row.values()):
        raise ValueError(f"document={row['id']}: title and text must be texts")
    if not (row["title"] + row["text"]).strip():
        raise ValueError(f"document={row['id']}: must have a text")
    return row


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
