"""Cleaning of texts before they are tokenised: what Wu's T5-SEAL does to texts and queries."""

import re
import string
from collections.abc import Callable, Sequence
from html.parser import HTMLParser

import ftfy

_PUNCTUATION = str.maketrans("", "", string.punctuation)
# Elements whose content is no text. Without an end they are a mention ("the <style> tag is …").
_SILENT = [re.compile(rf"(?is)<{tag}(?=[\s>])[^>]*>.*?</{tag}\s*>") for tag in ("script", "style")]
_ENDS = re.compile(r"(?i)</(?:script|style)\s*>")


class _Text(HTMLParser):
    """The text between tags, entities replaced by their characters."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []

    def set_cdata_mode(self, *_, **__) -> None:
        """Every tag is an ordinary one: what follows a lone <script> or <style> is read on."""

    def handle_data(self, data: str) -> None:
        self.parts.append(data)


def _without_tags(text: str) -> str:
    parser = _Text()
    parser.feed(_without_silent(text))
    parser.close()
    return "".join(parser.parts)


def _without_silent(text: str) -> str:
    # Only up to the last end: behind it every mention would be searched to the end of the text.
    ends = [found.end() for found in _ENDS.finditer(text)]
    if not ends:
        return text
    head, tail = text[: ends[-1]], text[ends[-1] :]
    for element in _SILENT:
        head = element.sub("", head)
    return head + tail


STEPS: dict[str, Callable[[str], str]] = {
    "html": _without_tags,
    "unicode": lambda text: ftfy.fix_text(text, normalization="NFC"),
    "punctuation": lambda text: text.translate(_PUNCTUATION),
}


def cleaned(text: str, steps: Sequence[str]) -> str:
    """A text after some steps, in their order; white space becomes single blanks.

    Args:
        steps: "html" removes tags and replaces entities, "unicode" repairs what was decoded wrongly
            (ftfy) and normalises to NFC, "punctuation" removes the punctuation marks of ASCII and
            leaves nothing in their place ("don't" → "dont"). Wu's texts went through unicode,
            html, punctuation.

    Raises:
        ValueError: an unknown step.
    """
    for step in steps:
        if step not in STEPS:
            raise ValueError(f"data.cleaning=[{step}]: must be of {', '.join(STEPS)}")
        text = " ".join(STEPS[step](text).split())
    return text
