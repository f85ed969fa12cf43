"""The invented world: its entries, found by number.

Document i of the almanac is slot i % 25 of block i // 25 of LAYOUT; its facts are draws from
(seed, number) and its relations are permutations, so that any entry is made alone. Only the check
that a question fits one entry looks at all entries of a kind, once. The words are data: names.toml,
concepts.toml and wordings.toml.
"""

import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache, cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

# In every prefix settlements come first: no more buildings and events than places to be in.
LAYOUT = "SPWPEPSPWPBPWPSPWPEPWPSPB"
LETTERS = {"P": "person", "S": "settlement", "W": "work", "E": "event", "B": "building"}
SLOTS = {
    kind: [slot for slot, other in enumerate(LAYOUT) if other == letter]
    for letter, kind in LETTERS.items()
}
_MASK = (1 << 64) - 1


@cache
def table(name: str) -> dict[str, Any]:
    """The data file of this name."""
    return tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))


class Concept(tuple):
    """The wordings of one meaning; the first is the one that titles use."""

    def form(self, choice: int) -> str:
        return self[choice % len(self)]


class Phrase(tuple):
    """Concepts said one after another: verb, object, region."""

    def form(self, choice: int) -> str:
        return " ".join(c.form(choice >> 3 * i) for i, c in enumerate(self))


def concepts(value: Any) -> Any:
    """The concepts of a string "first wording / second", of a list of such, or of a table."""
    if isinstance(value, str):
        return Concept(value.split(" / "))
    if isinstance(value, dict):
        return {key: concepts(item) for key, item in value.items()}
    return [concepts(item) for item in value]


NAMES = table("concepts")["names"]
CONCEPTS = concepts(table("concepts")["concepts"])


@cache
def _salt(name: str, seed: int) -> int:
    return int.from_bytes(blake2b(f"{seed}/{name}".encode(), digest_size=8).digest(), "big")


def draw(seed: int, name: str, number: int) -> int:
    """A uniform 64-bit integer, a function of its arguments only (SplitMix64's finaliser)."""
    x = (_salt(name, seed) + number * 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


class Permutation:
    """A shuffle of range(size) and its inverse.

    Rounds of multiplying by an odd number and folding the upper half onto the lower one shuffle
    the numbers below a power of two; those that leave range(size) are sent on until they return.
    """

    ROUNDS = 3

    def __init__(self, size: int, seed: int, name: str):
        self.size = size
        bits = max(1, (size - 1).bit_length())
        self.mask, self.half = (1 << bits) - 1, (bits + 1) // 2
        factors = [draw(seed, name, n) & self.mask | 1 for n in range(self.ROUNDS)]
        shifts = [draw(seed, name, ~n) & self.mask for n in range(self.ROUNDS)]
        self.rounds = list(zip(factors, shifts, strict=True))
        self.back = [(pow(f, -1, 1 << bits), shift) for f, shift in reversed(self.rounds)]

    def __call__(self, number: int) -> int:
        while True:
            for factor, shift in self.rounds:
                number = number * factor + shift & self.mask
                number ^= number >> self.half
            if number < self.size:
                return number

    def inverse(self, number: int) -> int:
        while True:
            for factor, shift in self.back:
                number ^= number >> self.half
                number = (number - shift) * factor & self.mask
            if number < self.size:
                return number


class Link:
    """A relation from each of range(sources) to one of range(targets), evenly spread.

    It is found in both directions without a table: the birthplace of a person, and all people
    born in a place.
    """

    def __init__(self, sources: int, targets: int, seed: int, name: str):
        self.count, self.targets = sources, targets
        self.order = permutation(max(sources, targets), seed, name)

    def target(self, source: int) -> int:
        return self.order(source) % self.targets

    def sources(self, target: int) -> Iterator[int]:
        """All sources of a target; none of a number that is no target."""
        values = range(target, self.order.size, self.targets) if target < self.targets else ()
        return (source for source in map(self.order.inverse, values) if source < self.count)


@cache
def permutation(size: int, seed: int, name: str) -> Permutation:
    """`Permutation`, made once."""
    return Permutation(size, seed, name)


def shuffled(items: list[str], seed: int, name: str) -> list[str]:
    """The items in another order."""
    order = Permutation(len(items), seed, name)
    return [items[order(i)] for i in range(len(items))]


class Names:
    """The names of a world with this many entries; different numbers have different names.

    A person has a given name and a surname of two parts; a place a name of two parts, with or
    without a word before it; a work a title of ordinary words, with or without a place. Small
    collections use few parts, so that most names belong to several entries.
    """

    def __init__(self, seed: int, people: int, places: int, rivers: int, works: int):
        # Women and men in turn: an even number is a woman's name.
        both = zip(_parts("women"), _parts("men"), strict=True)
        given = [name for pair in both for name in pair]
        self.given = given[: max(16, round(40 * (people / 200) ** 0.25))]
        surnames = shuffled(_pairs("surname"), seed, "surnames")
        self.surnames = surnames[: max(12, round(0.3 * people))]
        self.codes = Permutation(len(self.given) * len(self.surnames), seed, "person names")
        assert people <= self.codes.size, "more people than names"
        self.places = PlaceNames("place", places, seed)
        self.rivers = PlaceNames("river", rivers, seed)
        provinces = shuffled(_pairs("province"), seed, "provinces")
        self.provinces = provinces[: max(3, min(places // 9, 60))]
        self.titles = shuffled(_titles(), seed, "titles")[: max(10, round(0.6 * works))]

    def person(self, number: int) -> tuple[str, str, bool]:
        """(given name, surname, is a woman)."""
        surname, given = divmod(self.codes(number), len(self.given))
        return self.given[given], self.surnames[surname], given % 2 == 0

    def title(self, number: int, places: int) -> str:
        """A work's title; when the plain ones are used up, "... of <one of the places>"."""
        repeat, title = divmod(number, len(self.titles))
        if repeat == 0:
            return self.titles[title]
        return f"{self.titles[title]} of {self.places((title * 7 + repeat) % places)}"


class PlaceNames:
    """Two-part names, shared by several: "Velsund", "Upper Velsund", "New Velsund"."""

    def __init__(self, kind: str, wanted: int, seed: int):
        self.bases = shuffled(_pairs(kind), seed, kind)[: max(3, round(0.6 * wanted))]
        self.words = shuffled(_parts(kind, "words"), seed, f"{kind} words")
        assert wanted <= len(self.bases) * (len(self.words) + 1), f"too few names of kind {kind}"

    def __call__(self, number: int) -> str:
        repeat, base = divmod(number, len(self.bases))
        if repeat == 0:
            return self.bases[base]
        # Which word goes with which base differs, so that no word marks all second names.
        return f"{self.words[(base + repeat) % len(self.words)]} {self.bases[base]}"


def _parts(*keys: str) -> list[str]:
    value: Any = table("names")
    for key in keys:
        value = value[key]
    return value.split()


def _pairs(kind: str) -> list[str]:
    starts, ends = _parts(kind, "starts"), _parts(kind, "ends")
    return list(dict.fromkeys(start + end for start in starts for end in ends))


def _titles() -> list[str]:
    nouns = _parts("title", "nouns")
    return [f"The {a} {noun}" for a in _parts("title", "adjectives") for noun in nouns] + [
        f"The {a} and the {b}" for a in nouns for b in nouns if a != b
    ]


class World:
    """The entries of an almanac of `size` documents.

    Entries of a kind are numbered; their position in the block (number % entries of the kind in a
    block) decides their trade or medium.
    """

    def __init__(self, size: int, seed: int, kinds: dict[str, type]):
        self.size, self.seed, self.kinds = size, seed, kinds
        self.count = {kind: sum(map(self._blocks, slots)) for kind, slots in SLOTS.items()}
        self._sharing: dict[tuple[str, str], dict[Any, list[int]]] = {}
        self.rivers = min(max(1, self.count["settlement"] // 3), 25_000)
        self.names = Names(
            seed,
            people=self.count["person"],
            places=self.count["settlement"],
            rivers=self.rivers,
            works=self.count["work"],
        )

    def entry(self, index: int):
        """The entry of document `index`."""
        block, slot = divmod(index, len(LAYOUT))
        kind = LETTERS[LAYOUT[slot]]
        return self.find(kind, block * len(SLOTS[kind]) + SLOTS[kind].index(slot))

    def find(self, kind: str, number: int):
        """The entry of a kind by its number in the kind."""
        return self.kinds[kind](self, number)

    def blocks(self, kind: str, position: int) -> int:
        """How many entries of a kind have this position in their block."""
        return self._blocks(SLOTS[kind][position])

    def _blocks(self, slot: int) -> int:
        return (self.size - slot + len(LAYOUT) - 1) // len(LAYOUT)

    def sharing(self, kind: str, fact: str) -> dict[Any, list[int]]:
        """What can be said of a fact (`said`) → the numbers of all entries of the kind it fits."""
        if (kind, fact) not in self._sharing:
            numbers = self._sharing[kind, fact] = defaultdict(list)
            for number in range(self.count[kind]):
                numbers[said(self.find(kind, number), fact)].append(number)
        return self._sharing[kind, fact]

    def link(self, name: str, sources: int, targets: int) -> Link:
        """The relation of this name, between ranges of these sizes."""
        return Link(sources, targets, self.seed, name)

    def order(self, name: str, size: int) -> Permutation:
        """The order of this name, of range(size)."""
        return permutation(size, self.seed, name)

    def draw(self, name: str, number: int) -> int:
        """A uniform 64-bit integer that belongs to this name and number."""
        return draw(self.seed, name, number)


fact = cached_property  # of an entry, computed when first asked for


class Entry:
    """One entry of the world. Its facts are attributes, computed when first asked for.

    A fact is a string, a year, a Concept or another entry; None if the entry has no such fact.
    Every kind has `name` and `noun`, the concept of what it is. `telling` are the facts that few
    entries of the kind share, the rarest first: every question gives one of them.
    """

    kind: str
    telling: tuple[str, ...]
    name: str
    noun: tuple[str, ...]

    def __init__(self, world: World, number: int):
        self.world, self.number = world, number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entry) and (self.kind, self.number) == (other.kind, other.number)

    def __hash__(self) -> int:
        return hash((self.kind, self.number))

    @property
    def block(self) -> int:
        return self.number // len(SLOTS[self.kind])

    @property
    def position(self) -> int:
        """Its place among the entries of its kind in the block."""
        return self.number % len(SLOTS[self.kind])

    def draw(self, name: str) -> int:
        return self.world.draw(f"{self.kind} {name}", self.number)

    def pick(self, options, name: str):
        return options[self.draw(name) % len(options)]

    def link(self, name: str, target: str) -> Link:
        """The link of this name from the entries of this kind to those of another."""
        count = self.world.count
        return self.world.link(f"{self.kind} {name}", count[self.kind], count[target])

    def linked(self, name: str, target: str):
        """The entry that the link of this name leads to."""
        return self.world.find(target, self.link(name, target).target(self.number))

    @property
    def _namesakes(self) -> list[int]:
        """The numbers of the entries of this name, at most two."""
        return [self.number]

    @fact
    def namesake(self) -> "Entry | None":
        """The other entry of the same name."""
        others = (number for number in self._namesakes if number != self.number)
        return next((self.world.find(self.kind, number) for number in others), None)

    @fact
    def namesake_noun(self) -> tuple[str, ...] | None:
        """What the other entry of the name is."""
        return self.namesake and self.namesake.noun

    @fact
    def title(self) -> str:
        """The name, with what tells it from another entry of that name."""
        return f"{self.name} ({self.noun[0]})" if self.namesake else self.name

    @fact
    def elsewhere(self) -> "Entry | None":
        """A place that has nothing else to do with the entry."""
        place = self.world.find(
            "settlement", self.draw("elsewhere") % self.world.count["settlement"]
        )
        own = (getattr(self, fact, None) for fact in ("birthplace", "home", "setting", "venue"))
        return None if place in (self, getattr(self, "location", None), *own) else place


def said(entry: Entry, fact: str) -> Any:
    """What can be said of an entry's fact: of another entry its name, which two may share."""
    value = getattr(entry, fact)
    return value.name if isinstance(value, Entry) else value


def picked(options: list, name: str) -> fact:
    """A fact that is one of these options."""
    return fact(lambda entry: entry.pick(options, name))


def linked_to(target: str, name: str, unlike: str | None = None) -> fact:
    """A fact: the entry where the link of this name leads; none if the fact `unlike` is it."""

    def find(entry: Entry) -> Entry | None:
        found = entry.linked(name, target)
        return None if unlike and found == getattr(entry, unlike) else found

    return fact(find)


def decade_of(year: str) -> property:
    """A fact: what follows "in the" for the decade of a year; "1800s" could be a century."""

    def decade(entry: Entry) -> str:
        first = getattr(entry, year) // 10 * 10
        return f"{first}s" if first % 100 else f"years {first} to {first + 9}"

    return property(decade)
