"""All kinds of entry, put together to a world."""

from data_modules.almanac.events import Event
from data_modules.almanac.people import Person
from data_modules.almanac.places import Building, Settlement
from data_modules.almanac.works import Work
from data_modules.almanac.world import World

KINDS = {kind.kind: kind for kind in (Person, Settlement, Building, Work, Event)}


def new_world(size: int, seed: int) -> World:
    """The world of an almanac of `size` documents."""
    return World(size, seed, KINDS)
