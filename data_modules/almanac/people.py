"""People: their trades, lives, teachers and friends."""

from collections.abc import Iterable, Iterator

from data_modules.almanac import lexicon
from data_modules.almanac.entry import Entry, decade, fact
from data_modules.almanac.lexicon import Concept, Phrase
from data_modules.almanac.randomness import Link, Permutation
from data_modules.almanac.trades import DEEDS, PROFESSIONS, REGIONS
from data_modules.almanac.world import World

TRADES = len(PROFESSIONS)  # people in a block, one of each kind of trade
WRITER, COMPOSER, PAINTER, DIRECTOR, ARCHITECT, OTHER_WRITER = 0, 2, 3, 4, 5, 1
OTHER_TRADES = [position for position in range(TRADES) if position != DIRECTOR]
GENERATION = 30  # years


class Person(Entry):
    """A person; people of the same position in their blocks are of the same kind of trade."""

    kind = "person"

    @property
    def block(self) -> int:
        return self.number // TRADES

    @property
    def position(self) -> int:
        return self.number % TRADES

    # Names: two pairs in each block share theirs.

    @fact
    def _namesakes(self) -> list[int]:
        for pair in _pairs(self.world.draw("namesakes", self.block)):
            if self.position in pair:
                numbers = [self.block * TRADES + position for position in pair]
                return [n for n in numbers if n < self.world.count["person"]]
        return [self.number]

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

    @fact
    def _deeds(self) -> Link:
        blocks = self.world.blocks("person", self.position)
        objects = DEEDS[self.position][1]
        count = sum(map(len, objects.values())) if isinstance(objects, dict) else len(objects)
        return self.world.link(f"deed {self.position}", blocks, count * len(REGIONS))

    @fact
    def noun(self) -> Concept:
        professions = PROFESSIONS[self.position]
        if isinstance(DEEDS[self.position][1], dict):  # the deed belongs to one of them
            return professions[self._deeds.target(self.block) // len(REGIONS) % len(professions)]
        return self.pick(professions, "profession")

    @fact
    def deed(self) -> Phrase:
        verb, objects = DEEDS[self.position]
        what, where = divmod(self._deeds.target(self.block), len(REGIONS))
        if isinstance(objects, dict):
            what, objects = what // len(objects), objects[self.noun[0]]
        return Phrase((verb, objects[what], REGIONS[where]))

    def others_of_deed(self) -> Iterator[int]:
        blocks = self._deeds.sources(self._deeds.target(self.block))
        return (block * TRADES + self.position for block in blocks)

    @fact
    def opus(self) -> Entry | None:
        """The first of the person's works."""
        work = self.world.kinds["work"]
        return min(work.by(self), key=lambda work: work.year, default=None)

    # Life: people of a trade are born in the order of their age.

    @fact
    def _age(self) -> int:
        return _ages(self.world, self.position)(self.block)

    @property
    def birth_years(self) -> tuple[float, float]:
        """The time in which one of this place in the order of age is born."""
        first, years = _births(self.position)
        count = self.world.blocks("person", self.position)
        return first + self._age * years / count, first + (self._age + 1) * years / count

    @fact
    def born(self) -> int:
        first, last = self.birth_years
        return int(first) + self.draw("born") % max(1, int(last - first))

    @fact
    def died(self) -> int:
        return self.born + 48 + self.draw("died") % 42

    @property
    def born_decade(self) -> str:
        return decade(self.born)

    @property
    def died_decade(self) -> str:
        return decade(self.died)

    def working_year(self, choice: int) -> int:
        """A year in which the person could make something."""
        first = self.born + 23
        return first + choice % (min(self.died, self.born + 75) - first)

    @property
    def _generation(self) -> int:
        """How many places in the order of age make a generation, in threes."""
        count = self.world.blocks("person", self.position)
        return 3 * max(1, round(count * GENERATION / _births(self.position)[1] / 3))

    @fact
    def teacher(self) -> "Person | None":
        """Of the same trade and a generation older; three people share a teacher."""
        teacher = _aged(self.world, self.position, self._age // 3 * 3 - self._generation)
        return teacher if teacher and 16 <= self.born - teacher.born <= 55 else None

    def pupils(self) -> Iterator[int]:
        """The numbers of those whose teacher this may be."""
        ages = range(self._age + self._generation, self._age + self._generation + 3)
        found = (_aged(self.world, self.position, age) for age in ages if self._age % 3 == 0)
        return (person.number for person in found if person)

    @fact
    def birthplace(self) -> Entry:
        return self.linked("birthplace", "settlement")

    @fact
    def home(self) -> Entry | None:
        home = self.linked("home", "settlement")
        return None if home == self.birthplace else home

    def peer(self, choice: int) -> "Person | None":
        """Someone as old, `choice` + 1 trades further; for a film director, another director."""
        if self.position == DIRECTOR:
            return _aged(self.world, DIRECTOR, self._age ^ 1)
        place = OTHER_TRADES.index(self.position) + 1 + choice % (len(OTHER_TRADES) - 1)
        return _aged(self.world, OTHER_TRADES[place % len(OTHER_TRADES)], self._age)

    def peers(self, positions: Iterable[int]) -> "Iterator[Person]":
        """All people of these positions who may have this person as a peer."""
        if self.position == DIRECTOR:
            found = [_aged(self.world, DIRECTOR, self._age ^ 1)]
        else:
            others = (position for position in positions if position != DIRECTOR)
            found = [_aged(self.world, position, self._age) for position in others]
        return (person for person in found if person)

    @fact
    def _step(self) -> int:
        """How many trades further people of this age have their correspondents."""
        return self.world.draw("correspondents", self._age) % (len(OTHER_TRADES) - 1)

    @fact
    def correspondent(self) -> "Person | None":
        """No two people write to the same one."""
        return self.peer(self._step)

    def others_of_correspondent(self) -> Iterator[int]:
        for person in self.correspondent.of_the_name():
            writer = person.peer(-1 - person._step)  # as many trades back
            if writer:
                yield writer.number

    @fact
    def other(self) -> "Person | None":
        other = self.peer(self.draw("other"))
        return None if other == self.correspondent else other

    @fact
    def father(self) -> Concept:
        return self.pick(lexicon.TRADES, "father")

    @fact
    def prize(self) -> str:
        return "the " + self.pick(lexicon.PRIZES, "prize")


Person.rivals = {
    "name": lambda p: p._namesakes,
    "opus": lambda p: [work.maker.number for work in p.opus.of_the_name()],
    "correspondent": Person.others_of_correspondent,
    "teacher": lambda p: [n for teacher in p.teacher.of_the_name() for n in teacher.pupils()],
    "birthplace": lambda p: p.others_linked("birthplace", "settlement"),
    "home": lambda p: p.others_linked("home", "settlement"),
    "deed": Person.others_of_deed,
}


def _pairs(choice: int) -> list[tuple[int, int]]:
    """Two pairs of different positions, the earlier one first."""
    half = TRADES // 2
    first, second = choice % half, choice // half % half
    step = 1 + choice // TRADES**2 % (half - 1)
    return [(first, half + second), ((first + step) % half, half + (second + step) % half)]


def _births(position: int) -> tuple[int, int]:
    """The first year of birth and the number of years; there was no film before."""
    return (1880, 40) if position == DIRECTOR else (1720, 180)


def _ages(world: World, position: int) -> Permutation:
    return world.order(f"age {position}", world.blocks("person", position))


def _aged(world: World, position: int, age: int) -> Person | None:
    """The person at this place in a trade's order of age."""
    ages = _ages(world, position)
    return Person(world, ages.inverse(age) * TRADES + position) if 0 <= age < ages.size else None


def of_year(world: World, choice: int, year: float) -> Person | None:
    """Someone born in about that year, not a film director."""
    position = OTHER_TRADES[choice % len(OTHER_TRADES)]
    first, years = _births(position)
    return _aged(world, position, int((year - first) * world.blocks("person", position) / years))
