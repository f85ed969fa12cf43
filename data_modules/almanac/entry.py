"""What all entries have in common: a number, a name, facts, and rivals that share a fact."""

from collections.abc import Callable, Iterable
from typing import Any

from data_modules.almanac.randomness import Link
from data_modules.almanac.world import World


class fact:
    """A property computed when first asked for (functools.cached_property, without its lock)."""

    def __init__(self, function: Callable):
        self.function, self.name, self.__doc__ = function, function.__name__, function.__doc__

    def __get__(self, entry, kind):
        if entry is None:
            return self
        value = self.function(entry)
        entry.__dict__[self.name] = value
        return value


class Entry:
    """One entry of the world. Its facts are attributes, computed when first asked for.

    A fact is a string, a year, a Concept or another entry; None if the entry has no such fact.
    Every kind has `name` and `noun`, the concept of what it is. `rivals[fact](entry)` gives
    the numbers of all entries of the kind that may have the same fact, or one of the same name, the
    entry's own among them, for the facts that can be followed backwards, those with few rivals
    first.
    """

    kind: str
    rivals: dict[str, Callable[[Any], Iterable[int]]]
    name: str
    noun: tuple[str, ...]

    def __init__(self, world: World, number: int):
        self.world, self.number = world, number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entry) and (self.kind, self.number) == (other.kind, other.number)

    def __hash__(self) -> int:
        return hash((self.kind, self.number))

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

    def others_linked(self, name: str, target: str) -> Iterable[int]:
        """The entries of this kind whose link leads to the same entry or one of its name."""
        link = self.link(name, target)
        found = self.world.find(target, link.target(self.number))
        return (source for entry in found.of_the_name() for source in link.sources(entry.number))

    def of_the_name(self) -> "list[Entry]":
        """The entries of this name, of which there are at most two."""
        return [self.world.find(self.kind, number) for number in self.rivals["name"](self)]

    @fact
    def namesake(self) -> "Entry | None":
        """The other entry of the same name."""
        return next((entry for entry in self.of_the_name() if entry != self), None)

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


def decade(year: int) -> str:
    """What follows "in the"; "1800s" could be a century."""
    first = year // 10 * 10
    return f"{first}s" if first % 100 else f"years {first} to {first + 9}"
