"""Writes an entry as prose, locates its facts in the text, and asks questions that it answers.

The facts that a question gives hold for no other entry. Gold and evidence are spans of the text.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from data_modules.almanac.world import WORDS, Entry, said

ASKED, PREDICATES = WORDS["asked"], WORDS["predicates"]
# Each attempt at a question picks one of these eight places at random.
KINDS = ["name"] + ["description"] * 3 + ["two attributes"] * 4
ATTEMPTS = 800
MOST_RIVALS = 50  # a question needs a fact that fewer entries share


class Prose(NamedTuple):
    """A text, and fact → the (start, end) of its first mention in the text."""

    text: str
    spans: dict[str, tuple[int, int]]


def describe(entry: Entry) -> Prose:
    """Writes an entry's text."""
    sentences = WORDS["sentences"][entry.kind]
    pieces: list[str] = []
    spans: dict[str, tuple[int, int]] = {}
    length = 0
    for name in entry.pick(WORDS["plans"][entry.kind], "plan"):
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
    if entry.kind == "event":  # the text mentions its place only as a part of its name
        start = spans["name"][0] + entry.name.index(entry.location.name)
        spans["location"] = (start, start + len(entry.location.name))
    return Prose("".join(pieces[:-1]), spans)


def fill(entry: Entry, wording: str, choice: int, subject: str = "") -> str:
    """Fills a question's wording with the entry's facts; {x} becomes the subject."""
    return "".join(
        literal + (subject if slot == "x" else _words(entry, slot, choice)[0])
        for literal, slot in parse(wording)
    )


def surface(value, choice: int) -> str:
    """The words for a fact's value; `choice` selects the wording of a concept."""
    if isinstance(value, Entry):
        return value.name
    return value.form(choice) if isinstance(value, tuple) else str(value)


@cache
def parse(wording: str) -> list[tuple[str, str]]:
    """Splits a wording into (literal, slot) pairs; the last slot is empty."""
    parts = [*re.split(r"\{(.*?)\}", wording), ""]
    return list(zip(parts[::2], parts[1::2], strict=True))


@cache
def _facts(wording: str) -> list[str]:
    slots = (slot.removeprefix("a ").rstrip("!") for _, slot in parse(wording))
    return [slot for slot in slots if slot and slot.lower() not in _OTHER_WORDS]


def _wording(entry: Entry, wordings: list[str], choice: int, fullest: bool) -> str:
    """Selects a wording whose facts the entry has; `fullest` requires as many facts as possible."""
    fitting = [w for w in wordings if all(getattr(entry, f) is not None for f in _facts(w))]
    if fullest:
        most = max(len(_facts(w)) for w in fitting)
        fitting = [w for w in fitting if len(_facts(w)) == most]
    return fitting[choice % len(fitting)]


def _words(entry: Entry, slot: str, choice: int) -> tuple[str, str]:
    """The words for a slot, and the fact that they tell, or ""."""
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
        return f"{'an' if words[0] in 'aeiou' else 'a'} {words}", fact
    return (words[0].upper() + words[1:] if slot.endswith("!") else words), fact


_OTHER_WORDS = {
    "she": lambda e: "she" if e.is_woman else "he",
    "her": lambda e: "her" if e.is_woman else "his",
    "child": lambda e: "daughter" if e.is_woman else "son",
    "person": lambda e: "woman" if e.is_woman else "man",
    "surname": lambda e: e.surname,
    "made": lambda e: WORDS["made"][e.medium],
    "did": lambda e: WORDS["did"][e.medium],
    "shown": lambda e: e.pick(WORDS["shown"][e.medium], "shown"),
}


class Plan(NamedTuple):
    """The facts of a question: it asks for the fact `asked` of the only entry with `given`."""

    kind: str
    given: tuple[str, ...]
    asked: str


class Question(NamedTuple):
    """A question; `gold` and `evidence` are (start, end) spans of the entry's text."""

    text: str
    plan: Plan
    gold: list[tuple[int, int]]
    evidence: list[tuple[int, int]]


def ask(entry: Entry, prose: Prose, wanted: int) -> list[Question]:
    """Writes up to `wanted` questions about an entry; no two give and ask the same facts."""
    questions: list[Question] = []
    tried: set[tuple] = set()
    for plan, choice in _plans(entry, prose):
        facts = (*(fact for fact in plan.given if fact != "noun"), plan.asked)
        if facts not in tried and is_unique(entry, plan.given):
            questions.append(_write(entry, prose, plan, choice))
        tried.add(facts)
        if len(questions) == wanted:
            break
    return questions


def is_unique(entry: Entry, given: tuple[str, ...]) -> bool:
    """Whether no other entry of the kind shares all given facts.

    Also False if none of the facts is in `entry.telling`, or if at least `MOST_RIVALS` entries
    share the rarest of these.
    """
    fact = next((fact for fact in entry.telling if fact in given), None)
    if fact is None:
        return False
    rivals = entry.world.sharing(entry.kind, fact)[said(entry, fact)]
    others = (entry.world.find(entry.kind, n) for n in rivals if n != entry.number)
    return len(rivals) < MOST_RIVALS and not any(
        all(said(other, fact) == said(entry, fact) for fact in given) for other in others
    )


def told_in(fact: str) -> str:
    """The fact in the text that implies this fact: the year of a decade, the story of a hero."""
    fact = fact.removesuffix("_decade").removesuffix("_century")
    return "story" if fact == "hero" else fact


def _plans(entry: Entry, prose: Prose) -> Iterator[tuple[Plan, int]]:
    """Yields random plans, each with random bits that select its wording."""
    asked = [fact for fact in ASKED[entry.kind] if fact in prose.spans]
    facts = [fact for fact in PREDICATES[entry.kind] if told_in(fact) in prose.spans]
    single = [fact for fact in WORDS["descriptive"][entry.kind] if fact in facts]
    more = [fact for fact in facts if fact not in single]
    for attempt in range(ATTEMPTS):
        choice = entry.draw(f"question {attempt}")
        kind = KINDS[choice % len(KINDS)]
        choice, one, two, three = choice >> 24, choice >> 3 & 127, choice >> 10 & 127, choice >> 17
        fact = asked[three % len(asked)] if three & 64 or kind == "name" else "name"
        if kind == "name":
            # The name may give the fact away: the town of the "Velbury Observatory".
            if surface(getattr(entry, fact), 0) not in entry.name:
                with_noun = entry.namesake or (one & 1 and len(WORDS["called"][entry.kind]) > 1)
                yield Plan(kind, ("name", "noun") if with_noun else ("name",), fact), choice
            continue
        given = [single[one % len(single)]] if single else []
        if kind == "two attributes":
            given.append(more[two % len(more)])
        told = {told_in(f) for f in given}
        if len(told) == len(given) > 0 and fact not in told:
            yield Plan(kind, ("noun", *sorted(given)), fact), choice


def _write(entry: Entry, prose: Prose, plan: Plan, choice: int) -> Question:
    if plan.kind == "name":
        with_noun = "noun" in plan.given
        forms = [f for f in WORDS["called"][entry.kind] if ("{noun}" in f) == with_noun]
        subject = fill(entry, _pick(forms, choice), choice >> 3)
        form = _pick(ASKED[entry.kind][plan.asked], choice >> 6)
        text = fill(entry, form, choice >> 9, subject)
    else:
        noun, clause = surface(entry.noun, choice), _clause(entry, plan.given[1:], choice >> 2)
        who = WORDS["relative"].get(entry.kind, "that")
        if plan.asked == "name":
            text = _pick(WORDS["which"], choice >> 9).format(noun=noun, clause=clause, who=who)
        else:
            forms = [form for form in ASKED[entry.kind][plan.asked] if form.endswith("{x}?")]
            form = _pick(forms, choice >> 9)
            text = fill(entry, form, choice >> 12, f"the {noun} {who} {clause}")
    evidence = sorted({prose.spans[told_in(f)] for f in plan.given if told_in(f) in prose.spans})
    return Question(text, plan, [prose.spans[plan.asked]], evidence)


def _clause(entry: Entry, facts: tuple[str, ...], choice: int) -> str:
    """Joins predicates by "and" in random order; they begin with different words if possible."""
    facts = facts[::-1] if choice & 1 else facts
    wordings: list[str] = []
    for i, fact in enumerate(facts):
        forms = PREDICATES[entry.kind][fact]
        first = choice >> 1 + 2 * i
        forms = [forms[(first + step) % len(forms)] for step in range(len(forms))]
        begun = [wording.split()[:2] for wording in wordings]
        wordings.append(next((f for f in forms if f.split()[:2] not in begun), forms[0]))
    return " and ".join(fill(entry, w, choice >> 4 + i) for i, w in enumerate(wordings))


def _pick(forms: list[str], choice: int) -> str:
    return forms[choice % len(forms)]
