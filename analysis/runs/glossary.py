"""The glossary of the HTML pages: pointing at a term shows its explanation.

Besides the terms of `glossary.md`, a page explains the metrics and chapters that its runs declare.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from markupsafe import Markup, escape
from pandas import DataFrame

from gr_mvdr.files import read_text

# Each line of `glossary.md` is a term: its forms, the first of which is its name, and its
# explanation. "#" matches any number, a space and a hyphen match each other, a lower-case first
# letter also matches its capital, and a plural "s" may follow.
_TERM = re.compile(r"^- \*\*(.+?)\*\*: (.+)$", re.MULTILINE)
TERMS = dict(_TERM.findall(read_text(Path(__file__).with_suffix(".md"))))


class Glossary:
    """The terms of a page.

    Attributes:
        terms: every term and its explanation, in alphabetical order.
    """

    def __init__(self, declared: Mapping[str, str] | None = None):
        """
        Args:
            declared: further terms, as `TERMS`.
        """
        entries = TERMS | dict(declared or {})
        known = {_name(forms): text for forms, text in entries.items()}
        self.terms = dict(sorted(known.items(), key=lambda entry: (entry[0].lower(), entry[0])))
        self._forms: dict[str, str] = {}
        for entry in entries:
            for form in filter(None, entry.split(" | ")):
                self._forms.setdefault(form, _name(entry))
        ordered = sorted(self._forms, key=len, reverse=True)
        groups = "|".join(f"({_as_pattern(form)})" for form in ordered)
        self._pattern = re.compile(rf"(?<![\w@·])(?:{groups})(?![\w@·])")
        self._terms = [self._forms[form] for form in ordered]

    def find(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Yields (start, end, term) for each term in a label, from left to right.

        If several terms start at one place, the longest is taken.
        """
        for match in self._pattern.finditer(text):
            yield *match.span(), self._terms[match.lastindex - 1]

    def mark(self, text: str) -> Markup:
        """Marks the terms in a label for a page, which explains them on hover."""
        marked, last = Markup(), 0
        for start, end, term in self.find(text):
            word = Markup('<abbr title="{}">{}</abbr>').format(self.terms[term], text[start:end])
            marked += escape(text[last:start]) + word
            last = end
        return marked + escape(text[last:])


def declared_terms(numbers: DataFrame) -> dict[str, str]:
    """Returns the metrics and chapters of some numbers, with their explanations."""
    forms = zip(numbers["form"], numbers["meaning"], strict=True)
    terms = {form: meaning for form, meaning in forms if meaning}
    chapters = zip(numbers["chapter"], numbers["group"], numbers["reading"], strict=True)
    return terms | {
        f"{title} | {name.replace('_', ' ')}": text for title, name, text in chapters if text
    }


def _name(forms: str) -> str:
    return forms.split(" | ")[0].replace("#", "k")


def _as_pattern(form: str) -> str:
    escaped = re.escape(form).replace(r"\#", r"\d+").replace(r"\ ", "[ -]").replace(r"\-", "[ -]")
    if form[0].islower():
        escaped = f"[{form[0]}{form[0].upper()}]{escaped[1:]}"
    return escaped + ("s?" if form[-1].isalpha() and len(form) > 1 else "")
