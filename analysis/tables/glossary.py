"""The words of the pages: each with an explanation, which is one hover away wherever it is shown.

`glossary` returns them for any page; `mark_terms` marks them in a text. An analysis explains its
chapter and its metrics itself (`analysis.tables.metric_names`).
"""

import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path

from markupsafe import Markup, escape

from analysis.tables.metric_names import WORDS, all_chapters, all_metrics
from gr_mvdr.files import read_text

# A line of `glossary.md` is a term: its forms, the first of which names it, and its explanation.
# "#" is any number, a space and a hyphen are one, the first letter may be of either case, and a
# plural's s may follow.
_TERM = re.compile(r"^- \*\*(.+?)\*\*: (.+)$", re.MULTILINE)
TERMS = dict(_TERM.findall(read_text(Path(__file__).with_suffix(".md"))))


def glossary(names: Mapping[str, str] | None = None) -> dict[str, str]:
    """Every term of the pages and its explanation, in alphabetical order.

    Args:
        names: further ones, such as the names of test splits.
    """
    known = {_name(forms): text for forms, text in (TERMS | _labels() | _chapters()).items()}
    known |= names or {}
    return dict(sorted(known.items(), key=lambda entry: (entry[0].lower(), entry[0])))


def find_terms(
    text: str, label: bool = False, names: Collection[str] = ()
) -> Iterator[tuple[int, int, str]]:
    """Start, end and term of each term in a text, from left to right, the longest where several
    begin.

    Args:
        label: whether the text is a heading, or the name of a metric, a column or a row.
        names: see `glossary`.
    """
    pattern, terms = _pattern(label, tuple(names))
    for match in pattern.finditer(text):
        yield *match.span(), terms[match.lastindex - 1]


def mark_terms(text: str, label: bool = False, names: Collection[str] = ()) -> Markup:
    """A text for a page, in which the glossary's terms can be pointed at.

    Args:
        label, names: see `find_terms`; in a sentence the first occurrence of each is marked.
    """
    marked, last, seen = Markup(), 0, set()
    for start, end, term in find_terms(text, label, names):
        if label or term not in seen:
            seen.add(term)
            span = Markup('<span class="term" tabindex="0" data-term="{}">{}</span>')
            marked += escape(text[last:start]) + span.format(term, text[start:end])
            last = end
    return marked + escape(text[last:])


def _name(forms: str) -> str:
    return forms.split(" | ")[0].replace("#", "k")


def _chapters() -> dict[str, str]:
    chapters = all_chapters().items()
    return {f"{c.title} | {name.replace('_', ' ')}": c.reading for name, c in chapters if c.reading}


@cache
def _labels() -> dict[str, str]:
    """The names of metrics: in headings and tables they mean this, in a sentence much else."""
    declared = {metric.form: metric.meaning for metric in all_metrics()}
    for chapter in all_chapters().values():
        declared |= chapter.words
    return declared | WORDS


@cache
def _pattern(label: bool, names: tuple[str, ...]) -> tuple[re.Pattern, list[str]]:
    """A group for each form, and the terms of the groups.

    In a sentence, single letters, names of metrics and chapters of one word mean other things.
    """
    forms = {name: name for name in names if name}
    for entry in (*TERMS, *(_labels() if label else ()), *_chapters()):
        for form in entry.split(" | "):
            if label or (entry in TERMS and len(form) > 1) or " " in form:
                forms.setdefault(form, _name(entry))
    ordered = sorted(forms, key=len, reverse=True)
    patterns = (re.escape(form) if form in names else _as_pattern(form) for form in ordered)
    groups = "|".join(f"({pattern})" for pattern in patterns)
    return re.compile(rf"(?<![\w@·])(?:{groups})(?![\w@·])"), [forms[form] for form in ordered]


def _as_pattern(form: str) -> str:
    escaped = re.escape(form).replace(r"\#", r"\d+").replace(r"\ ", "[ -]").replace(r"\-", "[ -]")
    if form[0].islower():
        escaped = f"[{form[0]}{form[0].upper()}]{escaped[1:]}"
    return escaped + ("s?" if form[-1].isalpha() and len(form) > 1 else "")
