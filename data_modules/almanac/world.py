"""The invented world of the almanac, its texts, and questions that they answer.

There are three kinds of entries. Document i is the entry in slot i % 25 of block i // 25, and
LAYOUT gives the kind of each slot. A fact is drawn from (seed, number of the entry). `words.toml`
says for each fact where its value comes from and how entries and questions tell it.
"""

import re
import tomllib
from array import array
from collections import defaultdict
from collections.abc import Iterator
from functools import cache, cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

WORDS = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
LETTERS = {"P": "person", "S": "settlement", "W": "work"}
LAYOUT = [LETTERS[letter] for letter in "SPWPSPSPWPSPWPSPWPSPSPWPS"]
TRADES = WORDS["trades"]
MAKERS = sum("works" in trade for trade in TRADES)  # the first trades make works
_MASK = (1 << 64) - 1
_ROUNDS = 3  # rounds of a permutation
_TRIES = 800  # attempts at questions about an entry
_MOST_RIVALS = 50  # a question gives a fact that fewer entries share


# Numbers


@cache
def _salt(name: str, seed: int) -> int:
    return int.from_bytes(blake2b(f"{seed}/{name}".encode(), digest_size=8).digest(), "big")


def draw(seed: int, name: str, number: int) -> int:
    """A uniform 64-bit integer that depends only on the arguments (SplitMix64's finaliser)."""
    x = (_salt(name, seed) + number * 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def permutation(size: int, seed: int, name: str, count: int | None = None) -> list[int]:
    """The first `count` numbers of a random permutation of range(size); None = all.

    Each round multiplies by an odd number, adds a constant, and XORs the upper half of the bits
    onto the lower half. This permutes the numbers below a power of two. A result outside
    range(size) goes through the rounds again until it lies inside.
    """
    bits = max(1, (size - 1).bit_length())
    mask, half = (1 << bits) - 1, (bits + 1) // 2
    rounds = [(draw(seed, name, n) & mask | 1, draw(seed, name, ~n) & mask) for n in range(_ROUNDS)]
    numbers = []
    for number in range(size if count is None else count):
        while True:
            for factor, shift in rounds:
                number = number * factor + shift & mask
                number ^= number >> half
            if number < size:
                break
        numbers.append(number)
    return numbers


# Names


class Names:
    """The names of a world with this many entries; different numbers have different names.

    A person has a given name and a two-part surname. A place has a two-part name, with or without a
    word before it. A work has a title of ordinary words, with or without a place. Small collections
    use few given names, surnames and place names, so that most of them occur in several entries.
    """

    def __init__(self, seed: int, people: int, places: int, works: int):
        # Women's and men's names alternate: those at even places are women's names.
        given = [name for pair in zip(_parts("women"), _parts("men"), strict=True) for name in pair]
        self.given = given[: max(16, round(40 * (people / 200) ** 0.25))]
        self.surnames = _shuffled(_compounds("surname"), seed, "surnames")[
            : max(12, round(0.3 * people))
        ]
        size = len(self.given) * len(self.surnames)
        assert people <= size, "more people than names"
        self.codes = permutation(size, seed, "person names", people)
        self.bases = _shuffled(_compounds("place"), seed, "place")[: max(3, round(0.6 * places))]
        self.words = _shuffled(_parts("place_words"), seed, "place words")
        nouns, adjectives = _parts("title_nouns"), _parts("title_adjectives")
        titles = [f"The {a} {noun}" for a in adjectives for noun in nouns]
        titles += [f"The {a} and the {b}" for a in nouns for b in nouns if a != b]
        self.titles = _shuffled(titles, seed, "titles")[: max(10, round(0.6 * works))]

    def person(self, number: int) -> tuple[str, str, bool]:
        """(given name, surname, whether the person is a woman)."""
        surname, given = divmod(self.codes[number], len(self.given))
        return self.given[given], self.surnames[surname], given % 2 == 0

    def place(self, number: int) -> str:
        """A two-part name; once these are used up, with words before it: "New Velsund".

        The words depend on the base as well, so that no word marks all second names.
        """
        repeat, base = divmod(number, len(self.bases))
        name = self.bases[base]
        while repeat:
            repeat, word = divmod(repeat - 1, len(self.words))
            name = f"{self.words[(base + word + 1) % len(self.words)]} {name}"
        return name

    def title(self, number: int, places: int) -> str:
        """A work's title; once the plain titles are used up, "<title> of <place>"."""
        repeat, title = divmod(number, len(self.titles))
        place = self.place((title * 7 + repeat) % places)
        return f"{self.titles[title]} of {place}" if repeat else self.titles[title]


def _parts(key: str) -> list[str]:
    return WORDS["names"][key].split()


def _compounds(kind: str) -> list[str]:
    ends = _parts(f"{kind}_ends")
    return list(dict.fromkeys(start + end for start in _parts(f"{kind}_starts") for end in ends))


def _shuffled(items: list[str], seed: int, name: str) -> list[str]:
    return [items[number] for number in permutation(len(items), seed, name)]


# Facts


class Concept(tuple):
    """The wordings of each of its meanings, such as verb, object, region; titles use the first."""

    def __new__(cls, *meanings: str):
        return super().__new__(cls, (tuple(meaning.split(" / ")) for meaning in meanings))

    def form(self, choice: int) -> str:
        return " ".join(w[(choice >> 3 * i) % len(w)] for i, w in enumerate(self))


class World:
    """The entries of an almanac of `size` documents. Equal arguments give equal worlds."""

    def __init__(self, size: int, seed: int):
        self.size, self.seed = size, seed
        self.count = {kind: _before(size, kind) for kind in LETTERS.values()}
        self.names = Names(seed, *self.count.values())
        self._relations: dict[tuple[str, int], array] = {}
        self._sharing: dict[tuple[str, str], dict[Any, list[int]]] = {}

    def entry(self, index: int) -> "Entry":
        """The entry that document `index` describes."""
        kind = LAYOUT[index % len(LAYOUT)]
        return KINDS[kind](self, _before(index, kind))

    def target(self, name: str, source: int, sources: int, targets: int) -> int:
        """The number in range(targets) to which the relation maps `source`, in range(sources).

        The relation is even: the numbers of sources of two targets differ by at most one.
        """
        size = max(sources, targets)
        if (name, size) not in self._relations:  # four bytes a number, for large worlds
            self._relations[name, size] = array("I", permutation(size, self.seed, name))
        return self._relations[name, size][source] % targets

    def sharing(self, kind: str, fact: str) -> dict[Any, list[int]]:
        """What texts say of a fact → the numbers of all entries of the kind that it is said of."""
        if (kind, fact) not in self._sharing:
            numbers = self._sharing[kind, fact] = defaultdict(list)
            for number in range(self.count[kind]):
                numbers[KINDS[kind](self, number).said(fact)].append(number)
        return self._sharing[kind, fact]


def _before(index: int, kind: str) -> int:
    """The number of entries of this kind before document `index`."""
    blocks, slot = divmod(index, len(LAYOUT))
    return blocks * LAYOUT.count(kind) + LAYOUT[:slot].count(kind)


class Entry:
    """One entry of the world. A fact is a string, a year, a Concept or another entry, or None.

    The two entries of some pairs of neighbouring numbers have one name and different nouns.
    """

    kind: str
    rare: tuple[str, ...]  # every question gives one of these, which few entries share
    name: str
    noun: Concept

    def __init__(self, world: World, number: int):
        self.world, self.number = world, number
        self.facts = WORDS[self.kind]
        self.block, self.position = divmod(number, len(TRADES))

    def draw(self, name: str) -> int:
        return draw(self.world.seed, f"{self.kind} {name}", self.number)

    def pick(self, options: list, name: str) -> Any:
        return options[self.draw(name) % len(options)]

    def linked(self, name: str, kind: str) -> "Entry":
        """The entry of a kind to which the relation `name` maps this entry."""
        counts = self.world.count[self.kind], self.world.count[kind]
        return KINDS[kind](
            self.world, self.world.target(f"{self.kind} {name}", self.number, *counts)
        )

    @cached_property
    def first(self) -> int:
        """The number of the first entry with this entry's name."""
        return self.number & ~1 if self.has_namesake else self.number

    @property
    def has_namesake(self) -> bool:
        paired = self.kind != "settlement" and self.number // 2 % 3 == 0
        return paired and self.number ^ 1 < self.world.count[self.kind]

    @property
    def title(self) -> str:
        """The name, followed by the noun in parentheses if there is a namesake."""
        return f"{self.name} ({self.noun.form(0)})" if self.has_namesake else self.name

    @property
    def elsewhere(self) -> "Entry":
        return self.linked("elsewhere", "settlement")

    @property
    def other(self) -> "Entry":
        return self.linked("other", "person")

    def value(self, fact: str) -> Any:
        """The value of a fact: by its rule in `words.toml`, or an attribute."""
        rule = self.facts.get(fact, {})
        if fact.endswith("_decade"):
            return _decade(self.value(fact.removesuffix("_decade")))
        if "values" in rule:
            return Concept(self.pick(rule["values"], fact))
        if "link" in rule:
            linked = self.linked(fact, rule["link"])
            return None if linked.number == self.number and linked.kind == self.kind else linked
        if "after" in rule:
            first, last = rule["after"]
            return self.start + first + self.draw(fact) % (last - first)
        return getattr(self, fact)

    def said(self, fact: str) -> Any:
        """A fact's value as texts give it: another entry by its name, which two may share."""
        value = self.value(fact)
        return value.name if isinstance(value, Entry) else value


def _decade(year: int) -> str:
    """The words after "in the"; "1800s" could mean the century."""
    first = year // 10 * 10
    return f"{first}s" if first % 100 else f"years {first} to {first + 9}"


class Person(Entry):
    """A person. Eight people of one block are contemporaries, one of each trade."""

    kind = "person"
    rare = ("name", "deed", "birthplace", "home", "teacher", "correspondent")

    @cached_property
    def _names(self) -> tuple[str, str, bool]:
        return self.world.names.person(self.first)

    @property
    def name(self) -> str:
        return " ".join(self._names[:2])

    @property
    def surname(self) -> str:
        return self._names[1]

    @property
    def is_woman(self) -> bool:
        return self._names[2]

    @property
    def noun(self) -> Concept:
        return Concept(self.pick(TRADES[self.position]["nouns"], "noun"))

    @property
    def deed(self) -> Concept:
        trade, regions = TRADES[self.position], WORDS["parts"]["regions"]
        blocks, deeds = self._blocks, len(trade["objects"]) * len(regions)
        deed = self.world.target(f"deed {self.position}", self.block, blocks, deeds)
        what, where = divmod(deed, len(regions))
        return Concept(trade["verb"], trade["objects"][what], regions[where])

    @property
    def _blocks(self) -> int:
        return self.world.count["person"] // len(TRADES) + 1

    @property
    def born(self) -> int:
        return 1720 + 180 * self.block // self._blocks + self.draw("born") % 8

    start = born  # the year from which other years count

    @property
    def teacher(self) -> "Person | None":
        """Someone of the same trade, a generation older; three people share a teacher."""
        block = self.block // 3 * 3 - 3 * max(1, round(self._blocks / 18))
        return Person(self.world, block * len(TRADES) + self.position) if block >= 0 else None

    def peer(self, choice: int) -> "Person | None":
        """A contemporary of another trade."""
        step = 1 + choice % (len(TRADES) - 1)
        number = self.block * len(TRADES) + (self.position + step) % len(TRADES)
        return Person(self.world, number) if number < self.world.count["person"] else None

    @property
    def correspondent(self) -> "Person | None":
        """A peer; no two people have the same correspondent."""
        return self.peer(draw(self.world.seed, "correspondents", self.block))


class Settlement(Entry):
    """A village, town or city."""

    kind = "settlement"
    rare = ("name", "neighbour", "statue")

    @property
    def name(self) -> str:
        return self.world.names.place(self.number)

    @property
    def noun(self) -> Concept:
        return Concept(self.pick(self.facts["nouns"], "noun"))

    @property
    def founded(self) -> int:
        return 1100 + self.draw("founded") % 500


class Work(Entry):
    """A work of a writer, composer or painter."""

    kind = "work"
    rare = ("name", "maker", "setting", "venue", "story", "dedicatee")

    @property
    def name(self) -> str:
        count = self.world.count
        title = self.world.target("title", self.first, count["work"], count["work"])
        return self.world.names.title(title, count["settlement"])

    @property
    def trade(self) -> dict:
        return TRADES[self.number % MAKERS]

    @property
    def noun(self) -> Concept:
        return Concept(self.pick(self.trade["works"], "noun"))

    @cached_property
    def maker(self) -> Person:
        works, people = self.world.count["work"], self.world.count["person"]
        place, trade = divmod(self.number, MAKERS)
        able = max(1, people // len(TRADES))
        block = self.world.target(f"maker {trade}", place, works // MAKERS + 1, able)
        return Person(self.world, block * len(TRADES) + trade)

    @property
    def start(self) -> int:
        """The year from which other years count."""
        return self.maker.born

    @property
    def story(self) -> Concept:
        parts = WORDS["parts"]
        heroes, plots, works = parts["heroes"], parts["plots"], self.world.count["work"]
        story = self.world.target("story", self.number, works, len(heroes) * len(plots))
        return Concept(heroes[story // len(plots)], plots[story % len(plots)])

    @property
    def dedicatee(self) -> Person | None:
        return self.maker.peer(self.draw("dedicatee"))


KINDS: dict[str, type[Entry]] = {kind.kind: kind for kind in (Person, Settlement, Work)}


# Texts


class Prose(NamedTuple):
    """A text, and fact → the (start, end) of its first mention in the text."""

    text: str
    spans: dict[str, tuple[int, int]]


def describe(entry: Entry) -> Prose:
    """Writes an entry's text: an opening, most of its facts in random order, and an aside."""
    facts = [fact for fact, rule in _rules(entry) if "told" in rule]
    order = sorted(facts, key=lambda fact: entry.draw(f"order {fact}"))
    told = [entry.facts[fact]["told"] for fact in order if entry.value(fact) is not None][:6]
    told.insert(entry.draw("place") % len(told), entry.facts["aside"])
    text, spans = "", {}
    for number, wordings in enumerate([entry.facts["opening"], *told]):
        choice = entry.draw(f"sentence {number}")
        text += " " if text else ""
        for literal, slot in _parse(wordings[choice % len(wordings)]):
            words = _words(entry, slot, choice := choice >> 3)
            text += literal + words
            fact = slot.removeprefix("a ")
            if fact in entry.facts or fact in ("name", "noun"):
                start = len(text) - len(words) + (words.index(" ") + 1 if slot != fact else 0)
                spans.setdefault(fact, (start, len(text)))
    return Prose(text, spans)


def _rules(entry: Entry) -> list[tuple[str, dict]]:
    return [(fact, rule) for fact, rule in entry.facts.items() if isinstance(rule, dict)]


@cache
def _parse(wording: str) -> list[tuple[str, str]]:
    """Splits a wording into (literal, slot) pairs; the last slot is empty."""
    parts = [*re.split(r"\{(.*?)\}", wording), ""]
    return list(zip(parts[::2], parts[1::2], strict=True))


def _words(entry: Entry, slot: str, choice: int) -> str:
    """The words for a slot; `choice` selects the wording of a concept."""
    if isinstance(entry, Person) and slot.lower() in _PRONOUNS:
        word = _PRONOUNS[slot.lower()][not entry.is_woman]
        return word.capitalize() if slot[0].isupper() else word
    if isinstance(entry, Work) and slot in ("did", "made"):
        return entry.trade["did"].split(" / ")[slot == "made"]
    value = entry.value(slot.removeprefix("a ")) if slot else ""
    if isinstance(value, Concept):
        value = value.form(choice)
    words = value.name if isinstance(value, Entry) else str(value)
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}" if slot.startswith("a ") else words


_PRONOUNS = {
    "she": ("she", "he"),
    "her": ("her", "his"),
    "child": ("daughter", "son"),
    "person": ("woman", "man"),
}


# Questions


class Question(NamedTuple):
    """A question that asks for the fact `asked` of the only entry with the facts `given`.

    `kind` is "name", "description" or "two attributes"; `gold` and `evidence` are (start, end)
    spans of the entry's text.
    """

    text: str
    kind: str
    given: tuple[str, ...]
    asked: str
    gold: list[tuple[int, int]]
    evidence: list[tuple[int, int]]


def ask(entry: Entry, prose: Prose, wanted: int) -> list[Question]:
    """Writes up to `wanted` questions about an entry; no two give and ask the same facts."""
    questions: list[Question] = []
    tried = set()
    for kind, given, asked, choice in _plans(entry, prose):
        if len(questions) == wanted:
            break
        facts = frozenset(given) - {"noun"}, asked
        if facts not in tried and is_unique(entry, given):
            questions.append(_write(entry, prose, kind, given, asked, choice))
        tried.add(facts)
    return questions


def is_unique(entry: Entry, given: tuple[str, ...]) -> bool:
    """Whether no other entry of the kind shares all given facts, one of which is rare."""
    sharing = [
        entry.world.sharing(entry.kind, fact)[entry.said(fact)]
        for fact in given
        if fact in entry.rare
    ]
    rivals = min(sharing, key=len, default=range(_MOST_RIVALS))
    others = (KINDS[entry.kind](entry.world, n) for n in rivals if n != entry.number)
    return len(rivals) < _MOST_RIVALS and not any(
        all(other.said(fact) == entry.said(fact) for fact in given) for other in others
    )


def told_in(fact: str) -> str:
    """The fact in the text that implies this fact: the year of a decade."""
    return fact.removesuffix("_decade")


def _plans(entry: Entry, prose: Prose) -> Iterator[tuple[str, tuple[str, ...], str, int]]:
    """Yields the kind, the given facts, the fact that is asked, and bits that select wordings."""
    facts = [fact for fact, rule in _rules(entry) if fact in prose.spans]
    single = [fact for fact in facts if fact in entry.rare]
    for attempt in range(_TRIES):
        choice = entry.draw(f"question {attempt}")
        part, one, two, three, four = (choice >> 34 + 6 * n & 63 for n in range(5))
        asked = facts[one % len(facts)] if four & 1 or part < 8 else "name"
        if part < 8:  # an eighth of the attempts ask by name, half of them by two attributes
            # The name may give the fact away: the place in "The Silver Well of Velsund".
            if str(entry.said(asked)) not in entry.name:
                yield "name", ("name", "noun") if entry.has_namesake else ("name",), asked, choice
            continue
        given = {_given(single[two % len(single)], entry)} if single else set()
        if part >= 32:
            given.add(_given(facts[three % len(facts)], entry))
        if given and asked not in map(told_in, given) and len(given) == 1 + (part >= 32):
            kind = "two attributes" if part >= 32 else "description"
            yield kind, ("noun", *sorted(given)), asked, choice


def _given(fact: str, entry: Entry) -> str:
    """The fact that descriptions give: a decade in place of a year."""
    return f"{fact}_decade" if f"{fact}_decade" in entry.facts[fact]["given"][0] else fact


def _write(
    entry: Entry, prose: Prose, kind: str, given: tuple[str, ...], asked: str, choice: int
) -> Question:
    noun = entry.noun.form(choice)
    if kind == "name":
        forms = [f for f in entry.facts["called"] if ("{noun}" in f) == ("noun" in given)]
        subject = _fill(entry, forms, choice)
    else:
        facts = given[1:] if choice & 8 else given[:0:-1]
        clauses = [
            _fill(entry, entry.facts[told_in(fact)]["given"], choice >> 4 + 5 * n)
            for n, fact in enumerate(facts)
        ]
        subject = f"the {noun} {entry.facts['who']} {' and '.join(clauses)}"
    forms = entry.facts[asked]["asked"] if asked != "name" else WORDS["which"]
    if kind != "name":  # a long description only goes where it ends the question
        forms = [form for form in forms if form.endswith("{x}?")]
    text = _fill(entry, forms, choice >> 14, subject)
    evidence = sorted(
        {prose.spans[told_in(fact)] for fact in given if told_in(fact) in prose.spans}
    )
    return Question(text, kind, given, asked, [prose.spans[asked]], evidence)


def _fill(entry: Entry, wordings: list[str], choice: int, subject: str = "") -> str:
    """Fills one of the wordings with the entry's facts; {x} becomes the subject."""
    return "".join(
        literal + (subject if slot == "x" else _words(entry, slot, choice >> 2))
        for literal, slot in _parse(wordings[choice % len(wordings)])
    )
