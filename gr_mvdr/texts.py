"""From a text to token ids: cleaning, joining title and text, tokenising."""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html.parser import HTMLParser
from typing import Any

from transformers import PreTrainedTokenizerBase

SEPARATOR = " | "  # between the fields of a document
# Texts as a person has them: one, a list, id → text, or rows with id (or _id), title and text.
Document = str | Mapping[str, str]
Documents = Document | Sequence[Document] | Mapping[str, str]
BODY = "body"  # the view of a document that is its text
ID_RULE = "a word without white space, as TREC runs need"
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_SIMPLE = re.compile(r"[\n\t -%'-~]*")  # of ASCII: no control characters, no entities
# Elements whose content is not text. Without an end tag they are a mention ("the <style> tag").
_SILENT = re.compile(r"(?is)<(script|style)(?=[\s>])[^>]*>.*?</\1\s*>")


class _Text(HTMLParser):
    """The text between tags, entities replaced by their characters."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []

    def set_cdata_mode(self, *_, **__) -> None:
        """Treats every tag as an ordinary one: text after a lone <script> or <style> is kept."""

    def handle_data(self, data: str) -> None:
        self.parts.append(data)


def _without_tags(text: str) -> str:
    if "<" not in text and "&" not in text:
        return text  # neither tags nor entities
    parser = _Text()
    parser.feed(_SILENT.sub("", text))
    parser.close()
    return "".join(parser.parts)


def _repaired(text: str) -> str:
    if text.isascii() and _SIMPLE.fullmatch(text):
        return text  # ftfy does not change it either
    import ftfy

    return ftfy.fix_text(text, normalization="NFC")


STEPS: dict[str, Callable[[str], str]] = {
    "html": _without_tags,
    "unicode": _repaired,
    "punctuation": lambda text: text.translate(_PUNCTUATION),
}


def clean_text(text: str, steps: Sequence[str]) -> str:
    """Applies cleaning steps of Wu's T5-SEAL in the given order; white space becomes single blanks.

    Args:
        steps: "html" removes tags and replaces entities, "unicode" repairs wrongly decoded text
            (ftfy) and normalises to NFC, "punctuation" deletes ASCII punctuation ("don't" →
            "dont"). Wu's texts went through unicode, html, punctuation.

    Raises:
        ValueError: an unknown step.
    """
    for step in steps:
        if step not in STEPS:
            raise ValueError(f"data.cleaning=[{step}]: must be of {', '.join(STEPS)}")
        text = " ".join(STEPS[step](text).split())
    return text


def join_texts(parts: Iterable[str]) -> str:
    """The fields of a document joined into one text, without empty fields."""
    return SEPARATOR.join(filter(None, parts))


def text_without_title(row: Mapping[str, Any]) -> str:
    """The `text` of a document's row without its title."""
    title = row.get("title")
    return row["text"].removeprefix(title + SEPARATOR) if title else row["text"]


def check_id(where: str, kind: str, name: Any) -> None:
    """Raises ValueError unless an id of a query or document is valid in a TREC run.

    Args:
        where: begins the message, ``file:line``; kind: "query" or "document".
    """
    if not isinstance(name, str) or name.split() != [name]:
        raise ValueError(f"{where}: the {kind}'s id is {name!r:.80}: must be {ID_RULE}")
    check_characters(where, f"the {kind}'s id {name!r}", name)


def check_characters(where: str, what: str, *texts: str) -> None:
    """Raises ValueError if a text holds half a surrogate pair.

    JSON can write it (``"\\ud800"``) and UTF-8 cannot.

    Args:
        where: begins the message, ``file:line``; what: names the texts.
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

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, key: str | int | slice | Sequence[int]) -> Any:
        if isinstance(key, str):
            return self.columns[key]
        if isinstance(key, int | slice):
            return {name: column[key] for name, column in self.columns.items()}
        return {name: [column[row] for row in key] for name, column in self.columns.items()}

    def select(self, rows: Iterable[int]) -> "TextTable":
        """The table of some rows."""
        return TextTable(self[[int(row) for row in rows]])


class TextReader:
    """Makes tables of plain texts as a run does for its collection."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        text_fields: Sequence[str] = ("title", "text"),
        cleaning: Sequence[str] = (),
        views: Sequence[str] = (),
    ):
        """
        Args:
            tokenizer: the run's.
            text_fields: "title" and "text", or one of them: the fields of a document's text.
            cleaning: steps of `clean_text`.
            views: names of the run's document views; new documents have no texts for them.
        """
        self.tokenizer, self.text_fields, self.cleaning = tokenizer, text_fields, cleaning
        self.views = views

    def queries(self, texts: Sequence[str]) -> TextTable:
        """`id` (their numbers), `text` and `tokens` of queries.

        Raises:
            ValueError: a text is empty, or holds half a surrogate pair.
        """
        for text in texts:
            if not isinstance(text, str) or not text.strip():
                raise ValueError(f"query={text!r}: must be a text with at least one word")
        check_characters("query", "the text", *texts)
        texts = self._clean(texts)
        ids = [str(number) for number in range(len(texts))]
        return TextTable({"id": ids, "text": texts, "tokens": self.tokenise(texts)})

    def documents(self, rows: Sequence[Mapping[str, str]]) -> TextTable:
        """`id`, `title`, `text` (the joined fields), `tokens` and `title_tokens` of documents.

        Args:
            rows: with `id`, `title` and `text`.

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
        """The texts after all cleaning steps; without a step their white space stays, too."""
        return [clean_text(text, self.cleaning) for text in texts]

    def tokenise(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of whole texts, without end tokens."""
        if not texts:
            return []
        return self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]


def list_documents(documents: Documents) -> list[Document]:
    """A list of texts and rows."""
    if isinstance(documents, str):
        return [documents]
    if not isinstance(documents, Mapping):
        return list(documents)
    if "text" in documents:
        return [documents]
    return [{"id": name, "text": text} for name, text in documents.items()]


def read_rows(documents: Documents, first: int = 0) -> list[dict[str, str]]:
    """Rows with `id`, `title` and `text`; texts without an id get numbers from `first`.

    Raises:
        ValueError: no document, one without text, two of one id, or an id with white space.
    """
    rows = [_read_row(item, first + n) for n, item in enumerate(list_documents(documents))]
    if not rows:
        raise ValueError("documents=[]: must hold at least one document")
    (name, count), *_ = Counter(row["id"] for row in rows).most_common(1)
    if count > 1:
        raise ValueError(f"document={name}: two documents have this id")
    return rows


def _read_row(document: Document, number: int) -> dict[str, str]:
    given = {"text": document} if isinstance(document, str) else dict(document)
    row = {
        "id": given.get("id", given.get("_id", str(number))),
        "title": given.get("title") or "",
        "text": given.get("text") or "",
    }
    check_id("documents", "document", row["id"])
    if not all(isinstance(value, str) for value in row.values()):
        raise ValueError(f"document={row['id']}: title and text must be texts")
    if not (row["title"] + row["text"]).strip():
        raise ValueError(f"document={row['id']}: must have a text")
    return row


# Views of a document (`models.beyond.views`) ------------------------------------------------------


def find_views(special_tokens: Iterable[str]) -> list[str]:
    """The views besides the body: every NAME of a special token NAME_end.

    Raises:
        ValueError: a name is not a plain word; files are called by it.
    """
    views = [name.removesuffix("_end") for name in special_tokens if name.endswith("_end")]
    for view in views:
        if not view.isidentifier() or view == BODY:
            raise ValueError(
                f"tokenizer.special_tokens.{view}_end: the view must be named by a word, not {BODY}"
            )
    return views


def read_view(cell: Sequence) -> list[list[int]]:
    """A document's texts in one view, from `NAME_tokens`: one token list, or several."""
    texts = [cell] if cell and isinstance(cell[0], int) else cell
    return [list(text) for text in texts if text]
