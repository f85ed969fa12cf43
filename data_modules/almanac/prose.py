"""An entry as prose: its sentences, and where in the text each fact stands."""

import re
from functools import cache
from typing import NamedTuple

from data_modules.almanac.entry import Entry
from data_modules.almanac.sentences import SENTENCES

# The sentences of an entry, in order.
PLANS = {
    "person": [
        ["who", "birth", "training", "honour", "aside", "death"],
        ["who", "aside", "birth", "training", "letters", "death"],
        ["whence", "youth", "training", "achievement", "letters", "death"],
        ["whence", "youth", "achievement", "aside", "honour", "letters"],
        ["whence", "aside", "youth", "training", "honour", "death"],
    ],
    "settlement": [
        ["where", "founding", "people", "trade", "statue"],
        ["where", "people", "trade", "fair", "statue"],
        ["where", "people", "aside", "fair", "statue"],
        ["where", "founding", "trade", "fair", "aside"],
        ["where", "founding", "aside", "trade", "statue"],
    ],
    "building": [
        ["what", "architect", "look", "money", "plaque"],
        ["what", "look", "architect", "aside", "plaque"],
        ["what", "aside", "architect", "money", "look"],
    ],
    "work": [
        ["what", "story", "first", "dedication", "aside"],
        ["what", "first", "story", "aside", "dedication"],
        ["what", "aside", "story", "first", "dedication"],
    ],
    "event": [
        ["what", "course", "outcome", "leader", "aside"],
        ["what", "aside", "course", "leader", "outcome"],
        ["what", "leader", "course", "outcome", "aside"],
    ],
}
MADE = {"book": "written", "music": "composed", "picture": "painted", "film": "directed"}
DID = {"book": "wrote", "music": "composed", "picture": "painted", "film": "directed"}
SHOWN = {
    "book": ["first published", "first printed"],
    "music": ["first performed", "premiered"],
    "picture": ["first exhibited", "unveiled"],
    "film": ["first screened", "first shown"],
}


class Prose(NamedTuple):
    """`text`, and for each fact told in it the (start, end) of its first mention."""

    text: str
    spans: dict[str, tuple[int, int]]


def describe(entry: Entry) -> Prose:
    """Write an entry's text."""
    sentences = SENTENCES[entry.kind]
    pieces: list[str] = []
    spans: dict[str, tuple[int, int]] = {}
    length = 0
    for name in entry.pick(PLANS[entry.kind], "plan"):
        choice = entry.draw(name)
        wording = _wording(entry, sentences[name], choice, fullest=name != "aside")
        for literal, slot in parse(wording):
            words, fact = _words(entry, slot, choice := choice >> 3)
            pieces += [literal, words]
            length += len(literal) + len(words)
            if fact:
                start = length - len(words) + (slot.startswith("a ") and words.index(" ") + 1)
                spans.setdefault(fact, (start, length))
        pieces.append(" ")
        length += 1
    if entry.kind == "event":  # its place is told in its name only
        start = spans["name"][0] + entry.name.index(entry.location.name)
        spans["location"] = (start, start + len(entry.location.name))
    return Prose("".join(pieces[:-1]), spans)


def fill(entry: Entry, wording: str, choice: int, subject: str = "") -> str:
    """A question's wording with its facts; {x} is the subject."""
    return "".join(
        literal + (subject if slot == "x" else _words(entry, slot, choice)[0])
        for literal, slot in parse(wording)
    )


def surface(value, choice: int) -> str:
    """The words for a fact's value."""
    if isinstance(value, Entry):
        return value.name
    return value.form(choice) if isinstance(value, tuple) else str(value)


def with_article(words: str) -> str:
    """The words after "a" or "an"."""
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


@cache
def parse(wording: str) -> list[tuple[str, str]]:
    """A wording as (literal, slot) pairs; the last slot is empty."""
    parts = [*re.split(r"\{(.*?)\}", wording), ""]
    return list(zip(parts[::2], parts[1::2], strict=True))


@cache
def _facts(wording: str) -> list[str]:
    slots = (slot.removeprefix("a ").rstrip("!") for _, slot in parse(wording))
    return [slot for slot in slots if slot and slot.lower() not in _OTHER_WORDS]


def _wording(entry: Entry, wordings: list[str], choice: int, fullest: bool) -> str:
    """A wording whose facts the entry has; if `fullest`, one of those with the most facts."""
    fitting = [w for w in wordings if all(getattr(entry, f) is not None for f in _facts(w))]
    if fullest:
        most = max(len(_facts(w)) for w in fitting)
        fitting = [w for w in fitting if len(_facts(w)) == most]
    return fitting[choice % len(fitting)]


def _words(entry: Entry, slot: str, choice: int) -> tuple[str, str]:
    """What stands for a slot, and the fact that it tells, if it does."""
    if not slot:
        return "", ""
    if slot.lower() in _OTHER_WORDS:
        words = _OTHER_WORDS[slot.lower()](entry)
        return (words.capitalize() if slot[0].isupper() else words), ""
    fact = slot.removeprefix("a ").rstrip("!")
    words = surface(getattr(entry, fact), choice)
    if fact == "noun" and words.title() in entry.name:  # not "The Velsund Flood was a flood"
        words = surface(entry.noun, choice + 1)
    if slot.startswith("a "):
        return with_article(words), fact
    return (words[0].upper() + words[1:] if slot.endswith("!") else words), fact


_OTHER_WORDS = {
    "she": lambda e: "she" if e.is_woman else "he",
    "her": lambda e: "her" if e.is_woman else "his",
    "child": lambda e: "daughter" if e.is_woman else "son",
    "person": lambda e: "woman" if e.is_woman else "man",
    "surname": lambda e: e.surname,
    "made": lambda e: MADE[e.medium],
    "did": lambda e: DID[e.medium],
    "shown": lambda e: e.pick(SHOWN[e.medium], "shown"),
}
