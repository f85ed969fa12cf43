"""Events, each in a place of its own."""

from collections.abc import Iterator

from data_modules.almanac import lexicon
from data_modules.almanac.entry import Entry, decade, fact
from data_modules.almanac.happenings import DURATIONS, HAPPENINGS, Happening
from data_modules.almanac.lexicon import Concept
from data_modules.almanac.people import Person, of_year
from data_modules.almanac.randomness import Permutation

FIRST_YEAR, YEARS = 1765, 175
LEADER_AGE = 42


class Event(Entry):
    """A siege, flood, fire, congress, exhibition or strike."""

    kind = "event"

    @fact
    def happening(self) -> Happening:
        return self.pick([h for h in HAPPENINGS if self.year in h.years], "happening")

    @fact
    def name(self) -> str:
        return self.happening.title.format(self.location.name)

    @property
    def noun(self) -> Concept:
        return self.happening.noun

    @fact
    def location(self) -> Entry:
        return self.linked("location", "settlement")

    @property
    def _order(self) -> Permutation:
        """Of the events in time."""
        return self.world.order("event", self.world.count["event"])

    @fact
    def year(self) -> int:
        return FIRST_YEAR + self._order(self.number) * YEARS // self._order.size

    @property
    def year_decade(self) -> str:
        return decade(self.year)

    def others_of_year(self) -> Iterator[int]:
        order = self._order
        start, stop = (
            -((FIRST_YEAR - year) * order.size // YEARS) for year in (self.year, self.year + 1)
        )
        return map(order.inverse, range(start, stop))

    @fact
    def month(self) -> str:
        return self.pick(lexicon.MONTHS, "month")

    @fact
    def duration(self) -> str:
        return self.pick(DURATIONS, "duration")

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

    def others_of_leader(self) -> Iterator[int]:
        """The events at the time when people of the leader's name were of a leader's age."""
        order = self._order
        for person in self.leader.of_the_name():
            first, last = (
                (year + LEADER_AGE - FIRST_YEAR) * order.size / YEARS for year in person.birth_years
            )
            moments = range(max(0, int(first) - 1), min(int(last) + 2, order.size))
            yield from map(order.inverse, moments)

    @fact
    def other(self) -> Person | None:
        return self.leader and self.leader.peer(self.draw("other"))


Event.rivals = {
    "name": lambda e: [e.number],
    "location": lambda e: [e.number],
    "leader": Event.others_of_leader,
    "year": Event.others_of_year,
}
