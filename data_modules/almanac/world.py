"""The invented world: names, people and what they make, places and what happens in them.

Document i of the almanac is slot i % 25 of block i // 25 of LAYOUT. An entry's facts are draws from
(seed, number); its relations are shuffles of numbers, held as tables. The words are data:
names.toml, concepts.toml and wordings.toml.
"""

import tomllib
from collections import defaultdict
from functools import cache, cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

# In every prefix settlements come first: no more buildings and events than places to be in.
LAYOUT = "SPWPEPSPWPBPWPSPWPEPWPSPB"
LETTERS = {"P": "person", "S": "settlement", "W": "work", "E": "event", "B": "building"}
SLOTS = {
    kind: [slot for slot, other in enumerate(LAYOUT) if other == letter]
    for letter, kind in LETTERS.items()
}
_MASK = (1 << 64) - 1
_ROUNDS = 3  # of a shuffle


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


# Numbers


@cache
def _salt(name: str, seed: int) -> int:
    return int.from_bytes(blake2b(f"{seed}/{name}".encode(), digest_size=8).digest(), "big")


def draw(seed: int, name: str, number: int) -> int:
    """A uniform 64-bit integer, a function of its arguments only (SplitMix64's finaliser)."""
    x = (_salt(name, seed) + number * 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def permutation(size: int, seed: int, name: str, count: int | None = None) -> list[int]:
    """The first `count` numbers of a shuffle of range(size); None = all.

    Rounds of multiplying by an odd number and folding the upper half onto the lower one shuffle
    the numbers below a power of two; those that leave range(size) are sent on until they return.
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
    """The items in another order."""
    return [items[number] for number in permutation(len(items), seed, name)]


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
        """(given name, surname, is a woman)."""
        surname, given = divmod(self.codes[number], len(self.given))
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
        self.bases = shuffled(_compounds(kind), seed, kind)[: max(3, round(0.6 * wanted))]
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
    """A shuffle of numbers: the place of each number, and the number at each place."""

    places: list[int]
    numbers: list[int]


class World:
    """The entries of an almanac of `size` documents.

    Entries of a kind are numbered; their position in the block (number % entries of the kind in a
    block) decides their trade or medium. The same arguments make the same world.
    """

    def __init__(self, size: int, seed: int):
        self.size, self.seed = size, seed
        self.count = {kind: sum(map(self._blocks, slots)) for kind, slots in SLOTS.items()}
        self._orders: dict[tuple[str, int], Order] = {}
        self._sharing: dict[tuple[str, str], dict[Any, list[int]]] = {}
        self.rivers = min(max(1, self.count["settlement"] // 3), 25_000)
        self.names = Names(
            seed,
            people=self.count["person"],
            places=self.count["settlement"],
            rivers=self.rivers,
            works=self.count["work"],
        )

    def entry(self, index: int) -> "Entry":
        """The entry of document `index`."""
        block, slot = divmod(index, len(LAYOUT))
        kind = LETTERS[LAYOUT[slot]]
        return self.find(kind, block * len(SLOTS[kind]) + SLOTS[kind].index(slot))

    def find(self, kind: str, number: int) -> Any:
        """The entry of a kind by its number in the kind."""
        return KINDS[kind](self, number)

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

    def order(self, name: str, size: int) -> Order:
        """The order of this name, of range(size)."""
        if (name, size) not in self._orders:
            places = permutation(size, self.seed, name)
            numbers = sorted(range(size), key=places.__getitem__)
            self._orders[name, size] = Order(places, numbers)
        return self._orders[name, size]

    def target(self, name: str, source: int, sources: int, targets: int) -> int:
        """The number in range(targets) that this one of range(sources) is related to.

        The relation of a name is spread evenly: each target has as many sources as any other.
        """
        return self.order(name, max(sources, targets)).places[source] % targets

    def draw(self, name: str, number: int) -> int:
        """A uniform 64-bit integer that belongs to this name and number."""
        return draw(self.seed, name, number)

    @cached_property
    def first_works(self) -> dict[int, "Work"]:
        """The number of a person → the first of the works that the person made."""
        works = [Work(self, number) for number in range(self.count["work"])]
        first: dict[int, Work] = {}
        for work in sorted(works, key=lambda work: (work.year, work.turn)):
            first.setdefault(work.maker.number, work)
        return first


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
        # Its block, and its place among the entries of its kind in the block.
        self.block, self.position = divmod(number, len(SLOTS[self.kind]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entry) and (self.kind, self.number) == (other.kind, other.number)

    def __hash__(self) -> int:
        return hash((self.kind, self.number))

    def draw(self, name: str) -> int:
        return self.world.draw(f"{self.kind} {name}", self.number)

    def pick(self, options, name: str):
        return options[self.draw(name) % len(options)]

    def linked(self, name: str, target: str):
        """The entry of another kind that the relation of this name leads to."""
        count = self.world.count
        sizes = count[self.kind], count[target]
        return self.world.find(
            target, self.world.target(f"{self.kind} {name}", self.number, *sizes)
        )

    @property
    def _pairs(self) -> list[tuple[int, int]]:
        """The positions in the block whose entries have one name."""
        return []

    @fact
    def _namesakes(self) -> list[int]:
        """The numbers of the entries of this name, at most two."""
        pair = next((p for p in self._pairs if self.position in p), (self.position,))
        numbers = [self.number - self.position + position for position in pair]
        return [n for n in numbers if n < self.world.count[self.kind]]

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
        settlements = self.world.count["settlement"]
        place = self.world.find("settlement", self.draw("elsewhere") % settlements)
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
    """A fact: the entry where the relation of this name leads; none if the fact `unlike` is it."""

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


def peer_of(person: str, name: str, unlike: str | None = None) -> fact:
    """A fact: someone as old as the person of another fact; none if the fact `unlike` is it."""

    def find(entry: Entry) -> Entry | None:
        known = getattr(entry, person)
        found = known and known.peer(entry.draw(name))
        return None if unlike and found == getattr(entry, unlike) else found

    return fact(find)


# People

PROFESSIONS = [concepts(trade["professions"]) for trade in table("concepts")["trades"]]
# A verb and its objects, which may depend on the profession.
DEEDS = [
    (concepts(trade["verb"]), concepts(trade["objects"])) for trade in table("concepts")["trades"]
]
PRIZES = [f"the {prize}" for prize in NAMES["prizes"]]
REGIONS, HEROES, PLOTS = CONCEPTS["regions"], CONCEPTS["heroes"], CONCEPTS["plots"]
TRADES = len(PROFESSIONS)  # people in a block, one of each kind of trade
WRITER, COMPOSER, PAINTER, DIRECTOR, ARCHITECT, OTHER_WRITER = 0, 2, 3, 4, 5, 1
OTHER_TRADES = [position for position in range(TRADES) if position != DIRECTOR]
GENERATION = 30  # years


class Person(Entry):
    """A person; people of the same position in their blocks are of the same kind of trade."""

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
        """How many people are of this kind of trade."""
        return self.world.blocks("person", self.position)

    @fact
    def _deed(self) -> tuple[int, int]:
        """The numbers of the deed's object and of its region."""
        objects = DEEDS[self.position][1]
        count = sum(map(len, objects.values())) if isinstance(objects, dict) else len(objects)
        sizes = self._peers, count * len(REGIONS)
        deed = self.world.target(f"deed {self.position}", self.block, *sizes)
        return divmod(deed, len(REGIONS))

    @fact
    def noun(self) -> Concept:
        professions = PROFESSIONS[self.position]
        if isinstance(DEEDS[self.position][1], dict):  # the deed belongs to one of them
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
        """The first of the person's works."""
        return self.world.first_works.get(self.number)

    # Life: people of a trade are born in the order of their age.

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
        """A year in which the person could make something."""
        first = self.born + 23
        return first + choice % (min(self.died, self.born + 75) - first)

    @fact
    def teacher(self) -> "Person | None":
        """Of the same trade and a generation older; three people share a teacher."""
        places = self._peers * GENERATION / _births(self.position)[1]  # in the order of age
        older = self._age // 3 * 3 - 3 * max(1, round(places / 3))
        teacher = _aged(self.world, self.position, older)
        return teacher if teacher and 16 <= self.born - teacher.born <= 55 else None

    birthplace = linked_to("settlement", "birthplace")
    home = linked_to("settlement", "home", unlike="birthplace")

    def peer(self, choice: int) -> "Person | None":
        """Someone as old, `choice` + 1 trades further; for a film director, another director."""
        if self.position == DIRECTOR:
            return _aged(self.world, DIRECTOR, self._age ^ 1)
        place = OTHER_TRADES.index(self.position) + 1 + choice % (len(OTHER_TRADES) - 1)
        return _aged(self.world, OTHER_TRADES[place % len(OTHER_TRADES)], self._age)

    @fact
    def correspondent(self) -> "Person | None":
        """No two people write to the same one: those of an age, so many trades further."""
        return self.peer(self.world.draw("correspondents", self._age))

    @fact
    def other(self) -> "Person | None":
        other = self.peer(self.draw("other"))
        return None if other == self.correspondent else other

    father = picked(CONCEPTS["fathers"], "father")
    prize = picked(PRIZES, "prize")


def _births(position: int) -> tuple[int, int]:
    """The first year of birth and the number of years; there was no film before."""
    return (1880, 40) if position == DIRECTOR else (1720, 180)


def _ages(world: World, position: int) -> Order:
    return world.order(f"age {position}", world.blocks("person", position))


def _aged(world: World, position: int, age: int) -> Person | None:
    """The person at this place in a trade's order of age."""
    people = _ages(world, position).numbers
    return Person(world, people[age] * TRADES + position) if 0 <= age < len(people) else None


# Works

# The medium and the maker's trade, by the work's position in its block.
MEDIUMS = ["book", "music", "picture", "film", "book"]
MAKERS = [WRITER, COMPOSER, PAINTER, DIRECTOR, OTHER_WRITER]
KINDS_OF_WORK = concepts(table("concepts")["media"])


class Work(Entry):
    """A work; in each block two, of different media, have the same title."""

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
        """Which of the maker's works it is, and the maker's block; some people have no work."""
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
        sizes = self.world.count["work"], len(HEROES) * len(PLOTS)
        story = self.world.target("story", self.number, *sizes)
        plot, hero = divmod(story, len(HEROES))
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

POPULATIONS = table("concepts")["populations"]


class Settlement(Entry):
    """A village, town, port or city."""

    kind = "settlement"
    telling = ("name", "statue", "neighbour", "river")

    def _place_in(self, order: str) -> int:
        return self.world.order(order, self.world.count["settlement"]).places[self.number]

    @fact
    def name(self) -> str:
        return self.world.names.places(self._place_in("place name"))

    noun = picked(CONCEPTS["sizes"], "size")

    @fact
    def population(self) -> str:
        low, high = POPULATIONS[self.noun[0]]
        return f"{100 * (low + self.draw('population') % (high - low)):,}"

    @fact
    def river(self) -> str:
        sizes = self.world.count["settlement"], self.world.rivers
        return "the " + self.world.names.rivers(self.world.target("river", self.number, *sizes))

    @fact
    def province(self) -> str:
        return self.pick(self.world.names.provinces, "province")

    @fact
    def neighbour(self) -> "Settlement":
        """The next one along a road that goes round through all of them."""
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
        """After a person without a namesake, if well known by then, or after the place."""
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
        sizes = self.world.count["building"], active
        block = self.world.target("architect", self.number, *sizes)
        return Person(self.world, block * TRADES + ARCHITECT)

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
# `title` takes the place, `years` are the first and the one after the last, `role` is the part of
# the best-known person.
HAPPENINGS = table("concepts")["happenings"]


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
        """From the first year to the event's."""
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
        """Someone of about the right age, not a film director."""
        position = OTHER_TRADES[self.draw("leader") % len(OTHER_TRADES)]
        start, years = _births(position)
        born = FIRST_YEAR - LEADER_AGE + self._years - start
        people = self.world.blocks("person", position)
        return _aged(self.world, position, int(born * people / years))

    other = peer_of("leader", "other")


KINDS = {kind.kind: kind for kind in (Person, Settlement, Building, Work, Event)}
