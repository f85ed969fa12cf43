"""The glossary of the HTML pages: pointing at a term shows its explanation.

`glossary` returns all terms; `mark_terms` marks them in a heading or a table. Each analysis
explains its own chapter and metrics (`analysis.tables.metric_names`).
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from markupsafe import Markup, escape

from analysis.tables.metric_names import all_chapters, all_metrics
from gr_mvdr.files import read_text

# Each line of `glossary.md` is a term: its forms, the first of which is its name, and its
# explanation. "#" matches any number, a space and a hyphen match each other, a lower-case first
# letter also matches its capital, and a plural "s" may follow.
_TERM = re.compile(r"^- \*\*(.+?)\*\*: (.+)$", re.MULTILINE)
TERMS = dict(_TERM.findall(read_text(Path(__file__).with_suffix(".md"))))


def glossary() -> dict[str, str]:
    """Returns every term of the pages and its explanation, in alphabetical order."""
    known = {_name(forms): text for forms, text in (TERMS | _declared()).items()}
    return dict(sorted(known.items(), key=lambda entry: (entry[0].lower(), entry[0])))


def find_terms(text: str) -> Iterator[tuple[int, int, str]]:
    """Yields (start, end, term) for each term in a label, from left to right.

    If several terms start at one place, the longest is taken.

    Args:
        text: a heading, or the name of a metric, a column or a row.
    """
    pattern, terms = _pattern()
    for match in pattern.finditer(text):
        yield *match.span(), terms[match.lastindex - 1]


def mark_terms(text: str) -> Markup:
    """Marks the glossary's terms in a label for a page, which explains them on hover."""
    marked, last = Markup(), 0
    for start, end, term in find_terms(text):
        span = Markup('<span class="term" tabindex="0" data-term="{}">{}</span>')
        marked += escape(text[last:start]) + span.format(term, text[start:end])
        last = end
    return marked + escape(text[last:])


def _name(forms: str) -> str:
    return forms.split(" | ")[0].replace("#", "k")


def _declared() -> dict[str, str]:
    """Returns the metrics and chapters of runs, with their explanations."""
    metrics = {metric.form: metric.meaning for metric in all_metrics()}
    chapters = all_chapters().items()
    return metrics | {
        f"{c.title} | {name.replace('_', ' ')}": c.reading for name, c in chapters if c.reading
    }


@cache
def _pattern() -> tuple[re.Pattern, list[str]]:
    """Returns a pattern with one group for each form, and the term of each group."""
    forms: dict[str, str] = {}
    for entry in (*TERMS, *_declared()):
        for form in entry.split(" | "):
            forms.setdefault(form, _name(entry))
    ordered = sorted(forms, key=len, reverse=True)
    groups = "|".join(f"({_as_pattern(form)})" for form in ordered)
    return re.compile(rf"(?<![\w@·])(?:{groups})(?![\w@·])"), [forms[form] for form in ordered]


def _as_pattern(form: str) -> str:
    escaped = re.escape(form).replace(r"\#", r"\d+").replace(r"\ ", "[ -]").replace(r"\-", "[ -]")
    if form[0].islower():
        escaped = f"[{form[0]}{form[0].upper()}]{escaped[1:]}"
    return escaped + ("s?" if form[-1].isalpha() and len(form) > 1 else "")
