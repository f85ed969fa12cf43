"""Lines of the raw Natural Questions: a question, a Wikipedia page, and where its parts stand."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from data_modules.formats.lines import check_characters, json_object, numbered_lines, string, word

FIELDS = ("abstract", "content")
_TAG = re.compile(r"<[^<>\s]+>")  # a tag is a token of its own, such as <P> or <Td_colspan="2">


class Page(NamedTuple):
    """A line: the question, and the page with its tags, tokens separated by blanks."""

    where: str
    question_id: str
    question: str
    title: str
    text: str


def pages(file: Path) -> Iterator[Page]:
    """The lines of a file of either release.

    The simplified training file has the page in ``document_text``; the original release, and the
    development file of the simplified one, as ``document_tokens``, and say its ``document_title``.

    Raises:
        ValueError: a line has no question, page, or title; names ``file:line``.
    """
    for where, line in numbered_lines(file):
        record = json_object(where, line)
        text = _text(where, record)
        title = _title(where, record, text)
        check_characters(where, "the page's title", title)  # the key of a title needs whole ones
        id, question = word(where, "example_id", record), string(where, "question_text", record)
        yield Page(where, id, question, title, text)


def field(text: str, name: str) -> str:
    """A part of a page, without tags, as NCI's preparation takes it.

    Args:
        text: the page with its tags.
        name: "abstract", the first paragraph; or "content", what follows it, up to the end of the
            last list but one (the lists at the end of a page are links).
    """
    start, end = _first_paragraph(text)
    if name == "abstract":
        return _plain(text[start:end])
    ends = [match.start() for match in re.finditer("</Ul>", text)][-2:]
    return _plain(text[end : ends[0] if ends else None])


def _first_paragraph(text: str) -> tuple[int, int]:
    """Where the first paragraph starts and ends; (0, 0) if there is none."""
    start = text.find("<P>")
    end = text.find("</P>", start) if start >= 0 else -1
    return (start, end) if end >= 0 else (0, 0)


def _plain(text: str) -> str:
    return " ".join(_TAG.sub(" ", text).split())


def _text(where: str, record: dict[str, Any]) -> str:
    if "document_text" in record:
        return string(where, "document_text", record)
    tokens = record.get("document_tokens")
    if not isinstance(tokens, Sequence) or isinstance(tokens, str):
        raise ValueError(f'{where}: expected the page as "document_text" or "document_tokens"')
    try:
        return " ".join(token["token"] for token in tokens)
    except (TypeError, KeyError):
        raise ValueError(f'{where}: expected "document_tokens" that each have a "token"') from None


def _title(where: str, record: dict[str, Any], text: str) -> str:
    """The page's title where the line says it, else its first heading, as NCI's preparation."""
    if isinstance(record.get("document_title"), str):
        title = _plain(record["document_title"])
    else:
        heading = re.search("<H1>(.*?)</H1>", text, re.DOTALL)
        title = _plain(heading[1]) if heading else ""
    if not title:
        raise ValueError(f'{where}: the page has no title: neither "document_title" nor <H1>')
    return title
