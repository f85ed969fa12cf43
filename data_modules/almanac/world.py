"""The invented world: names, people and what they make, places and what happens in them.

Document i is the entry in slot i % 25 of block i // 25; LAYOUT gives the kind of each slot. An
entry's facts are drawn from (seed, number). Relations between entries are permutations of their
numbers, kept as tables. The words are in words.toml.
"""

import tomllib
from array import array
from collections import defaultdict
from functools import cache, cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

# Every prefix has at least as many settlements as buildings and events together.
LAYOUT = "SPWPEPSPWPBPWPSPWPEPWPSPB"
LETTERS = {"P": "person", "S": "settlement", "W": "work", "E": "event", "B": "building"}
SLOTS = {
    kind: [slot for slot, other in enumerate(LAYOUT) if other == letter]
    for letter, kind in LETTERS.items()
}
_MASK = (1 << 64) - 1
_ROUNDS = 3  # rounds of a permutation
WORDS = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))


class Concept(tuple):
    """The wordings of one meaning; titles use the first."""

    def form(self, choice: int) -> str:
        return self[choice % len(self)]


class Phrase(tuple):
    """A sequence of concepts, such as verb, object, region."""

    def form(self, choice: int) -> str:
        return " ".join(c.form(choice >> 3 * i) for i, c in enumerate(self))


def concepts(value: Any) -> Any:
    """Turns strings "first wording / second", also within lists and tables, into concepts."""
    if isinstance(value, str):
        return Concept(value.split(" / "))
    if isinstance(value, dict):
        return {key: concepts(item) for key, item in value.items()}
    return [concepts(item) for item in value]


NAMES = WORDS["names"]
CONCEPTS = concepts(WORDS["concepts"])


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
    shuffled = []
    for number in range(size if count is None else count):
        while True:
            for factor, shift in rounds:
                number = number * factor + shift & mask
                number ^= number >> half
            if number < size:
                break
        shuffled.append(number)
    return shuffled


# Names


def shuffled(items: list[str], seed: int, name: str) -> list[str]:
    """The items in random order."""
    return [items[number] for number in permutation(len(items), seed, name)]


class Names:
    """The names of a world with this many entries; different numbers have different names.

    A person has a given name and a two-part surname. A place has a two-part name, with or without a
    word before it. A work has a title of ordinary words, with or without a place. Small collections
    use few given names, surnames and place names, so that most of them occur in several entries.
    """

    def __init__(self, seed: int, people: int, places: int, rivers: int, works: int):
        # Women's and men's names alternate: those at even places are women's names.
        both = zip(_parts("women"), _parts("men"), strict=True)
        given = [name for pair in both for name in pair]
        self.given = given[: max(16, round(40 * (people / 200) ** 0.25))]
        surnames = shuffled(_compounds("surname"), seed, "surnames")
        self.surnames = surnames[: max(12, round(0.3 * people))]
        size = len(self.given) * len(self.surnames)
        assert people <= size, "more people than names"
        self.codes = permutation(size, seed, "person names", people)
        self.places = PlaceNames("place", places, seed)
        self.rivers = PlaceNames("river", rivers, seed)
        provinces = shuffled(_compounds("province"), seed, "provinces")
        self.provinces = provinces[: max(3, min(places // 9, 60))]
        self.titles = shuffled(_titles(), seed, "titles")[: max(10, round(0.6 * works))]

    def person(self, number: int) -> tuple[str, str, bool]:
        """(given name, surname, whether the person is a woman)."""
        surname, given = divmod(self.codes[number], len(self.given))
        return self.given[given], self.surnames[surname], given % 2 == 0

    def title(self, number: int, places: int) -> str:
        """A work's title; once the plain titles are used up, "<title> of <place>"."""
        repeat, title = divmod(number, len(self.titles))
        if repeat == 0:
            return self.titles[title]
        return f"{self.titles[title]} of {self.places((title * 7 + repeat) % places)}"


class PlaceNames:
    """Two-part names that several places share: "Velsund", "Upper Velsund", "New Velsund"."""

    def __init__(self, kind: str, wanted: int, seed: int):
        self.bases = shuffled(_compounds(kind), seed, kind)[: max(3, round(0.6 * wanted))]
        self.words = shuffled(_parts(kind, "words"), seed, f"{kind} words")
        assert wanted <= len(self.bases) * (len(self.words) + 1), f"too few names of kind {kind}"

    def __call__(self, number: int) -> str:
        repeat, base = divmod(number, len(self.bases))
        if repeat == 0:
            return self.bases[base]
        # The word depends on the base as well, so that no word marks all second names.
        return f"{self.words[(base + repeat) % len(self.words)]} {self.bases[base]}"


def _parts(*keys: str) -> list[str]:
    value: Any = WORDS
    for key in keys:
        value = value[key]
    return value.split()


def _compounds(kind: str) -> list[str]:
    starts, ends = _parts(kind, "starts"), _parts(kind, "ends")
    return list(dict.fromkeys(start + end for start in starts for end in ends))


def _titles() -> list[str]:
    nouns = _parts("title", "nouns")
    return [f"The {a} {noun}" for a in _parts("title", "adjectives") for noun in nouns] + [
        f"The {a} and the {b}" for a in nouns for b in nouns if a != b
    ]


# Entries


class Order(NamedTuple):
    """A permutation of range(size): the place of each number, and the number at each place."""

    places: array
    numbers: array


class World:
    """The entries of an almanac of `size` documents.

    The entries of each kind are numbered. The position of an entry in its block (number % entries
    of the kind per block) determines its trade or medium. Equal arguments give equal worlds.
    """

    def __init__(self, size: int, seed: int):
        self.size, self.seed = size, seed
        self.count = {kind: sum(map(self._blocks, slots)) for kind, slots in SLOTS.items()}
        self._orders: dict[tuple[str, int], Order] = {}
        self._sharing: dict[tuple[str, str], dict[Any, list[int]]] = {}
        self.rivers = min(max(1, self.count["settlement"] // 3), 25_000)
        people, places, works = (self.count[kind] for kind in ("person", "settlement", "work"))
        self.names = Names(seed, people, places, self.rivers, works)

    def entry(self, index: int) -> "Entry":
        """The entry that document `index` describes."""
        block, slot = divmod(index, len(LAYOUT))
        kind = LETTERS[LAYOUT[slot]]
        return self.find(kind, block * len(SLOTS[kind]) + SLOTS[kind].index(slot))

    def find(self, kind: str, number: int) -> Any:
        """The entry of a kind with this number."""
        return KINDS[kind](self, number)

    def blocks(self, kind: str, position: int) -> int:
        """The number of entries of a kind that have this position in their block."""
        return self._blocks(SLOTS[kind][position])

    def _blocks(self, slot: int) -> int:
        return (self.size - slot + len(LAYOUT) - 1) // len(LAYOUT)

    def sharing(self, kind: str, fact: str) -> dict[Any, list[int]]:
        """Value of a fact (see `said`) → the numbers of all entries of the kind with this value."""
        if (kind, fact) not in self._sharing:
            numbers = self._sharing[kind, fact] = defaultdict(list)
            for number in range(self.count[kind]):
                numbers[said(self.find(kind, number), fact)].append(number)
        return self._sharing[kind, fact]

    def order(self, name: str, size: int) -> Order:
        """The permutation of range(size) that belongs to this name; cached."""
        if (name, size) not in self._orders:
            places = permutation(size, self.seed, name)
            numbers = sorted(range(size), key=places.__getitem__)
            # Four bytes a number: a large world keeps dozens of orders.
            self._orders[name, size] = Order(array("I", places), array("I", numbers))
        return self._orders[name, size]

    def target(self, name: str, source: int, sources: int, targets: int) -> int:
        """The number in range(targets) to which the relation maps `source`, in range(sources).

        The relation is even: the numbers of sources of two targets differ by at most one.
        """
        return self.order(name, max(sources, targets)).places[source] % targets

    def draw(self, name: str, number: int) -> int:
        """A uniform 64-bit integer that depends only on the world's seed, the name and number."""
        return draw(self.seed, name, number)

    @cached_property
    def first_works(self) -> dict[int, "Work"]:
        """Number of a person → the person's earliest work."""
        works = [Work(self, number) for number in range(self.count["work"])]
        first: dict[int, Work] = {}
        for work in sorted(works, key=lambda work: (work.year, work.turn)):
            first.setdefault(work.maker.number, work)
        return first


fact = cached_property  # a fact of an entry, computed on first access


class Entry:
    """One entry of the world. Its facts are attributes, computed on first access.

    A fact is a string, a year, a Concept or another entry; None if the entry has no such fact.
    Every entry has a `name` and a `noun`, the concept of what it is. `telling` lists the facts that
    few entries of the kind share, the rarest first; every question gives one of them.
    """

    kind: str
    telling: tuple[str, ...]
    name: str
    noun: tuple[str, ...]

    def __init__(self, world: World, number: int):
        self.world, self.number = world, number
        # The entry's block, and its position among the entries of its kind in the block.
        self.block, self.position = divmod(number, len(SLOTS[self.kind]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entry) and (self.kind, self.number) == (other.kind, other.number)

    def __hash__(self) -> int:
        return hash((self.kind, self.number))

    def draw(self, name: str) -> int:
        return self.world.draw(f"{self.kind} {name}", self.number)

    def pick(self, options, name: str):
        return options[self.draw(name) % len(options)]

    def target(self, name: str, targets: int) -> int:
        """The number in range(targets) to which the relation `name` maps this entry."""
        return self.world.target(name, self.number, self.world.count[self.kind], targets)

    def linked(self, name: str, target: str):
        """The entry of the kind `target` to which the relation `name` maps this entry."""
        number = self.target(f"{self.kind} {name}", self.world.count[target])
        return self.world.find(target, number)

    @property
    def _pairs(self) -> list[tuple[int, int]]:
        """Pairs of positions in the block whose entries have the same name."""
        return []

    @fact
    def _namesakes(self) -> list[int]:
        """The numbers of the entries with this entry's name, itself included; at most two."""
        pair = next((p for p in self._pairs if self.position in p), (self.position,))
        numbers = [self.number - self.position + position for position in pair]
        return [n for n in numbers if n < self.world.count[self.kind]]

    @fact
    def namesake(self) -> "Entry | None":
        """The other entry with the same name, or None."""
        others = (number for number in self._namesakes if number != self.number)
        return next((self.world.find(self.kind, number) for number in others), None)

    @fact
    def namesake_noun(self) -> tuple[str, ...] | None:
        """The noun of the namesake, or None."""
        return self.namesake and self.namesake.noun

    @fact
    def title(self) -> str:
        """The name, followed by the noun in parentheses if there is a namesake."""
        return f"{self.name} ({self.noun[0]})" if self.namesake else self.name

    @fact
    def elsewhere(self) -> "Entry | None":
        """A settlement that is unrelated to the entry; None if the drawn one is related."""
        settlements = self.world.count["settlement"]
        place = self.world.find("settlement", self.draw("elsewhere") % settlements)
        own = (getattr(self, fact, None) for fact in ("birthplace", "home", "setting", "venue"))
        return None if place in (self, getattr(self, "location", None), *own) else place


def said(entry: Entry, fact: str) -> Any:
    """A fact's value as texts give it: another entry by its name, which two entries may share."""
    value = getattr(entry, fact)
    return value.name if isinstance(value, Entry) else value


def picked(options: list, name: str) -> fact:
    """Defines a fact that is one of these options, drawn at random."""
    return fact(lambda entry: entry.pick(options, name))


def linked_to(target: str, name: str, unlike: str | None = None) -> fact:
    """Defines a fact: the entry where the relation leads; None if the fact `unlike` is the same."""

    def find(entry: Entry) -> Entry | None:
        linked = entry.linked(name, target)
        return None if unlike and linked == getattr(entry, unlike) else linked

    return fact(find)


def decade_of(year: str) -> property:
    """Defines a fact: the words after "in the" for the decade of a year.

    A century's first decade is "years 1800 to 1809", since "1800s" could mean the century.
    """

    def decade(entry: Entry) -> str:
        first = getattr(entry, year) // 10 * 10
        return f"{first}s" if first % 100 else f"years {first} to {first + 9}"

    return property(decade)


def peer_of(person: str, name: str, unlike: str | None = None) -> fact:
    """Defines a fact: a `peer` of the fact `person`; None if the fact `unlike` is the same."""

    def find(entry: Entry) -> Entry | None:
        known = getattr(entry, person)
        peer = known and known.peer(entry.draw(name))
        return None if unlike and peer == getattr(entry, unlike) else peer

    return fact(find)


# People

PROFESSIONS = [concepts(trade["professions"]) for trade in WORDS["trades"]]
# For each trade, a verb and its objects; in some trades the objects depend on the profession.
DEEDS = [(concepts(trade["verb"]), concepts(trade["objects"])) for trade in WORDS["trades"]]
PRIZES = [f"the {prize}" for prize in NAMES["prizes"]]
REGIONS, HEROES, PLOTS = CONCEPTS["regions"], CONCEPTS["heroes"], CONCEPTS["plots"]
TRADES = len(PROFESSIONS)  # also the number of people in a block, one of each trade
WRITER, COMPOSER, PAINTER, DIRECTOR, ARCHITECT, OTHER_WRITER = 0, 2, 3, 4, 5, 1
OTHER_TRADES = [position for position in range(TRADES) if position != DIRECTOR]
GENERATION = 30  # years


class Person(Entry):
    """A person; people at the same position in their blocks have the same trade."""

    kind = "person"
    telling = ("name", "opus", "correspondent", "teacher", "birthplace", "home", "deed")

    @property
    def _pairs(self) -> list[tuple[int, int]]:
        choice, half = self.world.draw("namesakes", self.block), TRADES // 2
        first, second = choice % half, choice // half % half
        step = 1 + choice // TRADES**2 % (half - 1)
        return [(first, half + second), ((first + step) % half, half + (second + step) % half)]

    @fact
    def _names(self) -> tuple[str, str, bool]:
        return self.world.names.person(self._namesakes[0])

    @fact
    def name(self) -> str:
        return f"{self._names[0]} {self._names[1]}"

    @property
    def surname(self) -> str:
        return self._names[1]

    @property
    def is_woman(self) -> bool:
        return self._names[2]

    # Trade and deeds.

    @property
    def _peers(self) -> int:
        """The number of people with the same trade."""
        return self.world.blocks("person", self.position)

    @fact
    def _deed(self) -> tuple[int, int]:
        """The number of the deed's object and the number of its region."""
        objects = DEEDS[self.position][1]
        count = sum(map(len, objects.values())) if isinstance(objects, dict) else len(objects)
        sizes = self._peers, count * len(REGIONS)
        deed = self.world.target(f"deed {self.position}", self.block, *sizes)
        return divmod(deed, len(REGIONS))

    @fact
    def noun(self) -> Concept:
        professions = PROFESSIONS[self.position]
        if isinstance(DEEDS[self.position][1], dict):  # the deed determines the profession
            return professions[self._deed[0] % len(professions)]
        return self.pick(professions, "profession")

    @fact
    def deed(self) -> Phrase:
        verb, objects = DEEDS[self.position]
        what, where = self._deed
        if isinstance(objects, dict):
            what, objects = what // len(objects), objects[self.noun[0]]
        return Phrase((verb, objects[what], REGIONS[where]))

    @property
    def opus(self) -> "Work | None":
        """The person's earliest work, or None."""
        return self.world.first_works.get(self.number)

    # Life. `_age` is the person's place in the trade's order of birth.

    @fact
    def _age(self) -> int:
        return _ages(self.world, self.position).places[self.block]

    @fact
    def born(self) -> int:
        start, years = _births(self.position)
        first, last = (start + age * years / self._peers for age in (self._age, self._age + 1))
        return int(first) + self.draw("born") % max(1, int(last - first))

    @fact
    def died(self) -> int:
        return self.born + 48 + self.draw("died") % 42

    born_decade = decade_of("born")
    died_decade = decade_of("died")

    def working_year(self, choice: int) -> int:
        """A year in which the person could have made something."""
        first = self.born + 23
        return first + choice % (min(self.died, self.born + 75) - first)

    @fact
    def teacher(self) -> "Person | None":
        """Someone of the same trade, a generation older, or None; three people share a teacher."""
        places = self._peers * GENERATION / _births(self.position)[1]  # in the order of birth
        older = self._age // 3 * 3 - 3 * max(1, round(places / 3))
        teacher = _aged(self.world, self.position, older)
        return teacher if teacher and 16 <= self.born - teacher.born <= 55 else None

    birthplace = linked_to("settlement", "birthplace")
    home = linked_to("settlement", "home", unlike="birthplace")

    def peer(self, choice: int) -> "Person | None":
        """Someone at the same place in the order of birth of another trade, or None.

        `choice` gives the distance to that trade. A film director's peer is another director.
        """
        if self.position == DIRECTOR:
            return _aged(self.world, DIRECTOR, self._age ^ 1)
        place = OTHER_TRADES.index(self.position) + 1 + choice % (len(OTHER_TRADES) - 1)
        return _aged(self.world, OTHER_TRADES[place % len(OTHER_TRADES)], self._age)

    @fact
    def correspondent(self) -> "Person | None":
        """A peer; no two people have the same correspondent.

        All people at one place in the order of birth move on by the same number of trades.
        """
        return self.peer(self.world.draw("correspondents", self._age))

    @fact
    def other(self) -> "Person | None":
        other = self.peer(self.draw("other"))
        return None if other == self.correspondent else other

    father = picked(CONCEPTS["fathers"], "father")
    prize = picked(PRIZES, "prize")


def _births(position: int) -> tuple[int, int]:
    """A trade's first year of birth and number of years; film directors are born later."""
    return (1880, 40) if position == DIRECTOR else (1720, 180)


def _ages(world: World, position: int) -> Order:
    return world.order(f"age {position}", world.blocks("person", position))


def _aged(world: World, position: int, age: int) -> Person | None:
    """The person at this place in a trade's order of birth; None if out of range."""
    people = _ages(world, position).numbers
    return Person(world, people[age] * TRADES + position) if 0 <= age < len(people) else None


# Works

# The medium and the maker's trade for each position of a work in its block.
MEDIUMS = ["book", "music", "picture", "film", "book"]
MAKERS = [WRITER, COMPOSER, PAINTER, DIRECTOR, OTHER_WRITER]
KINDS_OF_WORK = concepts(WORDS["media"])


class Work(Entry):
    """A work; in each block, two works of different media have the same title."""

    kind = "work"
    telling = ("name", "maker", "dedicatee", "setting", "venue", "story")

    @property
    def medium(self) -> str:
        return MEDIUMS[self.position]

    @fact
    def noun(self) -> Concept:
        return self.pick(KINDS_OF_WORK[self.medium], "type")

    @property
    def _pairs(self) -> list[tuple[int, int]]:
        return [(0, 1 + self.world.draw("same title", self.block) % 3)]

    @fact
    def name(self) -> str:
        titles = self.world.order("title", self.world.count["work"]).places
        places = self.world.count["settlement"]
        return self.world.names.title(titles[self._namesakes[0]], places)

    @fact
    def turn(self) -> tuple[int, int]:
        """The work's number among its maker's works, and the maker's block.

        Some people have no work.
        """
        works = self.world.blocks("work", self.position)
        active = max(1, self.world.blocks("person", MAKERS[self.position]) * 3 // 5)
        order = self.world.order(f"maker {self.position}", max(works, active))
        return divmod(order.places[self.block], active)

    @fact
    def maker(self) -> Person:
        return Person(self.world, self.turn[1] * TRADES + MAKERS[self.position])

    @fact
    def year(self) -> int:
        return self.maker.working_year(self.draw("year"))

    year_decade = decade_of("year")

    @fact
    def story(self) -> Phrase:
        plot, hero = divmod(self.target("story", len(HEROES) * len(PLOTS)), len(HEROES))
        return Phrase((HEROES[hero], PLOTS[plot]))

    @property
    def hero(self) -> Concept:
        return self.story[0]

    setting = linked_to("settlement", "setting")
    venue = linked_to("settlement", "venue", unlike="setting")
    prize = picked(PRIZES, "prize")
    dedicatee = peer_of("maker", "dedicatee")
    other = peer_of("maker", "other", unlike="dedicatee")


# Places

POPULATIONS = WORDS["populations"]


class Settlement(Entry):
    """A village, town, port or city."""

    kind = "settlement"
    telling = ("name", "statue", "neighbour", "river")

    @fact
    def name(self) -> str:
        order = self.world.order("place name", self.world.count["settlement"])
        return self.world.names.places(order.places[self.number])

    noun = picked(CONCEPTS["sizes"], "size")

    @fact
    def population(self) -> str:
        low, high = POPULATIONS[self.noun[0]]
        return f"{100 * (low + self.draw('population') % (high - low)):,}"

    @fact
    def river(self) -> str:
        return "the " + self.world.names.rivers(self.target("river", self.world.rivers))

    @fact
    def province(self) -> str:
        return self.pick(self.world.names.provinces, "province")

    @fact
    def neighbour(self) -> "Settlement":
        """The next settlement on a circular road through all settlements."""
        road = self.world.order("road", self.world.count["settlement"])
        place = (road.places[self.number] + 1) % len(road.numbers)
        return Settlement(self.world, road.numbers[place])

    @fact
    def founded(self) -> int:
        return 1100 + self.draw("founded") % 500

    @property
    def founded_century(self) -> str:
        return f"{NAMES['centuries'][self.founded // 100 - 11]} century"

    founders = picked(CONCEPTS["founders"], "founders")
    product = picked(CONCEPTS["products"], "product")
    sight = picked(CONCEPTS["sights"], "sight")
    fair = picked(CONCEPTS["fairs"], "fair")
    month = picked(NAMES["months"], "month")
    statue = linked_to("person", "statue")
    other = linked_to("person", "other", unlike="statue")


class Building(Entry):
    """A building; no two are in the same settlement."""

    kind = "building"
    telling = ("name", "location", "plaque", "architect")

    @fact
    def name(self) -> str:
        """Named after a person without a namesake who was over 30 then, else after the place."""
        someone = self.linked("honour", "person")
        known = someone.namesake is None and someone.born + 30 < self.completed
        return f"{someone.name if known else self.location.name} {self.noun[0].title()}"

    @fact
    def noun(self) -> Concept:
        buildings = CONCEPTS["buildings"][: 6 if self.completed < 1850 else None]
        return self.pick(buildings, "type")

    location = linked_to("settlement", "location")

    @fact
    def architect(self) -> Person:
        """Some architects have several buildings, some have none."""
        active = max(1, self.world.blocks("person", ARCHITECT) * 3 // 5)
        return Person(self.world, self.target("architect", active) * TRADES + ARCHITECT)

    @fact
    def completed(self) -> int:
        return self.architect.working_year(self.draw("completed"))

    completed_decade = decade_of("completed")
    material = picked(CONCEPTS["materials"], "material")
    feature = picked(CONCEPTS["features"], "feature")
    payer = picked(CONCEPTS["payers"], "payer")

    @fact
    def plaque(self) -> Person | None:
        plaque = self.linked("plaque", "person")
        return None if plaque == self.architect or plaque.name in self.name else plaque

    other = peer_of("architect", "other")


# Events

FIRST_YEAR, YEARS = 1765, 175
LEADER_AGE = 42
# `title` is a format for the place's name; `years` are the first year and the year after the last;
# `role` describes the part that the leader took.
HAPPENINGS = WORDS["happenings"]


class Event(Entry):
    """A siege, flood, fire, congress, exhibition or strike."""

    kind = "event"
    telling = ("name", "location", "leader", "year")

    @fact
    def happening(self) -> dict[str, Any]:
        return self.pick([h for h in HAPPENINGS if self.year in range(*h["years"])], "happening")

    @fact
    def name(self) -> str:
        return self.happening["title"].format(self.location.name)

    @property
    def noun(self) -> Concept:
        return concepts(self.happening["noun"])

    location = linked_to("settlement", "location")

    @fact
    def _years(self) -> float:
        """The number of years from FIRST_YEAR to the event."""
        count = self.world.count["event"]
        return self.world.order("event", count).places[self.number] * YEARS / count

    @fact
    def year(self) -> int:
        return FIRST_YEAR + int(self._years)

    year_decade = decade_of("year")
    month = picked(NAMES["months"], "month")
    duration = picked(NAMES["durations"], "duration")

    @fact
    def cause(self) -> Concept:
        return self.pick(concepts(self.happening["causes"]), "cause")

    @fact
    def outcome(self) -> Concept:
        return self.pick(concepts(self.happening["outcomes"]), "outcome")

    @property
    def role(self) -> Concept:
        return concepts(self.happening["role"])

    @fact
    def leader(self) -> Person | None:
        """Someone about LEADER_AGE years old, not a film director; None if there is nobody."""
        position = OTHER_TRADES[self.draw("leader") % len(OTHER_TRADES)]
        start, years = _births(position)
        born = FIRST_YEAR - LEADER_AGE + self._years - start
        people = self.world.blocks("person", position)
        return _aged(self.world, position, int(born * people / years))

    other = peer_of("leader", "other")


KINDS = {kind.kind: kind for kind in (Person, Settlement, Building, Work, Event)}
