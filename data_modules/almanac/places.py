"""Settlements and the buildings in them."""

from collections.abc import Iterator

from data_modules.almanac import lexicon
from data_modules.almanac.entry import Entry, decade, fact
from data_modules.almanac.lexicon import Concept
from data_modules.almanac.people import ARCHITECT, TRADES, Person
from data_modules.almanac.randomness import Link

CENTURIES = ["twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth"]
POPULATIONS = {"village": (3, 20), "town": (40, 300), "port": (60, 500), "city": (800, 9000)}


class Settlement(Entry):
    """A village, town, port or city."""

    kind = "settlement"

    @fact
    def name(self) -> str:
        order = self.world.order("place name", self.world.count["settlement"])
        return self.world.names.places(order(self.number))

    @fact
    def noun(self) -> Concept:
        return self.pick(lexicon.SIZES, "size")

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

    def others_on_river(self) -> Iterator[int]:
        return self._rivers.sources(self._rivers.target(self.number))

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
        return f"{CENTURIES[self.founded // 100 - 11]} century"

    @fact
    def founders(self) -> Concept:
        return self.pick(lexicon.FOUNDERS, "founders")

    @fact
    def product(self) -> Concept:
        return self.pick(lexicon.PRODUCTS, "product")

    @fact
    def sight(self) -> Concept:
        return self.pick(lexicon.SIGHTS, "sight")

    @fact
    def fair(self) -> Concept:
        return self.pick(lexicon.FAIRS, "fair")

    @fact
    def month(self) -> str:
        return self.pick(lexicon.MONTHS, "month")

    @fact
    def statue(self) -> Person:
        return self.linked("statue", "person")

    @fact
    def other(self) -> Person | None:
        person = self.linked("other", "person")
        return None if person == self.statue else person


Settlement.rivals = {
    "name": lambda s: [s.number],
    "statue": lambda s: s.others_linked("statue", "person"),
    "neighbour": lambda s: [s.number],
    "river": Settlement.others_on_river,
}


class Building(Entry):
    """A building; no two stand in the same settlement."""

    kind = "building"

    @fact
    def name(self) -> str:
        """After a person without a namesake, if well known by then, or after the place."""
        someone = self.linked("honour", "person")
        known = someone.namesake is None and someone.born + 30 < self.completed
        return f"{someone.name if known else self.location.name} {self.noun[0].title()}"

    @fact
    def noun(self) -> Concept:
        buildings = lexicon.OLD_BUILDINGS if self.completed < 1850 else lexicon.BUILDINGS
        return self.pick(buildings, "type")

    @fact
    def location(self) -> Settlement:
        return self.linked("location", "settlement")

    @property
    def _architects(self) -> Link:
        """Some architects have several buildings, some have none."""
        active = max(1, self.world.blocks("person", ARCHITECT) * 3 // 5)
        return self.world.link("architect", self.world.count["building"], active)

    @fact
    def architect(self) -> Person:
        return Person(self.world, self._architects.target(self.number) * TRADES + ARCHITECT)

    def others_of_architect(self) -> Iterator[int]:
        return self._architects.sources(self._architects.target(self.number))

    @fact
    def completed(self) -> int:
        return self.architect.working_year(self.draw("completed"))

    @property
    def completed_decade(self) -> str:
        return decade(self.completed)

    @fact
    def material(self) -> Concept:
        return self.pick(lexicon.MATERIALS, "material")

    @fact
    def feature(self) -> Concept:
        return self.pick(lexicon.FEATURES, "feature")

    @fact
    def payer(self) -> Concept:
        return self.pick(lexicon.PAYERS, "payer")

    @fact
    def plaque(self) -> Person | None:
        plaque = self.linked("plaque", "person")
        return None if plaque == self.architect or plaque.name in self.name else plaque

    @fact
    def other(self) -> Person | None:
        return self.architect.peer(self.draw("other"))


Building.rivals = {
    "name": lambda b: [b.number],
    "location": lambda b: [b.number],
    "plaque": lambda b: b.others_linked("plaque", "person"),
    "architect": Building.others_of_architect,
}
