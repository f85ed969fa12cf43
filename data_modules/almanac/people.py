"""People and what they make: trades, lives, teachers and friends; books, music, pictures, films."""

from collections.abc import Iterator

from data_modules.almanac.world import (
    CONCEPTS,
    NAMES,
    Concept,
    Entry,
    Link,
    Permutation,
    Phrase,
    World,
    concepts,
    decade_of,
    fact,
    linked_to,
    picked,
    table,
)

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

    @fact
    def opus(self) -> Entry | None:
        """The first of the person's works."""
        work = self.world.kinds["work"]
        return min(work.by(self), key=lambda work: work.year, default=None)

    # Life: people of a trade are born in the order of their age.

    @fact
    def _age(self) -> int:
        return _ages(self.world, self.position)(self.block)

    @fact
    def born(self) -> int:
        start, years = _births(self.position)
        count = self.world.blocks("person", self.position)
        first, last = (start + age * years / count for age in (self._age, self._age + 1))
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

    birthplace = linked_to("settlement", "birthplace")
    home = linked_to("settlement", "home", unlike="birthplace")

    def peer(self, choice: int) -> "Person | None":
        """Someone as old, `choice` + 1 trades further; for a film director, another director."""
        if self.position == DIRECTOR:
            return _aged(self.world, DIRECTOR, self._age ^ 1)
        place = OTHER_TRADES.index(self.position) + 1 + choice % (len(OTHER_TRADES) - 1)
        return _aged(self.world, OTHER_TRADES[place % len(OTHER_TRADES)], self._age)

    @fact
    def _step(self) -> int:
        """How many trades further people of this age have their correspondents."""
        return self.world.draw("correspondents", self._age) % (len(OTHER_TRADES) - 1)

    @fact
    def correspondent(self) -> "Person | None":
        """No two people write to the same one."""
        return self.peer(self._step)

    @fact
    def other(self) -> "Person | None":
        other = self.peer(self.draw("other"))
        return None if other == self.correspondent else other

    father = picked(CONCEPTS["fathers"], "father")
    prize = picked(PRIZES, "prize")


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

    @fact
    def _namesakes(self) -> list[int]:
        second = 1 + self.world.draw("same title", self.block) % 3
        if self.position not in (0, second):
            return [self.number]
        first = self.block * len(MEDIUMS)
        return [n for n in (first, first + second) if n < self.world.count["work"]]

    @fact
    def name(self) -> str:
        titles = self.world.order("title", self.world.count["work"])
        places = self.world.count["settlement"]
        return self.world.names.title(titles(self._namesakes[0]), places)

    @fact
    def maker(self) -> Person:
        block = _makers(self.world, self.position).target(self.block)
        return Person(self.world, block * TRADES + MAKERS[self.position])

    @classmethod
    def by(cls, maker: Person) -> Iterator["Work"]:
        """All works of a person."""
        if maker.position in MAKERS:
            position = MAKERS.index(maker.position)
            for block in _makers(maker.world, position).sources(maker.block):
                yield cls(maker.world, block * len(MEDIUMS) + position)

    @fact
    def year(self) -> int:
        return self.maker.working_year(self.draw("year"))

    year_decade = decade_of("year")

    @property
    def _stories(self) -> Link:
        return self.world.link("story", self.world.count["work"], len(HEROES) * len(PLOTS))

    @fact
    def story(self) -> Phrase:
        plot, hero = divmod(self._stories.target(self.number), len(HEROES))
        return Phrase((HEROES[hero], PLOTS[plot]))

    @property
    def hero(self) -> Concept:
        return self.story[0]

    setting = linked_to("settlement", "setting")
    venue = linked_to("settlement", "venue", unlike="setting")
    prize = picked(PRIZES, "prize")

    @fact
    def dedicatee(self) -> Person | None:
        return self.maker.peer(self.draw("dedicatee"))

    @fact
    def other(self) -> Person | None:
        person = self.maker.peer(self.draw("other"))
        return None if person == self.dedicatee else person


def _makers(world: World, position: int) -> Link:
    """Some people have several works, some have none."""
    active = max(1, world.blocks("person", MAKERS[position]) * 3 // 5)
    return world.link(f"maker {position}", world.blocks("work", position), active)
