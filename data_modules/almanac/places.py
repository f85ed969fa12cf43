"""Settlements, and what there is and happens in them: buildings and events."""

from typing import NamedTuple

from data_modules.almanac.people import ARCHITECT, TRADES, Person, of_year
from data_modules.almanac.world import (
    CONCEPTS,
    NAMES,
    Concept,
    Entry,
    Link,
    Permutation,
    concepts,
    decade_of,
    fact,
    linked_to,
    picked,
    table,
)

POPULATIONS = table("concepts")["populations"]


class Settlement(Entry):
    """A village, town, port or city."""

    kind = "settlement"
    telling = ("name", "statue", "neighbour", "river")

    @fact
    def name(self) -> str:
        order = self.world.order("place name", self.world.count["settlement"])
        return self.world.names.places(order(self.number))

    noun = picked(CONCEPTS["sizes"], "size")

    @fact
    def population(self) -> str:
        low, high = POPULATIONS[self.noun[0]]
        return f"{100 * (low + self.draw('population') % (high - low)):,}"

    @property
    def _rivers(self) -> Link:
        return self.world.link("river", self.world.count["settlement"], self.world.rivers)

    @fact
    def river(self) -> str:
        return "the " + self.world.names.rivers(self._rivers.target(self.number))

    @fact
    def province(self) -> str:
        return self.pick(self.world.names.provinces, "province")

    @fact
    def neighbour(self) -> "Settlement":
        """The next one along a road that goes round through all of them."""
        road = self.world.order("road", self.world.count["settlement"])
        return Settlement(self.world, road.inverse((road(self.number) + 1) % road.size))

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

    @property
    def _architects(self) -> Link:
        """Some architects have several buildings, some have none."""
        active = max(1, self.world.blocks("person", ARCHITECT) * 3 // 5)
        return self.world.link("architect", self.world.count["building"], active)

    @fact
    def architect(self) -> Person:
        return Person(self.world, self._architects.target(self.number) * TRADES + ARCHITECT)

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

    @fact
    def other(self) -> Person | None:
        return self.architect.peer(self.draw("other"))


FIRST_YEAR, YEARS = 1765, 175
LEADER_AGE = 42


class Happening(NamedTuple):
    """A kind of event; `title` takes the place, `role` is the part of its best-known person."""

    noun: Concept
    title: str
    years: range
    role: Concept
    causes: list[Concept]
    outcomes: list[Concept]

    @classmethod
    def of(cls, title: str, years: list[int], **words: str | list[str]) -> "Happening":
        return cls(title=title, years=range(*years), **concepts(words))


HAPPENINGS = [Happening.of(**row) for row in table("concepts")["happenings"]]


class Event(Entry):
    """A siege, flood, fire, congress, exhibition or strike."""

    kind = "event"
    telling = ("name", "location", "leader", "year")

    @fact
    def happening(self) -> Happening:
        return self.pick([h for h in HAPPENINGS if self.year in h.years], "happening")

    @fact
    def name(self) -> str:
        return self.happening.title.format(self.location.name)

    @property
    def noun(self) -> Concept:
        return self.happening.noun

    location = linked_to("settlement", "location")

    @property
    def _order(self) -> Permutation:
        """Of the events in time."""
        return self.world.order("event", self.world.count["event"])

    @fact
    def year(self) -> int:
        return FIRST_YEAR + self._order(self.number) * YEARS // self._order.size

    year_decade = decade_of("year")

    month = picked(NAMES["months"], "month")
    duration = picked(NAMES["durations"], "duration")

    @fact
    def cause(self) -> Concept:
        return self.pick(self.happening.causes, "cause")

    @fact
    def outcome(self) -> Concept:
        return self.pick(self.happening.outcomes, "outcome")

    @property
    def role(self) -> Concept:
        return self.happening.role

    @fact
    def leader(self) -> Person | None:
        born = FIRST_YEAR - LEADER_AGE + self._order(self.number) * YEARS / self._order.size
        return of_year(self.world, self.draw("leader"), born)

    @fact
    def other(self) -> Person | None:
        return self.leader and self.leader.peer(self.draw("other"))
