"""Works: books, music, pictures and films, each by a person of the fitting trade."""

from collections.abc import Iterator

from data_modules.almanac import lexicon
from data_modules.almanac.entry import Entry, decade, fact
from data_modules.almanac.lexicon import HEROES, PLOTS, Concept, Phrase
from data_modules.almanac.people import (
    COMPOSER,
    DIRECTOR,
    OTHER_WRITER,
    PAINTER,
    TRADES,
    WRITER,
    Person,
)
from data_modules.almanac.randomness import Link
from data_modules.almanac.world import World

# The medium and the maker's trade, by the work's position in its block.
MEDIA = ["book", "music", "picture", "film", "book"]
MAKERS = [WRITER, COMPOSER, PAINTER, DIRECTOR, OTHER_WRITER]


class Work(Entry):
    """A work; in each block two, of different media, have the same title."""

    kind = "work"

    @property
    def block(self) -> int:
        return self.number // len(MEDIA)

    @property
    def position(self) -> int:
        return self.number % len(MEDIA)

    @property
    def medium(self) -> str:
        return MEDIA[self.position]

    @fact
    def noun(self) -> Concept:
        return self.pick(lexicon.MEDIA[self.medium], "type")

    @fact
    def _namesakes(self) -> list[int]:
        second = 1 + self.world.draw("same title", self.block) % 3
        if self.position not in (0, second):
            return [self.number]
        first = self.block * len(MEDIA)
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
                yield cls(maker.world, block * len(MEDIA) + position)

    @fact
    def year(self) -> int:
        return self.maker.working_year(self.draw("year"))

    @property
    def year_decade(self) -> str:
        return decade(self.year)

    @property
    def _stories(self) -> Link:
        return self.world.link("story", self.world.count["work"], len(HEROES) * len(PLOTS))

    @fact
    def story(self) -> Phrase:
        plot, hero = divmod(self._stories.target(self.number), len(HEROES))
        return Phrase((HEROES[hero], PLOTS[plot]))

    def others_of_story(self) -> Iterator[int]:
        return self._stories.sources(self._stories.target(self.number))

    @property
    def hero(self) -> Concept:
        return self.story[0]

    @fact
    def setting(self) -> Entry:
        return self.linked("setting", "settlement")

    @fact
    def venue(self) -> Entry | None:
        venue = self.linked("venue", "settlement")
        return None if venue == self.setting else venue

    @fact
    def prize(self) -> str:
        return "the " + self.pick(lexicon.PRIZES, "prize")

    @fact
    def dedicatee(self) -> Person | None:
        return self.maker.peer(self.draw("dedicatee"))

    def others_of_dedicatee(self) -> Iterator[int]:
        """The works of all makers who have people of the dedicatee's name as peers."""
        for person in self.dedicatee.of_the_name():
            for maker in person.peers(MAKERS):
                yield from (work.number for work in Work.by(maker))

    @fact
    def other(self) -> Person | None:
        person = self.maker.peer(self.draw("other"))
        return None if person == self.dedicatee else person


def _makers(world: World, position: int) -> Link:
    """Some people have several works, some have none."""
    active = max(1, world.blocks("person", MAKERS[position]) * 3 // 5)
    return world.link(f"maker {position}", world.blocks("work", position), active)


Work.rivals = {
    "name": lambda w: w._namesakes,
    "maker": lambda w: [work.number for maker in w.maker.of_the_name() for work in Work.by(maker)],
    "dedicatee": Work.others_of_dedicatee,
    "setting": lambda w: w.others_linked("setting", "settlement"),
    "venue": lambda w: w.others_linked("venue", "settlement"),
    "story": Work.others_of_story,
}
